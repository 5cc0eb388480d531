"""The catalogued files of runs as tables of a connection: temporary views named scores,
predictions, decoded and spoken."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sdgbias.errors import StoreError
from sdgbias.store import parquet
from sdgbias.store.parquet import RunTable
from sdgbias.store.tables import TABLES

#: Of each answer the question that it answers, and what its errors are clustered by.
ANSWERS = """
    CREATE OR REPLACE TEMP VIEW answers AS
    SELECT p.* EXCLUDE (split), r.model, r.suite, r.benchmark_id,
           q.* EXCLUDE (benchmark_id, suite, task, item_id),
           unit_of(method, test, prompt_key, cluster_id) AS unit
    FROM predictions p JOIN runs r USING (run_id) JOIN questions q
      ON q.benchmark_id = r.benchmark_id AND q.task = p.task AND q.item_id = p.item_id"""
_WORD = re.compile(rf"\b({'|'.join(TABLES)}|answers)\b", re.IGNORECASE)
_TAME = re.compile(rf"run_id=[^/\\]+/({'|'.join(TABLES)})-[0-9a-f]{{16}}\.parquet")
#: Prefix of the message of a broken file inside a DuckDB error.
MARK = "sdgbias-details: "


def tables_in(sql: str) -> list[str]:
    """The detail tables that a statement reads: those that it names anywhere in its text, and
    predictions, which answers are a view of."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return sorted(words - {"answers"} | ({"predictions"} if "answers" in words else set()))


def show(
    con: Any,
    results: Path,
    tables: Collection[str] = tuple(TABLES),
    runs: Sequence[str] | None = None,
) -> None:
    """Creates the views over every catalogued file, or over those of ``runs`` only (much cheaper
    with thousands of runs).

    A filter on run_id opens only the files of those runs. A missing or damaged file raises an error
    only for readers of its run.
    """
    where = parquet.home(results)
    for table in tables:
        sound, broken = files(con, results, table, runs)
        quoted = ", ".join("'" + f"{where}/{d.file}".replace("'", "''") + "'" for d in sound)
        con.execute(f"SET VARIABLE {table}_files = [{quoted}]")
        rows = (
            f"SELECT * FROM read_parquet(getvariable('{table}_files'), hive_partitioning = true,"
            " hive_types = {'run_id': 'VARCHAR'})"
        )
        make(con, table, [*([rows] if sound else []), *lost(con, table, broken)])


def files(
    con: Any, results: Path, table: str, runs: Sequence[str] | None = None
) -> tuple[list[RunTable], list[tuple[str, str]]]:
    """The intact catalogued files of a table, by file, and the others as (run id, reason): one
    unreadable file would make DuckDB fail on all the rest. Raises StoreError where the
    catalogue names a file elsewhere."""
    where = parquet.home(results)
    condition = "" if runs is None else " AND list_contains($runs, run_id)"
    details = [
        RunTable(*row)
        for row in con.execute(
            f'SELECT {", ".join(parquet.COLUMNS)} FROM details WHERE "table" = $table AND'
            f" dropped_at IS NULL{condition} ORDER BY file",
            {"table": table} | ({} if runs is None else {"runs": list(runs)}),
        ).fetchall()
    ]
    if not all(_TAME.fullmatch(detail.file) for detail in details):
        raise StoreError(
            f"{results}: table details names a file outside {where}; this is no results"
            " file of sdgbias"
        )
    sound, broken = [], []
    for detail in details:
        why = parquet.fault(where, detail)
        if why:
            broken.append(
                (detail.run_id, MARK + parquet.advice(detail.run_id, f"{where}/{detail.file}", why))
            )
        else:
            sound.append(detail)
    return sound, broken


def lost(con: Any, table: str, broken: Sequence[tuple[str, str]]) -> list[str]:
    """A part of a view that raises an error when a run with a broken file is read, whatever the
    statement asks of its other columns: a NULL there would let a filter drop the run silently."""
    if not broken:
        return []
    values = ", ".join(
        "(" + ", ".join("'" + v.replace("'", "''") + "'" for v in pair) + ")" for pair in broken
    )
    columns = con.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = 'detail' AND"
        " table_name = ? AND column_name <> 'run_id'",
        [table],
    ).fetchall()
    raising = ", ".join(f'CAST(error(said) AS {kind}) AS "{name}"' for name, kind in columns)
    return [
        f"SELECT run_id, {raising} FROM (VALUES {values}) lost(run_id, said)"
        " WHERE error(said) IS NULL"
    ]


def make(con: Any, table: str, parts: Sequence[str]) -> None:
    """The view ``table``: its empty table, which has every column, and the rows of ``parts``."""
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW {table} AS "
        + " UNION ALL BY NAME ".join([f"FROM detail.{table}", *parts])
    )
    if table == "predictions":
        con.execute(ANSWERS)
