"""Means over groups with clustered intervals: the one way in which suites and studies take them.

For group g with rows i and clusters c, S_c the sum of its values in cluster c and n_c its rows
there,

    value   m = sum_c S_c / sum_c n_c
    spread  the cluster jackknife of the residual sums S_c - n_c m (`intervals.spread_of`)
    bounds  those of the value's kind (`intervals.bounds`)
    p       of m against 0 from the sums S_c (`paired.p_of_sums`)

A paired difference is a column of differences, kind 'difference' or 'mean'. Rows that depend on
each other in two ways, by place and by a prompt that places share, have the interval that claims
less. A family of tests is adjusted by `multiple.holm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Bools, Floats, Ints
from sdgbias.methods.stats.intervals import Estimate, Kind, bounds, codes, spread_of
from sdgbias.methods.stats.paired import p_of_sums

#: A group of fewer rows has no value: it would be read as a finding.
SMALLEST = 20


class ValueColumn(NamedTuple):
    """A metric by row: (N,) values, NaN where a row doesn't count for it."""

    metric: str
    values: ArrayLike
    kind: Kind = "share"


@dataclass(frozen=True)
class MeansByGroup:
    """A metric in g groups: value, low, high (g,), NaN where small; n, clusters (g,); p (g,):
    two-sided, of each value against 0, NaN where it wasn't wanted; small (g,): fewer rows than
    requested, and no clusters are counted; way (g,): which clustering the interval counts."""

    metric: str
    value: Floats
    n: Ints
    low: Floats
    high: Floats
    clusters: Ints
    p: Floats
    small: Bools
    way: Ints

    def estimate(self, i: int) -> Estimate:
        value, low, high = (float(v[i]) for v in (self.value, self.low, self.high))
        return Estimate(value, int(self.n[i]), low, high, int(self.clusters[i]))


def measure(
    columns: Iterable[ValueColumn],
    by: Ints,
    groups: int,
    clusters: Sequence[Ints],
    *,
    smallest: int = 1,
    tested: bool = False,
) -> Iterator[MeansByGroup]:
    """The mean of each column in each group, of N rows. by (N,): codes below ``groups``, -1 for
    none. clusters: (N,) codes of what makes rows dependent, a place or the picture that several
    people are in; of several ways the one that claims less stands, of equal ones the first; -1
    where rows don't depend in this way.

    Groups below ``smallest`` rows: NaN, small. tested: with p.
    The same numbers as `mean` and `paired` of each group's rows, and `widest` of several ways.
    """
    ways = [_cells(np.asarray(by), np.asarray(code)) for code in clusters]
    for column in columns:
        values = np.asarray(column.values, dtype=float)
        found = [
            _of_one_way(column._replace(values=values[rows]), cells, groups, at, tested)
            for at, (rows, cells) in enumerate(ways)
        ]
        yield _without_small(reduce(_wider, found), smallest)


class _Cells(NamedTuple):
    """Pairs of a group and a cluster: of (R,) rows the pair; (P,) the group of each pair; (R,) the
    group of each row."""

    of_row: Ints
    group: Ints
    by: Ints


def _cells(by: Ints, code: Ints) -> tuple[Ints, _Cells]:
    """The rows that count in one way of clustering, and their cells."""
    rows = np.flatnonzero((by >= 0) & (code >= 0))
    group, cluster = by[rows], code[rows]
    many = int(cluster.max()) + 1 if cluster.size else 0
    pair, pairs = codes(group * many + cluster)
    of_pair = np.zeros(pairs, dtype=np.int64)
    of_pair[pair] = group
    return rows, _Cells(pair, of_pair, group)


def _of_one_way(
    column: ValueColumn, cells: _Cells, groups: int, way: int, tested: bool
) -> MeansByGroup:
    from sdgbias.methods.stats._loops import add_up

    values = np.asarray(column.values, dtype=float)
    rows, sums = np.zeros(len(cells.group)), np.zeros(len(cells.group))
    add_up(values, cells.of_row, sums, rows)
    n = np.bincount(cells.group, weights=rows, minlength=groups).astype(float)
    changed = None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.bincount(cells.group, weights=sums, minlength=groups) / n
        if column.kind == "difference":
            moved = ~np.isnan(values) & (values != 0)
            changed = np.bincount(cells.by, weights=moved, minlength=groups) / n
    some = rows > 0
    group = cells.group[some]
    spread = spread_of((sums - rows * value[cells.group])[some], rows[some], group, groups)
    low, high = bounds(value, n, spread, column.kind, changed)
    p = np.full(groups, np.nan)
    if tested:
        for i in np.unique(group):
            each = sums[some][group == i]
            p[i] = p_of_sums(each, value[i], spread.variance[i], spread.df[i], column.kind)
    whole, small = n.astype(np.int64), np.zeros(groups, dtype=bool)
    ways = np.full(groups, way)
    return MeansByGroup(column.metric, value, whole, low, high, spread.clusters, p, small, ways)


def _wider(one: MeansByGroup, other: MeansByGroup) -> MeansByGroup:
    """The same values clustered in two ways: for each group the interval that claims less (as
    `intervals.widest`); the other where rows don't depend in the first way."""
    none = [np.isnan(table.low) for table in (one, other)]
    with np.errstate(invalid="ignore"):
        further = (other.high - other.low) > (one.high - one.low)
    fewer = other.clusters < one.clusters
    use = np.where(none[0], none[1] & fewer, none[1] | further)
    use = np.where(other.n < one.n, False, use | (one.n < other.n))
    names = ("value", "n", "low", "high", "clusters", "p", "way")
    chosen = {k: np.where(use, getattr(other, k), getattr(one, k)) for k in names}
    return MeansByGroup(metric=one.metric, small=one.small, **chosen)


def _without_small(table: MeansByGroup, smallest: int) -> MeansByGroup:
    small = table.n < max(smallest, 1)
    value, low, high, p = (
        np.where(small, np.nan, v) for v in (table.value, table.low, table.high, table.p)
    )
    clusters = np.where(small, 0, table.clusters)
    return replace(table, value=value, low=low, high=high, p=p, small=small, clusters=clusters)
