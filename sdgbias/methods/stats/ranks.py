"""A leaderboard: answerers ranked, with letters for those that can't be told apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Ints
from sdgbias.methods.stats.measure import ValueColumn, measure
from sdgbias.methods.stats.paired import PairedTest


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
    hits: ArrayLike, clusters: Ints, *, alpha: float = 0.05
) -> tuple[list[str], dict[tuple[int, int], PairedTest]]:
    """(R, N) hits of R answerers on the same N rows -> letters (R,), and the test of each pair (i,
    j), i < j. clusters (N,): codes.

    Every pair is measured on the rows that both have (`measure` with versus); p is adjusted by
    Holm, the family is all pairs.
    """
    x = np.asarray(hits, dtype=float)
    pairs = list(combinations(range(x.shape[0]), 2))
    tables = measure(
        (ValueColumn("", x[i]) for i, _ in pairs),
        np.zeros(x.shape[1], dtype=np.int64),
        1,
        [clusters],
        versus=(x[j] for _, j in pairs),
        p="family",
    )
    tests = {
        pair: replace(table.test(), p=float(table.p_adjusted[0]))
        for pair, table in zip(pairs, tables, strict=True)
    }
    differ = np.zeros((x.shape[0],) * 2, dtype=bool)
    for pair, test in tests.items():
        differ[pair] = test.p < alpha
    has_value = ~np.isnan(x)
    with np.errstate(invalid="ignore"):
        means = np.nansum(x, axis=1) / has_value.sum(axis=1)
    return letters(means, differ), tests
