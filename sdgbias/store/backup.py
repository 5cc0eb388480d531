"""Backup and restore: the Parquet files are copied once (they never change), the DuckDB file each
time, and a manifest lists the files that belong together.

DIR/manifest.json            written last: a killed backup leaves the previous one valid
DIR/results-<hash>.duckdb
DIR/runs/run_id=.../*.parquet  those of earlier backups stay
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sdgbias import locks, store
from sdgbias.errors import Busy, InputError, StoreError, UsageError
from sdgbias.files import confine, replacing, understood
from sdgbias.progress import Progress, each, silent
from sdgbias.store import parquet
from sdgbias.store.maintenance import catalogued

MANIFEST, FORMAT = "manifest.json", 1


@dataclass(frozen=True)
class Copied:
    """files and bytes copied now, and files that existed already."""

    files: int
    bytes: int
    there: int


def back_up(
    results: Path,
    to: Path,
    *,
    now: datetime,
    check_all: bool = False,
    progress: Progress = silent,
) -> Copied:
    """Copies the files missing in ``to`` and writes its manifest. Every copy is read back and
    compared with the catalogue's sha256; files of earlier backups are compared by size, or
    whole with ``check_all``. ``now``: UTC, for the manifest. Raises StoreError, naming the file
    at fault."""
    folder = parquet.local_home(results, "sdgbias store backup")
    try:
        to.mkdir(parents=True, exist_ok=True)
        with locks.shared(results):  # no clean-up meanwhile; publishing goes on
            draft = to / ".results.duckdb.part"
            with store.connect(results, details=()) as con:
                con.execute("CHECKPOINT")
            # no writer until the file is copied
            with store.connect(results, read_only=True, details=()):
                shutil.copyfile(results, draft)
            known = catalogued(draft)
            digest = parquet.sha256(draft)
            copied = size = there = 0
            for detail in each(progress, "backing up", known):
                target = to / "runs" / detail.file
                if parquet.fault(to / "runs", detail, whole=check_all) == "":
                    there += 1
                else:
                    _copy(folder / detail.file, target, detail.sha256, f"run {detail.run_id}")
                    copied, size = copied + 1, size + detail.bytes
        kept = to / f"results-{digest[:16]}.duckdb"
        size += draft.stat().st_size
        os.replace(draft, kept)
        parts = [{"path": f"runs/{d.file}", "bytes": d.bytes, "sha256": d.sha256} for d in known]
        manifest = {
            "format": FORMAT,
            "made_at": now.replace(tzinfo=None).isoformat(timespec="seconds"),
            "results": {"path": kept.name, "bytes": kept.stat().st_size, "sha256": digest},
            "files": parts,
        }
        with replacing(to / MANIFEST) as text:
            text.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for old in to.glob("results-*.duckdb"):
            if old != kept:
                old.unlink()
    except OSError as error:
        with suppress(OSError):
            (to / ".results.duckdb.part").unlink(missing_ok=True)
        raise StoreError(
            f"can't write the backup {to}: {error.strerror}; make room or choose another folder,"
            " then run this again (the backup of before is as it was)"
        ) from None
    return Copied(copied + 1, size, there)


def _copy(source: Path, target: Path, digest: str, what: str) -> None:
    """Copies one file under a temporary name, reads it back and compares it."""
    listed = "sdgbias store verify lists every such file"
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as draft:
        try:
            shutil.copyfile(source, draft)
        except FileNotFoundError:
            raise StoreError(f"{what}: {source} is missing; {listed}") from None
        with draft.open("rb+") as handle:
            os.fsync(handle.fileno())
        shutil.copystat(source, draft)  # with its time, so that readers need not hash the copy
        if parquet.sha256(draft) != digest:
            raise StoreError(f"{what}: {source} is damaged; {listed}")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a backup. Raises InputError for a folder without one."""
    path, make = folder / MANIFEST, f"sdgbias store backup {folder}"
    if not path.exists():
        raise InputError(f"{folder} holds no backup ({MANIFEST} is missing); make one: {make}")
    with understood(path, "no manifest of a backup", f"make a new one: {make}"):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        entries = [found["results"], *found["files"]]
        if found["format"] != FORMAT:
            raise InputError(
                f"{path}: format {found['format']!r}, this version knows {FORMAT}: upgrade sdgbias"
            )
        for entry in entries:
            confine(folder, entry["path"]), int(entry["bytes"]), str(entry["sha256"])
    return found


def check(folder: Path, progress: Progress = silent) -> dict[str, Any]:
    """The manifest, once every file has been compared with it, byte by byte. Raises StoreError
    naming the first that differs."""
    found = read_manifest(folder)
    entries = [found["results"], *found["files"]]
    for entry in each(progress, "checking the backup", entries):
        path = folder / entry["path"]
        fault = "" if path.is_file() else "missing"
        if not fault and path.stat().st_size != entry["bytes"]:
            fault = "damaged"
        if fault or parquet.sha256(path) != entry["sha256"]:
            raise StoreError(
                f"{path} is {fault or 'damaged'} in the backup; nothing was restored; make a new"
                " backup: sdgbias store backup DIR"
            )
    return found


def _let_go(results: Path) -> None:
    """Waits until no process has the file open, and removes its log. A file that is no valid
    results file is replaced silently."""
    try:
        with store.connect(results, details=()) as con:
            con.execute("CHECKPOINT")
    except Busy:
        raise
    except StoreError:
        pass  # damaged: the backup replaces it
    results.with_name(results.name + ".wal").unlink(missing_ok=True)


def restore(
    folder: Path, results: Path, *, overwrite: bool = False, progress: Progress = silent
) -> int:
    """Replaces ``results`` by a backup, or creates it; returns its number of Parquet files.
    Everything is checked before anything is written. The results file comes last, by a rename.
    Raises UsageError where there are results and ``overwrite`` is False."""
    if results.exists() and not overwrite:
        raise UsageError(
            f"{results} exists; give another --results, or --overwrite to lose what it holds"
        )
    found = check(folder, progress)
    home = parquet.local_home(results, "sdgbias store restore")
    try:
        results.parent.mkdir(parents=True, exist_ok=True)
        with locks.alone(results):
            if results.exists():
                _let_go(results)
            for entry in each(progress, "restoring", found["files"]):
                target = home / entry["path"].removeprefix("runs/")
                _copy(folder / entry["path"], target, entry["sha256"], "the backup")
            last = found["results"]
            _copy(folder / last["path"], results, last["sha256"], "the backup")
    except OSError as error:
        raise StoreError(
            f"can't write {results}: {error.strerror}; make room, then run this again"
        ) from None
    return len(found["files"])
