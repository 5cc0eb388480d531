"""Groupings of answers about places: by country, by urban and rural, by wealth tercile, by the last
two combined, and by whether the picture shows a street photo; of custom questions by each of their
group columns; of numbers by target; by divergence. A group of fewer than 20 places has no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Level, grouping, whole
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData, group_columns
from sdgbias.methods import stats
from sdgbias.types import Task

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
#: Groups of equal size by divergence.
FIFTHS = 5


def about_places(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome]:
    """All answers by test and pooled. Custom questions have one context test, which the pool
    repeats: their tests would count twice."""
    for task in Task:
        pools = answers.pools(run, task)
        custom = pools and group_columns(pools[-1].items)
        yield from pools[-1:] if custom else pools


def methods(o: TaskOutcome) -> Iterable[str]:
    """The methods that are shown by group; of custom questions all."""
    return o.choice if group_columns(o.items) else METHODS


def compared(o: TaskOutcome) -> list[str]:
    """The methods whose groups are compared: Full and CADE; where no question has a picture, the
    view with most evidence."""
    answered = [m for m in o.hit if not np.isnan(o.hit[m]).all()]
    without: list[str] = [m for m in ("ctx_q", "q_only") if m in answered]
    return [m for m in ("full", CADE) if m in answered] or without[:1]


def attributes(o: TaskOutcome, *, per_target: bool = False) -> Iterator[Level]:
    """By every attribute of places, or by every group column of custom questions."""
    if columns := group_columns(o.items):
        yield from (level_of(pd.DataFrame(columns), by) for by in columns)
        return
    for by, per_test in GROUPINGS.items():
        if per_test or o.test == "all":
            yield replace(level_of(o.items, by, per_target=per_target), pair=PAIRS.get(by))


def shown(o: TaskOutcome) -> Iterator[Level]:
    """As `attributes`; of numbers those of each target."""
    if o.task == Task.REGRESSION:
        yield from attributes(o, per_target=True)
    else:
        yield from o.grouped(attributes)


def sampled(o: TaskOutcome, method: str, versus: str) -> tuple[str, ...]:
    return answers.unit(o, method) if o.task == Task.MCQ else answers.units(o, method)


def level_of(items: pd.DataFrame, by: str, *, per_target: bool = False) -> Level:
    """The grouping by ``by``, a column of the items or several joined with ' x '; rows with an
    unknown value ('') have no group. per_target: of the numbers of each target."""
    names = by.split(" x ")
    columns = [items[name] for name in names]
    has_group = np.logical_and.reduce([column != "" for column in columns])
    keys = reduce(lambda one, other: one + " x " + other, columns)
    if per_target:
        keys += "\t" + items["target"].where(items["target"] != "")

    def named(key: str) -> dict[str, str]:
        group, *target = key.split("\t")
        parts = zip(names, group.split(" x ", len(names) - 1), strict=True)
        words = (_URBAN.get(part, part) if name == "urban" else part for name, part in parts)
        columns = {"attribute": by, "group": " x ".join(words)}
        return columns | dict(zip(("indicator",), target, strict=False))

    return grouping(keys.where(has_group), named, stats.SMALLEST)


def targets(o: TaskOutcome) -> Iterator[Level]:
    yield grouping(o.items["target"], lambda target: {"indicator": target})


def targets_and_all(o: TaskOutcome) -> Iterator[Level]:
    yield from targets(o)
    yield from whole(o)


def all_targets(o: TaskOutcome) -> Iterator[Level]:
    """All numbers, also where none has a value."""
    yield from (replace(level, declared=True) for level in whole(o))


def divergent(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome]:
    """The multiple-choice answers of each test that CADE was tuned for, with their divergence D_i
    of the image stream from CTX+Q (Eq. 7, nats)."""
    for o in answers.pools(run, Task.MCQ)[:-1]:
        [cell] = o.cells
        tuned = answers.decision(cell)
        if tuned is not None and CADE in o.hit:
            yield replace(o, more={"divergence": tuned[0].divergence[cell.test_rows]})


def fifths(o: TaskOutcome) -> Iterator[Level]:
    """Groups of equal size by divergence, least first; equal divergences go to one group, so that
    the order of questions decides nothing."""
    divergence = o.more["divergence"]
    rows = np.flatnonzero(np.isfinite(o.hit[CADE] - o.hit["full"]) & np.isfinite(divergence))
    rank = pd.Series(divergence[rows]).rank(method="average").to_numpy()
    code = np.full(len(divergence), -1, dtype=np.int64)
    code[rows] = np.minimum(((rank - 0.5) * FIFTHS / max(len(rows), 1)).astype(int), FIFTHS - 1)
    members = [divergence[code == group] for group in range(FIFTHS)]
    columns = tuple(
        {
            "attribute": "divergence",
            "group": str(group + 1),
            "x": each.mean() if len(each) else np.nan,
        }
        for group, each in enumerate(members)
    )
    yield Level(code, columns)
