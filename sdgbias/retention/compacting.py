"""Clearing up: files that nothing refers to go, and the DuckDB file is copied to a new one without its holes."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sdgbias import database, store
from sdgbias.details import files, locks
from sdgbias.errors import StoreError
from sdgbias.retention.contents import Progress, orphans
from sdgbias.retention.keeping import remove_if_empty

#: A score cache of a fingerprint without a run may belong to an interrupted evaluation: it goes when nothing was written to it for so long.
UNTOUCHED = timedelta(days=7)


@dataclass(frozen=True)
class Cleared:
    """What went: orphans (files, bytes), score caches (folders, bytes), and the DuckDB file before and after (bytes)."""

    orphans: int
    orphan_bytes: int
    caches: int
    cache_bytes: int
    before: int
    after: int


def compact(results: Path, *, caches: bool = False, now: datetime, progress: Progress | None = None) -> Cleared:
    """Nobody writes meanwhile; readers are not disturbed. ``caches``: also score caches whose fingerprint no run has and that were left alone
    for a week before ``now``. Raises StoreError while another process writes, or where there is no room for a second DuckDB file."""
    folder = files.local_home(results, "sdgbias store compact")
    with locks.alone(results):
        left = orphans(results)
        freed = sum(p.stat().st_size for p in left)
        for done, path in enumerate(left, 1):
            path.unlink()
            if progress:
                progress("clearing orphans", done, len(left))
        for run in sorted(folder.glob("run_id=*")):
            remove_if_empty(run)
        unused = _unused_caches(results, now) if caches else []
        held = sum(_size(p) for p in unused)
        for path in unused:
            shutil.rmtree(path)
            remove_if_empty(path.parent)
        if progress:
            progress("copying the DuckDB file", 0, 1)
        before = results.stat().st_size
        _copy(results)
        if progress:
            progress("copying the DuckDB file", 1, 1)
        return Cleared(len(left), freed, len(unused), held, before, results.stat().st_size)


def _copy(results: Path) -> None:
    """The DuckDB file through a new one, renamed into place; a reader keeps the old one until it closes it."""
    draft = results.with_name(f".{results.name}.part")
    _discard(draft)
    with store.connect(results, details=()) as con:
        con.execute("CHECKPOINT")  # what a killed writer left in the log stands in the file
    try:
        database.copy(results, draft)
        with draft.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(draft, results)
    except OSError as error:
        raise StoreError(f"can't write {draft}: {error.strerror}; make room, then run this again (the results are as before)") from None
    finally:
        _discard(draft)


def _discard(draft: Path) -> None:
    for path in (draft, draft.with_name(draft.name + ".wal")):
        path.unlink(missing_ok=True)


def _unused_caches(results: Path, now: datetime) -> list[Path]:
    """Folders scores/<model>/<fingerprint> of fingerprints that no run has, untouched for a week, and not being written."""
    known = set(store.query(results, "SELECT DISTINCT fingerprint FROM runs")["fingerprint"])
    found = []
    for folder in sorted(p for p in (results.parent / "scores").glob("*/*") if p.is_dir() and any(p.glob("*.parquet"))):
        newest = max(p.stat().st_mtime for p in folder.iterdir())
        if folder.name not in known and newest < (now - UNTOUCHED).timestamp() and not _locked(folder / ".lock"):
            found.append(folder)
    return found


def _locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
