"""Retention: whose details (scores, predictions, decoded, spoken) are kept. Metrics, verdicts and nights are kept for ever."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pandas as pd

from sdgbias import store
from sdgbias.details import files, locks

#: In the order in which they are named. A night is a row of `nights`; a day (UTC) on which a run was finished by hand counts as one.
_SQL = """
WITH days AS (
    SELECT finished_at::DATE AS day FROM runs WHERE finished_at IS NOT NULL UNION SELECT started_at::DATE FROM nights
), cut AS (SELECT min(day) AS first FROM (FROM days ORDER BY day DESC LIMIT $nights)
), late AS (SELECT night FROM nights, cut WHERE started_at::DATE >= first
), judged AS (  -- what the newest verdicts on each model compare
    SELECT run_id, baseline FROM verdicts QUALIFY night = max(night) OVER (PARTITION BY model, suite)
), ranked AS (
    SELECT run_id, model, suite, finished_at,
           row_number() OVER (PARTITION BY model, suite ORDER BY finished_at DESC, run_id DESC) AS place,
           row_number() OVER (PARTITION BY model, suite, date_trunc('month', finished_at) ORDER BY finished_at DESC, run_id DESC) AS monthly
    FROM runs
), sizes AS (SELECT run_id, sum(bytes)::BIGINT AS bytes, count(*) AS files FROM details WHERE dropped_at IS NULL GROUP BY 1)
SELECT r.run_id, model, suite, finished_at, bytes, files, CASE
    WHEN finished_at IS NULL THEN 'not finished'
    WHEN place = 1 THEN 'newest of its model'
    WHEN run_id IN (SELECT run_id FROM judged) OR run_id IN (SELECT baseline FROM judged WHERE baseline IS NOT NULL) THEN 'newest verdicts'
    WHEN run_id IN (SELECT run_id FROM accepted) THEN 'accepted'
    WHEN finished_at::DATE >= (SELECT first FROM cut) THEN 'recent night'
    WHEN run_id IN (SELECT run_id FROM night_models WHERE night IN (SELECT night FROM late) AND run_id IS NOT NULL) THEN 'recent night'
    WHEN place <= $per_model THEN 'one of the last of its model'
    WHEN monthly = 1 THEN 'one a month'
    ELSE '' END AS kept
FROM ranked r JOIN sizes USING (run_id) ORDER BY finished_at, r.run_id"""


def plan(results: Path, nights: int = 90, per_model: int = 3) -> pd.DataFrame:
    """One row per run that has details: run_id, model, suite, finished_at, bytes, files, kept (why it stays, '' = its details may go).

    Kept are the details of the newest ``nights`` nights, of the newest ``per_model`` runs of each model and suite, of one run per model, suite and
    month (its newest), of whatever the newest verdicts compare, and of accepted runs.
    """
    return store.query(results, _SQL, {"nights": nights, "per_model": per_model})


def apply(results: Path, nights: int, per_model: int, now: datetime) -> pd.DataFrame:
    """Drops the details that ``plan`` lets go and returns its rows. First the catalogue forgets them, in one transaction, then the files go:
    killed in between, `compact` clears the rest. ``now``: UTC."""
    folder = files.local_home(results, "sdgbias store keep --apply")
    with locks.alone(results):
        planned = plan(results, nights, per_model)
        going = planned.loc[planned["kept"] == "", "run_id"].tolist()
        if going:
            with store.connect(results, details=()) as con:
                con.execute("BEGIN")
                named = "list_contains(?, run_id) AND dropped_at IS NULL"
                paths = con.execute(f"SELECT file FROM details WHERE {named}", [going]).fetchall()
                con.execute(f"UPDATE details SET dropped_at = ? WHERE {named}", [now.replace(tzinfo=None), going])
                con.execute("COMMIT")
            for (file,) in paths:
                (folder / file).unlink(missing_ok=True)
            for run_id in going:
                remove_if_empty(folder / files.folder_of(run_id))
    return planned


def remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
