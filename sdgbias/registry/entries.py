"""The model registry: one YAML file per model in ``registry/models/``, found by stem; fields:
registry/README.md.

A model is a candidate, enabled, quarantined or retired; ``set_state`` moves it, ``due`` lists the
models that a nightly run scores.

Everything here raises ``RegistryError`` with one line that names the file, the invalid value and
the valid ones. Nothing heavier than pydantic is imported at the top. ``propose.propose`` makes new
entries.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

from sdgbias import credentials, formats
from sdgbias import files as yaml_text
from sdgbias.errors import InputError, RegistryError, one_of
from sdgbias.files import project_file
from sdgbias.registry.spec import VALID_REPOS, VALID_VIEWS, ModelSpec
from sdgbias.types import (
    CANDIDATE,
    ENABLED,
    IMAGE_FREE,
    QUARANTINED,
    RETIRED,
    SDG,
    SUITES,
    VIEWS,
)

#: The nightly suites of a model whose entry has no option `suites`.
DEFAULT_SUITES = (SDG,)
UNPINNED = "unpinned"
ENV_ROOT = "SDGBIAS_REGISTRY"
_GO_THERE = (
    f"change to the project, make one (sdgbias init), or: export {ENV_ROOT}=/path/to/project"
)
_README = "see registry/README.md"
SCHEMA_LINE = "# yaml-language-server: $schema=../model.schema.json\n"

#: The allowed transitions.
MOVES = {
    CANDIDATE: (CANDIDATE, ENABLED, RETIRED),
    ENABLED: (ENABLED, QUARANTINED, RETIRED),
    QUARANTINED: (QUARANTINED, ENABLED, RETIRED),
    RETIRED: (RETIRED, ENABLED),
}

REQUIRED = ("name", "title", "backend", "repo", "revision", "state")
#: written even where they equal the default, so that a later default never changes a registered
#: model
_ALWAYS = (*REQUIRED, "dtype", "batch_size")
FIELDS = tuple(f.name for f in dataclasses.fields(ModelSpec))
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
#: Valid names of suites.
SUITE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


# ----------------------------------------------------------------------
# finding files


def find_root(start: Path | None = None) -> Path:
    """The project's root: the folder that the environment variable SDGBIAS_REGISTRY names, else the
    nearest folder at or above ``start`` (default: the working folder) with registry/models in it,
    else, where ``start`` isn't given, the package's own, which has no models. RegistryError when
    there is none."""
    named = os.environ.get(ENV_ROOT, "")
    if named and start is None:
        if (Path(named) / "registry" / "models").is_dir():
            return Path(named).resolve()
        raise RegistryError(
            f"{ENV_ROOT}={named}: no registry/models in it; name the folder that holds"
            " registry/models"
        )
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, *([] if start else [project_file()])):
        if (folder / "registry" / "models").is_dir():
            return folder
    raise RegistryError(f"no registry/models folder at or above {here}; {_GO_THERE}")


def _files(root: Path) -> dict[str, Path]:
    """Stem -> file of every entry, sorted."""
    folder = root / "registry" / "models"
    if not folder.is_dir():
        raise RegistryError(f"{folder}: no such folder; {_GO_THERE}")
    files = (p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.name[0] != ".")
    # of m.yaml and m.yml the latter, which `read` refuses
    return {path.stem: path for path in sorted(files)}


def load_all(root: Path | None = None) -> dict[str, ModelSpec]:
    """Every entry by name, sorted by name. RegistryError at the first file that is not valid."""
    return {stem: read(path) for stem, path in _files(root or find_root()).items()}


def load_readable(root: Path | None = None) -> tuple[dict[str, ModelSpec], dict[str, str]]:
    """(the valid entries by name, file stem -> its fault): one broken file doesn't hide the
    others."""
    readable: dict[str, ModelSpec] = {}
    broken: dict[str, str] = {}
    for stem, path in _files(root or find_root()).items():
        try:
            readable[stem] = read(path)
        except RegistryError as error:
            broken[stem] = str(error)
    return readable, broken


def due(root: Path | None, today: date) -> dict[str, ModelSpec]:
    """The models that a nightly run scores, sorted by name: the enabled entries, and the
    quarantined ones whose ``until`` is today or past. RegistryError at the first file that is not
    valid."""
    return {name: spec for name, spec in load_all(root).items() if is_due(spec, today)}


def is_due(spec: ModelSpec, today: date) -> bool:
    """Whether a nightly run of this day scores the model. A quarantine without a date ends only
    when the model is enabled by hand."""
    return spec.enabled or (spec.until != "" and date.fromisoformat(spec.until) <= today)


def load(root: Path | None, name: str) -> ModelSpec:
    """One entry by name; the others are not read, so a broken neighbour can't block it.
    RegistryError for an unknown name lists the known ones."""
    files = _files(root or find_root())
    if name not in files:
        raise RegistryError(one_of("model", name, files) + "; add one: sdgbias register-model REPO")
    return read(files[name])


# ----------------------------------------------------------------------
# validation


def read(path: Path) -> ModelSpec:
    """The entry of one YAML file, also outside the registry (a snapshot). RegistryError when it is
    not valid."""
    try:
        return _parsed(yaml_text.read_small(path), path)
    except InputError as error:
        raise RegistryError(f"{error}; {_README}") from None
    except (UnicodeDecodeError, OSError) as error:
        raise RegistryError(f"{path}: can't be read ({type(error).__name__}); {_README}") from None


def _parsed(text: str, path: Path) -> ModelSpec:
    spec = parse(formats.load_text(text, path, RegistryError, _README), path)
    if path.name != f"{spec.name}.yaml":
        raise RegistryError(f"{path}: the file of model {spec.name} is named {spec.name}.yaml")
    return spec


def parse(data: object, where: Path | str) -> ModelSpec:
    """A mapping as read from YAML -> ModelSpec. ``where`` names the file in errors. RegistryError
    on any fault."""
    if isinstance(data, dict):
        _refuse_secrets(data, where)
    spec = formats.parse(data, ModelSpec, where, RegistryError)
    for fault in _faults(spec):
        raise RegistryError(f"{where}: {fault}")
    return spec


def _refuse_secrets(data: Mapping[Any, Any], where: Path | str) -> None:
    """RegistryError for credentials in YAML; the value itself is not repeated in the message."""
    key = credentials.find(data, allowed=("api_key_env", "max_new_tokens"))
    if key:
        raise RegistryError(
            f"{where}: {key!r} looks like a secret; keep it out of YAML and name an environment"
            " variable instead: options: {api_key_env: VARIABLE_NAME}"
        )


def _faults(spec: ModelSpec) -> Iterator[str]:
    """The faults of a well-typed spec, as sentences without the file's name."""
    if spec.views not in (VIEWS, IMAGE_FREE):
        yield f"views is {list(spec.views)!r}; valid: {VALID_VIEWS}"
    yield from _repo_faults(spec)
    yield from _state_faults(spec)
    if spec.trust_remote_code and not spec.notes.strip():
        yield (
            "trust_remote_code is true without notes; valid: notes that say who read its code, at"
            " which commit"
        )
    if spec.backend == "api" and not ENV_NAME.fullmatch(str(spec.options.get("api_key_env", ""))):
        yield (
            "backend api needs options.api_key_env; valid: the NAME of an environment variable such"
            " as OPENAI_API_KEY"
        )

    names = spec.options.get("suites", list(DEFAULT_SUITES))
    if not isinstance(names, list) or not names or any(suite_fault(name) for name in names):
        yield (
            f"options.suites is {names!r}; valid: a list of {', '.join(SUITES)} and names of your"
            " own suites"
        )


