"""Fingerprint of everything besides the prompt that an engine's scores depend on, computed without
loading any weights.

A score is stored under the prompt's text, the bytes of its pictures, its candidates and this
fingerprint (plan.prompt_key), not under its token ids. The two keys are equivalent as long as the
fingerprint covers everything that turns text and pictures into token ids and pixels: chat template,
tokenizer, processor settings, and the libraries that apply them.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.registry.weights import checked_digest

#: Backend -> the version of its engine's code, raised with whatever can change a score.
VERSIONS = {
    "api": "api-5",
    "clip-zero-shot": "zero-shot-1",
    "hf": "hf-7",
    "planted": "planted-1",
    "planted-people": "planted-people-1",
    "vit-zero-shot": "zero-shot-1",
    "vllm": "vllm-6",
}
#: Libraries that affect scores: templates and processors, tensors, tokenization, decoding and
#: resizing of pictures.
LIBRARIES = ("transformers", "torch", "tokenizers", "pillow")


def folder_of(spec: ModelSpec, root: Path) -> Path | None:
    """The folder of a 'local:' or 'path:' repository; None for a hub id."""
    kind, _, rest = spec.repo.partition(":")
    if kind not in ("local", "path"):
        return None
    return (root / rest) if kind == "local" else Path(rest)


def local_folder(spec: ModelSpec, root: Path) -> Path | None:
    """`folder_of`; ModelError when the folder contains no model."""
    folder = folder_of(spec, root)
    if folder and not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder}: no config.json; registry entry {spec.name} has repo: {spec.repo}"
        )
    return folder


def pinned(spec: ModelSpec, root: Path) -> tuple[Path | None, str, dict[str, Any]]:
    """(`local_folder`, the name to load from, and the hub's revision for from_pretrained)."""
    folder = local_folder(spec, root)
    return folder, str(folder or spec.repo), {} if folder else {"revision": spec.revision}


def weights(spec: ModelSpec, root: Path) -> str:
    """The digest of a model's folder, or its pinned commit on the hub. ModelError for a folder that
    is missing or whose files are others than those that were registered."""
    folder = local_folder(spec, root)
    return checked_digest(spec, folder) if folder else f"{spec.repo}@{spec.revision}"


def accelerator() -> str:
    """'cuda' where an engine finds a GPU that it may use, else 'cpu'."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return "cuda" if Path("/dev/nvidia0").exists() and visible not in ("", "-1") else "cpu"


def installed(*names: str) -> str:
    """Version of the first of these packages that is installed, without the build (`+cpu`); 'none'
    if none is."""
    for name in names:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return "none"


def versions(python: Path | None, *libraries: str) -> dict[str, str]:
    """Library -> its version, without the build (`+cpu`), of those that are installed in the
    environment of an interpreter (None: this one)."""
    path = sys.path
    if python not in (None, Path(sys.executable)):
        path = [str(p) for p in python.parent.parent.glob("lib/python*/site-packages")]
    versions: dict[str, str] = {}
    for library in libraries:
        for one in Distribution.discover(name=library, path=path):
            versions.setdefault(library, one.version.split("+")[0])
    return versions


def fingerprint(spec: ModelSpec, root: Path, engine: str, *more: str) -> str:
    """16 hex digits over weights, tokenizer, templates and settings (the bytes of a folder; of a
    hub model its pinned commit), dtype, the engine's code version, libraries,
    and the other settings that the engine passes: device, attention, ..."""
    settings = [spec.dtype, f"remote code {spec.trust_remote_code}", engine]
    versions = [f"{name} {installed(name)}" for name in LIBRARIES]
    parts = "|".join([weights(spec, root), *settings, *versions, *more])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
