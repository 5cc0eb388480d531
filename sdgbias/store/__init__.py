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

import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa

from sdgbias import locks
from sdgbias.errors import StoreError, UsageError, one_of
from sdgbias.files import packaged
from sdgbias.store import database, migrate, night_files, parquet, untrusted, views
from sdgbias.store.tables import TABLES as DETAILS
from sdgbias.store.tables import arrow_table, check_reasons, json_text

PROVENANCE = ("measured", "planted")
#: What readers select from: every number of every run (numbers.sql).
NUMBERS = f"({packaged('store', 'numbers.sql').read_text(encoding='utf-8')})"

#: Key of a row within its run (or within its benchmark). Checked at publish, because no table has a
#: primary key.
RUN_TABLES: dict[str, tuple[str, ...]] = {
    **DETAILS,
    "cade_params": ("task", "test"),
    "numbers": (
        *("study", "task", "test", "method", "versus", "attribute", "group", "other", "indicator"),
        *("parameter", "x", "metric"),
    ),
    "failures": (),
    "timings": ("task", "phase", "view"),
    "analyses": (),
}
BENCHMARK_TABLES: dict[str, tuple[str, ...]] = {
    "items": ("task", "item_id"),
    "people": ("item_id",),
    "previews": ("image_id",),
    "quarantine": (),
}

#: Rows about nights: replaced by key, never by run.
NIGHT_TABLES: dict[str, tuple[str, ...]] = {
    "verdicts": (
        *("night", "model", "suite", "rule", "task", "test", "method", "level", "side", "metric"),
    ),
    "flips": ("night", "model", "suite", "task", "test", "method", "item_id"),
    "accepted": ("run_id",),
    "announcements": ("night", "target"),
}

#: DuckDB locks against other processes, not threads; this lock covers threads.
_WRITER = threading.RLock()
#: The file and connection of `held_open`.
_HELD: ContextVar[tuple[Path, duckdb.DuckDBPyConnection] | None] = ContextVar("held", default=None)


#: Tables of a run in the DuckDB file itself, not in Parquet files.
SMALL_TABLES = tuple(name for name in RUN_TABLES if name not in DETAILS)


@dataclass(frozen=True)
class RunRecord:
    """One evaluation of one model on one benchmark. Times are UTC (ISO strings or datetimes).

    ``provenance``: 'measured' (a real model was scored) or 'planted' (a fake model with a known
    bias).
    ``n_prompts_naive``: item x test x view of the paper; ``n_prompts_planned``: distinct prompts
    after planning, those of extra passes among them (``config['extra']['prompts']`` of them: take
    these off before comparing with the naive ones);
    ``n_scored`` + ``n_cached`` + ``n_failed`` add up to the planned ones.
    """

    run_id: str
    model: str
    benchmark_id: str
    suite: str = "sdg"
    title: str = ""
    backend: str = ""
    revision: str = ""
    fingerprint: str = ""
    benchmark_path: str = ""
    licence: str = ""
    started_at: datetime | str | None = None
    finished_at: datetime | str | None = None
    seed: int = 0
    numerics: str = ""
    n_prompts_naive: int = 0
    n_prompts_planned: int = 0
    n_scored: int = 0
    n_cached: int = 0
    n_failed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    provenance: str = "measured"


