"""Session fixtures that the pytest workers of one run share."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this worker with what `make(folder)` writes. The first worker that needs it makes
    it, the others copy it, so that no test sees what another worker's tests change."""
    own = factory.mktemp(name)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        make(own)
        return own
    common = factory.getbasetemp().parent / f"once-{name}"  # of this run of pytest alone
    return Path(shutil.copytree(the_only(common, make), own, dirs_exist_ok=True))


#: Folder that the workers of this run share, for builders that get no fixture (tests/conftest.py).
KEPT: Path | None = None


def the_only(folder: Path, make: Callable[[Path], object]) -> Path:
    """``folder`` with what `make(folder)` writes, made by the first process that needs it."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}-part")
            part.mkdir()
            try:
                make(part)
                part.rename(folder)
            except BaseException:  # leaves nothing to copy
                shutil.rmtree(part, ignore_errors=True)
                raise
    return folder


def synthetic_benchmark(
    factory: pytest.TempPathFactory,
    name: str,
    clusters: int,
    mcq: int,
    regression: int,
    *,
    checked: bool = False,
    seed: int = 5,
) -> Path:
    """A benchmark of synthetic clusters, built by the package; its raw data are in `raw` beside it.
    ``checked``: it has passed its gate."""

    def make(folder: Path) -> None:
        from sdgbias.benchmark import quality
        from sdgbias.benchmark.build import Draw, build
        from sdgbias.raw.synthetic import write_sample

        raw = folder / "raw"
        write_sample(raw, clusters, seed)
        draw = Draw(mcq=mcq, regression=regression)
        build(raw, raw / "indicators", folder / "benchmark", draw)
        if checked:
            quality.run_gate(folder / "benchmark")

    return once(factory, name, make) / "benchmark"
