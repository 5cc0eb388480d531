"""Study 'paired': CADE against each view on the same questions, with the minimum detectable gain.

Two standard errors are reported: rows clustered by place (parameter 'cluster'), the project's
default, and by country (parameter 'country'), which also covers dependence between places of one
country (places are nested in countries). McNemar's counts are tested with one vote per place, and
shown in addition, not instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import StudyRow, measured
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.analysis.run import RunData
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats
from sdgbias.types import Task, View

STUDY = "paired"


def _calls(run: RunData, settings: AnalysisSettings) -> Iterator[StudyRow]:
    """CADE against Full and every other view, by test: gain, its two intervals, MDE, McNemar."""
    for task in Task:
        for o in answers.pools(run, task):
            for view in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY):
                if CADE in o.hit and view.value in o.hit:
                    yield from _versus(o, view.value)


def _family(r: StudyRow) -> tuple[str, object] | None:
    tested = next((m for m in ("gain", "mcnemar") if str(r["metric"]).endswith(m)), None)
    return None if tested is None else (tested, r["parameter"])


def _versus(o: TaskOutcome, view: str) -> list[StudyRow]:
    difference = o.hit[CADE] - o.hit[view]
    unit = _unit(o, view, difference)
    gain = "accuracy_gain" if o.task is Task.MCQ else "interval_accuracy_gain"
    common = o.columns(CADE, versus=view)
    made = _tested(gain, difference, unit, {**common, "parameter": "cluster"})
    if not (o.items["country"] != "").any():
        return made
    by_place, note = stats.two_way(difference, o.place, o.country, "difference")
    test = stats.paired(difference, o.country, "difference")
    made.append(row(STUDY, gain, by_place, **common, parameter="country", p=test.p, note=note))
    return [*made, row(STUDY, "mde", _mde(test), **common, parameter="country", note=note)]


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
) -> list[StudyRow]:
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
    return stats.Estimate(test.mde, test.estimate.n)


rows = measured(STUDY, _calls, _family)