def _state_faults(spec: ModelSpec) -> Iterator[str]:
    if not spec.enabled and not spec.reason.strip():
        yield (
            f"state is {spec.state} without a reason; valid: reason: one line that says why and"
            " what would enable it"
        )
    if "\n" in spec.reason.strip():
        yield "reason has several lines; valid: one line"
    if spec.until and spec.state != QUARANTINED:
        yield (
            f"until is {spec.until!r} but state is {spec.state}; valid: until only for a"
            " quarantined model"
        )
    if spec.until and not is_date(spec.until):
        yield f"until is {spec.until!r}; valid: a date such as 2026-11-30"


def is_date(text: str) -> bool:
    """Whether the text is a date such as 2026-11-30."""
    try:
        return len(text) == 10 and bool(date.fromisoformat(text))
    except ValueError:
        return False


def suites(spec: ModelSpec) -> tuple[str, ...]:
    """The suites that the nightly run scores for a model, those of SUITES first (option `suites`;
    default: the first)."""
    names = spec.options.get("suites", DEFAULT_SUITES)
    given = tuple(dict.fromkeys(map(str, names))) if isinstance(names, list | tuple) else ()
    return tuple(name for name in SUITES if name in given) + tuple(
        name for name in given if name not in SUITES
    )


def suite_fault(name: object) -> str:
    """Why this can't be the name of a suite; '' where it can. Custom suites may have any other
    name, except one that looks like a typo of one of SUITES."""
    if name in SUITES:
        return ""
    valid = isinstance(name, str) and SUITE_NAME.fullmatch(name)
    if valid and not difflib.get_close_matches(str(name), SUITES, 1, 0.75):
        return ""
    return one_of("suite", name, SUITES)


def _repo_faults(spec: ModelSpec) -> Iterator[str]:
    repo, revision = spec.repo, spec.revision
    if spec.backend in ("planted", "planted-people", "api"):
        if not repo or not revision:
            given = f"repo {repo!r}, revision {revision!r}"
            yield f"{given}; valid for backend {spec.backend}: non-empty text"
        return
    if repo.startswith("local:"):
        path = PurePosixPath(repo.removeprefix("local:"))
        if path.is_absolute() or ".." in path.parts or "\\" in repo or path.parts == ():
            yield (
                f"repo {repo!r} leaves the repository; valid: local:FOLDER below its root, or"
                " path:/ABSOLUTE/FOLDER"
            )
    elif repo.startswith("path:"):
        if not repo.startswith("path:/") or ".." in PurePosixPath(repo).parts:
            yield f"repo {repo!r}; valid: path:/ABSOLUTE/FOLDER"
        if not spec.notes.strip():
            yield "repo is a path: of one machine; valid with notes that say which machine has it"
    elif not HUB_ID.fullmatch(repo):
        yield f"repo {repo!r}; valid: {VALID_REPOS}"
    elif not COMMIT.fullmatch(revision) and (
        spec.state not in (CANDIDATE, RETIRED) or revision != UNPINNED
    ):
        also = f", or {UNPINNED!r} while a candidate" if spec.state in (CANDIDATE, RETIRED) else ""
        pin = f"sdgbias register-model {repo} --revision COMMIT"
        yield f"revision {revision!r}; valid: a commit of 40 hex digits{also}; pin it: {pin}"
    if repo.startswith(("local:", "path:")) and not revision:
        yield "revision is empty; valid for a folder: 'local' or any version text"


# ----------------------------------------------------------------------
# writing
