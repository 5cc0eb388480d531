"""The DuckDB file that holds the results: opening it, waiting for it, its schema, and user-readable
messages for its errors.

``schema.sql`` is the whole schema. A file of another version is refused, never changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import duckdb
import pyarrow as pa

from sdgbias.errors import Busy, DiskFull, StoreError
from sdgbias.files import packaged
from sdgbias.store import parquet, views

#: Version of schema.sql: raised with every change to it.
SCHEMA = 15
_BUSY = re.compile(
    r"Could not set lock|Conflicting lock|different configuration|already attached|being used by"
    r" another"
)
_HOLDER = re.compile(r"held in (.+?\(PID \d+\))")
#: What a metric row is a number of.
CELL = ("task", "metric", "method", "test", "pillar", "indicator")
_CATALOGUE = pa.schema(
    (f.name, pa.int64() if f.name in ("rows", "bytes", "written_ns") else pa.string())
    for f in fields(parquet.RunTable)
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
    if found := next((f for f in parquet.REFUSALS if f.sign in text), None):
        again = f", {parquet.AGAIN}" if found.kind is DiskFull else ""
        return found.kind(f"can't {verb} {path}: {found.cause}{again}")
    return StoreError(f"can't {verb} {path}: {line}")


def ensure_schema(con: duckdb.DuckDBPyConnection, path: Path, create: bool) -> None:
    """Creates the tables of an empty file, where ``create``. Raises StoreError for a file without
    them and for one that another version wrote."""
    try:  # listing the tables takes as long as opening the file, and nearly every file has this one
        [(found,)] = con.execute("SELECT max(version) FROM schema_version").fetchall()
    except duckdb.CatalogException:
        tables = con.execute("SELECT 1 FROM duckdb_tables() WHERE schema_name = 'main'").fetchall()
    else:
        if found == SCHEMA:
            return
        raise StoreError(
            f"{path} has schema {found}, this version of sdgbias reads schema {SCHEMA} only;"
            " use the version that wrote it, or evaluate into another file: --results FILE"
        )
    if tables:
        raise StoreError(
            f"{path} is a DuckDB file but holds no sdgbias results; choose another --results"
        )
    elif create:
        con.execute("BEGIN")
        con.execute(packaged("store", "schema.sql").read_text(encoding="utf-8"))
        con.execute(f"CREATE TABLE schema_version AS SELECT {SCHEMA} AS version")
        con.execute("COMMIT")
    else:
        raise StoreError(f"{path} is empty; run `sdgbias evaluate` first")


def catalogue(made: Sequence[parquet.RunTable]) -> pa.Table:
    return pa.Table.from_pylist(list(map(asdict, made)), _CATALOGUE)


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


def cell(values: Sequence[str] = CELL) -> str:
    """SQL of column ``cell`` from the SQL of each of CELL: 64 bits, because DuckDB keeps the range
    of a column for every 122,880 rows, exact for numbers and of the first eight bytes for text."""
    return f"md5_number_lower(concat_ws('|', {', '.join(values)}))"


#: Parts in which a block is sorted.
_PARTS = 8


def group_by_cell(
    con: duckdb.DuckDBPyConnection, table: str, coming: int, blocks: Sequence[int], newest: int
) -> None:
    """Sorts a block of ``table`` by cell when ``coming`` rows will complete it; the largest of
    ``blocks`` (rows, rising; each divides the next) that is complete then. Runs are stored one
    after the other, so that one number of every run of a year would otherwise be spread over the
    whole table. The ``newest`` rows stay in the order of publication: the newest run is the one
    that is asked for most."""
    [(there,)] = con.execute(f"SELECT count(*) FROM {table}").fetchall()
    before, now = (max(0, rows - max(newest, coming)) for rows in (there, there + coming))
    complete = [rows for rows in blocks if before // rows < now // rows]
    if not complete:
        return
    end = now // complete[-1] * complete[-1]
    [(last,)] = con.execute(f"SELECT max(rowid) FROM {table}").fetchall()

    def row(index: int) -> int:  # numbers of rows have gaps where some were deleted
        found = con.execute(f"SELECT rowid FROM {table} LIMIT 1 OFFSET {index}").fetchone()
        return int(found[0]) if found else last + 1

    # all rows from the start of the block are written anew, so that those behind it stay behind it;
    # the block in parts by cell, of which one at a time is sorted in memory
    block = f"rowid >= {row(end - complete[-1])} AND rowid < {row(end)}"
    behind = f"rowid >= {row(end)} AND rowid <= {last}"
    width = 2**64 // _PARTS
    for low in range(0, 2**64, width):
        part = f"{block} AND cell BETWEEN {low} AND {low + width - 1} ORDER BY cell, rowid"
        con.execute(f"INSERT INTO {table} FROM {table} WHERE {part}")
    con.execute(f"INSERT INTO {table} FROM {table} WHERE {behind} ORDER BY rowid")
    con.execute(f"DELETE FROM {table} WHERE {block} OR {behind}")


def first_seen(con: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """The pictures of ``rows`` with the first run that contains each."""
    con.register("incoming", rows)
    sql = """SELECT i.* REPLACE (coalesce(p.run_id, i.run_id) AS run_id) FROM incoming i
             LEFT JOIN previews p ON p.benchmark_id = i.benchmark_id AND p.image_id = i.image_id"""
    found: pa.Table = con.sql(sql).to_arrow_table().cast(rows.schema)
    return found
