"""The model registry: one YAML file per model in ``registry/models/``, found by stem. See registry/README.md for the fields.

Everything here raises ``RegistryError`` with one line that names the file, the value at fault and what is valid. Nothing
heavier than yaml is imported; the hub is asked only by ``propose`` and only when no commit is given.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from sdgbias.errors import InfrastructureError, RegistryError, one_of
from sdgbias.types import ModelSpec

BACKENDS = ("hf", "planted", "vllm", "api")
DTYPES = ("float32", "bfloat16", "float16")
UNPINNED = "unpinned"
ENV_ROOT = "SDGBIAS_REGISTRY"
SCHEMA_LINE = "# yaml-language-server: $schema=../model.schema.json\n"

REQUIRED = ("name", "title", "backend", "repo", "revision", "enabled")
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

#: Vision-language configs that carry no ``vision_config`` block of their own.
_VISION_TYPES = ("fuyu", "git", "kosmos-2", "qwen2_5_vl", "qwen2_vl", "vilt")


class _StrictLoader(yaml.SafeLoader):
    """safe_load that refuses a key given twice (plain yaml keeps the last one without a word)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"field {key!r} is given twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


# --------------------------------------------------------------------------------------------- finding files

def find_root(start: Path | None = None) -> Path:
    """The repository root: nearest folder at or above ``start`` (default: the working folder) that holds registry/models,
    else the folder named by the environment variable SDGBIAS_REGISTRY. RegistryError when neither is there."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "registry" / "models").is_dir():
            return folder
    named = os.environ.get(ENV_ROOT, "")
    if named and (Path(named) / "registry" / "models").is_dir():
        return Path(named).resolve()
    if named:
        raise RegistryError(f"{ENV_ROOT}={named}: no registry/models folder in it; name the folder that holds registry/models")
    raise RegistryError(
        f"no registry/models folder at or above {here}; change to the repository, or: export {ENV_ROOT}=/path/to/repository"
    )


def _files(root: Path) -> dict[str, Path]:
    """Stem -> file of every entry, sorted; RegistryError when two files differ only in case or in .yaml/.yml."""
    folder = root / "registry" / "models"
    if not folder.is_dir():
        raise RegistryError(f"{folder}: no such folder; change to the repository, or: export {ENV_ROOT}=/path/to/repository")
    found: dict[str, Path] = {}
    for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml") and not p.name.startswith(".")):
        twin = found.get(path.stem.lower())
        if twin is not None:
            raise RegistryError(f"{path}: duplicate of {twin.name} (names are compared without case and ending); remove one")
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
    """One entry by name; other entries are not read, so a broken neighbour can't block it. Unknown: lists the valid names."""
    files = _files(root or find_root())
    if name not in files:
        raise RegistryError(one_of("model", name, files) + "; add one: sdgbias register-model REPO")
    return _read(files[name])


def weights_path(spec: ModelSpec, root: Path | None = None) -> Path | None:
    """Folder of a ``local:`` or ``path:`` model's weights (it need not exist yet); None for hub ids, planted and api."""
    if spec.repo.startswith("local:"):
        return (root or find_root()) / spec.repo.removeprefix("local:")
    return Path(spec.repo.removeprefix("path:")) if spec.repo.startswith("path:") else None


# ------------------------------------------------------------------------------------------------ validation

