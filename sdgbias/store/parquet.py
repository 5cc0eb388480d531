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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.errors import DiskFull, StoreError
from sdgbias.store.tables import DETAILS

#: Small enough that looking up one question reads only a part of the file.
ROW_GROUP = 131_072


class Refusal(NamedTuple):
    """A reason why the system refuses to write: what its message holds, and ours."""

    sign: str
    cause: str
    kind: type[StoreError] = StoreError


_OTHER = "choose another --results"
REFUSALS = (
    Refusal("No space left", "the disk is full; free some space", DiskFull),
    Refusal("Disk quota exceeded", "the disk's quota is used up; free some space", DiskFull),
    Refusal("File too large", "the file may not grow (size limit); raise it", DiskFull),
    Refusal("Read-only file system", f"the file system is read-only; {_OTHER}"),
    Refusal("Permission denied", f"permission denied; {_OTHER} or change the folder's rights"),
    Refusal("Not a directory", f"a part of this path is a file; {_OTHER}"),
    Refusal("not a valid DuckDB", f"this is no DuckDB file; {_OTHER} or move it away"),
)
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
_CATALOGUE = pa.schema(
    (f.name, pa.int64() if f.name in ("rows", "bytes", "written_ns") else pa.string())
    for f in fields(RunTable)
)
#: Files whose bytes this process has compared with their digest, by path, as (inode, size, time,
#: digest): hashed again only when one of these changes.
_COMPARED: dict[str, tuple[int, int, int, str]] = {}


def home(results: Path) -> Path:
    """The folder that contains the Parquet files of this results file."""
    return results.with_suffix(".runs")


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
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as handle:
            pq.write_table(rows, handle, compression="zstd", row_group_size=ROW_GROUP)
            handle.flush()
            os.fsync(handle.fileno())
        digest = sha256(part)
        final = f"{table}-{digest[:16]}.parquet"
        stat = part.stat()
        part.rename(folder / final)
    except OSError as error:
        part.unlink(missing_ok=True)
        other = Refusal("", f"{error.strerror or error}; fix it")
        refusal = next((f for f in REFUSALS if f.sign in str(error)), other)
        raise refusal.kind(f"can't write {folder}: {refusal.cause}, {AGAIN}") from None
    file = f"{folder_of(run_id)}/{final}"
    return RunTable(run_id, table, file, len(rows), stat.st_size, digest, stat.st_mtime_ns)


def catalogue(files: Sequence[RunTable]) -> pa.Table:
    """The rows of table ``details`` for these files."""
    return pa.Table.from_pylist(list(map(asdict, files)), _CATALOGUE)


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
