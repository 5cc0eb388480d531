"""Which files of a model can change a score, and the digest of a folder of them, which is the
revision of its entry as a commit is that of a hub repository."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from sdgbias.errors import ModelError, argument
from sdgbias.files import cached_text
from sdgbias.registry.spec import ModelSpec

#: Weights, configurations, tokenizers, chat templates, remote code; also in subfolders. A commit
#: that touches no others is the same model with different documentation.
THAT_MATTER = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
#: The revision of a registered folder: the first 40 hex digits of its digest.
DIGEST = re.compile(r"[0-9a-f]{40}")
#: A file that was written so few seconds ago may change again within the resolution of its time.
RACE = 2.0


def matters(name: str) -> bool:
    """Whether a file (its path below the model's folder) can change a score."""
    return any(fnmatch(name, kind) for kind in THAT_MATTER)


def folder_digest(folder: Path) -> str:
    """64 hex digits over names and bytes of all files in a folder that can change a score.

    The bytes are read again only when a name, a size or a time differs from the last time, so that
    a night doesn't read every model of the registry.
    """
    names = sorted(
        name
        for path in folder.rglob("*")
        if matters(name := path.relative_to(folder).as_posix())
        and not any(part.startswith(".") for part in name.split("/"))
        and path.is_file()
    )
    stats = [(folder / name).stat() for name in names]
    newest = max((max(s.st_mtime, s.st_ctime) for s in stats), default=0.0)
    if time.time() - newest < RACE:
        return read_digest(folder, names)
    seen = [(s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for s in stats]
    state = hashlib.sha256(json.dumps([str(folder.resolve()), names, seen]).encode()).hexdigest()
    return cached_text(f"weights-{state[:32]}", lambda: read_digest(folder, names), _check)


def read_digest(folder: Path, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode())
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _check(text: str) -> None:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(text)


def checked_digest(spec: ModelSpec, folder: Path) -> str:
    """The digest of a registered folder. ModelError where its files are others than those that were
    registered."""
    digest = folder_digest(folder)
    if DIGEST.fullmatch(spec.revision) and not digest.startswith(spec.revision):
        raise ModelError(
            f"{folder}: other files than those of {spec.name}'s revision {spec.revision}, now"
            f" {digest[:40]}; put those back, or register these: sdgbias register-model"
            f" {argument(folder)} --name {spec.name} --overwrite"
        )
    return digest
