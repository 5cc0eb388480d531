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

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.outcomes import CADE, Level, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.analysis.tuning import PARAMETERS, as_vector
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Floats, decide
from sdgbias.methods.search import SearchResult, random_search, take
from sdgbias.types import Task, View

STUDY = "regression"
CADE_TOLERANCE = "cade_tolerance"
_MIXED = "mixes units"


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """MAE and interval accuracy micro, macro and per target, scale-free errors, and the change by
    CADE and by cade_tolerance of each, by test and method; the parameters of cade_tolerance."""
    made: list[dict[str, object]] = []
    cells = answers.reportable(run, Task.REGRESSION)
    if not cells:
        return table(made)
    spread = gold_spread(cells[0].items)
    outcomes = []
    for cell, o in zip(cells, answers.pools(run, Task.REGRESSION), strict=False):
        tuned = in_tolerances(cell, settings)
        outcomes.append(o if tuned is None else _with(o, cell, tuned))
        made += _parameters(cell, tuned)
    for o in [*outcomes, answers.pooled(outcomes)]:
        made += [r for method in o.error for r in _method(o, method, spread)]
        made += [r for method in (CADE, CADE_TOLERANCE) for r in _change(o, method, spread)]
    answers.adjust([r for r in made if str(r["metric"]).endswith("_change")])
    return table(made)


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


def _with(o: TaskOutcome, cell: TaskCell, tuned: SearchResult) -> TaskOutcome:
    """The outcome of a cell with method cade_tolerance."""
    known = answers.decision(cell)
    assert known is not None
    s, _, usable = known
    choice = np.where(usable, decide(s, tuned.params).choice, -1)
    number = answers.chosen_number(cell, choice)
    gold, rows = cell.items["gold_value"].to_numpy(dtype=float), cell.test_rows
    added = {
        "choice": choice[rows],
        "hit": answers.hits(cell, choice, number)[rows],
        "error": metrics.absolute_error(gold, number)[rows],
    }
    return replace(
        o,
        choice={**o.choice, CADE_TOLERANCE: added["choice"]},
        hit={**o.hit, CADE_TOLERANCE: added["hit"]},
        error={**o.error, CADE_TOLERANCE: added["error"]},
    )


def _parameters(cell: TaskCell, tuned: SearchResult | None) -> list[dict[str, object]]:
    if tuned is None:
        return []
    note = f"objective: mean error in tolerances, {tuned.n_draws:,} draws"
    columns = {"task": cell.task.value, "test": cell.test.value, "method": CADE_TOLERANCE}
    return [
        row(STUDY, name, float(x), n=tuned.n_val, note=note, **columns)
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


def _targets(o: TaskOutcome) -> Level:
    code, names = pd.factorize(o.items["target"], sort=True)
    return Level(code.astype(np.int64), tuple({"by": "target", "level": str(t)} for t in names))


def _method(o: TaskOutcome, method: str, spread: Mapping[str, float]) -> list[dict[str, object]]:
    common = o.columns(method)
    scaled, level = _scaled(o, method, spread), _targets(o)
    made = answers.rows_of(
        STUDY, level, answers.spread_of(o, method, level, scaled, "amount"), common
    )
    hits = {"interval_accuracy": o.hit[method]}
    made += answers.rows_of(STUDY, level, answers.spread_of(o, method, level, hits), common)
    units = [o.place, *([answers.prompts(o.items)] if answers.image_free(method, o.test) else [])]
    target = level.code
    for name, values in {**scaled, "interval_accuracy": o.hit[method]}.items():
        hit = name == "interval_accuracy"
        micro = stats.widest([stats.mean(values, u, "share" if hit else "amount") for u in units])
        note = _MIXED if name == "mae" else ""
        made.append(row(STUDY, f"{name}_micro", micro, **common, note=note))
        kind: stats.Kind = "fraction" if hit else "amount"
        macro = stats.widest([stats.macro(values, target, u, kind) for u in units])
        made.append(row(STUDY, f"{name}_macro", macro, **common, note=note))
    return made


def _change(o: TaskOutcome, method: str, spread: Mapping[str, float]) -> list[dict[str, object]]:
    """A method minus the Full view's free answer, paired by item: below zero is better for errors,
    above for interval accuracy."""
    if method not in o.error:
        return []
    common = o.columns(method)
    now, before = _scaled(o, method, spread), _scaled(o, View.FULL.value, spread)
    change = {f"{name}_change": now[name] - before[name] for name in now}
    change["interval_accuracy_change"] = o.hit[method] - o.hit[View.FULL.value]
    level = _targets(o)
    made = answers.rows_of(
        STUDY, level, answers.spread(level, change, o.place, "mean"), common, tested=True
    )
    for name in ("error_in_tolerances_change", "error_in_sd_change", "interval_accuracy_change"):
        test = stats.paired(change[name], o.place)
        made.append(row(STUDY, name, test.estimate, **common, p=test.p))
    return made
