"""New registry entries: what ``sdgbias register-model`` proposes for a folder of weights or a hub id.

Reads config.json and safetensors headers, never weights; asks the hub only when no commit is given.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdgbias.errors import InfrastructureError, RegistryError, one_of
from sdgbias.registry import BACKENDS, COMMIT, DTYPES, HUB_ID, VALID_REPOS, find_root, load_all, parse, to_dict
from sdgbias.types import ModelSpec

_SAVED = "give a folder saved with save_pretrained()"

#: Vision-language configs that carry no ``vision_config`` block of their own.
_VISION_TYPES = ("fuyu", "git", "kosmos-2", "vilt")


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
        raise RegistryError(f"backend {backend!r} has nothing to look up; copy an entry of registry/models by hand")
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
    """Folders inside the repository become local:..., other folders path:/... (noted as machine-specific); ids stay."""
    if repo.startswith(("local:", "path:")):
        return repo
    folder = Path(repo).expanduser()
    if folder.is_dir() or repo.startswith(("/", "./", "../", "~")):
        if not folder.is_dir():
            raise RegistryError(f"{repo}: no such folder; give a folder, path:/ABSOLUTE/FOLDER or a hub id OWNER/NAME")
        if not folder.resolve().is_relative_to(root.resolve()):
            return f"path:{folder.resolve()}"
        return f"local:{folder.resolve().relative_to(root.resolve()).as_posix()}"
    if not HUB_ID.fullmatch(repo):
        raise RegistryError(f"repo {repo!r}; valid: {VALID_REPOS}")
    return repo


def _batch_size(params_b: float | None) -> int:
    """A starting point in prompts per batch; bigger models leave less room for activations."""
    steps = ((0.1, 32), (1.0, 16), (9.0, 8))
    return next((size for limit, size in steps if params_b is not None and params_b < limit), 4)


def _require_vision(config: Mapping[str, Any], where: str) -> str:
    """model_type of a vision-language config; RegistryError for anything else."""
    kind = str(config.get("model_type", ""))
    if "vision_config" not in config and kind not in _VISION_TYPES:
        raise RegistryError(f"{where}: model_type {kind!r} has no vision_config; choose an image-text-to-text model")
    return kind


def _look_at_folder(folder: Path) -> dict[str, Any]:
    """family, dtype, params_b of a local model folder, from config.json and the safetensors headers alone."""
    config_file = folder / "config.json"
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RegistryError(f"{config_file}: can't be read ({type(error).__name__}); {_SAVED}") from None
    if not isinstance(config, dict):
        raise RegistryError(f"{config_file}: not a JSON object; {_SAVED}")
    family = _require_vision(config, str(config_file))
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        has = f" (found {', '.join(others[:3])})" if others else ""
        raise RegistryError(f"{folder}: safetensors only, none here{has}; convert: model.save_pretrained(FOLDER)")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise RegistryError(f"{index}: not a safetensors index; copy the folder again") from None
        missing = sorted(wanted - {p.name for p in shards})
        if missing:
            raise RegistryError(f"{index}: {missing[0]} is missing ({len(missing)} shards in all); copy the folder again")
    params = sum(_count_parameters(p) for p in shards)
    stated = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    dtype = stated if stated in DTYPES else "float32"
    return {"family": family, "dtype": dtype, "params_b": float(f"{params / 1e9:.3g}")}


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
        raise RegistryError(f"{repo}: no revision {revision!r} on the hub; valid: its branches, tags, commits") from None
    except RepositoryNotFoundError:
        raise RegistryError(f"{repo}: not on the hub, or gated for you; check the id, or: hf auth login") from None
    except Exception as error:
        raise InfrastructureError(
            f"{repo}: the hub can't be asked for a commit ({type(error).__name__}); offline: "
            f"sdgbias register-model {repo} --revision COMMIT (40 hex digits, from the model's page)"
        ) from None
    if not any(s.rfilename.endswith(".safetensors") for s in info.siblings or ()):
        raise RegistryError(f"{repo}: safetensors only, none in revision {info.sha}; choose a revision that has them")
    family = str((info.config or {}).get("model_type", ""))
    pipeline = info.pipeline_tag or ""
    if pipeline not in ("", "image-text-to-text", "image-to-text", "visual-question-answering", "any-to-any"):
        raise RegistryError(f"{repo}: the hub lists it for {pipeline!r}; choose an image-text-to-text model")
    licence = str(getattr(info.card_data, "license", "") or "") if info.card_data else ""
    return {"revision": str(info.sha), "family": family, "licence": licence}
