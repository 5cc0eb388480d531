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
    with (common.parent / f"{common.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not common.is_dir():
            part = factory.mktemp(f"{name}-part")
            make(part)
            part.rename(common)  # a maker that fails leaves nothing to copy
    return Path(shutil.copytree(common, own, dirs_exist_ok=True))
