"""The identity of a job, found without importing an engine: two jobs of the same key make the same
run, so the second needs no process.

The reverse need not hold. The key looks at the outside of files (size, times, inode) where an
engine's fingerprint reads them: a folder of weights that was touched gets another key, a process is
started, and that one finds out that nothing changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sdgbias import files
from sdgbias.engines.fingerprint import FILES, LIBRARIES, installed
from sdgbias.registry import entries
from sdgbias.suites.suite import EvalSettings, Suite
from sdgbias.types import ModelSpec

#: Rooms above scoring, which no run can hang on; the code of every other room counts, a new one's
#: too (a test compares this with the import contract).
ABOVE = ("cli", "nightly", "report", "analysis")
#: Fields of an entry that say nothing about what is scored.
IGNORED_FIELDS = ("state", "reason", "until", "notes")
_PACKAGES = (*LIBRARIES, "numpy", "scipy", "vllm", "torchvision")


def surroundings() -> tuple[str, ...]:
    """The part of a key that is the same for all jobs of this moment: code, libraries,
    accelerator. Looked up once a night: it takes 20 ms, and a night may ask a thousand models."""
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
    """16 hex digits over everything that a run's id hangs on: what makes the id makes the key, with
    the outside view of the model where the id has its fingerprint. ``around``: `surroundings`."""
    from sdgbias.scoring.evaluate import identify

    entry = {
        name: value for name, value in entries.to_dict(spec).items() if name not in IGNORED_FIELDS
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
    """Digest over the code and data that a run can hang on: engines and their versions, suites,
    prompts, methods. A change that changes no result starts a process, which finds that out."""
    return files.source_digest(without=ABOVE)


def _weights(spec: ModelSpec, root: Path) -> Iterator[str]:
    """A folder of weights from the outside; a hub's are named by their commit, which is in the
    entry."""
    folder = entries.weights_path(spec, root)
    if folder is not None:
        yield f"weights {folder.resolve()}"
        yield from _outside(folder, FILES)


def _oracle(spec: ModelSpec, root: Path) -> Iterator[str]:
    """The benchmark that a planted model looks into."""
    named = spec.options.get("oracle")
    if spec.backend.startswith("planted") and isinstance(named, str):
        yield from _outside(root / named, ("*.parquet", "benchmark.json"))


def _elsewhere(spec: ModelSpec, root: Path) -> Iterator[str]:
    """The other environment that an engine lives in: its interpreter and what is installed
    there."""
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


def _outside(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    """Name, size, inode and times of the files; a change of their content changes the time of the
    inode, which nobody can set."""
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        try:
            seen = path.stat()
        except OSError:
            yield f"{path} is gone"
            continue
        yield f"{path.name} {seen.st_size} {seen.st_ino} {seen.st_mtime_ns} {seen.st_ctime_ns}"
