"""The DuckDB file that holds the results: opening it, waiting for it, its schema, and user-readable
messages for its errors.

``schema.sql`` is the whole schema; migrate.py reads files of earlier ones.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from sdgbias.errors import Busy, DiskFull, StoreError, UsageError, first_line
from sdgbias.files import packaged, packaged_yaml, writable
from sdgbias.store import parquet, views
from sdgbias.store.tables import schema
from sdgbias.store.views import quoted

#: Version of schema.sql: raised with every change to it.
SCHEMA = 22
_BUSY = re.compile(
    r"Could not set lock|Conflicting lock|different configuration|already attached|being used by"
    r" another"
)
_HOLDER = re.compile(r"held in (.+?\(PID \d+\))")


class Refusal(NamedTuple):
    """A reason why DuckDB can't open or write a file: what its message holds, and ours."""

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
    Refusal("not a valid DuckDB", f"this is not a DuckDB file; {_OTHER} or move it away"),
)


def local(path: Path | str) -> Path:
    """The results file as a path. Raises UsageError for a path that DuckDB misreads, StoreError for
    a folder or a pipe."""
    if re.match(r"[a-z0-9+]+:/", str(path)):
        raise UsageError(
            f"--results {path}: results are a local file; mount or copy what lies elsewhere"
        )
    if "?" in str(path):  # DuckDB takes it for the end of the path, and its log file for another
        raise UsageError(
            f"--results {path}: DuckDB writes no file whose path holds a question mark"
        )
    path = Path(path)
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a file; choose another --results, e.g. results.duckdb")
    return path


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


def refuse_namesake(path: Path) -> None:
    """Raises StoreError where another results file is of this name but for its suffix, such as a
    copy: the folders of both are one, and each would take the other's files for orphans."""
    real = path.resolve()
    for other in real.parent.glob(f"{glob.escape(real.stem)}*"):
        if other.stem == real.stem and other.resolve() != real and other.is_file():
            with suppress(OSError), other.open("rb") as file:
                if file.read(12)[8:] == b"DUCK":
                    raise StoreError(
                        f"{path}: {other.name} beside it has the same folders,"
                        f" {real.stem}.runs and {real.stem}.nights; give one of them another name"
                    )


def make_folder(path: Path) -> None:
    with writable(path.parent, "choose another --results"):
        path.parent.mkdir(parents=True, exist_ok=True)


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
    if refusal := next((f for f in REFUSALS if f.sign in text), None):
        again = f", {parquet.AGAIN}" if refusal.kind is DiskFull else ""
        return refusal.kind(f"can't {verb} {path}: {refusal.cause}{again}")
    return StoreError(f"can't {verb} {path}: {first_line(error)}")


def version(path: Path, wait: float) -> int:
    """The schema of a results file; 0 of a file without tables. Raises StoreError for a DuckDB file
    with other tables."""
    with open_file(path, True, wait) as con, translate_errors(path, "read"):
        schema = version_of(con)
        if not schema and con.execute("FROM duckdb_tables()").fetchone():
            raise StoreError(
                f"{path} is a DuckDB file but holds no sdgbias results; choose another --results"
            )
        return schema


def version_of(con: duckdb.DuckDBPyConnection) -> int:
    """The schema of an open results file; 0 where it has none."""
    try:
        [(schema,)] = con.execute("SELECT max(version) FROM schema_version").fetchall()
    except duckdb.CatalogException:
        return 0
    return int(schema)


def create_tables(con: duckdb.DuckDBPyConnection) -> None:
    """The tables and views of schema.sql, in a file without any."""
    con.execute("BEGIN")
    con.execute(schema())
    con.execute(f"CREATE TABLE schema_version AS SELECT {SCHEMA} AS version")
    _comment(con)
    con.execute("COMMIT")


def _comment(con: duckdb.DuckDBPyConnection) -> None:
    """What every table and column holds, from comments.yaml: by `table.column`, or by the column's
    name where it means the same in every table."""
    comments = packaged_yaml("comments.yaml")
    of_tables, of_columns = comments["tables"], comments["columns"]
    for kind, name in (("TABLE", "table"), ("VIEW", "view")):
        sql = f"SELECT schema_name, {name}_name FROM duckdb_{name}s() WHERE NOT internal"
        for room, table in con.execute(sql).fetchall():
            con.execute(f"COMMENT ON {kind} {room}.{table} IS {quoted(of_tables[table])}")
    sql = "SELECT schema_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal"
    for room, table, column in con.execute(sql).fetchall():
        text = quoted(of_columns.get(f"{table}.{column}") or of_columns[column])
        con.execute(f'COMMENT ON COLUMN {room}.{table}."{column}" IS {text}')


def write_reasons(con: duckdb.DuckDBPyConnection, run_id: str | None = None) -> None:
    """The numbers that a run, or every run, can't have, with the reason (missing.sql)."""
    sql = packaged("store", "missing.sql").read_text(encoding="utf-8")
    con.execute(sql, {"run": run_id})


@contextmanager
def rewriting(path: Path) -> Iterator[Path]:
    """A draft beside a DuckDB file, renamed onto it at the end of the block; a reader keeps the old
    file until it closes it. Raises StoreError where there is no room."""
    path = path.resolve()  # a link stays one
    # the longest name that a file can have leaves no room for more
    draft = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:16]}.part")
    _discard(draft)
    try:
        with writable(draft, f"make room, {parquet.AGAIN}"):
            yield draft
            with draft.open("rb") as handle:
                os.fsync(handle.fileno())
            os.replace(draft, path)
    finally:
        _discard(draft)


def _discard(draft: Path) -> None:
    for path in (draft, draft.with_name(draft.name + ".wal")):
        path.unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    """Everything of one DuckDB file into a new one, without holes. ``source`` must have no writer
    meanwhile."""
    with (
        translate_errors(target, "write"),
        duckdb.connect(config={"autoinstall_known_extensions": False}) as con,
    ):
        con.execute(f"ATTACH {quoted(source)} AS old (READ_ONLY)")
        con.execute(f"ATTACH {quoted(target)} AS new")
        con.execute("COPY FROM DATABASE old TO new")
        con.execute("CHECKPOINT new")
        con.execute("DETACH new")


def first_seen(con: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """The pictures of ``rows`` with the first run that contains each."""
    con.register("incoming", rows)
    sql = """SELECT i.* REPLACE (coalesce(p.run_id, i.run_id) AS run_id) FROM incoming i
             LEFT JOIN previews p ON p.benchmark_id = i.benchmark_id AND p.image_id = i.image_id"""
    pictures: pa.Table = con.sql(sql).to_arrow_table().cast(rows.schema)
    return pictures
