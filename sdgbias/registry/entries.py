"""The model registry: one YAML file per model in ``registry/models/``, found by stem; fields:
registry/README.md.

A model is a candidate, enabled, quarantined or retired; ``set_state`` moves it, ``due`` lists the
models that a nightly run scores. ``propose.propose`` makes new entries.

Everything here raises ``RegistryError`` with one line that names the file, the invalid value and
the valid ones. Nothing heavier than pydantic is imported at the top.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import os
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from sdgbias import credentials, formats
from sdgbias.errors import RegistryError, one_of
from sdgbias.files import packaged, project_file, write_atomically
from sdgbias.registry.spec import VALID_REPOS, VALID_VIEWS, ModelSpec
from sdgbias.types import (
    CANDIDATE,
    ENABLED,
    IMAGE_FREE,
    QUARANTINED,
    RETIRED,
    SDG,
    STATES,
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
_ONWARD = "make registry/models writable, then again"
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
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
#: Valid names of suites.
SUITE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


# -- finding files
# ----------------------------------------------------------------------


def find_root() -> Path:
    """The project's root: the folder that the environment variable SDGBIAS_REGISTRY names, else the
    nearest folder at or above the working folder with registry/models in it, else the package's
    own, which has no models. RegistryError for a named folder without registry/models."""
    if named := os.environ.get(ENV_ROOT, ""):
        if (Path(named) / "registry" / "models").is_dir():
            return Path(named).resolve()
        raise RegistryError(
            f"{ENV_ROOT}={named}: no registry/models in it; name the folder that holds"
            " registry/models"
        )
    here = Path.cwd()
    folders = (folder for folder in (here, *here.parents) if (folder / "registry/models").is_dir())
    return next(folders, project_file())


def _files(root: Path | None) -> dict[str, Path]:
    """Stem -> file of every entry, sorted."""
    folder = (root or find_root()) / "registry" / "models"
    if not folder.is_dir():
        raise RegistryError(f"{folder}: no such folder; {_GO_THERE}")
    files = (p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.name[0] != ".")
    # of m.yaml and m.yml the latter, which `read` refuses
    return {path.stem: path for path in sorted(files)}


def _file(root: Path | None, name: str) -> Path:
    """The file of a model. RegistryError for an unknown name lists the known ones."""
    files = _files(root)
    if name not in files:
        onward = "add one: sdgbias register-model REPO"
        raise RegistryError(f"{one_of('model', name, files)}; {onward}")
    return files[name]


def load(root: Path | None, name: str) -> ModelSpec:
    """One entry by name; the others are not read, so a broken neighbour can't block it.
    RegistryError for an unknown name lists the known ones."""
    return read(_file(root, name))


def load_all(root: Path | None = None) -> dict[str, ModelSpec]:
    """Every entry by name, sorted by name. RegistryError at the first file that is not valid."""
    return {stem: read(path) for stem, path in _files(root).items()}


def load_readable(root: Path | None = None) -> tuple[dict[str, ModelSpec], dict[str, str]]:
    """(the valid entries by name, file stem -> its fault): one broken file doesn't hide the
    others."""
    readable: dict[str, ModelSpec] = {}
    broken: dict[str, str] = {}
    for stem, path in _files(root).items():
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


def suites(spec: ModelSpec) -> tuple[str, ...]:
    """The suites that the nightly run scores for a model, those of SUITES first (option `suites`;
    default: the first)."""
    names = spec.options.get("suites", DEFAULT_SUITES)
    given = dict.fromkeys(map(str, names)) if isinstance(names, list | tuple) else {}
    return tuple(sorted(given, key=lambda name: (*SUITES, name).index(name)))


# -- validation
# ----------------------------------------------------------------------


def read(path: Path) -> ModelSpec:
    """The entry of one YAML file, also outside the registry (a snapshot). RegistryError when it is
    not valid."""
    return _named_as_its_file(formats.load(path, RegistryError, _README), path)


def _named_as_its_file(data: object, path: Path) -> ModelSpec:
    spec = parse(data, path)
    if path.name != f"{spec.name}.yaml":
        raise RegistryError(f"{path}: the file of model {spec.name} is named {spec.name}.yaml")
    return spec


def parse(data: object, where: Path | str) -> ModelSpec:
    """A mapping as read from YAML -> ModelSpec. ``where`` names the file in errors. RegistryError
    on any fault; a credential is not repeated in its message."""
    if isinstance(data, dict):
        key = credentials.find(data, allowed=("api_key_env", "max_new_tokens"))
        if key:
            raise RegistryError(
                f"{where}: {key!r} looks like a secret; keep it out of YAML and name an environment"
                " variable instead: options: {api_key_env: VARIABLE_NAME}"
            )
    spec = formats.parse(data, ModelSpec, where, RegistryError)
    for fault in _faults(spec):
        raise RegistryError(f"{where}: {fault}")
    return spec


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
    if not isinstance(names, list) or not names or any(map(suite_fault, names)):
        yield (
            f"options.suites is {names!r}; valid: a list of {', '.join(SUITES)} and names of your"
            " own suites"
        )


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
    elif not COMMIT.fullmatch(revision):
        waits = spec.state in (CANDIDATE, RETIRED)
        if not waits or revision != UNPINNED:
            also = f", or {UNPINNED!r} while a candidate" if waits else ""
            pin = f"sdgbias register-model {repo} --revision COMMIT"
            yield f"revision {revision!r}; valid: a commit of 40 hex digits{also}; pin it: {pin}"
    if repo.startswith(("local:", "path:")) and not revision:
        yield "revision is empty; valid for a folder: 'local' or any version text"


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


def suite_fault(name: object) -> str:
    """Why this can't be the name of a suite; '' where it can. Custom suites may have any other
    name, except one that looks like a typo of one of SUITES."""
    if name in SUITES:
        return ""
    valid = isinstance(name, str) and SUITE_NAME.fullmatch(name)
    if valid and not difflib.get_close_matches(str(name), SUITES, 1, 0.75):
        return ""
    return one_of("suite", name, SUITES)


# -- writing
# ----------------------------------------------------------------------


def to_dict(spec: ModelSpec) -> dict[str, Any]:
    """The fields to write, in ModelSpec's order: those of _ALWAYS and those that differ from the
    defaults."""
    blank = ModelSpec(name="", title="", backend="", repo="", revision="", state="")
    return {
        field.name: getattr(spec, field.name)
        for field in dataclasses.fields(spec)
        if field.name in _ALWAYS or getattr(spec, field.name) != getattr(blank, field.name)
    }


def to_yaml(spec: ModelSpec) -> str:
    """The text of an entry's file, below the line that names the schema."""
    return yaml.safe_dump(to_dict(spec), sort_keys=False, allow_unicode=True, width=10_000)


