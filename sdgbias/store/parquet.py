"""The big tables of a run, Parquet files that never change:

    <results without its suffix>.runs/run_id=<run>/<table>-<first 16 digits of the sha256>.parquet

A file is written under a temporary name and renamed into place, before the results file is opened
for writing: the lock that keeps readers out is held only for the rows of the catalogue (table
``details`` of the results file). A file without a row in the catalogue is an orphan: never read,
and removed by `sdgbias store compact`.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.files import beside, writable
from sdgbias.store.tables import DETAILS

#: Small enough that looking up one question reads only a part of the file.
ROW_GROUP = 131_072


#: What follows where something can't be written.
AGAIN = "then run this again (the results are as before)"


@dataclass(frozen=True)
class RunTable:
    """One row of the catalogue. ``file``: relative to ``home``; ``written_ns``: the file's
    modification time when it was written (ns since 1970)."""

    run_id: str
    table: str
    file: str
    rows: int
    bytes: int
    sha256: str
    written_ns: int | None = field(default=None, compare=False)


#: The columns of table details that a Detail has, in its order, quoted for SQL.
COLUMNS = tuple(f'"{f.name}"' for f in fields(RunTable))
#: Files whose bytes this process has compared with their digest, by path, as (inode, size, time,
#: digest): hashed again only when one of these changes.
_COMPARED: dict[str, tuple[int, int, int, str]] = {}


def home(results: Path) -> Path:
    """The folder that contains the Parquet files of this results file."""
    return beside(results, ".runs")


def folder_of(run_id: str) -> str:
    """Name of a run's folder: run_id=..., percent-encoded where a file name can't hold it."""
    return f"run_id={quote(run_id, safe='')}"


def write(results: Path, run_id: str, table: str, rows: pa.Table) -> RunTable:
    """Writes the rows of one table of one run, sorted by key, and returns its row of the catalogue.
    Same rows, same bytes, same name.

    Raises StoreError where the file can't be written; no partial file remains.
    """
    folder = home(results) / folder_of(run_id)
    rows = rows.sort_by([(key, "ascending") for key in DETAILS[table]]).drop_columns("run_id")
    part = folder / f".{table}-{uuid.uuid4().hex}.part"
    try:
        with writable(folder, f"make room or choose another --results, {AGAIN}"):
            folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as handle:
                pq.write_table(rows, handle, compression="zstd", row_group_size=ROW_GROUP)
                handle.flush()
                os.fsync(handle.fileno())
            digest, stat = sha256(part), part.stat()
            final = f"{table}-{digest[:16]}.parquet"
            part.rename(folder / final)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    file = f"{folder_of(run_id)}/{final}"
    return RunTable(run_id, table, file, len(rows), stat.st_size, digest, stat.st_mtime_ns)


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fault(where: Path, detail: RunTable, *, whole: bool = False) -> str:
    """'' where the file matches the catalogue, else 'missing' or 'damaged'. Checks its size and
    modification time; where the time differs (the file was replaced, or copied without its times),
    every byte, by its sha256, once per process. ``whole``: every byte in any case."""
    path = str(where / detail.file)
    try:
        stat = os.stat(path)
        if stat.st_size != detail.bytes:
            return "damaged"
        if stat.st_mtime_ns == detail.written_ns and not whole:
            return ""
        seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns, detail.sha256)
        if whole or _COMPARED.get(path) != seen:
            if sha256(Path(path)) != detail.sha256:
                return "damaged"
            _COMPARED[path] = seen
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError:
        return "damaged"
    return ""


def advice(run_id: str, file: Path, why: str) -> str:
    """The message for a reader of a broken run."""
    next_step = "move the damaged file away"
    if why == "missing":
        next_step = "check that NAME.runs stands beside NAME.duckdb"
    return (
        f"run {run_id}: {file} is {why}; {next_step}, bring it back from a copy or evaluate the"
        " model again; sdgbias store check lists every such file"
    )
