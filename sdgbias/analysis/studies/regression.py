"""Study 'regression': errors of estimated numbers, per target and over all targets.

Targets have different units, so a mean over all of them (micro) is dominated by under-five
mortality. The study therefore adds the mean over targets (macro) and two scale-free errors:
relative to the target's tolerance (1 is the edge of interval accuracy) and to the standard
deviation of the gold numbers of the val split. A free answer without a number counts as 0.0, as in
the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.outcomes import CADE, Level, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats
from sdgbias.types import Task, View

STUDY = "regression"
_MIXED = "mixes units"


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """MAE and interval accuracy micro, macro and per target, scale-free errors, and CADE's change
    of each, by test and method."""
    made: list[dict[str, object]] = []
    cells = answers.reportable(run, Task.REGRESSION)
    spread = gold_spread(cells[0].items) if cells else {}
    for o in answers.pools(run, Task.REGRESSION):
        made += [r for method in o.error for r in _method(o, method, spread)]
        made += _change(o, spread)
    answers.adjust([r for r in made if str(r["metric"]).endswith("_change")])
    return table(made)


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
    common: dict[str, object] = {"task": o.task.value, "test": o.test, "method": method}
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


def _change(o: TaskOutcome, spread: Mapping[str, float]) -> list[dict[str, object]]:
    """CADE minus the Full view's free answer, paired by item: below zero is better for errors,
    above for interval accuracy."""
    if CADE not in o.error:
        return []
    common: dict[str, object] = {"task": o.task.value, "test": o.test, "method": CADE}
    now, before = _scaled(o, CADE, spread), _scaled(o, View.FULL.value, spread)
    change = {f"{name}_change": now[name] - before[name] for name in now}
    change["interval_accuracy_change"] = o.hit[CADE] - o.hit[View.FULL.value]
    level = _targets(o)
    made = answers.rows_of(
        STUDY, level, answers.spread(level, change, o.place, "mean"), common, tested=True
    )
    for name in ("error_in_tolerances_change", "error_in_sd_change", "interval_accuracy_change"):
        test = stats.paired(change[name], o.place)
        made.append(row(STUDY, name, test.estimate, **common, p=test.p))
    return made
