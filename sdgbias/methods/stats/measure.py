"""Means over groups with clustered intervals: the one way in which suites, studies, comparisons of
runs and the leaderboard take them.

For group g with rows i and clusters c, S_c the sum of its values in cluster c and n_c its rows
there,

    value   m = sum_c S_c / sum_c n_c
    spread  the cluster jackknife of the residual sums S_c - n_c m (`intervals.spread_of`)
    bounds  those of the value's kind (`intervals.bounds`)
    p       of m against 0 from the sums S_c (`paired.p_of_sums`)

A paired difference is measured by ``versus``: the values of another answerer to the same rows are
subtracted row by row. The p of a ``family`` of tests are adjusted together (Holm). Rows that depend
on each other in two ways, by place and by a prompt that places share, have the interval that claims
less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import repeat
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Bools, Floats, Ints
from sdgbias.methods.stats.intervals import (
    Estimate,
    Kind,
    bounds,
    codes,
    difference_bounds,
    drop_missing,
    nothing,
    spread_of,
)
from sdgbias.methods.stats.multiple import holm
from sdgbias.methods.stats.paired import PairedTest, p_of_sums

#: A group of fewer rows has no value: it would be read as a finding.
SMALLEST = 20


class ValueColumn(NamedTuple):
    """A metric by row: (N,) values, NaN where a row doesn't count for it."""

    metric: str
    values: ArrayLike
    kind: Kind = "share"


@dataclass(frozen=True)
class MeansByGroup:
    """A metric in g groups: value, low, high (g,), NaN where small; n, clusters (g,); se, df (g,):
    the clustered standard error, of differences of right and wrong that of their interval, and
    Satterthwaite's degrees of freedom; p, p_adjusted (g,): two-sided, of each value against 0, and
    Holm's of the whole family, NaN where they weren't wanted; small (g,): fewer rows than
    requested, and no clusters are counted; way (g,): which clustering the interval counts."""

    metric: str
    value: Floats
    n: Ints
    low: Floats
    high: Floats
    clusters: Ints
    se: Floats
    df: Floats
    p: Floats
    p_adjusted: Floats
    small: Bools
    way: Ints

    def estimate(self, i: int = 0) -> Estimate:
        value, low, high = (float(v[i]) for v in (self.value, self.low, self.high))
        return Estimate(value, int(self.n[i]), low, high, int(self.clusters[i]))

    def test(self, i: int = 0) -> PairedTest:
        """The test of one group's value against 0."""
        return PairedTest(self.estimate(i), *(float(v[i]) for v in (self.se, self.df, self.p)))


def measure(
    columns: Iterable[ValueColumn],
    by: Ints,
    groups: int,
    clusters: Sequence[Ints],
    *,
    versus: Iterable[ArrayLike | None] | None = None,
    smallest: int = 1,
    p: Literal["", "each", "family"] = "",
) -> Iterator[MeansByGroup]:
    """The mean of each column in each group, of N rows. by (N,): codes below ``groups``, -1 for
    none. clusters: (N,) codes of what makes rows dependent, a place or the picture that several
    people are in; of several ways the one that claims less stands, of equal ones the first; -1
    where rows don't depend in this way.

    versus: (N,) values for each column, or None, which are subtracted from it; a row counts where
    both have a value. A difference of shares is of kind 'difference', of other numbers 'mean'.
    smallest: a group of fewer rows is small, NaN. p: with that of each value against 0; 'family':
    also adjusted over all groups of all columns.
    """
    ways = [_cells(np.asarray(by), np.asarray(code)) for code in clusters]
    others = repeat(None) if versus is None else versus

    def of(column: ValueColumn) -> MeansByGroup:
        tables = (
            replace(_of_one_way(column, at, cells, groups, bool(p)), way=np.full(groups, way))
            for way, (at, cells) in enumerate(ways)
        )
        return _without_small(reduce(_wider, tables), smallest)

    tables = map(of, map(_difference, columns, others))
    return iter(adjusted(list(tables))) if p == "family" else tables


