"""The model registry: one YAML file per model in ``registry/models/``, found by stem; fields: registry/README.md.

Everything here raises ``RegistryError`` with one line that names the file, the value at fault and what is valid.
Nothing heavier than yaml is imported. ``register.propose`` makes new entries.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from sdgbias.errors import RegistryError, one_of
from sdgbias.types import ModelSpec

BACKENDS = ("hf", "planted", "planted-people", "vllm", "api", "clip-zero-shot", "vit-zero-shot", "text-encoder")
#: What a model can be asked; option `suites` of its entry says which of them it is asked every night.
SUITES = ("sdg", "facet")
DEFAULT_SUITES = ("sdg",)
DTYPES = ("float32", "bfloat16", "float16")
UNPINNED = "unpinned"
VALID_REPOS = "OWNER/NAME on the hub, local:FOLDER below the repository root, path:/ABSOLUTE/FOLDER"
ENV_ROOT = "SDGBIAS_REGISTRY"
_GO_THERE = f"change to the repository, or: export {ENV_ROOT}=/path/to/repository"
SCHEMA_LINE = "# yaml-language-server: $schema=../model.schema.json\n"

REQUIRED = ("name", "title", "backend", "repo", "revision", "enabled")
#: written even where they equal the default, so that a later default never changes a registered model
_ALWAYS = (*REQUIRED, "dtype", "batch_size", "max_new_tokens")
FIELDS = tuple(f.name for f in dataclasses.fields(ModelSpec))
_TEXT = ("name", "title", "backend", "repo", "revision", "family", "dtype", "licence", "disabled_reason", "notes")

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
#: Option names that smell of a credential. ``api_key_env`` (the *name* of a variable) and counts such as
#: ``num_image_tokens: 1`` are let through.
_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(sk-|hf_|ghp_|AIza)[A-Za-z0-9_-]{16,}")


class _StrictLoader(yaml.SafeLoader):
    """safe_load that refuses a key given twice (plain yaml keeps the last one without a word)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, str) and key in seen:
                twice = f"field {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


# --------------------------------------------------------------------------------------------- finding files


def find_root(start: Path | None = None) -> Path:
    """The repository root: the folder that the environment variable SDGBIAS_REGISTRY names, else the nearest folder at
    or above ``start`` (default: the working folder) with registry/models in it. RegistryError when there is none."""
    named = os.environ.get(ENV_ROOT, "")
    if named and start is None:
        if (Path(named) / "registry" / "models").is_dir():
            return Path(named).resolve()
        raise RegistryError(f"{ENV_ROOT}={named}: no registry/models in it; name the folder that holds registry/models")
    here = (start or Path.cwd()).resolve()
    checkout = Path(__file__).resolve().parents[1]  # an editable install works from any folder
    for folder in (here, *here.parents, *([] if start else [checkout])):
        if (folder / "registry" / "models").is_dir():
            return folder
    raise RegistryError(f"no registry/models folder at or above {here}; {_GO_THERE}")


