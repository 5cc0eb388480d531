"""How far groups lie apart. Groups are any key; the metric knows nothing of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats, Ints
from sdgbias.methods.stats.bootstrap import replicates, widening
from sdgbias.methods.stats.intervals import FEWEST, LEVEL, Estimate, codes
from sdgbias.methods.stats.measure import SMALLEST
from sdgbias.methods.stats.paired import p_of_draws


@dataclass(frozen=True)
class GroupMeans:
    """Means of M columns in g groups, sorted, NaN where small: value (M, g); draws (B, M, g) of
    resampled clusters; n rows; clusters (M, g) of each mean, worth
    (M, g) of them when of one size; most: how far two means can lie apart
    (1 where rows are 0 or 1)."""

    value: Floats
    draws: Floats
    n: int
    clusters: Ints
    worth: Floats
    most: float = np.inf


@dataclass(frozen=True)
class Disparity:
    """A reduction over the groups of each of M columns: value, low, high, p (M,); draws (B, M); n
    rows that count; clusters (M,): those of the compared group that has the fewest; wider (M,): how
    much the draws are widened for that, NaN below ``FEWEST``."""

    value: Floats
    n: int
    low: Floats
    high: Floats
    p: Floats
    draws: Floats
    clusters: Ints
    wider: Floats

    def estimate(self, i: int = 0) -> Estimate:
        """Of one column; draws that never vary give no interval."""
        value, low, high = (float(v[i]) for v in (self.value, self.low, self.high))
        low, high = (low, high) if low < high else (np.nan, np.nan)
        return Estimate(value, self.n, low, high, int(self.clusters[i]))

    def take(self, columns: ArrayLike) -> Disparity:
        """The same for some of the columns (an index, a mask or a slice)."""
        at = columns if isinstance(columns, slice) else np.asarray(columns)
        arrays = {k: v[..., at] for k, v in vars(self).items() if k != "n"}
        return Disparity(n=self.n, **arrays)


def disparity(means: GroupMeans, reduction: Callable[[Floats], Floats]) -> Disparity:
    """Reduces the group means of each column, e.g. with metrics.max_min, with an interval and a
    test.

    reduction: (..., g) means of the groups in sorted order, NaN where a group is too small ->
    (...,). p: how often clusters drawn from groups made alike (their means subtracted) give a value
    as large in size, the test of "no group differs". The interval is value +- the 95 % quantile of
    the same, cut at 0 for a reduction that can't be negative. It holds because
    |r(a) - r(b)| <= r(a - b) for differences and for largest minus smallest; a percentile interval
    of the latter would lie above zero even where no group differs.
    Draws are widened for the clusters of the compared group that has the fewest: with 5 places
    they would cover 81 to 85 %. Where a compared group has fewer than ``FEWEST``, interval and p
    are NaN.
    """
    reduced, each = reduction(means.value), reduction(means.draws)
    clusters, worth = _fewest(means, reduction)
    wider = np.where(clusters < FEWEST, np.nan, widening(worth))
    alike = wider * reduction(means.draws - means.value)
    low, high = _symmetric(reduced, np.abs(alike))
    never = np.all(np.isnan(alike) | (alike >= 0), axis=0)
    low = np.maximum(low, np.where(never, 0.0, -means.most))
    high, p = np.minimum(high, means.most), p_of_draws(reduced, alike + reduced)
    return Disparity(reduced, means.n, low, high, p, each, clusters, wider)


def _fewest(means: GroupMeans, reduction: Callable[[Floats], Floats]) -> tuple[Ints, Floats]:
    """(M,) clusters, and what they are worth, of the compared group that has the fewest; 0 where
    nothing is compared. A group is compared where the reduction would notice if it were extreme."""
    k = np.flatnonzero(~np.isnan(means.value).all(axis=0))  # h of g groups that have a value
    probe = np.repeat(means.value[None], len(k), axis=0)
    probe[np.arange(len(k)), :, k] += 1e6  # (h, M, g): NaN stays NaN
    has_value = ~np.isnan(means.value[:, k].T)
    compared = (reduction(probe) != reduction(means.value)) & has_value  # (h, M)
    none = ~compared.any(axis=0)
    big = np.iinfo(np.int32).max
    fewest, least = (
        np.where(none, 0, np.where(compared, v[:, k].T, big).min(axis=0, initial=big))
        for v in (means.clusters, means.worth)
    )
    return fewest.astype(np.int64), least


def disparity_change(before: Disparity, after: Disparity) -> Disparity:
    """|after| - |before| of two disparities resampled with the same seed and clusters: below zero
    means narrower.

    Interval: value +- the 95 % quantile of the draws' distance from it, widened as that of
    `disparity`; p by the same draws.
    """
    value = np.abs(after.value) - np.abs(before.value)
    draws = np.abs(after.draws) - np.abs(before.draws)
    clusters = np.minimum(before.clusters, after.clusters)
    wider = np.maximum(before.wider, after.wider)
    wide = value + wider * (draws - value)
    low, high = _symmetric(value, np.abs(wide - value))
    p = p_of_draws(value, wide)
    return Disparity(value, min(before.n, after.n), low, high, p, draws, clusters, wider)


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

    Below ``smallest`` rows a group has no value, in no draw either.
    """
    from scipy import sparse

    x = np.asarray(values, dtype=float)
    x = x[:, None] if x.ndim == 1 else x
    m = x.shape[1]
    (code, g), (place, places) = codes(groups), codes(clusters)
    has_value = ~np.isnan(x)
    n = int(has_value.any(axis=1).sum())
    most = 1.0 if np.isin(x[has_value], (0.0, 1.0)).all() else float("inf")
    same = bool((has_value == has_value[:, :1]).all())
    columns = [np.where(has_value[:, j], x[:, j], 0.0) for j in range(m)]
    columns += [has_value[:, j].astype(float) for j in range(1 if same else m)]
    pairs, at = np.unique(place * g + code, return_inverse=True)  # few, of all places and groups
    parts = [
        sparse.csr_array((np.bincount(at, weights=c), divmod(pairs, g)), shape=(places, g))
        for c in columns
    ]
    sums = sparse.hstack(parts, format="csr")
    sums.eliminate_zeros()
    total = np.asarray(sums.sum(axis=0)).reshape(-1, g)
    small = np.broadcast_to(total[m:], (m, g)) < max(smallest, 1)
    sizes = sums[:, m * g :]
    clusters = np.broadcast_to(np.asarray((sizes > 0).sum(axis=0)).reshape(-1, g), (m, g))
    squares = np.asarray(sizes.multiply(sizes).sum(axis=0)).reshape(-1, g)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(small, np.nan, total[:m] / total[m:])
        worth = np.broadcast_to(total[m:] ** 2 / squares, (m, g))  # as bootstrap.effective
        if places < FEWEST:
            return GroupMeans(value, np.full((draws, m, g), np.nan), n, clusters, worth, most)
        each = replicates(sums, draws, seed).reshape(draws, -1, g)
        apart = np.where(small, np.nan, each[:, :m] / each[:, m:])
        return GroupMeans(value, apart, n, clusters, worth, most)
