"""Maintenance of growing results: size report, check of the files, retention, clean-up.

Everything here works on the results file and its Parquet files; no metric changes.

Report and check: contents and sizes of a results file, and whether every file is as it was
written.

Retention: which runs keep their details (scores, predictions, decoded, spoken). Metrics, verdicts
and nights are kept for ever.

Clean-up: unreferenced files are removed, and the DuckDB file is copied to a new one without its
holes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import locks, store
from sdgbias.files import packaged_sql
from sdgbias.progress import Progress, each, silent
from sdgbias.store import database, parquet, views
from sdgbias.store.parquet import RunTable


@contextmanager
def _alone(results: Path) -> Iterator[None]:
    """Where files are removed: no other process writes, and no other results file has them."""
    database.refuse_namesake(results)
    with locks.alone(results):
        yield


def _catalogued(results: Path) -> list[RunTable]:
    with store.connect(results, read_only=True) as con:
        return views.catalogued(con, results)


def orphans(results: Path) -> list[Path]:
    """Files below the folder of details without a row in the catalogue: left by a killed or
    repeated publish, or by retention."""
    folder = parquet.home(results)
    named = {folder / d.file for d in _catalogued(results)}
    return sorted(p for p in folder.glob("run_id=*/*") if p not in named and p.is_file())


def info(results: Path) -> dict[str, Any]:
    """Counts and sizes (bytes): runs, models, nights, oldest and newest run (UTC), per table rows,
    files and bytes, the DuckDB file, orphans, score caches."""
    queries = packaged_sql("retention.sql")
    one = store.query(results, queries["counts"]).iloc[0]
    tables = store.query(results, queries["sizes"])
    where = parquet.home(results)
    left = orphans(results)
    caches = [p for p in (results.parent / "scores").rglob("*.parquet") if p.is_file()]
    return {
        "results": str(results),
        "details": str(where),
        "runs": int(one["runs"]),
        "models": int(one["models"]),
        "nights": int(one["nights"]),
        "oldest": _when(one["oldest"]),
        "newest": _when(one["newest"]),
        "runs_without_details": int(one["dropped"]),
        "tables": {
            r["table"]: {k: int(r[k]) for k in ("rows", "files", "bytes")}
            for r in tables.to_dict("records")
        },
        "duckdb_bytes": results.stat().st_size,
        "details_bytes": int(tables["bytes"].sum()),
        "orphans": {"files": len(left), "bytes": sum(p.stat().st_size for p in left)},
        "score_caches": {"files": len(caches), "bytes": sum(p.stat().st_size for p in caches)},
    }


def _when(value: Any) -> str:
    no_run = value is None or value != value
    return "" if no_run else value.isoformat(timespec="seconds") + "+00:00"


def check(results: Path, progress: Progress = silent) -> list[tuple[RunTable, str]]:
    """Every catalogued file whose bytes differ from those written: (file, 'missing' |
    'damaged')."""
    folder = parquet.home(results)
    details = each(progress, "checking", _catalogued(results))
    faults = ((detail, parquet.fault(folder, detail, whole=True)) for detail in details)
    return [(detail, why) for detail, why in faults if why]


def plan(results: Path, nights: int = 90, per_model: int = 3) -> pd.DataFrame:
    """One row per run that has details: run_id, model, suite, finished_at, bytes, files, kept (the
    reason, '' = its details may be dropped).

    Kept are the details of the newest ``nights`` nights, of the newest ``per_model`` runs of each
    model and suite, of one run per model, suite and month (its newest), of the runs that the newest
    verdicts compare, and of accepted runs.
    """
    sql = packaged_sql("retention.sql")["kept"]
    return store.query(results, sql, {"nights": nights, "per_model": per_model})


def apply(results: Path, nights: int, per_model: int, now: datetime) -> pd.DataFrame:
    """Drops the details that ``plan`` releases and returns its rows. They are first marked in the
    catalogue, in one transaction, then the files are deleted: if killed in between, `compact`
    removes the rest. ``now``: UTC."""
    folder = parquet.home(results)
    with _alone(results):
        planned = plan(results, nights, per_model)
        going = planned.loc[planned["kept"] == "", "run_id"].tolist()
        if going:
            with store.connect(results) as con:
                files = views.catalogued(con, results, runs=going)
                con.execute(
                    "UPDATE details SET dropped_at = ? WHERE list_contains(?, file)",
                    [now.replace(tzinfo=None), [one.file for one in files]],
                )
            for one in files:
                (folder / one.file).unlink(missing_ok=True)
            for run_id in going:
                remove_if_empty(folder / parquet.folder_of(run_id))
    return planned


def remove(results: Path, run_ids: Sequence[str]) -> pd.DataFrame:
    """Removes whole runs: their numbers, answers and verdicts; returns their rows of ``runs``. The
    questions that they were asked, the nights and the score cache stay. Raises StoreError for an
    unknown run, before anything is removed."""
    folder = parquet.home(results)
    with _alone(results):
        runs = store.query(results, "FROM runs WHERE list_contains(?, run_id)", [list(run_ids)])
        for run_id in (name for name in run_ids if name not in set(runs["run_id"])):
            raise store.unknown_run(results, run_id)
        with store.connect(results) as con:
            con.execute("BEGIN")
            for table in ("runs", "details", *store.SMALL_TABLES, "verdicts", "flips", "accepted"):
                con.execute(f"DELETE FROM {table} WHERE list_contains(?, run_id)", [list(run_ids)])
            con.execute("COMMIT")
        for run_id in run_ids:
            shutil.rmtree(folder / parquet.folder_of(run_id), ignore_errors=True)
    return runs


def remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


@dataclass(frozen=True)
class Cleared:
    """Removed orphans (files, bytes), and the DuckDB file's size before and after (bytes)."""

    orphans: int
    orphan_bytes: int
    before: int
    after: int


def compact(results: Path, progress: Progress = silent) -> Cleared:
    """Removes orphans and copies the DuckDB file to one without holes. Blocks writers meanwhile;
    readers are not disturbed. Raises StoreError while another process writes, or where there is no
    room for a second DuckDB file."""
    folder = parquet.home(results)
    with _alone(results):
        left = orphans(results)
        freed = sum(p.stat().st_size for p in left)
        for path in each(progress, "clearing orphans", left):
            path.unlink()
        for run in sorted(folder.glob("run_id=*")):
            remove_if_empty(run)
        progress("copying the DuckDB file", 0, 1)
        before = results.stat().st_size
        with store.connect(results) as con:
            con.execute("CHECKPOINT")  # moves what a killed writer left in the log into the file
        with database.rewriting(results) as draft:
            database.copy(results, draft)
        progress("copying the DuckDB file", 1, 1)
        return Cleared(len(left), freed, before, results.stat().st_size)