def _read(path: Path) -> ModelSpec:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 (subclass of SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise RegistryError(f"{path}:{where} is not readable YAML: {problem or type(error).__name__}; see registry/README.md") from None
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
            ok, valid = isinstance(value, int) and not isinstance(value, bool) and value >= 1, "a whole number of at least 1"
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
        yield "trust_remote_code is true without notes; valid: notes that say who read the repository's code, at which commit"
    if spec.backend == "api" and not ENV_NAME.fullmatch(str(spec.options.get("api_key_env", ""))):
        yield "backend api needs options.api_key_env; valid: the NAME of an environment variable such as OPENAI_API_KEY"


def _repo_faults(spec: ModelSpec) -> Iterator[str]:
    repo, revision = spec.repo, spec.revision
    if spec.backend in ("planted", "api"):
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
        yield f"repo {repo!r}; valid: OWNER/NAME on the hub, local:FOLDER below the repository root, path:/ABSOLUTE/FOLDER"
    elif not COMMIT.fullmatch(revision) and (spec.enabled or revision != UNPINNED):
        also = "" if spec.enabled else f", or {UNPINNED!r} while disabled"
        yield f"revision {revision!r}; valid: a commit of 40 hex digits{also}; pin it: sdgbias register-model {repo} --revision COMMIT"
    if repo.startswith(("local:", "path:")) and not revision:
        yield "revision is empty; valid for a folder: 'local' or any version text"


# --------------------------------------------------------------------------------------------------- writing

def to_dict(spec: ModelSpec) -> dict[str, Any]:
    """The fields to write: the required ones and those that differ from ModelSpec's defaults, in ModelSpec's order."""
    blank = ModelSpec(name="", title="", backend="", repo="", revision="", enabled=False)
    return {f: getattr(spec, f) for f in FIELDS if f in REQUIRED or getattr(spec, f) != getattr(blank, f)}


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
        raise RegistryError(f"{path}: name is taken by {taken.name} (compared without case and ending); choose another: --name NAME")
    if taken is not None and not overwrite:
        old = _read(taken)
        if (old.repo, old.revision) != (spec.repo, UNPINNED):
            raise RegistryError(f"{path}: exists already; pass --overwrite to replace it, or --name NAME for a second entry")
    text = yaml.safe_dump(to_dict(spec), sort_keys=False, allow_unicode=True, width=100)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(SCHEMA_LINE + text, encoding="utf-8")
    os.replace(part, path)
    return path


# ------------------------------------------------------------------------------------------------- proposing

def propose(
    repo: str,
    name: str | None = None,
    backend: str = "hf",
    revision: str | None = None,
    dtype: str | None = None,
    batch_size: int | None = None,
    title: str | None = None,
    notes: str = "",
    trust_remote_code: bool = False,
    root: Path | None = None,
) -> ModelSpec:
    """A valid, enabled entry for ``sdgbias register-model``; nothing is written and no weights are loaded.

    ``repo``: hub id OWNER/NAME, ``local:FOLDER``, a folder inside the repository, or ``path:/ABSOLUTE/FOLDER``.
    Folders are checked for a vision-language config.json and complete safetensors; parameters are counted from the
    safetensors headers. For a hub id with a 40-hex ``revision`` the network isn't touched; otherwise the hub is asked.
    If the registry has an entry of the same repo (and no ``name`` is given), its name, title and settings are kept.
    Errors: RegistryError (not a VLM, no safetensors, bad id), InfrastructureError (hub not reachable).
    """
    root = root or find_root()
    if backend not in BACKENDS:
        raise RegistryError(one_of("backend", backend, BACKENDS))
    if backend in ("planted", "api"):
        raise RegistryError(f"backend {backend!r} has nothing to look up in {repo!r}; copy an entry of registry/models by hand")
    repo = _canonical_repo(repo, root)
    twins = [s for s in load_all(root).values() if s.repo.lower() == repo.lower() and s.name == (name or s.name)]
    base = twins[0] if twins else None
    if repo.startswith(("local:", "path:")):
        found = _look_at_folder(root / repo[6:] if repo.startswith("local:") else Path(repo[5:]))
        revision = revision or "local"
    elif revision and COMMIT.fullmatch(revision):
        found = {}
    else:
        found = _ask_hub(repo, revision)
        revision = found.pop("revision")
    if repo.startswith("path:"):
        notes = f"machine-specific: weights lie in {repo[5:]} of the machine that registered it. {notes}".strip()
    stem = re.sub(r"[^a-z0-9._-]+", "-", repo.rstrip("/").split(":")[-1].split("/")[-1].lower()).strip("-._") or "model"
    params = found.get("params_b", base.params_b if base else None)
    spec = ModelSpec(
        name=name or (base.name if base else stem),
        title=title or (base.title if base else repo.rstrip("/").split("/")[-1]),
        backend=backend,
        repo=repo,
        revision=revision or "local",
        enabled=True,
        family=found.get("family", base.family if base else ""),
        params_b=params,
        dtype=dtype or found.get("dtype", base.dtype if base else "bfloat16"),
        batch_size=batch_size or (base.batch_size if base else _batch_size(params)),
        max_new_tokens=base.max_new_tokens if base else 8,
        trust_remote_code=trust_remote_code or bool(base and base.trust_remote_code),
        licence=found.get("licence") or (base.licence if base else ""),
        notes=notes or (base.notes if base else ""),
        options=dict(base.options) if base else {},
    )
    return parse(to_dict(spec), f"register-model {repo}")


def _canonical_repo(repo: str, root: Path) -> str:
    """Folders inside the repository become local:..., ids and prefixed names stay; other folders are refused."""
    if repo.startswith(("local:", "path:")):
        return repo
    folder = Path(repo).expanduser()
    if folder.is_dir() or repo.startswith(("/", "./", "../", "~")):
        if not folder.is_dir():
            raise RegistryError(f"{repo}: no such folder; give a folder, path:/ABSOLUTE/FOLDER or a hub id OWNER/NAME")
        inside = folder.resolve().is_relative_to(root.resolve())
        if not inside:
            raise RegistryError(f"{repo}: outside the repository, so other machines won't find it; if meant: path:{folder.resolve()}")
        return f"local:{folder.resolve().relative_to(root.resolve()).as_posix()}"
    if not HUB_ID.fullmatch(repo):
        raise RegistryError(f"repo {repo!r}; valid: OWNER/NAME on the hub, local:FOLDER below the repository root, path:/ABSOLUTE/FOLDER")
    return repo


def _batch_size(params_b: float | None) -> int:
    """A starting point in prompts per batch; bigger models leave less room for activations."""
    return next((size for limit, size in ((0.1, 32), (1.0, 16), (9.0, 8)) if params_b is not None and params_b < limit), 4)


def _require_vision(config: Mapping[str, Any], where: str) -> str:
    """model_type of a vision-language config; RegistryError for anything else."""
    kind = str(config.get("model_type", ""))
    if "vision_config" not in config and kind not in _VISION_TYPES:
        raise RegistryError(f"{where}: model_type {kind!r} is not a vision-language model (no vision_config); choose an image-text-to-text model")
    return kind


def _look_at_folder(folder: Path) -> dict[str, Any]:
    """family, dtype, params_b of a local model folder, from config.json and the safetensors headers (no weights read)."""
    config_file = folder / "config.json"
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RegistryError(f"{config_file}: can't be read ({type(error).__name__}); give a folder saved with save_pretrained()") from None
    if not isinstance(config, dict):
        raise RegistryError(f"{config_file}: not a JSON object; give a folder saved with save_pretrained()")
    family = _require_vision(config, str(config_file))
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        has = f" (found {', '.join(others[:3])})" if others else ""
        raise RegistryError(f"{folder}: safetensors only, none here{has}; convert: model.save_pretrained(FOLDER, safe_serialization=True)")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        missing = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) - {p.name for p in shards})
        if missing:
            raise RegistryError(f"{index}: shard {missing[0]} is missing ({len(missing)} in all); copy the folder again")
    params = sum(_count_parameters(p) for p in shards)
    stated = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return {"family": family, "dtype": stated if stated in DTYPES else "float32", "params_b": float(f"{params / 1e9:.3g}")}


