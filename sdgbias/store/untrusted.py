"""Users' SQL queries, on a connection that can open no file.

DuckDB's list of allowed paths is no protection: a file that a statement may read it may also write,
the results file included (`COPY ... TO file (USE_TMP_FILE false)`, also within a SELECT). So the
file system of the connection is switched off, its configuration is locked, and the Parquet files of
runs come through Arrow, which only reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from sdgbias.errors import UsageError
from sdgbias.store import views

_LOCKED = """SET python_enable_replacements = false; SET enable_external_access = false;
             SET disabled_filesystems = 'LocalFileSystem'; SET lock_configuration = true"""
#: A PIVOT is a MULTI: DuckDB runs it as several statements.
_READS = {
    duckdb.StatementType.SELECT,
    duckdb.StatementType.MULTI,
    duckdb.StatementType.EXPLAIN,
}
#: From here on a float may stand for another integer.
_EXACT = 2**53
_ONLY_READS = (
    "a query reads the results and no other file, and writes none: one SELECT (or EXPLAIN of one);"
    " an answer goes to a file with --csv > FILE"
)


def answer(con: duckdb.DuckDBPyConnection, results: Path, sql: str) -> pd.DataFrame:
    """The rows of one SELECT, or the plan of one. ``con``: a read-only connection to ``results``
    that must not be used afterwards. Raises UsageError for anything else and for SQL that DuckDB
    refuses, duckdb.Error for unreadable files."""
    try:
        kinds = [statement.type for statement in con.extract_statements(sql)]
        if len(kinds) != 1 or kinds[0] not in _READS:
            listed = ", ".join(kind.name for kind in kinds) or "no statement"
            raise UsageError(f"the query is {listed}; {_ONLY_READS}")
        views.show(con, results, views.tables_in(sql), scan=_scan)
        con.execute(_LOCKED)
        rows = con.execute(sql)
        types = [str(column[1]) for column in rows.description or ()]
        frame = rows.df()
    except duckdb.PermissionException:
        raise UsageError(_ONLY_READS) from None
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        # A statement that DuckDB refuses is the user's fault; one that meets a broken file is not.
        if views.MARK in str(error):
            raise
        fault = _in_one_line(con, str(error))
        raise UsageError(
            f"the query failed: {fault}; tables and columns: sdgbias results tables"
        ) from None
    for name, kind in zip(frame, types, strict=True):  # pandas has neither: floats, and midnights
        if kind == "HUGEINT" and not frame[name].abs().max() >= _EXACT:
            frame[name] = frame[name].astype("Int64")
        elif kind == "DATE":
            frame[name] = frame[name].dt.date
    return frame


def _in_one_line(con: duckdb.DuckDBPyConnection, text: str) -> str:
    """DuckDB's message without its drawing of the statement. Of a column named with its table it
    doesn't say which are near; they are added."""
    line = " ".join(text.split("\n\nLINE ")[0].split())[:300]
    unknown = re.search(r'does not have a column named "(\w+)"', line)
    if unknown is None:
        return line
    rows = con.execute("SELECT DISTINCT column_name FROM information_schema.columns").fetchall()
    near = get_close_matches(unknown[1], sorted(name for (name,) in rows))
    return f"{line}; near: {', '.join(near)}" if near else line


def _scan(con: duckdb.DuckDBPyConnection, table: str, paths: Sequence[Path]) -> str:
    """The statement that reads these files. The run of a row is encoded in its folder's name."""
    data = ds.dataset(
        [str(path.resolve()) for path in paths],
        schema=con.sql(f"FROM detail.{table} LIMIT 0").to_arrow_table().schema,
        format="parquet",
        partitioning=ds.partitioning(pa.schema([("run_id", pa.string())]), flavor="hive"),
        partition_base_dir=str(paths[0].resolve().parents[1]),
    )
    con.register(f"{table}_files", data)
    return f"FROM {table}_files"