@contextmanager
def connect(
    path: Path | str,
    read_only: bool = False,
    wait: float = 30.0,
    details: Collection[str] = tuple(DETAILS),
    runs: Sequence[str] | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the results file and close it at the end of the block.

    A file that another process holds is retried for ``wait`` seconds. Writing creates the file and
    its folder. ``details``: the big tables that can be read (views.show adds others later);
    ``runs``: restrict them to these runs. Naming them saves some 10 ms per table with thousands of
    runs. A file of an earlier schema is brought to this one first (migrate.py). Raises StoreError:
    no such file (read-only), locked too long, not writable, disk full, or of a newer schema.
    """
    path, held = _local(path), _HELD.get()
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
            migrate.prepare(path, wait)
            stack.enter_context(locks.shared(path, wait))
            con = stack.enter_context(database.open_file(path, False, wait))
            if not database.version_of(con):
                database.create_tables(con)
        views.show(con, path, details, runs)
        night_files.show(con, path)
        yield con


@contextmanager
def held_open(path: Path | str, wait: float = 30.0) -> Iterator[None]:
    """Within the block every read of this file by this thread shares one connection, so that many
    queries open it once. Nothing may be written to it meanwhile. Raises as ``connect``."""
    path = _local(path)
    with connect(path, True, wait, details=()) as con:
        token = _HELD.set((path, con))
        try:
            yield
        finally:
            _HELD.reset(token)


def publish(
    path: Path | str, run: RunRecord | Mapping[str, Any], tables: Mapping[str, pd.DataFrame]
) -> None:
    """Write a whole run in one transaction; publishing the same run again changes nothing.

    ``tables``: any of ``RUN_TABLES`` (the run's previous rows are replaced; a table that is left
    out becomes empty) and ``BENCHMARK_TABLES`` (items and previews are added to those of other runs
    on the same benchmark, replacing equal keys; quarantine is replaced whole). ``run_id``
    and ``benchmark_id`` are filled in. Missing columns become
    NULL; ``options``, ``context`` may be dicts or lists (stored as JSON). Raises StoreError on an
    unknown table or column, a missing or repeated key, and every error of ``connect``.
    """
    record = _record(run)
    for name in tables:
        if name not in RUN_TABLES | BENCHMARK_TABLES:
            raise StoreError(one_of("results table", name, RUN_TABLES | BENCHMARK_TABLES))
    run_id, benchmark_id = record["run_id"], record["benchmark_id"]
    fill = {"run_id": run_id, "benchmark_id": benchmark_id}
    path = _local(path)
    with _writing(path):
        with connect(path, details=()) as con:
            ready = _rows_of_run(con, tables, fill)
            ready["runs"] = _arrow(con, "runs", pd.DataFrame([record]), {})
        ready["details"] = _write_details(path, run_id, ready)
        with connect(path, details=()) as con:
            con.execute("BEGIN")
            for name in ("runs", "details", *SMALL_TABLES):
                con.execute(f"DELETE FROM {name} WHERE run_id = ?", [run_id])
            for name, rows in ready.items():
                rows = database.first_seen(con, rows) if name == "previews" else rows
                same = "".join(
                    f" AND {name}.{k} = incoming.{k}" for k in BENCHMARK_TABLES.get(name, ())
                )
                exists = f" AND EXISTS (FROM incoming WHERE true{same})" if same else ""
                earlier = f"benchmark_id = ?{exists}" if name in BENCHMARK_TABLES else ""
                _insert(con, name, rows, earlier, [benchmark_id])
            database.write_reasons(con, run_id)
            con.execute("COMMIT")


def replace(
    path: Path | str,
    run_id: str,
    tables: Mapping[str, pd.DataFrame],
    kept_study: str = "",
) -> None:
    """Replaces the rows of some ``RUN_TABLES`` of a published run in one transaction; its other
    tables stay unchanged, and so do the numbers of ``kept_study``.

    Raises StoreError for an unknown run, and every error of ``publish``.
    """
    for name in tables:
        if name not in RUN_TABLES:
            raise StoreError(one_of("table of a run", name, RUN_TABLES))
    path = _local(path)
    with _writing(path):
        with connect(path, details=()) as con:
            names = ("run_id", "benchmark_id")
            sql = f"SELECT {', '.join(names)} FROM runs WHERE run_id = ?"
            ids = con.execute(sql, [run_id]).fetchone()
            if not ids:
                raise StoreError(
                    f"{path}: no run {run_id!r}; sdgbias results --sql 'SELECT run_id, model FROM"
                    " runs' lists them"
                )
            fill = dict(zip(names, ids, strict=True))
            ready = _rows_of_run(con, tables, fill)
        big = [name for name in ready if name in DETAILS]
        catalogue = _write_details(path, run_id, ready)
        with connect(path, details=()) as con:
            con.execute("BEGIN")
            for name, rows in ready.items():
                if name == "numbers":
                    _insert(con, name, rows, "run_id = ? AND study <> ?", [run_id, kept_study])
                else:
                    _insert(con, name, rows, "run_id = ?", [run_id])
            same = 'run_id = ? AND list_contains(?, "table")'
            _insert(con, "details", catalogue, same, [run_id, big])
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
    with connect(path, details=()) as con:
        ready = {
            name: _arrow(con, name, frame, {})
            for name, frame in sorted(tables.items())
            if name in NIGHT_TABLES
        }
        con.execute("BEGIN")
        for name, rows in ready.items():
            same = " AND ".join(
                f'{name}."{k}" = incoming."{k}"' for k in (by or {}).get(name, NIGHT_TABLES[name])
            )
            _insert(con, name, rows, f"EXISTS (FROM incoming WHERE {same})")
        con.execute("COMMIT")


def arrow(
    path: Path | str,
    sql: str,
    params: Sequence[Any] | Mapping[str, Any] = (),
    wait: float = 30.0,
    runs: Sequence[str] | None = None,
) -> pa.Table:
    """Like ``query``, as an Arrow table: for millions of rows and for columns of lists."""
    given = params if isinstance(params, Mapping) else list(params)
    with connect(path, True, wait, views.tables_in(sql), runs) as con:
        table: pa.Table = con.sql(sql, params=given).to_arrow_table()
        return table


def query(
    path: Path | str,
    sql: str,
    params: Sequence[Any] | Mapping[str, Any] = (),
    wait: float = 30.0,
    runs: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Run one read-only SQL statement and return its rows. Raises StoreError (also for SQL that
    doesn't parse).

    ``runs``: restricts the details (scores, predictions, decoded, spoken) to these runs, whatever
    the statement.
    """
    given = params if isinstance(params, Mapping) else list(params)
    with connect(path, True, wait, views.tables_in(sql), runs) as con:
        frame: pd.DataFrame = con.execute(sql, given).df()
        return frame


def ask(path: Path | str, sql: str, wait: float = 30.0) -> pd.DataFrame:
    """The rows of one SELECT written by a user (untrusted.py): it can open no file but the results
    and their details, and write none. Raises UsageError for any other statement and for SQL that
    doesn't parse, StoreError."""
    with connect(path, True, wait, details=()) as con:
        return untrusted.answer(con, _local(path), sql)


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
    condition = "" if among is None else "AND list_contains($among, run_id)"
    sql = f"""SELECT run_id FROM runs WHERE finished_at IS NOT NULL AND suite = $suite {condition}
              QUALIFY row_number() OVER (PARTITION BY {within} ORDER BY finished_at DESC, run_id
              DESC) = 1 ORDER BY {within}"""
    given = {"suite": suite} | ({} if among is None else {"among": list(among)})
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
    """Whether a finished run of this id is in the file and its Parquet files exist (a run that lost
    one is evaluated again, from the cached scores); False when there is no file yet."""
    path = _local(path)
    if not path.exists():
        return False
    with connect(path, read_only=True, details=()) as con:
        finished = "FROM runs WHERE run_id = ? AND finished_at IS NOT NULL"
        entry = con.execute(finished, [run_id]).fetchone()
        if not entry:
            return False
        where = parquet.home(path)
        rows = con.execute(
            "SELECT file, bytes FROM details WHERE run_id = ? AND dropped_at IS NULL", [run_id]
        ).fetchall()
    paths = [(where / file, size) for file, size in rows]
    return all(p.is_file() and p.stat().st_size == size for p, size in paths)


# -- opening
# ----------------------------------------------------------------------


def _local(path: Path | str) -> Path:
    """The results file as a path. Raises UsageError for a path that DuckDB
    misreads, StoreError for a folder or a pipe."""
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
        raise StoreError(f"{path} is no file; choose another --results, e.g. results.duckdb")
    return path


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Blocks clean-up until the files being written are in the catalogue."""
    database.make_folder(path)
    with locks.shared(path):
        yield


# -- rows
# ----------------------------------------------------------------------


def _record(run: RunRecord | Mapping[str, Any]) -> dict[str, Any]:
    """The row of ``runs``: JSON text and naive UTC times. Raises StoreError."""
    record = asdict(run if isinstance(run, RunRecord) else RunRecord(**run))
    if record["provenance"] not in PROVENANCE:
        raise StoreError(one_of("provenance", record["provenance"], PROVENANCE))
    record["config"] = json_text(record["config"])
    for name in ("started_at", "finished_at"):
        when = record[name]
        when = datetime.fromisoformat(when) if isinstance(when, str) else when
        if when is not None and when.tzinfo:
            when = when.astimezone(UTC).replace(tzinfo=None)
        record[name] = when
    return record


def _arrow(
    con: duckdb.DuckDBPyConnection, name: str, frame: pd.DataFrame, fill: Mapping[str, str]
) -> pa.Table:
    """``frame`` as an Arrow table of exactly the columns and types of table ``name``."""
    sql = (
        "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? AND table_name ="
        " ? AND NOT internal ORDER BY column_index"
    )
    types = dict(con.execute(sql, ["detail" if name in DETAILS else "main", name]).fetchall())
    keys = {**RUN_TABLES, **BENCHMARK_TABLES, **NIGHT_TABLES}.get(name, ())
    return arrow_table(name, frame, types, keys, fill)


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


def _rows_of_run(
    con: duckdb.DuckDBPyConnection, tables: Mapping[str, pd.DataFrame], fill: Mapping[str, str]
) -> dict[str, pa.Table]:
    """Arrow tables by name, by `_arrow`."""
    if (frame := tables.get("numbers")) is not None and len(frame):
        check_reasons(frame)
    return {name: _arrow(con, name, frame, fill) for name, frame in sorted(tables.items())}


def _write_details(path: Path, run_id: str, ready: dict[str, pa.Table]) -> pa.Table:
    """Takes the big tables out of ``ready`` and writes them; returns their rows of the
    catalogue."""
    files = [
        parquet.write(path, run_id, name, ready.pop(name))
        for name in sorted(set(ready) & set(DETAILS))
    ]
    return database.catalogue([d for d in files if d.rows])
