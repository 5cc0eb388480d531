"""The results file: the only place that opens DuckDB for results.

One DuckDB file holds every run. There is one writer at a time: DuckDB locks the whole file against other processes, so
connections are short, and who finds the file held waits and tries again. A run is published whole, in one transaction
(rows replaced by key), so a killed publish leaves the state of before and a repeated one changes nothing.
The schema grows by the numbered files of ``migrations/``; ``schema_version`` says which have been applied.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.errors import StoreError, one_of

MIGRATIONS = Path(__file__).parent / "migrations"
PROVENANCE = ("measured", "planted")

#: What identifies a row within its run (or within its benchmark). Checked at publish, because no table has a primary key.
RUN_TABLES: dict[str, tuple[str, ...]] = {
    "scores": ("task", "item_id", "test", "view"),
    "predictions": ("task", "item_id", "test", "method"),
    "cade_params": ("task", "test"),
    "metric_rows": ("task", "test", "method", "pillar", "indicator", "metric"),
    "failures": (),
    "decoded": ("item_id", "test", "view"),
    "spoken": ("task", "item_id", "test", "view"),
    "study_rows": ("study", "task", "test", "method", "pillar", "indicator", "by", "level", "x", "metric"),
}
BENCHMARK_TABLES: dict[str, tuple[str, ...]] = {
    "items": ("task", "item_id"),
    "people": ("item_id",),
    "previews": ("image_id",),
    "quarantine": (),
}

_ARROW = {
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
    "TIMESTAMP": pa.timestamp("us"),
    "FLOAT[]": pa.list_(pa.float32()),
    "DOUBLE[]": pa.list_(pa.float64()),
}
_BUSY = re.compile(r"Could not set lock|Conflicting lock|different configuration|already attached|being used by another")
_HOLDER = re.compile(r"held in (.+?\(PID \d+\))")
#: DuckDB locks processes against each other, not threads; this lock does the latter.
_WRITER = threading.RLock()


@dataclass(frozen=True)
class RunRecord:
    """One evaluation of one model on one benchmark. Times are UTC (ISO strings or datetimes).

    ``provenance``: 'measured' (a real model was scored) or 'planted' (a fake model with a known bias).
    ``n_prompts_naive``: item x test x view; ``n_prompts_planned``: distinct prompts after planning;
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
def connect(path: Path | str, read_only: bool = False, wait: float = 30.0) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the results file, migrated to this version's schema, and close it at the end of the block.

    A file that another process holds is tried again for ``wait`` seconds. Writing creates the file and its folder.
    Raises StoreError: no such file (read-only), held too long, not writable, disk full, or written by a newer sdgbias.
    """
    path = Path(path)
    if read_only:
        if not path.exists():
            raise StoreError(f"no results at {path}; run `sdgbias evaluate` first")
        con = _open(path, True, wait)
        if _version(con, path) < _latest():
            con.close()
            with connect(path, read_only=False, wait=wait):
                pass
            con = _open(path, True, wait)
        with _said(path, "read"), con:
            yield con
        return
    with _WRITER:
        _make_folder(path)
        con = _open(path, False, wait)
        with _said(path, "write"):
            try:
                _migrate(con, path)
                yield con
            finally:
                con.close()


def publish(path: Path | str, run: RunRecord | Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
    """Write a whole run in one transaction; publishing the same run again changes nothing.

    ``tables``: any of ``RUN_TABLES`` (what the run had before is replaced, also by nothing when a table is left out) and
    ``BENCHMARK_TABLES`` (items and previews are added to those of other runs on the same benchmark, replacing equal keys;
    quarantine is replaced whole). ``run_id``, ``benchmark_id``, and in ``metric_rows`` model and suite are filled in.
    Columns that are missing become NULL; ``options``, ``context`` may be dicts or lists (stored as JSON).
    Raises StoreError on an unknown table or column, a missing or repeated key, and on everything ``connect`` raises.
    """
    record = _record(run)
    for name in tables:
        if name not in RUN_TABLES | BENCHMARK_TABLES:
            raise StoreError(one_of("results table", name, RUN_TABLES | BENCHMARK_TABLES))
    run_id, benchmark_id = record["run_id"], record["benchmark_id"]
    fill = {k: record[k] for k in ("run_id", "benchmark_id", "model", "suite")}
    with connect(path) as con:
        ready = {name: _arrow(con, name, frame, fill) for name, frame in sorted(tables.items())}
        ready["runs"] = _arrow(con, "runs", pd.DataFrame([record]), {})
        con.execute("BEGIN")
        for name in ("runs", *RUN_TABLES):
            con.execute(f"DELETE FROM {name} WHERE run_id = ?", [run_id])
        for name, rows in ready.items():
            con.register("incoming", rows)
            if name in BENCHMARK_TABLES:
                same = "".join(f" AND {name}.{k} = incoming.{k}" for k in BENCHMARK_TABLES[name])
                exists = f" AND EXISTS (FROM incoming WHERE true{same})" if same else ""
                con.execute(f"DELETE FROM {name} WHERE benchmark_id = ?{exists}", [benchmark_id])
            con.execute(f"INSERT INTO {name} BY NAME SELECT * FROM incoming")
            con.unregister("incoming")
        con.execute("COMMIT")


def replace(path: Path | str, run_id: str, tables: Mapping[str, pd.DataFrame]) -> None:
    """Replaces the rows of some ``RUN_TABLES`` of a published run in one transaction; everything else of it stays.

    Raises StoreError for a run that isn't there, and on everything ``publish`` raises.
    """
    for name in tables:
        if name not in RUN_TABLES:
            raise StoreError(one_of("table of a run", name, RUN_TABLES))
    with connect(path) as con:
        known = con.execute("SELECT benchmark_id, model, suite FROM runs WHERE run_id = ?", [run_id]).fetchall()
        if not known:
            raise StoreError(f"{path}: no run {run_id!r}; sdgbias results --sql 'SELECT run_id, model FROM runs' lists them")
        fill = {"run_id": run_id, **dict(zip(("benchmark_id", "model", "suite"), known[0], strict=True))}
        ready = {name: _arrow(con, name, frame, fill) for name, frame in sorted(tables.items())}
        con.execute("BEGIN")
        for name, rows in ready.items():
            con.execute(f"DELETE FROM {name} WHERE run_id = ?", [run_id])
            con.register("incoming", rows)
            con.execute(f"INSERT INTO {name} BY NAME SELECT * FROM incoming")
            con.unregister("incoming")
        con.execute("COMMIT")


def arrow(path: Path | str, sql: str, params: Sequence[Any] | Mapping[str, Any] = (), wait: float = 30.0) -> pa.Table:
    """Like ``query``, as an Arrow table: for millions of rows and for columns of lists."""
    with connect(path, read_only=True, wait=wait) as con:
        found: pa.Table = con.sql(sql, params=params if isinstance(params, Mapping) else list(params)).to_arrow_table()
        return found


def query(path: Path | str, sql: str, params: Sequence[Any] | Mapping[str, Any] = (), wait: float = 30.0) -> pd.DataFrame:
    """Run one read-only SQL statement and return its rows. Raises StoreError (also for SQL that doesn't parse)."""
    with connect(path, read_only=True, wait=wait) as con:
        frame: pd.DataFrame = con.execute(sql, params if isinstance(params, Mapping) else list(params)).df()
        return frame


def run_ids(path: Path | str) -> list[str]:
    """Every run in the file, oldest first."""
    return list(query(path, "SELECT run_id FROM runs ORDER BY finished_at NULLS LAST, run_id")["run_id"])


def latest_runs(path: Path | str, suite: str = "sdg") -> list[str]:
    """The newest finished run of each model in one suite, by model name."""
    sql = """SELECT run_id FROM runs WHERE finished_at IS NOT NULL AND suite = ?
             QUALIFY row_number() OVER (PARTITION BY model ORDER BY finished_at DESC, run_id DESC) = 1 ORDER BY model"""
    return list(query(path, sql, [suite])["run_id"])


def has_run(path: Path | str, run_id: str) -> bool:
    """Whether a finished run of this id is in the file; False when there is no file yet."""
    if not Path(path).exists():
        return False
    sql = "SELECT count(*) AS n FROM runs WHERE run_id = ? AND finished_at IS NOT NULL"
    return bool(query(path, sql, [run_id])["n"][0])


# -- opening ---------------------------------------------------------------------------------------------------------


def _open(path: Path, read_only: bool, wait: float) -> duckdb.DuckDBPyConnection:
    """A connection, or StoreError once ``wait`` seconds of retrying have passed."""
    deadline, pause = time.monotonic() + wait, 0.02
    while True:
        try:
            return duckdb.connect(str(path), read_only=read_only, config={"autoinstall_known_extensions": False})
        except duckdb.Error as error:
            if not _BUSY.search(str(error)):
                raise _store_error(error, path, "open") from None
            if time.monotonic() >= deadline:
                holder = _HOLDER.search(str(error))
                who = f"by {holder.group(1)}" if holder else "by another connection"
                raise StoreError(
                    f"{path} is held {who}; waited {wait:g} s. Let that process finish (or end it), then run this again"
                ) from None
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.6, 0.5)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't create {path.parent} for {path.name}: {error.strerror}; choose another --results") from None


