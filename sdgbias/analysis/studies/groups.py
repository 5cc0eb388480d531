"""Study 'groups': accuracy for different places, the disparities between them, and whether CADE
narrows these.

By country, by urban and rural, by wealth tercile, by the last two combined, and by whether the
picture shows a street photo; in a suite of custom questions by each of its group columns. A group
of fewer than 20 rows has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Call, Level, StudyRow, grouping, measured
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.analysis.run import RunData, group_columns
from sdgbias.analysis.studies.directions import ENDS, directed, share_of
from sdgbias.methods import metrics, stats
from sdgbias.suites.rows import FEWER
from sdgbias.types import Task

STUDY = "groups"
METHODS = ("full", CADE, "q_only")
#: Groupings, and whether they are shown per context test too (countries only pooled: there are
#: dozens).
GROUPINGS = {
    "country": False,
    "urban": True,
    "wealth": True,
    "urban x wealth": True,
    "photo": True,
}
#: Attribute -> the two groups of which a difference is reported.
PAIRS = {
    "urban": ("urban", "rural"),
    "wealth": ("richest", "poorest"),
    "photo": ("with photo", "without photo"),
}
_URBAN = {"U": "urban", "R": "rural"}


def _calls(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """Accuracy and answer direction (numbers: MAE and interval accuracy per target) by group,
    disparities and their change."""
    for task in Task:
        pools = answers.pools(run, task)
        if pools and (columns := group_columns(pools[-1].items)):
            # such a suite has one context test, which the pool repeats: Holm counts each test once
            for by in columns:
                level = level_of(pd.DataFrame(columns), by)
                yield from _by_choice(pools[-1], level, list(pools[-1].hit))
                yield from _apart(by, level, pools[-1:], settings)
            continue
        for o in pools:
            for by, per_test in GROUPINGS.items():
                if per_test or o.test == "all":
                    yield from _by_group(o, by)
        yield from _disparities(pools, settings)


def _family(r: StudyRow) -> str | None:
    return str(r["metric"]) if r["metric"] in ("disparity", "disparity_change") else None


def level_of(items: pd.DataFrame, by: str, *, per_target: bool = False) -> Level:
    """The grouping by ``by``, a column of the items or several joined with ' x '; rows with an
    unknown value ('') have no group. per_target: of the numbers of each target."""
    columns = [items[name].replace(_URBAN if name == "urban" else {}) for name in by.split(" x ")]
    known = np.logical_and.reduce([column != "" for column in columns])
    keys = reduce(lambda one, other: one + " x " + other, columns)
    if per_target:
        keys += "\t" + items["target"].where(items["target"] != "")

    def named(key: str) -> dict[str, str]:
        return {"attribute": by, **dict(zip(("group", "indicator"), key.split("\t"), strict=False))}

    return grouping(keys.where(known), named, stats.SMALLEST)


def _by_choice(o: TaskOutcome, level: Level, methods: Sequence[str]) -> Iterator[Call]:
    for m in methods:
        says = directed(o.items, o.choice[m])
        values = {"accuracy": o.hit[m]} | {f"share_{d}": share_of(says, d) for d in ENDS}
        yield Call(o.columns(m), [level], values, [answers.unit(o, m)])


def _by_group(o: TaskOutcome, by: str) -> Iterator[Call]:
    methods = [m for m in METHODS if m in o.hit]
    if o.task is Task.MCQ:
        yield from _by_choice(o, level_of(o.items, by), methods)
        return
    levels = [level_of(o.items, by, per_target=True)]
    for m in methods:
        units, columns = answers.units(o, m), o.columns(m)
        yield Call(columns, levels, {"interval_accuracy": o.hit[m]}, units)
        yield Call(columns, levels, {"mae": o.error[m]}, units, "amount")


def _disparities(found: Sequence[TaskOutcome], settings: AnalysisSettings) -> Iterator[StudyRow]:
    for by, per_test in GROUPINGS.items():
        mine = [o for o in found if per_test or o.test == "all"]
        single = [o for o in mine if o.test != "all"]
        # if all tests have the same questions, batch them as columns that share the bootstrap draws
        alike = single and all(
            o.items["item_id"].equals(single[0].items["item_id"]) for o in single
        )
        batches = [single, [o for o in mine if o.test == "all"]] if alike else [[o] for o in mine]
        for batch in batches:
            if batch:
                level = level_of(batch[0].items, by)
                yield from _apart(by, level, batch, settings, PAIRS.get(by))


def _compared(o: TaskOutcome) -> list[str]:
    """The methods whose groups are compared: Full and CADE; where no question has a picture, the
    view with most evidence."""
    answered = [m for m in o.hit if not np.isnan(o.hit[m]).all()]
    without: list[str] = [m for m in ("ctx_q", "q_only") if m in answered]
    return [m for m in ("full", CADE) if m in answered] or without[:1]


def _apart(
    by: str,
    level: Level,
    batch: Sequence[TaskOutcome],
    settings: AnalysisSettings,
    pair: tuple[str, str] | None = None,
) -> Iterator[StudyRow]:
    known = level.code >= 0
    names = [str(columns["group"]) for columns in level.columns]
    columns = [(o, m) for o in batch for m in _compared(o)]
    if len(names) < 2 or not columns:
        return
    values = np.stack([o.hit[m][known] for o, m in columns], axis=1)
    code, place = level.code[known], batch[0].place[known]
    means = stats.group_means(values, code, place, draws=settings.bootstrap, seed=settings.seed)
    for (group, other), reduction in _reductions(by, pair, names).items():
        d = stats.disparity(means, reduction)
        of = "accuracy" if batch[0].task is Task.MCQ else "interval accuracy"
        about = {"attribute": by, "group": group, "other": other}
        for i, (o, m) in enumerate(columns):
            more = o.columns(m, **about, p=float(d.p[i]), note=f"of {of}")
            yield row(STUDY, "disparity", d.estimate(i), **more, **_reason(d.estimate(i)))
            if m == CADE:  # the column before it is Full's
                change = stats.disparity_change(d.take([i - 1]), d.take([i]))
                more = o.columns(m, versus="full", **about, p=float(change.p[0]))
                more["note"] = "below 0: CADE narrows it"
                e = change.estimate()
                yield row(STUDY, "disparity_change", e, **more, **_reason(e))


def _reason(e: stats.Estimate) -> dict[str, object]:
    return {"missing_reason": FEWER} if np.isnan(e.value) else {}


def _reductions(
    by: str, pair: tuple[str, str] | None, names: Sequence[str]
) -> dict[tuple[str, str], Callable[[np.ndarray], np.ndarray]]:
    """(group, other) -> their difference, of the means of the groups ``names``."""
    differences: dict[tuple[str, str], Callable[[np.ndarray], np.ndarray]] = {}
    # of two groups max minus min is the size of their difference
    if pair is None or by not in ("urban", "photo"):
        differences["max", "min"] = metrics.max_min
    if pair is not None and set(pair) <= set(names):
        i, j = (names.index(name) for name in pair)
        differences[pair] = lambda v: metrics.difference(v, i, j)
    return differences


rows = measured(STUDY, _calls, _family)