def _files(root: Path) -> dict[str, Path]:
    """Stem -> file of every entry, sorted; RegistryError when two files differ only in case or in .yaml/.yml."""
    folder = root / "registry" / "models"
    if not folder.is_dir():
        raise RegistryError(f"{folder}: no such folder; {_GO_THERE}")
    found: dict[str, Path] = {}
    entries = (p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml") and not p.name.startswith("."))
    for path in sorted(entries):
        twin = found.get(path.stem.lower())
        if twin is not None:
            raise RegistryError(f"{path}: duplicate of {twin.name} (case and ending don't count); remove one")
        found[path.stem.lower()] = path
    return {path.stem: path for path in found.values()}


def load_all(root: Path | None = None) -> dict[str, ModelSpec]:
    """Every entry by name, sorted by name. RegistryError at the first file that is not valid."""
    files = _files(root := root or find_root())
    return {stem: _read(files[stem]) for stem in sorted(files)}


def enabled(root: Path | None = None) -> dict[str, ModelSpec]:
    """The entries with ``enabled: true``, sorted by name: what the nightly scores."""
    return {name: spec for name, spec in load_all(root).items() if spec.enabled}


def load(root: Path | None, name: str) -> ModelSpec:
    """One entry by name; the others are not read, so a broken neighbour can't block it. Unknown: lists the names."""
    files = _files(root or find_root())
    if name not in files:
        raise RegistryError(one_of("model", name, files) + "; add one: sdgbias register-model REPO")
    return _read(files[name])


def weights_path(spec: ModelSpec, root: Path | None = None) -> Path | None:
    """Folder of a ``local:`` or ``path:`` model (it need not exist yet); None for hub ids, planted and api."""
    if spec.repo.startswith("local:"):
        return (root or find_root()) / spec.repo.removeprefix("local:")
    return Path(spec.repo.removeprefix("path:")) if spec.repo.startswith("path:") else None


# ------------------------------------------------------------------------------------------------ validation


def _read(path: Path) -> ModelSpec:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" line {mark.line + 1}" if mark else ""
        why = problem or type(error).__name__
        raise RegistryError(f"{path}:{where} is not readable YAML: {why}; see registry/README.md") from None
    spec = parse(data, path)
    if spec.name != path.stem:
        raise RegistryError(f"{path}: name {spec.name!r} differs from the file's name; valid: {path.stem}")
    return spec


def parse(data: object, where: Path | str) -> ModelSpec:
    """A mapping as read from YAML -> ModelSpec. ``where`` names the file in errors. RegistryError on any fault."""
    if not isinstance(data, dict):
        raise RegistryError(f"{where}: not a mapping of fields; valid fields: {', '.join(FIELDS)}")
    _refuse_secrets({k: v for k, v in data.items() if k not in FIELDS or k == "options"}, where)
    for key in data:
        if key not in FIELDS:
            raise RegistryError(f"{where}: {one_of('field', key, FIELDS)}")
    for key in REQUIRED:
        if key not in data:
            raise RegistryError(f"{where}: missing field {key!r}; required: {', '.join(REQUIRED)}")
    _check_types(data, where)
    values = dict(data)
    if values.get("params_b") is not None:
        values["params_b"] = float(values["params_b"])
    spec = ModelSpec(**values)
    for fault in _faults(spec):
        raise RegistryError(f"{where}: {fault}")
    return spec


def _check_types(data: Mapping[str, Any], where: Path | str) -> None:
    for key, value in data.items():
        if key in _TEXT:
            ok, valid = isinstance(value, str), "text"
        elif key in ("enabled", "trust_remote_code"):
            ok, valid = isinstance(value, bool), "true or false"
        elif key in ("batch_size", "max_new_tokens"):
            whole = isinstance(value, int) and not isinstance(value, bool)
            ok, valid = whole and value >= 1, "a whole number of at least 1"
        elif key == "params_b":
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
            ok, valid = value is None or number, "a number of billions above 0, or null"
        else:
            ok, valid = isinstance(value, dict) and all(isinstance(k, str) for k in value), "a mapping with text keys"
        if not ok:
            raise RegistryError(f"{where}: {key} is {value!r}; valid: {valid}")


def _refuse_secrets(data: Mapping[Any, Any], where: Path | str) -> None:
    """Credentials never live in YAML; the value itself is not repeated in the message."""
    for key, value in _walk(data):
        count = key.endswith("tokens") and isinstance(value, int)
        named = _SECRET_NAME.search(key) and not (key == "api_key_env" or count or isinstance(value, dict))
        if named or (isinstance(value, str) and _SECRET_VALUE.search(value)):
            raise RegistryError(
                f"{where}: {key!r} looks like a secret; keep it out of YAML and name an environment variable instead: "
                "options: {api_key_env: VARIABLE_NAME}"
            )


def _walk(data: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, dict):
        for name, value in data.items():
            yield str(name), value
            yield from _walk(value, str(name))
    elif isinstance(data, list):
        for value in data:
            yield key, value
            yield from _walk(value, key)


def _faults(spec: ModelSpec) -> Iterator[str]:
    """What is wrong with a well-typed spec, as sentences without the file's name."""
    if not NAME.fullmatch(spec.name):
        yield f"name {spec.name!r}; valid: lower-case letters, digits, '.', '_', '-'"
    if not spec.title:
        yield "title is empty; valid: the name that tables and figures show"
    if spec.backend not in BACKENDS:
        yield one_of("backend", spec.backend, BACKENDS)
    if spec.dtype not in DTYPES:
        yield one_of("dtype", spec.dtype, DTYPES)
    yield from _repo_faults(spec)
    if not spec.enabled and not spec.disabled_reason.strip():
        yield "enabled is false without disabled_reason; valid: one line that says why and what would enable it"
    if "\n" in spec.disabled_reason.strip():
        yield "disabled_reason has several lines; valid: one line"
    if spec.trust_remote_code and not spec.notes.strip():
        yield "trust_remote_code is true without notes; valid: notes that say who read its code, at which commit"
    if spec.backend == "api" and not ENV_NAME.fullmatch(str(spec.options.get("api_key_env", ""))):
        yield "backend api needs options.api_key_env; valid: the NAME of an environment variable such as OPENAI_API_KEY"

    asked = spec.options.get("suites", list(DEFAULT_SUITES))
    if not isinstance(asked, list) or not asked or not set(map(str, asked)) <= set(SUITES):
        yield f"options.suites is {asked!r}; valid: a list of {', '.join(SUITES)}"


def suites(spec: ModelSpec) -> tuple[str, ...]:
    """The suites that the nightly asks a model, in the order of SUITES (option `suites`; default: the first)."""
    asked = spec.options.get("suites", DEFAULT_SUITES)
    return tuple(name for name in SUITES if isinstance(asked, list | tuple) and name in asked)


def _repo_faults(spec: ModelSpec) -> Iterator[str]:
    repo, revision = spec.repo, spec.revision
    if spec.backend in ("planted", "planted-people", "api"):
        if not repo or not revision:
            yield f"repo {repo!r}, revision {revision!r}; valid for backend {spec.backend}: non-empty text"
        return
    if repo.startswith("local:"):
        path = PurePosixPath(repo.removeprefix("local:"))
        if path.is_absolute() or ".." in path.parts or "\\" in repo or path.parts == ():
            yield f"repo {repo!r} leaves the repository; valid: local:FOLDER below its root, or path:/ABSOLUTE/FOLDER"
    elif repo.startswith("path:"):
        if not repo.startswith("path:/") or ".." in PurePosixPath(repo).parts:
            yield f"repo {repo!r}; valid: path:/ABSOLUTE/FOLDER"
        if not spec.notes.strip():
            yield "repo is a path: of one machine; valid with notes that say which machine has it"
    elif not HUB_ID.fullmatch(repo):
        yield f"repo {repo!r}; valid: {VALID_REPOS}"
    elif not COMMIT.fullmatch(revision) and (spec.enabled or revision != UNPINNED):
        also = "" if spec.enabled else f", or {UNPINNED!r} while disabled"
        pin = f"sdgbias register-model {repo} --revision COMMIT"
        yield f"revision {revision!r}; valid: a commit of 40 hex digits{also}; pin it: {pin}"
    if repo.startswith(("local:", "path:")) and not revision:
        yield "revision is empty; valid for a folder: 'local' or any version text"


# --------------------------------------------------------------------------------------------------- writing


def to_dict(spec: ModelSpec) -> dict[str, Any]:
    """The fields to write, in ModelSpec's order: those of _ALWAYS and what differs from ModelSpec's defaults."""
    blank = ModelSpec(name="", title="", backend="", repo="", revision="", enabled=False)
    return {f: getattr(spec, f) for f in FIELDS if f in _ALWAYS or getattr(spec, f) != getattr(blank, f)}


def write(root: Path | None, spec: ModelSpec, overwrite: bool = False) -> Path:
    """Write ``registry/models/<name>.yaml`` (atomically) and return its path.

    RegistryError when the spec is not valid or the name is taken. An entry of the same repo whose revision is still
    'unpinned' may always be completed; anything else needs ``overwrite``.
    """
    root = root or find_root()
    path = root / "registry" / "models" / f"{spec.name}.yaml"
    parse(to_dict(spec), path)
    taken = {stem.lower(): file for stem, file in _files(root).items()}.get(spec.name.lower())
    if taken is not None and taken != path:
        raise RegistryError(f"{path}: taken by {taken.name} (case and ending don't count); choose another: --name NAME")
    if taken is not None and not overwrite:
        old = _read(taken)
        if (old.repo, old.revision) != (spec.repo, UNPINNED):
            raise RegistryError(f"{path}: exists already; replace it: --overwrite, or add a second entry: --name NAME")
    text = yaml.safe_dump(to_dict(spec), sort_keys=False, allow_unicode=True, width=10_000)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(SCHEMA_LINE + text, encoding="utf-8")
    os.replace(part, path)
    return path
