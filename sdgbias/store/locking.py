"""Locks for writers: processes that write a run share a lock; a process that clears away or swaps
files holds it exclusively.

DuckDB's lock covers the results file while it is open. Parquet files are written before that, and a
results file is swapped after, so both need a lock that lasts longer. It is the kernel's (flock): it
dies with its process.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdgbias.errors import Busy

_MINE = threading.local()


def _file(results: Path) -> Path:
    return results.with_name(results.name + ".lock")


@contextmanager
def shared(results: Path, wait: float = 30.0) -> Iterator[None]:
    """Held while a run is written. Where no lock file can be created nothing is locked: DuckDB then
    reports why it can't write either."""
    with _held(results, fcntl.LOCK_SH, wait):
        yield


@contextmanager
def alone(results: Path, wait: float = 30.0) -> Iterator[None]:
    """Held while files are cleared away or swapped: no other process writes meanwhile. Raises
    StoreError after ``wait`` seconds."""
    with _held(results, fcntl.LOCK_EX, wait):
        yield


@contextmanager
def _held(results: Path, kind: int, wait: float) -> Iterator[None]:
    mine: set[Path] = _MINE.__dict__.setdefault("held", set())
    path = _file(results.resolve())
    if path in mine:
        yield
        return
    try:
        handle = path.open("a")
    except OSError:
        yield
        return
    deadline = time.monotonic() + wait
    with handle:
        while True:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"{results} is being written or cleared up by another process; waited"
                        f" {wait:g} s. Let it finish, then run this again"
                    ) from None
                time.sleep(0.05)
        mine.add(path)
        try:
            yield
        finally:
            mine.discard(path)
