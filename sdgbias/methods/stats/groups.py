"""Metrics by group, and how far groups lie apart. Groups are any key; the metric knows nothing of
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Bools, Floats, Ints
from sdgbias.methods.stats.bootstrap import interval, replicates
from sdgbias.methods.stats.intervals import (
    FEWEST,
    LEVEL,
    Estimate,
    Kind,
    bounds,
    codes,
    spread_of,
)
from sdgbias.methods.stats.paired import p_of_draws, t_test

#: A group of fewer rows has no value: it would be read as a finding.
SMALLEST = 20


@dataclass(frozen=True)
class ByGroup:
    """A metric by group. names: the g group keys, sorted; value, low, high (g,), NaN where small;
    n, clusters (g,); small (g,): fewer rows than requested. se, df (g,): clustered standard error
    and its degrees of freedom."""

    names: tuple[object, ...]
    value: Floats
    n: Ints
    low: Floats
    high: Floats
    clusters: Ints
    se: Floats
    df: Floats
    small: Bools

    def estimate(self, i: int) -> Estimate:
        return Estimate(
            float(self.value[i]),
            int(self.n[i]),
            float(self.low[i]),
            float(self.high[i]),
            int(self.clusters[i]),
        )

    @property
    def p(self) -> Floats:
        """(g,) two-sided p of each value against 0; as `paired` of the group's rows."""
        return np.array(
            [
                t_test(v, s * s, d, int(c))
                for v, s, d, c in zip(self.value, self.se, self.df, self.clusters, strict=True)
            ]
        )


def intersect(*keys: ArrayLike) -> np.ndarray:
    """(N,) keys, several -> (N,) object array of tuples, one key for each combination that
    occurs."""
    columns = [np.asarray(k).tolist() for k in keys]
    out = np.empty(len(columns[0]), dtype=object)
    out[:] = list(zip(*columns, strict=True))
    return out


def group_codes(groups: ArrayLike) -> tuple[Ints, tuple[object, ...]]:
    """(N,) group keys (strings, numbers, tuples) -> (N,) codes and the sorted distinct keys."""
    keys = np.asarray(groups)
    if keys.dtype != object:
        names, inverse = np.unique(keys, return_inverse=True)
        return inverse.reshape(-1).astype(np.int64), tuple(names.tolist())
    listed = keys.tolist()
    order = tuple(sorted(set(listed)))
    place = {name: i for i, name in enumerate(order)}
    return np.fromiter((place[k] for k in listed), dtype=np.int64, count=len(listed)), order


def by_group(
    metric: Callable[..., ArrayLike],
    y_true: ArrayLike,
    y_pred: ArrayLike,
    groups: ArrayLike,
    clusters: ArrayLike,
    *,
    kind: Kind = "share",
    smallest: int = SMALLEST,
) -> ByGroup:
    """``metric(y_true, y_pred)`` -> (N,) row values, then their mean by group with a clustered
    interval.

    A row that doesn't count for the metric is NaN (recall of a class: NaN where y_true is another
    class). ``clusters`` is what makes rows dependent: a place, or the picture that several people
    are in. Groups below ``smallest`` rows: NaN, small.
    """
    rows = np.asarray(metric(np.asarray(y_true), np.asarray(y_pred)), dtype=float)
    code, names = group_codes(groups)
    return grouped(rows, code, names, codes(clusters)[0], kind=kind, smallest=smallest)[0]


def grouped(
    values: np.ndarray | Sequence[np.ndarray],
    code: Ints,
    names: Sequence[object],
    place: Ints,
    *,
    kind: Kind = "share",
    smallest: int = 1,
) -> list[ByGroup]:
    """(N,) row values, or a list of M such columns, (N,) group codes below len(names), (N,) place
    codes -> a table per column.

    The same numbers as `share` or `mean` of each group's rows.
    """
    from sdgbias.methods.stats._loops import add_up

    columns = [values] if isinstance(values, np.ndarray) else values
    g, places = len(names), int(place.max()) + 1 if place.size else 0
    pair, _ = codes(code * places + place)
    pairs = int(pair.max()) + 1 if pair.size else 0
    group = np.zeros(pairs, dtype=np.int64)
    group[pair] = code  # (P,) the group of each group x place
    out = []
    for column in columns:
        rows, sums = np.zeros(pairs), np.zeros(pairs)
        add_up(np.asarray(column, dtype=float), pair, sums, rows)
        n = np.bincount(group, weights=rows, minlength=g).astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.bincount(group, weights=sums, minlength=g) / n
        there = rows > 0
        rest = (sums - rows * value[group])[there]
        spread = spread_of(rest, rows[there], group[there], g)
        low, high = bounds(value, n, spread, kind)
        small = n < max(smallest, 1)
        value, low, high = (np.where(small, np.nan, v) for v in (value, low, high))
        whole = n.astype(np.int64)
        out.append(
            ByGroup(
                tuple(names),
                value,
                whole,
                low,
                high,
                spread.clusters,
                spread.variance**0.5,
                spread.df,
                small,
            )
        )
    return out


