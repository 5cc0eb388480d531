"""Many tests at once: adjusted p-values of a family, and groups of answerers that can't be told
apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats
from sdgbias.methods.stats.intervals import LEVEL, Estimate
from sdgbias.methods.stats.paired import PairedTest, paired


def holm(p: ArrayLike) -> Floats:
    """(M,) p-values -> (M,) adjusted ones (Holm 1979), family-wise error under any dependence. NaN
    is no test and stays NaN."""
    raw = np.asarray(p, dtype=float)
    out = np.full(raw.shape, np.nan)
    tests = np.flatnonzero(~np.isnan(raw))
    order = tests[np.argsort(raw[tests], kind="stable")]
    steps = raw[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return out


def p_of_interval(estimate: Estimate) -> float:
    """Two-sided p of zero, of an estimate that is known by its 95 % interval alone: as if the end
    on the side of zero were the t quantile of clusters - 1 degrees of freedom away. 0.05 where the
    interval ends at zero, NaN without an interval."""
    from scipy.special import stdtr, stdtrit

    near = estimate.value - (estimate.low if estimate.value > 0 else estimate.high)
    if near != near or near == 0:
        return float("nan")
    df = max(estimate.clusters - 1, 1)
    return float(2 * stdtr(df, -abs(estimate.value / near) * stdtrit(df, (1 + LEVEL) / 2)))


def apart_from_zero(family: Sequence[Estimate], alpha: float = 1 - LEVEL) -> list[bool]:
    """Which of a family of differences are measurably other than zero, if the whole family is to be
    wrong in at most 5 of 100: Holm over the p of their intervals."""
    return [bool(p < alpha) for p in holm([p_of_interval(e) for e in family])]


def letters(values: ArrayLike, different: ArrayLike) -> list[str]:
    """Compact letter display: (R,) values, (R, R) bool "differ significantly" -> a string of
    letters per entry.

    Two entries share a letter exactly when they don't differ. 'a' goes to the group of the highest
    value. Insert-and-absorb (Piepho 2004). More than 26 groups go on with 'aa', 'ab' and so on,
    separated by spaces. NaN values get ''.
    """
    x, apart = np.asarray(values, dtype=float), np.asarray(different, dtype=bool)
    order = [int(i) for i in np.argsort(-x, kind="stable") if not np.isnan(x[i])]
    columns: list[frozenset[int]] = [frozenset(order)] if order else []
    for i, j in combinations(order, 2):
        if not (apart[i, j] or apart[j, i]):
            continue
        split = [
            part
            for column in columns
            for part in ((column - {i}, column - {j}) if {i, j} <= column else (column,))
        ]
        columns = [
            c
            for k, c in enumerate(split)
            if c and not any(c < other or (c == other and m < k) for m, other in enumerate(split))
        ]
    rank = {entry: place for place, entry in enumerate(order)}
    columns.sort(key=lambda column: sorted(rank[entry] for entry in column))
    names = [_letter(k) for k in range(len(columns))]
    join = " " if len(columns) > 26 else ""
    return [
        join.join(name for name, column in zip(names, columns, strict=True) if i in column)
        for i in range(len(x))
    ]


def _letter(k: int) -> str:
    return (_letter(k // 26 - 1) if k >= 26 else "") + chr(ord("a") + k % 26)


def leaderboard(
    hits: ArrayLike, clusters: ArrayLike, *, alpha: float = 0.05
) -> tuple[list[str], dict[tuple[int, int], PairedTest]]:
    """(R, N) hits of R answerers on the same N rows -> letters (R,), and the test of each pair (i,
    j), i < j.

    Every pair is tested on the rows that both have (`paired` test of the difference); p is adjusted
    by Holm, the family is all pairs.
    """
    x, place = np.asarray(hits, dtype=float), np.asarray(clusters)
    many = x.shape[0]
    pairs = list(combinations(range(many), 2))
    raw = [paired(x[i] - x[j], place, "difference") for i, j in pairs]
    adjusted = holm([test.p for test in raw])
    tests = {
        pair: replace(test, p=float(p)) for pair, test, p in zip(pairs, raw, adjusted, strict=True)
    }
    differ = np.zeros((many, many), dtype=bool)
    for (i, j), test in tests.items():
        differ[i, j] = differ[j, i] = test.p < alpha
    has_value = ~np.isnan(x)
    with np.errstate(invalid="ignore"):
        means = np.where(
            has_value.any(axis=1),
            np.nansum(x, axis=1) / np.maximum(has_value.sum(axis=1), 1),
            np.nan,
        )
    return letters(means, differ), tests
