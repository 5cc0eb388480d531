"""Study 'paired': CADE against each view on the same questions, with the minimum detectable gain.

Two standard errors are reported: rows clustered by place (by = 'cluster'), the project's default,
and by country (by = 'country'), which also covers dependence between places of one country (places
are nested in countries). McNemar's counts are tested with one vote per place, and shown in
addition, not instead.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats
from sdgbias.types import Task, View

STUDY = "paired"


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """CADE against Full and every other view, by test: gain, its two intervals, MDE, McNemar."""
    made: list[dict[str, object]] = []
    for task in Task:
        for o in answers.pools(run, task):
            if CADE not in o.hit:
                continue
            for view in (
                v for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY) if v.value in o.hit
            ):
                made += _versus(o, view.value)
    return _finish(made)


def _finish(made: list[dict[str, object]]) -> pd.DataFrame:
    for metric in ("gain", "mcnemar"):
        for by in sorted({str(r["by"]) for r in made}):
            answers.adjust([r for r in made if str(r["metric"]).endswith(metric) and r["by"] == by])
    return table(made)


def _versus(o: TaskOutcome, view: str) -> list[dict[str, object]]:
    difference, level = o.hit[CADE] - o.hit[view], f"{CADE} minus {view}"
    unit = _unit(o, view, difference)
    gain = "accuracy_gain" if o.task is Task.MCQ else "interval_accuracy_gain"
    common = o.columns(CADE, level=level)
    made = _tested(gain, difference, unit, {**common, "by": "cluster"})
    by_place, note = stats.two_way(difference, o.place, o.country, "difference")
    test = stats.paired(difference, o.country, "difference")
    made.append(row(STUDY, gain, by_place, **common, by="country", p=test.p, note=note))
    return [*made, row(STUDY, "mde", _mde(test), **common, by="country", note=note)]


def _unit(o: TaskOutcome, view: str, difference: Floats) -> np.ndarray:
    """What the differences are clustered by: places, or the prompts of a view that many places
    share, where that claims less."""
    if not answers.image_free(view, o.test):
        return o.place
    units = [o.place, answers.prompts(o.items)]
    each = [stats.mean(difference, unit, "difference") for unit in units]
    return units[each.index(stats.widest(each))]


def _tested(
    metric: str, difference: Floats, place: np.ndarray, columns: dict[str, object]
) -> list[dict[str, object]]:
    """Mean difference with clustered interval and p, its minimum detectable effect, and McNemar's
    counts and p."""
    test = stats.paired(difference, place, "difference")
    up, down = stats.net_signs(difference, place)
    fixed, broken = int((difference > 0).sum()), int((difference < 0).sum())
    counts = f"{fixed} better, {broken} worse; by place {up} to {down}"
    sign = stats.sign_test(up, down)
    return [
        row(STUDY, metric, test.estimate, **columns, p=test.p),
        row(STUDY, "mde", _mde(test), **columns, note="two-sided 5 %, power 80 %"),
        row(STUDY, "mcnemar", test.estimate, **columns, p=sign, note=counts),
    ]


def _mde(test: stats.PairedTest) -> stats.Estimate:
    value = stats.minimum_detectable(test.se, test.df)
    return stats.Estimate(value, test.estimate.n)