@contextmanager
def _said(path: Path, verb: str) -> Iterator[None]:
    """Every DuckDB error inside the block leaves as one line."""
    try:
        yield
    except duckdb.Error as error:
        raise _store_error(error, path, verb) from None


def _store_error(error: duckdb.Error, path: Path, verb: str) -> StoreError:
    text = str(error)
    line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    for sign, cause in {
        "No space left": "the disk is full; free some space, then run this again (the results are as before)",
        "File too large": "the file may not grow (size limit); raise it, then run this again (the results are as before)",
        "Read-only file system": "the file system is read-only; choose another --results",
        "Permission denied": "permission denied; choose another --results or change the folder's rights",
        "Not a directory": "a part of this path is a file; choose another --results",
        "not a valid DuckDB": "this is no DuckDB file; choose another --results or move it away",
    }.items():
        if sign in text:
            return StoreError(f"can't {verb} {path}: {cause}")
    return StoreError(f"can't {verb} {path}: {line}")


# -- schema ----------------------------------------------------------------------------------------------------------


def _scripts() -> dict[int, Path]:
    """Migration number -> SQL file, ascending."""
    return dict(sorted((int(p.name.split("_")[0]), p) for p in MIGRATIONS.glob("[0-9]*_*.sql")))


def _latest() -> int:
    return max(_scripts())


