"""The identity (key) of a job, computed without importing an engine: two jobs with the same key
give the same run, so the second needs no process.

The reverse need not hold. Where an engine's fingerprint reads file contents, the key only uses file
metadata (size, times, inode): touching a folder of weights changes the key, a process is started,
and that process detects that nothing changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from fnmatch import translate
from functools import cache
from pathlib import Path

from sdgbias import files
from sdgbias.engines.fingerprint import FILES, LIBRARIES, installed
from sdgbias.registry import changes, entries
from sdgbias.suites.suite import EvalSettings, Suite
from sdgbias.types import ModelSpec

#: Rooms above scoring, which no run can depend on; the code of all others counts, including
#: new ones (a test compares this with the import contract).
ABOVE = ("cli", "notebook", "nightly", "report", "analysis")
#: Fields of an entry that don't affect scoring.
IGNORED_FIELDS = ("state", "reason", "until", "notes")
_PACKAGES = (*LIBRARIES, "numpy", "scipy", "vllm", "torchvision")


def surroundings() -> tuple[str, ...]:
    """The part of a key shared by all jobs of a night: code, libraries, accelerator. Computed once
    per night: it takes 20 ms, and a night may have a thousand models."""
    return (
        code(),
        *(f"{name} {installed(name)}" for name in _PACKAGES),
        f"accelerator {Path('/dev/nvidia0').exists()} {os.environ.get('CUDA_VISIBLE_DEVICES')!r}",
    )


def key(
    spec: ModelSpec,
    root: Path,
    benchmark_id: str,
    suite: Suite,
    settings: EvalSettings,
    around: tuple[str, ...],
) -> str:
    """16 hex digits over everything that a run's id depends on; where the id uses the model's
    fingerprint, the key uses file metadata. ``around``: `surroundings`."""
    from sdgbias.scoring.evaluate import identify

    entry = {
        name: value for name, value in changes.to_dict(spec).items() if name not in IGNORED_FIELDS
    }
    outside = [
        json.dumps([entry, suite.name], sort_keys=True, default=str),
        *_weights(spec, root),
        *_oracle(spec, root),
        *_elsewhere(spec, root),
        *around,
    ]
    made = identify(spec, {"benchmark_id": benchmark_id}, "|".join(outside), suite, settings)
    return hashlib.sha256(made.encode()).hexdigest()[:16]


def code() -> str:
    """Digest of the code and data that a run can depend on: engines and their versions, suites,
    prompts, methods. A change without effect on results starts a process, which detects that."""
    return files.source_digest(without=ABOVE)


def _weights(spec: ModelSpec, root: Path) -> Iterator[str]:
    """Metadata of a local folder of weights; weights on the hub are identified by their commit,
    which is in the entry."""
    folder = entries.weights_path(spec, root)
    if folder is not None:
        yield f"weights {folder.resolve()}"
        yield from _outside(folder, FILES)


def _oracle(spec: ModelSpec, root: Path) -> Iterator[str]:
    """The benchmark that a planted model reads its answers from."""
    named = spec.options.get("oracle")
    if spec.backend.startswith("planted") and isinstance(named, str):
        yield from _outside(root / named, ("*.parquet", "benchmark.json"))


def _elsewhere(spec: ModelSpec, root: Path) -> Iterator[str]:
    """The separate environment of an engine: its interpreter and installed packages."""
    if spec.backend != "vllm" and "python" not in spec.options:
        return
    from sdgbias.engines.subprocess import interpreter
    from sdgbias.errors import SdgbiasError

    try:
        python = interpreter(spec, root)
    except SdgbiasError as error:
        yield str(error)
        return
    if python is not None:
        yield str(python)
        for packages in sorted(python.parent.parent.glob("lib/python*/site-packages")):
            yield (
                f"{packages.stat().st_mtime_ns}"
                f" {sorted(path.name for path in packages.glob('*.dist-info'))}"
            )


def _outside(folder: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    """Name, size, inode and times of the files; a change of content changes the inode's time, which
    users can't set."""
    for within, wanted in _by_folder(patterns).items():
        place = os.path.join(folder, within)
        try:
            names = sorted(filter(wanted.fullmatch, os.listdir(place)))
        except OSError:  # no such folder
            continue
        for name in names:
            path = os.path.join(place, name)
            try:
                seen = os.stat(path)
            except OSError:
                yield f"{path} is gone"
                continue
            yield f"{name} {seen.st_size} {seen.st_ino} {seen.st_mtime_ns} {seen.st_ctime_ns}"


@cache
def _by_folder(patterns: tuple[str, ...]) -> dict[str, re.Pattern[str]]:
    """Folder of the patterns -> one expression for the names in it: a folder is listed once, not
    once per pattern, because a night may have a thousand models."""
    folders = sorted({os.path.dirname(pattern) for pattern in patterns})
    return {
        within: re.compile(
            "|".join(
                translate(os.path.basename(p)) for p in patterns if os.path.dirname(p) == within
            )
        )
        for within in folders
    }