def adjusted(tables: Sequence[MeansByGroup]) -> list[MeansByGroup]:
    """The tables with Holm's p over all their groups."""
    if not tables:
        return []
    p = holm(np.concatenate([table.p for table in tables]))
    parts = np.split(p, np.cumsum([len(table.p) for table in tables])[:-1])
    return [replace(t, p_adjusted=part) for t, part in zip(tables, parts, strict=True)]


def paired(
    difference: ArrayLike,
    clusters: ArrayLike,
    kind: Literal["mean", "difference"] = "mean",
) -> PairedTest:
    """`measure` of (N,) row differences (NaN left out) in one group, with its test.

    kind 'difference': each is -1, 0 or 1, right minus wrong. p is then the exact `flip_test` where
    at most ``paired.EXACT`` clusters changed, else that of a t test, as of other numbers. Numbers
    that don't vary have no t: their p is that of their sign alone.
    Fewer than ``FEWEST`` clusters: no interval and no p; fewer than two: no standard error either.
    """
    return _of_one_group(difference, clusters, kind, "each").test()


def mean(values: ArrayLike, clusters: ArrayLike, kind: Kind = "mean") -> Estimate:
    """`measure` of (N,) values (NaN left out of value and n) in one group."""
    return _of_one_group(values, clusters, kind, "").estimate()


#: Of (N,) booleans: a Wilson interval at the effective sample size (at most n, at least 1).
share = partial(mean, kind="share")
#: Of (N,) numbers of 0 or more: an interval on the log scale.
amount = partial(mean, kind="amount")


def _of_one_group(
    values: ArrayLike, clusters: ArrayLike, kind: Kind, p: Literal["", "each"]
) -> MeansByGroup:
    x, (c,) = drop_missing(values, clusters)
    one = np.zeros(x.size, dtype=np.int64)
    (table,) = measure([ValueColumn("", x, kind)], one, 1, [codes(c)[0]], p=p)
    return table


def macro(
    values: ArrayLike, classes: ArrayLike, clusters: ArrayLike, kind: Kind = "mean"
) -> Estimate:
    """Mean over classes of the class means of (N,) values, each class weighing the same; interval
    over clusters.

    The variance is that of the linearised statistic: row i of class c contributes (x_i - mean_c) /
    (classes n_c). kind 'share': rows are 0 or 1; the interval is that of a fraction, and where no
    class varies between clusters, that of the mean of the classes' Wilson intervals (MOVER: Zou and
    Donner 2008).
    """
    x, (k, c) = drop_missing(values, classes, clusters)
    if x.size == 0:
        return nothing()
    code, many = codes(k)
    count = np.bincount(code, minlength=many)
    means = np.bincount(code, weights=x, minlength=many) / count
    influence = (x - means[code]) * x.size / (many * count[code])
    whole = linearised(float(means.mean()), influence, c, "fraction" if kind == "share" else kind)
    if kind != "share" or whole.too_few or whole.low == whole.low:
        return whole
    each = [share(x[code == i], c[code == i]) for i in range(many)]
    if any(e.low != e.low for e in each):
        return whole
    below, above = (
        sum((e.value - end) ** 2 for e, end in ends) ** 0.5 / many
        for ends in ([(e, e.low) for e in each], [(e, e.high) for e in each])
    )
    return replace(whole, low=whole.value - below, high=whole.value + above)


def linearised(value: float, influence: Floats, clusters: ArrayLike, kind: Kind) -> Estimate:
    """A statistic of rows with the interval of its kind, from the (N,) influence of each row: its
    residual, as of a mean of N."""
    place, places = codes(clusters)
    sums = np.bincount(place, weights=influence, minlength=places)
    spread = spread_of(sums.astype(float), np.bincount(place).astype(float))
    n = len(influence)
    low, high = bounds(np.array([value]), np.array([float(n)]), spread, kind, np.ones(1))
    return Estimate(value, n, float(low[0]), float(high[0]), places)