@dataclass(frozen=True)
class GroupMeans:
    """Means of M columns in g groups, sorted, NaN where small: value (M, g); draws (B, M, g) of
    resampled clusters; n rows; most: how far two means can lie apart (1 where rows are 0 or 1)."""

    value: Floats
    draws: Floats
    n: int
    most: float = np.inf


@dataclass(frozen=True)
class Disparity:
    """A reduction over the groups of each of M columns: value, low, high, p (M,); draws (B, M); n
    rows that count."""

    value: Floats
    n: int
    low: Floats
    high: Floats
    p: Floats
    draws: Floats

    def estimate(self, i: int = 0) -> Estimate:
        return Estimate(float(self.value[i]), self.n, float(self.low[i]), float(self.high[i]))


def disparity(
    means: GroupMeans, reduction: Callable[[Floats], Floats], *, ratio: bool = False
) -> Disparity:
    """Reduces the group means of each column, e.g. with metrics.max_min, with an interval and a
    test.

    reduction: (..., g) means of the groups in sorted order, NaN where a group is too small ->
    (...,). p: how often clusters drawn from groups made alike (their means subtracted) give a value
    as large in size, the test of "no group differs". The interval is value +- the 95 % quantile of
    the same, cut at 0 for a reduction that can't be negative. It holds because
    |r(a) - r(b)| <= r(a - b) for differences and for largest minus smallest; a percentile interval
    of the latter would lie above zero even where no group differs. For a reduction that isn't of
    this kind, ``ratio``: percentile interval, no p.
    """
    reduced, each = reduction(means.value), reduction(means.draws)
    if ratio:
        return Disparity(
            reduced, means.n, *interval(reduced, each), np.full(reduced.shape, np.nan), each
        )
    alike = reduction(means.draws - means.value)
    low, high = _symmetric(reduced, np.abs(alike))
    never = np.all(np.isnan(alike) | (alike >= 0), axis=0)
    return Disparity(
        reduced,
        means.n,
        np.maximum(low, np.where(never, 0.0, -means.most)),
        np.minimum(high, means.most),
        p_of_draws(reduced, alike + reduced),
        each,
    )


def disparity_change(before: Disparity, after: Disparity) -> Disparity:
    """|after| - |before| of two disparities resampled with the same seed and clusters: below zero
    means narrower.

    Interval: value +- the 95 % quantile of the draws' distance from it; p by the same draws.
    """
    value, draws = (
        np.abs(after.value) - np.abs(before.value),
        np.abs(after.draws) - np.abs(before.draws),
    )
    low, high = _symmetric(value, np.abs(draws - value))
    return Disparity(value, min(before.n, after.n), low, high, p_of_draws(value, draws), draws)


def _symmetric(value: Floats, distance: Floats) -> tuple[Floats, Floats]:
    """value (S,) +- the 95 % quantile of (B, S) distances; NaN where there is none."""
    ordered = np.sort(distance, axis=0)  # NaN last
    many = np.sum(~np.isnan(ordered), axis=0)
    at = np.clip(np.ceil(LEVEL * (many + 1)).astype(int) - 1, 0, np.maximum(many - 1, 0))
    half = np.where(many > 0, ordered[at, np.arange(distance.shape[1])], np.nan)
    return value - half, value + half


def group_means(
    values: ArrayLike,
    groups: ArrayLike,
    clusters: ArrayLike,
    *,
    draws: int = 2_000,
    seed: int = 0,
    smallest: int = SMALLEST,
) -> GroupMeans:
    """Means of (N, M) columns by (N,) group keys, and those of each bootstrap sample of clusters.
    NaN rows are left out.

    Below ``smallest`` rows a group has no value, in no draw either. Fewer than ``FEWEST``
    clusters: draws are NaN.
    """
    from scipy import sparse

    x = np.asarray(values, dtype=float)
    x = x[:, None] if x.ndim == 1 else x
    m = x.shape[1]
    (code, names), (place, places) = group_codes(groups), codes(clusters)
    g = len(names)
    there = ~np.isnan(x)
    n = int(there.any(axis=1).sum())
    most = 1.0 if np.isin(x[there], (0.0, 1.0)).all() else float("inf")
    same = bool((there == there[:, :1]).all())
    columns = [np.where(there[:, j], x[:, j], 0.0) for j in range(m)]
    columns += [there[:, j].astype(float) for j in range(1 if same else m)]
    pair = place * g + code
    parts = [
        sparse.csr_array(np.bincount(pair, weights=c, minlength=places * g).reshape(places, g))
        for c in columns
    ]
    sums = sparse.hstack(parts, format="csr")
    total = np.asarray(sums.sum(axis=0)).reshape(-1, g)
    small = np.broadcast_to(total[m:], (m, g)) < max(smallest, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(small, np.nan, total[:m] / total[m:])
        if places < FEWEST:
            return GroupMeans(value, np.full((draws, m, g), np.nan), n, most)
        each = replicates(sums, draws, seed).reshape(draws, -1, g)
        return GroupMeans(value, np.where(small, np.nan, each[:, :m] / each[:, m:]), n, most)