def _version(con: duckdb.DuckDBPyConnection, path: Path) -> int:
    """Number of the last applied migration (0 for an empty file); StoreError when it is unknown to this version."""
    tables = {name for (name,) in con.execute("SELECT table_name FROM information_schema.tables").fetchall()}
    if "schema_version" not in tables:
        if tables:
            raise StoreError(f"{path} is a DuckDB file but holds no sdgbias results; choose another --results")
        return 0
    [(version,)] = con.execute("SELECT coalesce(max(version), 0)::INT FROM schema_version").fetchall()
    if version > _latest():
        raise StoreError(f"{path} has schema {version}, this version knows {_latest()}: upgrade sdgbias")
    return int(version)


def _migrate(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Apply what is missing, each file in a transaction of its own, in order of number."""
    done = _version(con, path)
    for number, script in _scripts().items():
        if number <= done:
            continue
        con.execute("BEGIN")
        con.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER, name VARCHAR, applied_at TIMESTAMP)")
        con.execute(script.read_text(encoding="utf-8"))
        now = datetime.now(UTC).replace(tzinfo=None)
        con.execute("INSERT INTO schema_version VALUES (?, ?, ?)", [number, script.name, now])
        con.execute("COMMIT")


# -- rows ------------------------------------------------------------------------------------------------------------


def _record(run: RunRecord | Mapping[str, Any]) -> dict[str, Any]:
    """The row of ``runs``: JSON text and naive UTC times. Raises StoreError on unknown or missing fields."""
    if not isinstance(run, RunRecord):
        valid = [f.name for f in fields(RunRecord)]
        for name in run:
            if name not in valid:
                raise StoreError(one_of("field of a run record", name, valid))
        missing = {"run_id", "model", "benchmark_id"} - set(run)
        if missing:
            raise StoreError(f"run record without {', '.join(sorted(missing))}; see store.RunRecord")
        run = RunRecord(**run)
    if run.provenance not in PROVENANCE:
        raise StoreError(one_of("provenance", run.provenance, PROVENANCE))
    record = asdict(run)
    record["config"] = _json(record["config"])
    for name in ("started_at", "finished_at"):
        when = record[name]
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        record[name] = when.astimezone(UTC).replace(tzinfo=None) if when is not None and when.tzinfo else when
    return record


def _json(value: object) -> str | None:
    """JSON text of a dict, list or None; text passes unchanged. NaN becomes null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value != value:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        value = {k: None if isinstance(v, float) and v != v else v for k, v in value.items()}
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _arrow(con: duckdb.DuckDBPyConnection, name: str, frame: pd.DataFrame, fill: Mapping[str, str]) -> pa.Table:
    """``frame`` as an Arrow table of exactly the columns and types of table ``name``."""
    sql = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = ? ORDER BY ordinal_position"
    types = dict(con.execute(sql, [name]).fetchall())
    unknown = [str(c) for c in frame.columns if c not in types]
    if unknown:
        raise StoreError(f"table {name}: " + one_of("column", unknown[0], types))
    keys = {**RUN_TABLES, **BENCHMARK_TABLES}.get(name, ())
    missing = [k for k in keys if k not in frame.columns]
    if missing:
        raise StoreError(f"table {name} lacks its key column {missing[0]!r}; keys: {', '.join(keys)}")
    if keys and frame.duplicated(list(keys)).any():
        first = frame[frame.duplicated(list(keys))].iloc[0][list(keys)]
        raise StoreError(f"table {name} has two rows for {', '.join(map(str, first))} (key: {', '.join(keys)})")
    columns = []
    for column, kind in types.items():
        if column in fill:
            values: Any = [fill[column]] * len(frame)
        elif column not in frame.columns:
            values = [None] * len(frame)
        else:
            values = [_json(v) for v in frame[column]] if kind == "JSON" else frame[column]
        if kind.endswith("[]"):
            values = [v if isinstance(v, list | tuple | np.ndarray) else None for v in values]
        try:
            # A NaN logit stays NaN (the item lacks the option); a NaN in a plain column is NULL.
            columns.append(pa.array(values, type=_ARROW[kind], from_pandas=not kind.endswith("[]")))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise StoreError(f"table {name}, column {column} ({kind}): {str(error).splitlines()[0]}") from None
    return pa.table([c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns], names=list(types))
