"""Errors of estimated numbers on one scale, and CADE tuned on it (method ``cade_tolerance``).

Targets have different units, so a mean over all of them (micro) is dominated by under-five
mortality. Study 'regression' therefore adds the mean over targets (macro) and two scale-free
errors: relative to the target's tolerance (1 is the edge of interval accuracy) and to the standard
deviation of the gold numbers of the val split. A free answer without a number counts as 0.0, as in
the metrics.

The paper tunes CADE on the pooled MAE, so on under-five mortality, and may lose on every other
target what it gains there. Method ``cade_tolerance`` is the same search on the same val rows with
the error in tolerances as objective: each target counts in its own unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import StudyRow, Values
from sdgbias.analysis.outcomes import TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.analysis.studies.parameters import PARAMETERS, as_vector
from sdgbias.methods.cade import decide
from sdgbias.methods.search import SearchResult, SearchSettings, random_search, take
from sdgbias.types import Task

STUDY, CADE_TOLERANCE = "regression", "cade_tolerance"


def estimates(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    """The numbers of each test with those of ``cade_tolerance``, and pooled; its parameters."""
    outcomes = []
    for o in answers.pools(run, Task.REGRESSION)[:-1]:
        [cell] = o.cells
        tuned, decided = in_tolerances(cell, settings), answers.decision(cell)
        if tuned is not None and decided is not None:
            choice = np.where(decided[2], decide(decided[0], tuned.params).choice, -1)
            o = answers.answered(o, cell, CADE_TOLERANCE, choice)
            note = f"objective: mean error in tolerances, {tuned.n_draws:,} draws"
            columns = {**o.columns(CADE_TOLERANCE), "note": note}
            for name, x in zip(PARAMETERS, as_vector(tuned.params), strict=True):
                yield row(STUDY, name, float(x), n=tuned.n_val, **columns)
        spread = o.items["target"].map(gold_spread(cell.items)).to_numpy(dtype=float)
        outcomes.append(replace(o, more={"spread": spread}))
    yield from outcomes
    if outcomes:
        yield answers.pooled(outcomes)


def in_tolerances(cell: TaskCell, settings: AnalysisSettings) -> SearchResult | None:
    """The paper's search with the mean error in tolerances as objective, on the val rows that CADE
    was tuned on; None where it wasn't."""
    decided = answers.decision(cell)
    if decided is None:
        return None
    s, _, usable = decided
    payoff = cell.payoff / cell.items["tolerance"].to_numpy(dtype=float)[:, None]
    val = cell.val & usable & np.isfinite(payoff).all(axis=1)
    if not val.any():
        return None
    how = SearchSettings(settings.draws, settings.seed)
    return random_search(take(s, val), payoff[val], Task.REGRESSION, how)


def gold_spread(items: pd.DataFrame) -> dict[str, float]:
    """Sample standard deviation of the gold numbers of each target over the val rows; NaN if there
    are fewer than two or all are equal."""
    val = items[items["split"] == "val"]
    deviations = val.groupby("target")["gold_value"].std()
    return {
        str(target): float(deviations.get(target, np.nan)) or float("nan")
        for target in sorted(set(items["target"]))
    }


def scaled(o: TaskOutcome, method: str) -> Values:
    """Errors over the tolerance, and over the standard deviation of the target's gold numbers."""
    tolerance = o.items["tolerance"].to_numpy(dtype=float)
    return {
        "error_in_tolerances": o.error[method] / tolerance,
        "error_in_sd": o.error[method] / o.more["spread"],
    }


def error(o: TaskOutcome, method: str) -> Values:
    """Absolute errors; nothing of multiple choice."""
    return {"mae": o.error[method]} if method in o.error else {}


def errors(o: TaskOutcome, method: str) -> Values:
    return error(o, method) | scaled(o, method)
