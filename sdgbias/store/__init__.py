"""The results file: the only package that opens DuckDB for results.

One DuckDB file holds every run; its big tables are Parquet files beside it (``<results>.runs/``)
and are read as if they were tables here. There is one writer at a time: DuckDB locks the whole file
against other processes, so connections are short, and a process that finds the file locked waits
and retries. A run is published whole, in one transaction (rows replaced by key), so a killed
publish leaves the previous state and a repeated one changes nothing. ``schema.sql`` is its schema.

* database, tables, parquet, views: the file, its rows, and the Parquet files beside it
* night_files: the record of nights beside the file, and its views
* migrate: files of an earlier schema
* maintenance: what is kept, clearing up, and whether every file is as it was written
* untrusted: queries of users, on a connection that opens no file
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa

from sdgbias import locks
from sdgbias.errors import StoreError, argument, one_of
from sdgbias.files import packaged
from sdgbias.store import database, migrate, night_files, parquet, untrusted, views
from sdgbias.store.database import local
from sdgbias.store.tables import (
    BENCHMARK_TABLES,
    DETAILS,
    NIGHT_TABLES,
    RUN_TABLES,
    SMALL_TABLES,
    as_arrow,
    columns,
)

__all__ = ["BENCHMARK_TABLES", "NUMBERS", "RUN_TABLES", "SMALL_TABLES"]
PROVENANCE = ("measured", "planted")
#: What readers select from: every number of every run (numbers.sql).
NUMBERS = f"({packaged('store', 'numbers.sql').read_text(encoding='utf-8')})"
#: What a record of a run that doesn't state a column holds, by DuckDB's type.
_BLANK: dict[str, Any] = {"VARCHAR": "", "BIGINT": 0, "JSON": "{}", "TIMESTAMP": None}

#: DuckDB locks against other processes, not threads; this lock covers threads.
_WRITER = threading.RLock()
#: The file and connection of `held_open`.
_HELD: ContextVar[tuple[Path, duckdb.DuckDBPyConnection] | None] = ContextVar("held", default=None)
Params = Sequence[Any] | Mapping[str, Any]


@contextmanager
def connect(
    path: Path | str, read_only: bool = False, wait: float = 30.0
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the results file and close it at the end of the block.

    A file that another process holds is retried for ``wait`` seconds. Writing creates the file and
    its folder. A file of an earlier schema is brought to this one first (migrate.py). The big
    tables and the nights are there once ``views.show`` has made their views. Raises StoreError: no
    such file (read-only), locked too long, not writable, disk full, or of a newer schema.
    """
    path, held = local(path), _HELD.get()
    with ExitStack() as stack:
        stack.enter_context(database.translate_errors(path, "read" if read_only else "write"))
        if read_only and held is not None and held[0] == path:
            con = held[1]
        elif read_only:
            if not path.exists():
                raise StoreError(f"no results at {path}; run `sdgbias evaluate` first")
            migrate.prepare(path, wait)
            con = stack.enter_context(database.open_file(path, True, wait))
        else:
            stack.enter_context(_WRITER)
            database.make_folder(path)
            if not path.exists():
                database.refuse_namesake(path)
            migrate.prepare(path, wait)
            stack.enter_context(locks.shared(path, wait))
            con = stack.enter_context(database.open_file(path, False, wait))
            if not database.version_of(con):
                database.create_tables(con)
        yield con


@contextmanager
def held_open(path: Path | str) -> Iterator[None]:
    """Within the block every read of this file by this thread shares one connection, so that many
    queries open it once. Nothing may be written to it meanwhile. Raises as ``connect``."""
    path = local(path)
    with connect(path, True) as con:
        token = _HELD.set((path, con))
        try:
            yield
        finally:
            _HELD.reset(token)


# -- writing
# ----------------------------------------------------------------------


