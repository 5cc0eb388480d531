"""Analysis of stored scores; needs no model. Every study is a function from a run to rows of
``numbers``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.asked import gives_scores
from sdgbias.analysis.rows import AnalysisSettings, table
from sdgbias.analysis.run import load, row_of
from sdgbias.analysis.studies import (
    ablation,
    baselines,
    calibration,
    directions,
    divergence,
    fairness,
    groups,
    harm,
    paired,
    regression,
    search,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.suites.rows import HEADLINE

#: name -> function from a run and settings to rows, in execution order.
STUDIES = {
    "methods": baselines.rows,
    "perturbation": directions.perturbation,
    "wordings": directions.wordings,
    "directions": directions.rows,
    "paired": paired.rows,
    "divergence": divergence.rows,
    "harm": harm.rows,
    "groups": groups.rows,
    "regression": regression.rows,
    "calibration": calibration.rows,
    "search_study": search.rows,
    "ablation": ablation.rows,
}


def analyse(
    results: Path,
    run_ids: Sequence[str] | None = None,
    settings: AnalysisSettings = AnalysisSettings(),
    *,
    again: bool = False,
    progress: Progress = silent,
) -> dict[str, int | None]:
    """Run every study of the given runs and publish the rows; returns run_id -> number of rows.
    Default: the newest run of each model; in the people suite, of each model and benchmark.

    A run already analysed with these settings is skipped unless ``again``: None.
    """
    made: dict[str, int | None] = {}
    for run_id in run_ids if run_ids is not None else suites.newest_runs(results):
        made[run_id] = None
        if again or not _analysed(results, run_id, settings):
            rows = _study(results, run_id, settings, progress)
            done = pd.DataFrame([{"settings": vars(settings)}])
            tables = {"numbers": rows, "analyses": done}
            store.replace(results, run_id, tables, kept_study=HEADLINE)
            made[run_id] = len(rows)
    return made


def _study(
    results: Path, run_id: str, settings: AnalysisSettings, progress: Progress
) -> pd.DataFrame:
    """All study rows of one run, sorted by key; those of a study that the run has no questions for
    are none. Deterministic for a given run and settings. Raises StoreError for a run without its
    scores."""
    if not gives_scores(row_of(results, run_id)["config"]):  # every study rests on scores
        return table([])
    run = load(results, run_id)
    studies = each(progress, f"analysing {run.model}", STUDIES.values())
    parts = [rows(run, settings) for rows in studies]
    parts.append(fairness.rows(results, run_id, settings))
    return table(record for part in parts for record in part.to_dict("records"))


def _analysed(results: Path, run_id: str, settings: AnalysisSettings) -> bool:
    sql = "SELECT settings FROM analyses WHERE run_id = ?"
    known = store.query(results, sql, [run_id])["settings"]
    return any(json.loads(text) == vars(settings) for text in known)
