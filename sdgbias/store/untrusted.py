"""Users' SQL queries, on a connection that can open no file.

The type of a statement is no protection: `WITH t AS (COPY ... TO file) SELECT` is a SELECT to
DuckDB, and `EXPLAIN ANALYZE COPY` an EXPLAIN; and a folder that DuckDB may read it may also write,
including the results file. So DuckDB's file system is disabled once the results are open, and the
Parquet files of runs come through Arrow, which only reads them. The types are checked only to give
a better error message.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from sdgbias.errors import UsageError
from sdgbias.store import nights as night_files
from sdgbias.store import parquet, views

_LOCKED = (
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)
#: A PIVOT is a MULTI: DuckDB runs it as several statements.
_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)
_EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE\b)?(\s*\([^()]*\))?", re.IGNORECASE)
_ONLY_READS = (
    "a query reads the results and no other file, and writes none: one SELECT (or EXPLAIN of one);"
    " an answer goes to a file with --csv > FILE"
)

_WHAT_THERE_IS = "tables and columns: sdgbias results tables"


def answer(con: duckdb.DuckDBPyConnection, results: Path, sql: str) -> pd.DataFrame:
    """The rows of one SELECT, or the plan of one. ``con``: a read-only connection to ``results``
    that must not be used afterwards. Raises UsageError for anything else and for SQL that DuckDB
    refuses, duckdb.Error for unreadable files."""
    try:
        _check(con, sql)
        for table in views.tables_in(sql):
            _show(con, results, table)
        night_files.copy(con, results, sql)
        for setting in _LOCKED:
            con.execute(setting)
        frame: pd.DataFrame = con.execute(sql).df()
    except duckdb.PermissionException:
        raise UsageError(_ONLY_READS) from None
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        # A statement that DuckDB refuses is the user's fault; one that meets a broken file is not.
        if views.MARK in str(error) or parquet.named_in(str(error)):
            raise
        raise UsageError(f"--sql: {_fault(con, str(error))}; {_WHAT_THERE_IS}") from None
    return frame


def _fault(con: duckdb.DuckDBPyConnection, text: str) -> str:
    """DuckDB's message in one line, without its drawing of the statement. Of a column named with
    its table it doesn't say which are near; they are added."""
    said = " ".join(text.split("\n\nLINE ")[0].split())[:300]
    unknown = re.search(r'does not have a column named "(\w+)"', said)
    if unknown is None:
        return said
    rows = con.execute("SELECT DISTINCT column_name FROM information_schema.columns").fetchall()
    near = get_close_matches(unknown[1], sorted(name for (name,) in rows))
    return f"{said}; near: {', '.join(near)}" if near else said


def _check(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = con.extract_statements(sql)
    if not statements:
        raise UsageError(
            "--sql holds no statement; e.g. --sql 'SELECT model, value FROM metrics LIMIT 5'"
        )
    if len(statements) != 1:
        raise UsageError(f"--sql has {len(statements)} statements; {_ONLY_READS}")
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        inner = con.extract_statements(_EXPLAIN.sub("", statements[0].query, count=1))
        kind = inner[0].type if len(inner) == 1 else kind
    if kind not in _READS:
        raise UsageError(f"--sql: {kind.name} is no SELECT; {_ONLY_READS}")


def _show(con: duckdb.DuckDBPyConnection, results: Path, table: str) -> None:
    """The view ``table`` over the files of all runs. The run of a row is encoded in the file's
    folder name."""
    where = parquet.home(results)
    sound, broken = views.files(con, results, table)
    schema = con.sql(f"FROM detail.{table} LIMIT 0").to_arrow_table().schema
    filesystem, base = (
        (parquet.bucket(), where.removeprefix("s3://"))
        if parquet.is_remote(where)
        else (fs.LocalFileSystem(), str(Path(where).resolve()))
    )
    data = ds.dataset(
        [f"{base}/{detail.file}" for detail in sound],
        schema=schema,
        format="parquet",
        filesystem=filesystem,
        partitioning=ds.partitioning(pa.schema([("run_id", pa.string())]), flavor="hive"),
        partition_base_dir=base,
    )
    con.register(f"{table}_files", data)
    views.make(con, table, [f"FROM {table}_files", *views.lost(con, table, broken)])
