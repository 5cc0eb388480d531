"""Fingerprint of everything besides the prompt that an engine's scores depend on, computed without
loading any weights.

A score is stored under the prompt's text, the bytes of its pictures, its candidates and this
fingerprint (plan.prompt_key), not under its token ids. The two keys are equivalent as long as the
fingerprint covers everything that turns text and pictures into token ids and pixels: chat template,
tokenizer, processor settings, and the libraries that apply them.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sdgbias.errors import ModelError
from sdgbias.types import ModelSpec

#: Files of a model folder that can change a score: weights, configuration, tokenizer, chat
#: templates, remote code.
FILES = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
    "*.tiktoken",
    "*.py",
    "additional_chat_templates/*.jinja",
)
#: Libraries that affect scores: templates and processors, tensors, tokenization, decoding and
#: resizing of pictures.
LIBRARIES = ("transformers", "torch", "tokenizers", "pillow")


def local_folder(spec: ModelSpec, root: Path) -> Path | None:
    """The folder of a 'local:' or 'path:' repository; None for a hub id. ModelError when the folder
    contains no model."""
    kind, _, rest = spec.repo.partition(":")
    if kind not in ("local", "path"):
        return None
    folder = (root / rest) if kind == "local" else Path(rest)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder}: no config.json; registry entry {spec.name} has repo: {spec.repo}"
        )
    return folder


def pinned(spec: ModelSpec, root: Path) -> tuple[Path | None, str, dict[str, Any]]:
    """(`local_folder`, the name to load from, and the hub's revision for from_pretrained)."""
    folder = local_folder(spec, root)
    return folder, str(folder or spec.repo), {} if folder else {"revision": spec.revision}


def folder_digest(folder: Path) -> str:
    """Digest over names and bytes of everything in a model folder that can change a score."""
    digest = hashlib.sha256()
    for path in sorted({p for pattern in FILES for p in folder.glob(pattern)}):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def installed(*names: str) -> str:
    """Version of the first of these packages that is installed, without the build (`+cpu`); 'none'
    if none is."""
    for name in names:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return "none"


def fingerprint(spec: ModelSpec, root: Path, engine: str, *more: str) -> str:
    """16 hex digits over weights, tokenizer, templates and settings (the bytes of a folder; of a
    hub model its pinned commit), dtype, the engine's code version, libraries,
    and the other settings that the engine passes: device, attention, ..."""
    folder = local_folder(spec, root)
    weights = folder_digest(folder) if folder else f"{spec.repo}@{spec.revision}"
    settings = [spec.dtype, f"remote code {spec.trust_remote_code}", engine]
    versions = [f"{name} {installed(name)}" for name in LIBRARIES]
    parts = "|".join([weights, *settings, *versions, *more])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