def _count_parameters(path: Path) -> int:
    """Sum of tensor sizes named by a safetensors header (8 bytes little-endian length, then JSON)."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("header longer than the file")
            header = json.loads(file.read(length))
        total = 0
        for tensor, meta in header.items():
            size = 1
            for extent in meta["shape"] if tensor != "__metadata__" else ():
                size *= int(extent)
            total += size if tensor != "__metadata__" else 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise RegistryError(f"{path}: not a safetensors file ({type(error).__name__}); copy the folder again") from None
    return total


def _ask_hub(repo: str, revision: str | None) -> dict[str, Any]:
    """revision (40 hex), family, licence of a hub model. InfrastructureError when the hub can't be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(repo, revision=revision, timeout=10)
    except RevisionNotFoundError:
        raise RegistryError(f"{repo}: the hub has no revision {revision!r}; valid: a branch, tag or commit of that model") from None
    except RepositoryNotFoundError:
        raise RegistryError(f"{repo}: the hub has no such model, or it is gated for you; check the id, or: hf auth login") from None
    except Exception as error:
        raise InfrastructureError(
            f"{repo}: the hub can't be asked for a commit ({type(error).__name__}); offline: sdgbias register-model {repo} "
            "--revision COMMIT (40 hex digits, from the model's page)"
        ) from None
    if not any(s.rfilename.endswith(".safetensors") for s in info.siblings or ()):
        raise RegistryError(f"{repo}: safetensors only, none in revision {info.sha}; choose a revision or a conversion that has them")
    family = str((info.config or {}).get("model_type", ""))
    pipeline = info.pipeline_tag or ""
    if pipeline not in ("", "image-text-to-text", "image-to-text", "visual-question-answering", "any-to-any"):
        raise RegistryError(f"{repo}: the hub lists it for {pipeline!r}; choose an image-text-to-text model")
    licence = str(getattr(info.card_data, "license", "") or "") if info.card_data else ""
    return {"revision": str(info.sha), "family": family, "licence": licence}
