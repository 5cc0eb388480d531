"""The DuckDB file that holds the results: opening it, waiting for it, its schema, and user-readable
messages for its errors.

The schema grows by the numbered files of ``migrations/``; table ``schema_version`` records which
have been applied.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from sdgbias.errors import Busy, DiskFull, StoreError
from sdgbias.files import packaged
from sdgbias.store import parquet, views
from sdgbias.store.tables import TABLES as DETAILS

MIGRATIONS = packaged("store", "migrations")
_BUSY = re.compile(
    r"Could not set lock|Conflicting lock|different configuration|already attached|being used by"
    r" another"
)
#: The first migration whose catalogue holds the times of files.
_WITH_TIMES = 9
_HOLDER = re.compile(r"held in (.+?\(PID \d+\))")
_CATALOGUE = pa.schema(
    {
        "run_id": pa.string(),
        "table": pa.string(),
        "file": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "sha256": pa.string(),
        "columns": pa.int32(),
        "written_ns": pa.int64(),
    }
)


def open_file(path: Path, read_only: bool, wait: float) -> duckdb.DuckDBPyConnection:
    """A connection, or Busy once ``wait`` seconds of retrying have passed. Raises StoreError,
    DiskFull."""
    deadline, pause = time.monotonic() + wait, 0.02
    while True:
        try:
            return duckdb.connect(
                str(path), read_only=read_only, config={"autoinstall_known_extensions": False}
            )
        except duckdb.Error as error:
            if not _BUSY.search(str(error)):
                raise _store_error(error, path, "open") from None
            if time.monotonic() >= deadline:
                holder = _HOLDER.search(str(error))
                who = f"by {holder.group(1)}" if holder else "by another connection"
                raise Busy(
                    f"{path} is held {who}; waited {wait:g} s. Let that process finish (or end it),"
                    " then run this again"
                ) from None
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.6, 0.5)


def make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"can't create {path.parent} for {path.name}: {error.strerror}; choose another"
            " --results"
        ) from None


@contextmanager
def translate_errors(path: Path, verb: str) -> Iterator[None]:
    """Every DuckDB error inside the block is re-raised as a one-line error."""
    try:
        yield
    except duckdb.Error as error:
        raise _store_error(error, path, verb) from None


def _store_error(error: duckdb.Error, path: Path, verb: str) -> StoreError:
    text = str(error)
    if views.MARK in text:
        return StoreError(text.split(views.MARK, 1)[1].splitlines()[0])
    broken = parquet.named_in(text)
    if broken and verb == "read":
        return StoreError(parquet.advice(broken[0], broken[1], "damaged"))
    line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    for sign, cause in {
        "No space left": (
            "the disk is full; free some space, then run this again (the results are as before)"
        ),
        "File too large": (
            "the file may not grow (size limit); raise it, then run this again (the results are as"
            " before)"
        ),
        "Read-only file system": "the file system is read-only; choose another --results",
        "Permission denied": (
            "permission denied; choose another --results or change the folder's rights"
        ),
        "Not a directory": "a part of this path is a file; choose another --results",
        "not a valid DuckDB": "this is no DuckDB file; choose another --results or move it away",
    }.items():
        if sign in text:
            kind = DiskFull if sign in ("No space left", "File too large") else StoreError
            return kind(f"can't {verb} {path}: {cause}")
    return StoreError(f"can't {verb} {path}: {line}")


def _scripts() -> dict[int, Path]:
    """Migration number -> SQL file, ascending."""
    return dict(sorted((int(p.name.split("_")[0]), p) for p in MIGRATIONS.glob("[0-9]*_*.sql")))


def latest() -> int:
    return max(_scripts())


def version(con: duckdb.DuckDBPyConnection, path: Path) -> int:
    """Number of the last applied migration (0 for an empty file); StoreError when this version
    doesn't have it."""
    return _state(con, path)[0]


def is_current(con: duckdb.DuckDBPyConnection, path: Path) -> bool:
    """Whether ``migrate`` has nothing to do."""
    found, unmoved = _state(con, path)
    return found == latest() and not unmoved