class ClusterSums(NamedTuple):
    """P clusters of groups: (P,) sums of a cluster's values, (P,) its rows (one or more), and (P,)
    the code of its group."""

    sums: Floats
    rows: Floats
    group: Ints


def measure_sums(
    metric: str,
    of: ClusterSums,
    changed: Floats,
    kind: Kind = "difference",
    *,
    tested: bool = True,
) -> MeansByGroup:
    """`measure` from sums by cluster, as a query gives them. changed (g,): of each group the share
    of rows that aren't 0, which a difference needs."""
    groups, (sums, rows, group) = len(changed), of
    n = np.bincount(group, weights=rows, minlength=groups).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.bincount(group, weights=sums, minlength=groups) / n
    spread = spread_of(sums - rows * value[group], rows, group, groups)
    low, high = bounds(value, n, spread, kind, changed)
    se, p = spread.variance**0.5, np.full(groups, np.nan)
    if tested:
        if kind == "difference":
            error = difference_bounds(value, changed, n, spread)[2]
            se = np.where(spread.clusters > 1, error, se)
        for i in np.unique(group):
            each = sums[group == i]
            p[i] = p_of_sums(each, value[i], spread.variance[i], spread.df[i], kind)
    return MeansByGroup(
        metric=metric,
        value=value,
        n=n.astype(np.int64),
        low=low,
        high=high,
        clusters=spread.clusters,
        se=se,
        df=np.nan_to_num(spread.df),
        p=p,
        p_adjusted=np.full(groups, np.nan),
        small=np.zeros(groups, dtype=bool),
        way=np.zeros(groups, dtype=np.int64),
    )


def _difference(column: ValueColumn, other: ArrayLike | None) -> ValueColumn:
    values = np.asarray(column.values, dtype=float)
    if other is None:
        return column._replace(values=values)
    kind: Kind = "difference" if column.kind == "share" else "mean"
    return ValueColumn(column.metric, values - np.asarray(other, dtype=float), kind)


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
    column: ValueColumn, at: Ints, cells: _Cells, groups: int, tested: bool
) -> MeansByGroup:
    from sdgbias.methods.stats._loops import add_up

    values = np.asarray(column.values, dtype=float)[at]
    rows, sums = np.zeros(len(cells.group)), np.zeros(len(cells.group))
    add_up(values, cells.of_row, sums, rows)
    changed = np.zeros(groups)
    if column.kind == "difference":
        moved = ~np.isnan(values) & (values != 0)
        n = np.bincount(cells.group, weights=rows, minlength=groups)
        with np.errstate(divide="ignore", invalid="ignore"):
            changed = np.bincount(cells.by, weights=moved, minlength=groups) / n
    some = rows > 0
    of = ClusterSums(sums[some], rows[some], cells.group[some])
    return measure_sums(column.metric, of, changed, column.kind, tested=tested)


def _wider(one: MeansByGroup, other: MeansByGroup) -> MeansByGroup:
    """The same values clustered in two ways: for each group the interval that claims less (as
    `intervals.widest`); the other where rows don't depend in the first way."""
    none = [np.isnan(table.low) for table in (one, other)]
    with np.errstate(invalid="ignore"):
        further = (other.high - other.low) > (one.high - one.low)
    fewer = other.clusters < one.clusters
    use = np.where(none[0], none[1] & fewer, none[1] | further)
    use = np.where(other.n < one.n, False, use | (one.n < other.n))
    names = ("value", "n", "low", "high", "clusters", "se", "df", "p", "way")
    chosen: dict[str, Any] = {k: np.where(use, getattr(other, k), getattr(one, k)) for k in names}
    return replace(one, **chosen)


def _without_small(table: MeansByGroup, smallest: int) -> MeansByGroup:
    small = table.n < max(smallest, 1)
    names = ("value", "low", "high", "se", "p")
    unknown: dict[str, Any] = {
        name: np.where(small, np.nan, getattr(table, name)) for name in names
    }
    return replace(table, small=small, clusters=np.where(small, 0, table.clusters), **unknown)