def write(root: Path | None, spec: ModelSpec, overwrite: bool = False) -> Path:
    """Write ``registry/models/<name>.yaml`` (atomically) and return its path. RegistryError as
    require_free."""
    path = require_free(root or find_root(), spec, overwrite)
    write_atomically(path, SCHEMA_LINE + to_yaml(spec), _ONWARD, RegistryError)
    return path


def require_free(root: Path, spec: ModelSpec, overwrite: bool = False) -> Path:
    """The file that ``write`` would write. RegistryError when the spec is not valid or the name is
    taken.

    An entry of the same repo whose revision is still 'unpinned' may always be completed; anything
    else needs ``overwrite``.
    """
    path = root / "registry" / "models" / f"{spec.name}.yaml"
    if root == packaged("project"):
        raise RegistryError(
            f"{spec.name}: no project here to register it in; make one: sdgbias init"
        )
    parse(to_dict(spec), path)
    taken = _files(root).get(spec.name)
    if taken is not None and not overwrite:
        old = read(taken)
        if (old.repo, old.revision) != (spec.repo, UNPINNED):
            raise RegistryError(
                f"{path}: exists already; replace it: --overwrite, or add a second entry: --name"
                " NAME"
            )
    return path


def remove(root: Path | None, name: str) -> Path:
    """Deletes the entry of a model and returns what its file was. RegistryError: no such entry."""
    path = _file(root, name)
    try:
        path.unlink()
    except OSError as error:
        raise RegistryError(f"{path}: can't be removed ({error.strerror}); {_ONWARD}") from None
    return path


