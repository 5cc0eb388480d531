"""Analysis of stored scores; needs no model. Every study is a function from a run to rows of
``numbers``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import load, missing
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.progress import Progress, each, silent
from sdgbias.suites.rows import HEADLINE
from sdgbias.types import NEEDS_SCORES

_BOTH = ("methods", "paired", "harm", "groups", "search", "ablation", "streams", "sweep")
_MCQ = ("perturbation", "wordings", "directions", "divergence", "calibration", "selective")
#: Task -> the studies of its answers.
STUDIES_OF = {"mcq": (*_BOTH, *_MCQ), "regression": (*_BOTH, "regression"), "choice": ("fairness",)}


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
    counts: dict[str, int | None] = {}
    for run_id in run_ids if run_ids is not None else suites.newest_runs(results):
        counts[run_id] = None
        if again or not _analysed(results, run_id, settings):
            rows = _study(results, run_id, settings, progress)
            done = pd.DataFrame([{"settings": vars(settings)}])
            tables = {"numbers": rows, "analyses": done}
            store.replace(results, run_id, tables, kept_study=HEADLINE)
            counts[run_id] = len(rows)
    return counts


def _study(
    results: Path, run_id: str, settings: AnalysisSettings, progress: Progress
) -> pd.DataFrame:
    """All study rows of one run, sorted by key; those of a study that the run has no questions for
    are none. Deterministic for a given run and settings. Raises StoreError for a run without its
    scores."""
    reasons = missing(results, run_id)
    parts: list[pd.DataFrame] = []
    if NEEDS_SCORES not in reasons.values():  # every study rests on scores
        run = load(results, run_id)
        studies = each(progress, f"analysing {run.model}", STUDIES.values())
        parts = [study.rows(run, settings) for study in studies]
    records = [record for part in parts for record in part.to_dict("records")]
    return table([*records, *_lacking(records, reasons)])


def _lacking(
    records: Sequence[Mapping[Any, Any]], reasons: Mapping[tuple[str, str], str]
) -> Iterator[dict[str, object]]:
    """One row not_run of each study of a task that has no number because of what the model lacks.
    reasons: by task and method."""
    have = {(r["study"], r["task"]) for r in records}
    for task in sorted({task for task, _ in reasons}):
        lacks = min(reason for (of, _), reason in reasons.items() if of == task)
        for study in STUDIES_OF[task]:
            if (study, task) not in have:
                columns = {"task": task, "missing_reason": lacks, "note": lacks}
                yield row(study, "not_run", float("nan"), **columns)


def _analysed(results: Path, run_id: str, settings: AnalysisSettings) -> bool:
    sql = "SELECT settings FROM analyses WHERE run_id = ?"
    stored = store.query(results, sql, [run_id])["settings"]
    return any(json.loads(text) == vars(settings) for text in stored)