def publish(path: Path | str, run: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
    """Write a whole run in one transaction; publishing the same run again changes nothing.

    ``run``: the row of table ``runs``, of which run_id, model and benchmark_id are needed; times
    are datetimes or ISO strings, with their zone or UTC. ``n_scored``, ``n_cached`` and
    ``n_failed`` add up to ``n_prompts_planned``, the distinct prompts, those of extra passes among
    them (``config['extra']['prompts']``: take these off before comparing with
    ``n_prompts_naive``, item x test x view of the paper). ``provenance``: 'measured', or 'planted'
    of a fake model with a known bias.
    ``tables``: any of ``RUN_TABLES`` (the run's previous rows are replaced; a table that is left
    out becomes empty) and ``BENCHMARK_TABLES`` (items and previews are added to those of other runs
    on the same benchmark, replacing equal keys; quarantine is replaced whole). ``run_id``
    and ``benchmark_id`` are filled in. Missing columns become
    NULL; ``options``, ``context`` may be dicts or lists (stored as JSON). Raises StoreError on an
    unknown table or column, a missing or repeated key, and every error of ``connect``.
    """
    path, record = local(path), _record(run)
    for name in tables:
        if name not in RUN_TABLES | BENCHMARK_TABLES:
            raise StoreError(one_of("results table", name, RUN_TABLES | BENCHMARK_TABLES))
    run_id, benchmark = record["run_id"], record["benchmark_id"]
    fill = {"run_id": run_id, "benchmark_id": benchmark}
    ready = {
        name: as_arrow(name, frame, {k: v for k, v in fill.items() if k in columns(name)})
        for name, frame in sorted(tables.items())
    }
    with connect(path):
        pass  # an unwritable file is an error before any other is written
    with locks.shared(path):  # nothing is cleared up until the new files are in the catalogue
        files = [
            parquet.write(path, run_id, name, ready.pop(name)) for name in DETAILS if name in ready
        ]
        ready["details"] = as_arrow("details", pd.DataFrame([f for f in files if f.rows]))
        ready["runs"] = as_arrow("runs", pd.DataFrame([record]))
        with connect(path) as con:
            con.execute("BEGIN")
            for name in ("runs", "details", *SMALL_TABLES):
                con.execute(f"DELETE FROM {name} WHERE run_id = ?", [run_id])
            for name, rows in ready.items():
                if name == "previews":
                    rows = database.first_seen(con, rows)
                if name in BENCHMARK_TABLES:
                    same = f"benchmark_id = ? AND {_same(name, BENCHMARK_TABLES[name])}"
                    _insert(con, name, rows, same, [benchmark])
                else:
                    _insert(con, name, rows)
            database.write_reasons(con, run_id)
            con.execute("COMMIT")


def replace(
    path: Path | str, run_id: str, tables: Mapping[str, pd.DataFrame], kept_study: str = ""
) -> None:
    """Replaces the rows of some ``SMALL_TABLES`` of a published run in one transaction; its other
    tables stay unchanged, and so do the numbers of ``kept_study``. Raises StoreError for an unknown
    run, and every error of ``publish``."""
    path = local(path)
    for name in tables:
        if name not in SMALL_TABLES:
            raise StoreError(one_of("small table of a run", name, SMALL_TABLES))
    ready = {name: as_arrow(name, frame, {"run_id": run_id}) for name, frame in tables.items()}
    with connect(path) as con:
        if not con.execute("FROM runs WHERE run_id = ?", [run_id]).fetchone():
            raise unknown_run(path, run_id)
        con.execute("BEGIN")
        for name, rows in ready.items():
            kept = " AND study <> ?" if name == "numbers" else ""
            _insert(con, name, rows, f"run_id = ?{kept}", [run_id, *([kept_study] if kept else [])])
        con.execute("COMMIT")


def upsert(
    path: Path | str,
    tables: Mapping[str, pd.DataFrame],
    by: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Adds rows to ``NIGHT_TABLES`` in one transaction, replacing rows with the same key; those of
    nights and night_outcomes are files (night_files.py), one by one.

    ``by``: table -> the leading key columns whose rows are replaced whole (verdicts: ('night',
    'model', 'suite') replaces all verdicts on one model of one night, including those that are not
    among the new rows). Missing columns become NULL. Raises StoreError on an unknown table or
    column, a missing or repeated key, and every error of ``connect``.
    """
    valid = [*NIGHT_TABLES, *night_files.VIEWS]
    for name, frame in tables.items():
        if name not in valid:
            raise StoreError(one_of("table of nights", name, valid))
        if name in night_files.VIEWS:
            for row in frame.to_dict("records"):
                night_files.write(Path(path), name, {str(k): v for k, v in row.items()})
    ready = {name: as_arrow(name, tables[name]) for name in sorted({*tables} & {*NIGHT_TABLES})}
    with connect(path) as con:
        con.execute("BEGIN")
        for name, rows in ready.items():
            _insert(con, name, rows, _same(name, (by or {}).get(name, NIGHT_TABLES[name])))
        con.execute("COMMIT")


def _insert(
    con: duckdb.DuckDBPyConnection,
    name: str,
    rows: pa.Table,
    earlier: str = "",
    params: Sequence[object] = (),
) -> None:
    """Adds rows to a table in place of ``earlier`` ones: a condition, which may name them as
    `incoming`; '' for none."""
    con.register("incoming", rows)
    if earlier:
        con.execute(f"DELETE FROM {name} WHERE {earlier}", list(params))
    con.execute(f"INSERT INTO {name} BY NAME FROM incoming")
    con.unregister("incoming")


def _same(name: str, keys: Sequence[str]) -> str:
    """The condition that a row of a table has the key of an incoming one; without keys, of any."""
    equal = " AND ".join(f'{name}."{key}" = incoming."{key}"' for key in keys)
    return f"EXISTS (FROM incoming WHERE {equal})" if keys else "true"


def _record(run: Mapping[str, Any]) -> dict[str, Any]:
    """The row of ``runs``: JSON text and naive UTC times. Raises StoreError."""
    blank = {name: _BLANK[kind] for name, kind in columns("runs").items()}
    record = blank | {"suite": "sdg", "provenance": "measured"} | dict(run)
    if record["provenance"] not in PROVENANCE:
        raise StoreError(one_of("provenance", record["provenance"], PROVENANCE))
    for name in ("started_at", "finished_at"):
        when = record[name]
        when = datetime.fromisoformat(when) if isinstance(when, str) else when
        if when is not None and when.tzinfo:
            when = when.astimezone(UTC).replace(tzinfo=None)
        record[name] = when
    return record


# -- reading
# ----------------------------------------------------------------------


def query(
    path: Path | str, sql: str, params: Params = (), runs: Sequence[str] | None = None
) -> pd.DataFrame:
    """Run one read-only SQL statement and return its rows. Raises StoreError (also for SQL that
    doesn't parse).

    ``runs``: restricts the details (scores, predictions, decoded, spoken) to these runs, whatever
    the statement.
    """
    given = params if isinstance(params, Mapping) else list(params)
    with connect(path, True) as con:
        views.show(con, local(path), views.tables_in(sql), runs)
        frame: pd.DataFrame = con.execute(sql, given).df()
        return frame


def arrow(
    path: Path | str, sql: str, params: Params = (), runs: Sequence[str] | None = None
) -> pa.Table:
    """Like ``query``, as an Arrow table: for millions of rows and for columns of lists."""
    given = params if isinstance(params, Mapping) else list(params)
    with connect(path, True) as con:
        views.show(con, local(path), views.tables_in(sql), runs)
        table: pa.Table = con.sql(sql, params=given).to_arrow_table()
        return table


def ask(path: Path | str, sql: str) -> pd.DataFrame:
    """The rows of one SELECT written by a user (untrusted.py): it can open no file but the results
    and their details, and write none. Raises UsageError for any other statement and for SQL that
    doesn't parse, StoreError."""
    with connect(path, True) as con:
        return untrusted.answer(con, local(path), sql)


def unknown_run(path: Path | str, run_id: str) -> StoreError:
    """The error of every command that is given a run that isn't there."""
    sql = f"sdgbias results --results {argument(path)} --sql 'SELECT run_id, model FROM runs'"
    return StoreError(f"{path}: no run {run_id!r}; {sql} lists them")


def run_of(path: Path | str, run_id: str) -> dict[str, Any]:
    """The row of ``runs`` of a run. Raises `unknown_run`."""
    for row in arrow(path, "FROM runs WHERE run_id = ?", [run_id]).to_pylist():
        return dict(row)
    raise unknown_run(path, run_id)


def run_ids(path: Path | str) -> list[str]:
    """Every run in the file, oldest first."""
    sql = "SELECT run_id FROM runs ORDER BY finished_at NULLS LAST, run_id"
    return list(query(path, sql)["run_id"])


def latest_runs(
    path: Path | str,
    suite: str = "sdg",
    *,
    per_benchmark: bool = False,
    among: Sequence[str] | None = None,
) -> list[str]:
    """The newest finished run of each model in one suite, by model name; ``per_benchmark``: of each
    model on each benchmark; ``among``: restrict to these runs."""
    within = "model, benchmark_id" if per_benchmark else "model"
    sql = f"""SELECT run_id FROM runs WHERE finished_at IS NOT NULL AND suite = $suite
              AND ($among IS NULL OR list_contains($among::VARCHAR[], run_id))
              QUALIFY row_number() OVER (PARTITION BY {within} ORDER BY finished_at DESC, run_id
              DESC) = 1 ORDER BY {within}"""
    given = {"suite": suite, "among": among if among is None else list(among)}
    return list(query(path, sql, given)["run_id"])


def dropped(path: Path | str, run_ids: Sequence[str]) -> dict[str, datetime]:
    """Those of the runs whose details were removed by retention, and when (UTC)."""
    sql = (
        "SELECT run_id, max(dropped_at) AS at FROM details WHERE list_contains(?, run_id) AND"
        " dropped_at IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    rows = query(path, sql, [list(run_ids)])
    return {str(r): at.to_pydatetime() for r, at in zip(rows["run_id"], rows["at"], strict=True)}


def has_run(path: Path | str, run_id: str) -> bool:
    """Whether a finished run of this id is in the file and its Parquet files are as they were
    written (a run that lost one is evaluated again, from the cached scores); False when there is no
    file yet."""
    path = local(path)
    if not path.exists():
        return False
    with connect(path, read_only=True) as con:
        sql = "FROM runs WHERE run_id = ? AND finished_at IS NOT NULL"
        finished = con.execute(sql, [run_id]).fetchone() is not None
        return finished and not any(views.files(con, path, t, [run_id])[1] for t in DETAILS)
