"""Study 'regression': errors of estimated numbers, per target and over all targets.

Targets have different units, so a mean over all of them (micro) is dominated by under-five
mortality. The study therefore adds the mean over targets (macro) and two scale-free errors:
relative to the target's tolerance (1 is the edge of interval accuracy) and to the standard
deviation of the gold numbers of the val split. A free answer without a number counts as 0.0, as in
the metrics.

The paper tunes CADE on the pooled MAE, so on under-five mortality, and may lose on every other
target what it gains there. Method ``cade_tolerance`` is the same search on the same val rows with
the error in tolerances as objective: each target counts in its own unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Call, Level, StudyRow, grouping, measured
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.analysis.tuning import PARAMETERS, as_vector
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats, decide
from sdgbias.methods.search import SearchResult, random_search, take
from sdgbias.types import Task, View

STUDY = "regression"
CADE_TOLERANCE = "cade_tolerance"
_MIXED = "mixes units"


def _calls(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """MAE and interval accuracy micro, macro and per target, scale-free errors, and the change by
    CADE and by cade_tolerance of each, by test and method; the parameters of cade_tolerance."""
    cells = answers.reportable(run, Task.REGRESSION)
    if not cells:
        return
    spread = gold_spread(cells[0].items)
    outcomes = []
    for cell, o in zip(cells, answers.pools(run, Task.REGRESSION), strict=False):
        tuned, known = in_tolerances(cell, settings), answers.decision(cell)
        if tuned is not None and known is not None:
            choice = np.where(known[2], decide(known[0], tuned.params).choice, -1)
            o = answers.answered(o, cell, CADE_TOLERANCE, choice)
            yield from _parameters(o, tuned)
        outcomes.append(o)
    for o in [*outcomes, answers.pooled(outcomes)]:
        level = grouping(o.items["target"], lambda target: {"indicator": target})
        for method in o.error:
            yield from _method(o, method, spread, level)
            if method in (CADE, CADE_TOLERANCE):
                yield from _change(o, method, spread, level)


def in_tolerances(cell: TaskCell, settings: AnalysisSettings) -> SearchResult | None:
    """The paper's search with the mean error in tolerances as objective, on the val rows that CADE
    was tuned on; None where it wasn't."""
    known = answers.decision(cell)
    if known is None:
        return None
    s, _, usable = known
    payoff = cell.payoff / cell.items["tolerance"].to_numpy(dtype=float)[:, None]
    val = cell.val & usable & np.isfinite(payoff).all(axis=1)
    if not val.any():
        return None
    return random_search(
        take(s, val), payoff[val], Task.REGRESSION, draws=settings.draws, seed=settings.seed
    )


def _parameters(o: TaskOutcome, tuned: SearchResult) -> list[StudyRow]:
    note = f"objective: mean error in tolerances, {tuned.n_draws:,} draws"
    return [
        row(STUDY, name, float(x), n=tuned.n_val, note=note, **o.columns(CADE_TOLERANCE))
        for name, x in zip(PARAMETERS, as_vector(tuned.params), strict=True)
    ]


def gold_spread(items: pd.DataFrame) -> dict[str, float]:
    """Sample standard deviation of the gold numbers of each target over the val rows; NaN if there
    are fewer than two or all are equal."""
    val = items[items["split"] == "val"]
    found = val.groupby("target")["gold_value"].std()
    return {
        str(target): float(found.get(target, np.nan)) or float("nan")
        for target in sorted(set(items["target"]))
    }


def _scaled(o: TaskOutcome, method: str, spread: Mapping[str, float]) -> dict[str, Floats]:
    error = o.error[method]
    return {
        "mae": error,
        "error_in_tolerances": error / o.items["tolerance"].to_numpy(dtype=float),
        "error_in_sd": error / o.items["target"].map(spread).to_numpy(dtype=float),
    }


def _method(
    o: TaskOutcome, method: str, spread: Mapping[str, float], level: Level
) -> Iterator[Call | StudyRow]:
    columns, units = o.columns(method), answers.units(o, method)
    for name, values in {**_scaled(o, method, spread), "interval_accuracy": o.hit[method]}.items():
        kind: stats.Kind = "share" if name == "interval_accuracy" else "amount"
        yield Call(columns, [level], {name: values}, units, kind)
        note = _MIXED if name == "mae" else ""
        micro = stats.widest([stats.mean(values, u, kind) for u in units])
        macro = stats.widest([stats.macro(values, level.code, u, kind) for u in units])
        yield row(STUDY, f"{name}_micro", micro, **columns, note=note)
        yield row(STUDY, f"{name}_macro", macro, **columns, note=note)


def _change(
    o: TaskOutcome, method: str, spread: Mapping[str, float], level: Level
) -> Iterator[Call]:
    """A method minus the Full view's free answer, paired by item: below zero is better for errors,
    above for interval accuracy; of the error in mixed units by target only."""
    full = View.FULL.value
    columns = o.columns(method, versus=full)
    now, before = _scaled(o, method, spread), _scaled(o, full, spread)
    errors = {f"{name}_change": now[name] - before[name] for name in now}
    hits = {"interval_accuracy_change": o.hit[method] - o.hit[full]}
    whole = Level(np.zeros(len(o.items), dtype=np.int64), ({},))
    scaled = {name: values for name, values in errors.items() if name != "mae_change"}
    yield Call(columns, [level], errors, [o.place], "mean", tested=True)
    yield Call(columns, [whole], scaled, [o.place], "mean", tested=True)
    yield Call(columns, [level, whole], hits, [o.place], "difference", tested=True)


rows = measured(STUDY, _calls, lambda r: str(r["metric"]).endswith("_change") or None)
