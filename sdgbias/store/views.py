"""Files as tables of a connection: temporary views of the catalogued files of runs (scores,
predictions, decoded and spoken) and of answers, and a temporary table of each record of nights."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from sdgbias.errors import StoreError
from sdgbias.store import night_files, parquet
from sdgbias.store.parquet import RunTable
from sdgbias.store.tables import DETAILS, columns

#: Of each answer the question that it answers, and what its errors are clustered by.
ANSWERS = """
    CREATE OR REPLACE TEMP VIEW answers AS
    SELECT p.* EXCLUDE (split), r.model, r.suite, r.benchmark_id,
           q.* EXCLUDE (benchmark_id, suite, task, item_id),
           unit_of(method, test, prompt_key, cluster_id) AS unit
    FROM predictions p JOIN runs r USING (run_id) JOIN questions q
      ON q.benchmark_id = r.benchmark_id AND q.task = p.task AND q.item_id = p.item_id"""
_WORD = re.compile(rf"\b({'|'.join((*DETAILS, 'answers', *night_files.VIEWS))})\b", re.IGNORECASE)
_TAME = re.compile(rf"run_id=[^/\\]+/({'|'.join(DETAILS)})-[0-9a-f]{{16}}\.parquet")
#: Prefix of the message of a broken file inside a DuckDB error.
MARK = "sdgbias-details: "


def tables_in(sql: str) -> list[str]:
    """The detail tables and the views of nights that a statement reads: those that it names
    anywhere in its text, and predictions, which answers are a view of."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return sorted(words - {"answers"} | ({"predictions"} if "answers" in words else set()))


def catalogued(
    con: Any, results: Path, table: str | None = None, runs: Sequence[str] | None = None
) -> list[RunTable]:
    """The rows of the catalogue whose files were not dropped, by file: of one table, of some runs.
    Raises StoreError where one names a file elsewhere."""
    rows = con.execute(
        f"""SELECT {", ".join(parquet.COLUMNS)} FROM details WHERE dropped_at IS NULL
            AND ($table IS NULL OR "table" = $table)
            AND ($runs IS NULL OR list_contains($runs::VARCHAR[], run_id)) ORDER BY file""",
        {"table": table, "runs": runs if runs is None else list(runs)},
    ).fetchall()
    files = [RunTable(*row) for row in rows]
    if not all(_TAME.fullmatch(one.file) for one in files):
        raise StoreError(
            f"{results}: table details names a file outside {parquet.home(results)}; this is not a"
            " results file of sdgbias"
        )
    return files


def files(
    con: Any, results: Path, table: str, runs: Sequence[str] | None = None
) -> tuple[list[Path], list[tuple[str, str]]]:
    """The intact files of a table, and the others as (run id, message): one unreadable file would
    make DuckDB fail on all the rest. Raises as `catalogued`."""
    where = parquet.home(results)
    sound: list[Path] = []
    broken: list[tuple[str, str]] = []
    for one in catalogued(con, results, table, runs):
        if why := parquet.fault(where, one):
            broken.append((one.run_id, parquet.advice(one.run_id, where / one.file, why)))
        else:
            sound.append(where / one.file)
    return sound, broken


def _scan(con: Any, table: str, paths: Sequence[Path]) -> str:
    """The statement that reads these files. A filter on run_id opens only those of its runs. Of the
    folders above, `task=mcq` for one, no column is made."""
    con.execute(f"SET VARIABLE {table}_files = [{', '.join(map(quoted, paths))}]")
    return (
        "SELECT * EXCLUDE (filename), url_decode(parse_path(filename)[-2][8:]) AS run_id"
        f" FROM read_parquet(getvariable('{table}_files'), filename = true,"
        " hive_partitioning = false)"
    )


def show(
    con: Any,
    results: Path,
    tables: Collection[str],
    runs: Sequence[str] | None = None,
    scan: Callable[[Any, str, Sequence[Path]], str] = _scan,
) -> None:
    """Creates these views: of a detail table over every catalogued file, or over those of ``runs``
    only (much cheaper with thousands of runs, of which each table costs some 10 ms). A missing or
    damaged file raises an error only for readers of its run. Nights are read once per connection:
    each of their files takes a millisecond. ``scan``: connection, table, files ->
    the statement that reads them."""
    for table in tables:
        if table in night_files.VIEWS:
            night_files.show(con, results, [table], once=True)
            continue
        sound, broken = files(con, results, table, runs)
        # the empty table has every column
        parts = [f"FROM detail.{table}", *([scan(con, table, sound)] if sound else [])]
        parts += [_raising(table, broken)] if broken else []
        sql = " UNION ALL BY NAME ".join(parts)
        con.execute(f"CREATE OR REPLACE TEMP VIEW {table} AS {sql}")
        if table == "predictions":
            con.execute(ANSWERS)


def _raising(table: str, broken: Sequence[tuple[str, str]]) -> str:
    """A part of a view that raises an error when a run with a broken file is read, whatever the
    statement asks of its other columns: a NULL there would let a filter drop the run silently."""
    values = ", ".join(f"({quoted(run)}, {quoted(MARK + message)})" for run, message in broken)
    raising = ", ".join(
        f'CAST(error(message) AS {kind}) AS "{name}"'
        for name, kind in columns(table).items()
        if name != "run_id"
    )
    return (
        f"SELECT run_id, {raising} FROM (VALUES {values}) lost(run_id, message)"
        " WHERE error(message) IS NULL"
    )


def quoted(text: object) -> str:
    """A text or path as SQL writes it."""
    return "'" + str(text).replace("'", "''") + "'"
