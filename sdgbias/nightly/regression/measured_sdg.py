"""Suite sdg: metrics of a run per question of the test split, from its stored scores
(analysis.outcomes).

Also of suites of custom questions, which have the group columns of their table instead of country,
urban and wealth.

Questions share a place, so rows are clustered by place. A prompt without a picture may contain
nothing about the place: all questions of an indicator with the same options share one prompt of the
Q-only view, and of CTX+Q under T3 to T5. Those rows are clustered by prompt.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from sdgbias.analysis import outcomes
from sdgbias.analysis import run as data
from sdgbias.analysis.asked import gives_scores
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.run import TaskCell
from sdgbias.analysis.studies import directions
from sdgbias.engines.agreement import TOLERANCES
from sdgbias.methods import metrics
from sdgbias.methods.cade import Floats
from sdgbias.nightly.regression import measured_generated
from sdgbias.nightly.regression.measured import Measured, RunMetrics, columns
from sdgbias.types import GENERATED, Task, View

_NAN = float("nan")


def load(results: Path, run_id: str) -> RunMetrics:
    """Raises StoreError for a run that doesn't exist or has no answers."""
    row = data.row_of(results, run_id)
    if not gives_scores(row["config"]):
        return measured_generated.load(results, row)
    run = data.load(results, run_id)
    kept: dict[tuple[str, str], tuple[TaskOutcome, TaskCell]] = {}
    for task in Task:
        cells = outcomes.reportable(run, task)
        for outcome, cell in zip(outcomes.outcomes(cells), cells, strict=True):
            kept[task.value, outcome.test] = outcome, cell
    spec = json.loads(run.run["config"] or "{}").get("spec", {})
    near = TOLERANCES[str(spec.get("dtype", "float32"))]
    generated = cache(lambda: measured_generated.load(results, run.run))
    about = cache(lambda task, test, free: columns(kept[task, test][0].items, free))

    def of(task: str, test: str, metric: str, method: str) -> Measured | None:
        if method.endswith(GENERATED):
            return generated().of(task, test, metric, method)
        if (task, test) not in kept:
            return None
        value = _value(*kept[task, test], metric, method, near)
        if value is None or np.isnan(value).all():
            return None
        key, cluster, groups = about(task, test, outcomes.image_free(method, test))
        return Measured(key, value, cluster, groups)

    return RunMetrics(
        run.run, {task.value: [t for k, t in kept if k == task.value] for task in Task}, of
    )


def _value(o: TaskOutcome, cell: TaskCell, metric: str, method: str, near: float) -> Floats | None:
    """(n,) values for the rows of ``o``; None if the run doesn't have the method. near: the margin
    of a near tie."""
    if metric in ("accuracy", "interval_accuracy", "disparity"):
        return o.hit.get(method)
    if metric == "mae":
        error = o.error.get(method)
        return None if error is None else error / o.items["tolerance"].to_numpy(dtype=float)
    if metric == "cade_gain":
        return o.hit[CADE] - o.hit[View.FULL.value] if CADE in o.hit else None
    if metric.startswith("share_"):
        if method not in o.choice:
            return None
        says = directions.directed(o.items, o.choice[method])
        return directions.share_of(says, metric.removeprefix("share_"))
    view = View(method)
    if metric == "candidate_mass":
        return cell.mass[view][cell.test_rows]
    if metric in ("tie_rate", "near_tie_rate"):
        flags = metrics.tie_flags(cell.logits[view], near)
        return flags[metric == "near_tie_rate"][cell.test_rows]
    if metric == "parse_failures" and o.task is Task.MCQ:
        return directions.invalid(cell, view)[cell.test_rows]
    if metric == "parse_failures":
        return np.where(np.isnan(cell.free[view]), _NAN, ~cell.parsed[view])[cell.test_rows]
    raise AssertionError(metric)
