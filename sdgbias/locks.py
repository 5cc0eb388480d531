"""Locks between processes (filelock). A lock dies with its process, so no crash leaves it held."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, ReadWriteLock, Timeout

from sdgbias.errors import Busy, SdgbiasError

_MINE = threading.local()


@contextmanager
def only_one(
    path: Path,
    unwritable: Callable[[OSError], SdgbiasError],
    busy: Callable[[str], SdgbiasError],
    who: str = "",
    everyone: bool = False,
) -> Iterator[None]:
    """Holds the lock ``path``, with ``who`` in it for the next process. A symbolic link is never
    followed. ``everyone``: other users take the lock, too.

    Raises the result of ``unwritable(error)`` when the file can't be opened, and that of ``busy``
    (called with the holder's ``who``) when another process holds it.
    """
    lock = FileLock(path, blocking=False)
    if everyone:
        lock = FileLock(path, mode=0o666, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise busy(holder(path)) from None
    except OSError as error:
        raise unwritable(error) from None
    try:
        if who:
            _write(path, who)
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether some process holds this lock of `only_one`."""
    try:
        with FileLock(path, blocking=False):
            return False
    except Timeout:
        return True


def _write(path: Path, who: str) -> None:
    with suppress(OSError):  # a full disk: the lock itself holds
        at = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        with os.fdopen(at, "w", encoding="utf-8") as file:
            file.write(f"{who}\n")


def holder(path: Path) -> str:
    """Who holds or held this lock of `only_one`."""
    with suppress(OSError):
        at = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(at, encoding="utf-8", errors="replace") as file:
            return file.read(200).strip()
    return ""


@contextmanager
def shared(results: Path, wait: float = 30.0) -> Iterator[None]:
    """Held while a run is written: DuckDB's own lock covers the results file while it is open, but
    the Parquet files are written before that. Where no lock file can be created nothing is locked:
    DuckDB then reports why it can't write either."""
    with _held(results, ReadWriteLock.read_lock, wait):
        yield


@contextmanager
def alone(results: Path, wait: float = 30.0) -> Iterator[None]:
    """Held while files are cleared away or swapped: no other process writes meanwhile. Raises Busy
    after ``wait`` seconds."""
    with _held(results, ReadWriteLock.write_lock, wait):
        yield


@contextmanager
def _held(
    results: Path, kind: Callable[..., AbstractContextManager[object]], wait: float
) -> Iterator[None]:
    held: set[Path] = _MINE.__dict__.setdefault("held", set())
    path = Path(f"{results.resolve()}.lock")
    with ExitStack() as stack:
        if path not in held:
            try:
                lock = ReadWriteLock(path, is_singleton=False)
                stack.enter_context(kind(lock, timeout=wait))
            except Timeout:
                raise Busy(
                    f"{results} is being written or cleared up by another process; waited"
                    f" {wait:g} s. Let it finish, then run this again"
                ) from None
            except (OSError, sqlite3.Error):
                pass
            else:
                held.add(path)
                stack.callback(held.discard, path)
        yield