def set_state(
    root: Path | None, name: str, state: str, *, reason: str = "", until: str | date = ""
) -> Path:
    """Moves one model to another state and returns its file. Only state, reason and until change;
    comments and order are preserved.

    reason: one line, needed unless the new state is 'enabled'. until: quarantined only, an ISO date
    from which on the nightly run scores it again; '' for a quarantine that lasts until the model is
    enabled by hand. RegistryError: no such entry, a broken one, an illegal move (MOVES).
    """
    return _rewrite(*moved(root, name, state, reason=reason, until=until))


def moved(
    root: Path | None, name: str, state: str, *, reason: str = "", until: str | date = ""
) -> tuple[Path, ModelSpec]:
    """(file, its new entry) of set_state, without writing it. Raises the same errors."""
    path = _file(root, name)
    old = read(path)
    if state not in STATES:
        raise RegistryError(f"{path}: {one_of('state', state, STATES)}")
    if state not in MOVES[old.state]:
        raise RegistryError(
            f"{path}: {old.state} can't become {state}; valid: {', '.join(MOVES[old.state])}"
        )
    new = dataclasses.replace(old, state=state, reason=reason.strip(), until=str(until))
    return path, parse(to_dict(new), path)


def set_ways(root: Path | None, name: str, decided: ModelSpec) -> Path:
    """Writes how a model's prompts are scored together, ``decided``'s batch_size and option
    share_prefix, into its entry and returns the file; nothing else changes. RegistryError as
    set_state."""
    path = _file(root, name)
    old = read(path)
    share = decided.options.get("share_prefix")
    options = old.options if share is None else {**old.options, "share_prefix": share}
    new = dataclasses.replace(old, batch_size=decided.batch_size, options=options)
    return path if new == old else _rewrite(path, new)


def _rewrite(path: Path, new: ModelSpec) -> Path:
    """Gives an entry's file the values of another one, comments and order as they are."""
    # an environment for vLLM alone reads entries and may lack what changes them
    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    editor = YAML()
    editor.preserve_quotes, editor.width = True, 10_000
    entry, old = editor.load(path.read_text(encoding="utf-8")), read(path)
    for field in ("state", "batch_size", "reason", "until"):
        value = getattr(new, field)
        if value == getattr(old, field):
            continue
        # quoted, because other readers take a plain yes for true
        text = DoubleQuotedScalarString(value) if field in ("reason", "until") else value
        if field in entry and not value:
            _drop(entry, field)
        elif field in entry:
            entry[field] = text
        else:
            entry.insert(list(entry).index("state") + 1 + (field == "until"), field, text)
    for option, setting in new.options.items():
        if old.options.get(option) != setting:
            entry.setdefault("options", {})[option] = setting
    written = io.StringIO()
    editor.dump(entry, written)
    data = formats.load_text(written.getvalue(), path, RegistryError, _README)
    if _named_as_its_file(data, path) != new:
        raise RegistryError(f"{path}: can't be changed by a program; change it by hand")
    write_atomically(path, written.getvalue(), _ONWARD, RegistryError)
    return path


def _drop(entry: Any, field: str) -> None:
    """Deletes a field of a file. The lines of comments below it, which the editor keeps with it,
    stay: below the field above."""
    from ruamel.yaml.tokens import CommentToken

    above = list(entry)[list(entry).index(field) - 1]
    comment = entry.ca.items.pop(field, [None] * 3)[2]
    del entry[field]
    lines = comment.value.partition("\n")[2] if comment else ""
    if not lines:
        return
    kept = entry.ca.items.setdefault(above, [None] * 4)
    beside = kept[2].value if kept[2] else "\n"
    kept[2] = CommentToken(beside + lines, comment.start_mark, None)