def _state(con: duckdb.DuckDBPyConnection, path: Path) -> tuple[int, list[str]]:
    """The schema's version, and the tables of details that still hold rows of their own, as
    versions before schema 5 wrote them."""
    tables = con.execute("SELECT table_name, schema_name FROM duckdb_tables()").fetchall()
    if ("schema_version", "main") not in tables:
        if tables:
            raise StoreError(
                f"{path} is a DuckDB file but holds no sdgbias results; choose another --results"
            )
        return 0, []
    [(found,)] = con.execute("SELECT coalesce(max(version), 0)::INT FROM schema_version").fetchall()
    if found > latest():
        raise StoreError(
            f"{path} has schema {found}, this version knows {latest()}: upgrade sdgbias"
        )
    return int(found), sorted(
        name for name, schema in tables if schema == "main" and name in DETAILS
    )


def migrate(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Applies the missing migrations, each file in its own transaction, in order of number."""
    done = version(con, path)
    for number, script in _scripts().items():
        if number <= done:
            continue
        con.execute("BEGIN")
        con.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER, name VARCHAR, applied_at"
            " TIMESTAMP)"
        )
        con.execute(script.read_text(encoding="utf-8"))
        now = datetime.now(UTC).replace(tzinfo=None)
        con.execute("INSERT INTO schema_version VALUES (?, ?, ?)", [number, script.name, now])
        if number == _WITH_TIMES:
            _note_times(con, path)
        con.execute("COMMIT")
    _move_details(con, path)


def _note_times(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Records the times of files that an older version wrote, if their sizes match: hashing a year
    of them would take minutes, and `sdgbias store verify` does it on demand."""
    where = parquet.home(path)
    if parquet.is_remote(where):
        return
    found = con.execute("SELECT file, bytes FROM details WHERE dropped_at IS NULL").fetchall()
    for file, size in found:
        try:
            there = (Path(where) / file).stat()
        except OSError:
            continue
        if there.st_size == size:
            con.execute(
                "UPDATE details SET written_ns = ? WHERE file = ?", [there.st_mtime_ns, file]
            )


def _move_details(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Moves rows of old tables into Parquet files, one run at a time: if killed in between, the
    next opening continues."""
    for table in _state(con, path)[1]:
        runs = [
            run
            for (run,) in con.execute(
                f"SELECT DISTINCT run_id FROM main.{table} ORDER BY 1"
            ).fetchall()
        ]
        for run_id in runs:
            rows = con.sql(
                f"SELECT * FROM main.{table} WHERE run_id = $run", params={"run": run_id}
            ).to_arrow_table()
            moved = catalogue([parquet.write(path, run_id, table, rows)])
            con.execute("BEGIN")
            con.register("moved", moved)
            con.execute("INSERT INTO details BY NAME SELECT * FROM moved")
            con.unregister("moved")
            con.execute(f"DELETE FROM main.{table} WHERE run_id = ?", [run_id])
            con.execute("COMMIT")
        con.execute(f"DROP TABLE main.{table}")


def catalogue(made: Sequence[parquet.RunTable]) -> pa.Table:
    return pa.table(
        {f.name: [getattr(d, f.name) for d in made] for f in fields(parquet.RunTable)},
        schema=_CATALOGUE,
    )


def copy(source: Path, target: Path) -> None:
    """Everything of one DuckDB file into a new one, without holes. ``source`` must have no writer
    meanwhile."""
    quoted = ["'" + str(p).replace("'", "''") + "'" for p in (source, target)]
    with (
        translate_errors(target, "write"),
        duckdb.connect(config={"autoinstall_known_extensions": False}) as con,
    ):
        con.execute(f"ATTACH {quoted[0]} AS old (READ_ONLY)")
        con.execute(f"ATTACH {quoted[1]} AS new")
        con.execute("COPY FROM DATABASE old TO new")
        con.execute("CHECKPOINT new")
        con.execute("DETACH new")


def first_seen(con: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """The pictures of ``incoming`` with the first run that contains each."""
    sql = """SELECT i.* REPLACE (coalesce(p.run_id, i.run_id) AS run_id) FROM incoming i
             LEFT JOIN previews p ON p.benchmark_id = i.benchmark_id AND p.image_id = i.image_id"""
    found: pa.Table = con.sql(sql).to_arrow_table().cast(rows.schema)
    return found
