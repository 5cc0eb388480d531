"""Estimates with their n and 95 % interval, clustered by place.

Items of one DHS cluster share an image and survey answers, so they are not independent: intervals
use the between-cluster variance of the mean (linearised, G/(G-1) corrected; for a mean that is
CR1). Shares get a Wilson interval at the effective sample size n / design effect, which stays
inside [0, 1] and never collapses when all answers agree; means get a t interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from sdgbias.methods.cade import Floats, Ints

LEVEL = 0.95
#: With fewer clusters than this a cluster-robust standard error is too small more often than its t
#: interval admits.
FEW = 10


@dataclass(frozen=True)
class Estimate:
    """value with its n (rows) and interval; NaN bounds where an interval can't be had (fewer than
    two clusters)."""

    value: float
    n: int
    low: float
    high: float


def codes(keys: ArrayLike) -> tuple[Ints, int]:
    """(N,) keys -> ((N,) codes, number of distinct keys). Codes follow the sorted keys, so row
    order never shows."""
    k = np.asarray(keys)
    if k.size == 0:
        return np.zeros(0, dtype=np.int64), 0
    if (
        k.dtype.kind in "iu" and k.min() >= 0 and k.max() < 8 * k.size + 1024
    ):  # already small codes: close gaps without a sort
        seen = np.zeros(int(k.max()) + 1, dtype=bool)
        seen[k] = True
        return (np.cumsum(seen) - 1)[k].astype(np.int64), int(seen.sum())
    names, inverse = np.unique(k, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64), len(names)


def _cluster_variance(values: Floats, clusters: ArrayLike) -> tuple[float, int]:
    """Cluster-robust variance of the mean and the number of clusters."""
    code, groups = codes(clusters)
    if groups < 2:
        return float("nan"), groups
    sums = np.bincount(code, weights=values - values.mean(), minlength=groups)
    return float(groups / (groups - 1) * np.sum(sums**2) / values.size**2), groups


def known(values: ArrayLike, *keys: ArrayLike) -> tuple[Floats, list[np.ndarray]]:
    """(N,) values as floats and their keys, rows with NaN left out."""
    x = np.asarray(values, dtype=float)
    ok = ~np.isnan(x)
    if ok.all():
        return x, [np.asarray(k) for k in keys]
    return x[ok], [np.asarray(k)[ok] for k in keys]


def t_estimate(value: float, n: int, variance: float, groups: int) -> Estimate:
    """value +- t(groups - 1) standard errors; NaN bounds below two groups."""
    if groups < 2 or not np.isfinite(variance):
        return Estimate(value, n, float("nan"), float("nan"))
    half = float(stdtrit(groups - 1, 0.5 + LEVEL / 2)) * variance**0.5
    return Estimate(value, n, value - half, value + half)


def mean(values: ArrayLike, clusters: ArrayLike) -> Estimate:
    """Mean of (N,) values with a t interval on clusters - 1 degrees of freedom. NaN values are left
    out of value and n."""
    x, (c,) = known(values, clusters)
    if x.size == 0:
        return Estimate(float("nan"), 0, float("nan"), float("nan"))
    variance, groups = _cluster_variance(x, c)
    return t_estimate(float(x.mean()), int(x.size), variance, groups)


def share(hits: ArrayLike, clusters: ArrayLike) -> Estimate:
    """Share of (N,) booleans (NaN left out) with a Wilson interval at the effective sample size (at
    most n, at least 1)."""
    x, (c,) = known(hits, clusters)
    if x.size == 0:
        return Estimate(float("nan"), 0, float("nan"), float("nan"))
    p, n = float(x.mean()), int(x.size)
    low, high = wilson(
        np.array(p), np.array(float(n)), *(np.array(float(v)) for v in _cluster_variance(x, c))
    )
    return Estimate(p, n, float(low), float(high))


def wilson(p: Floats, n: Floats, variance: Floats, groups: Floats) -> tuple[Floats, Floats]:
    """Wilson bounds of shares p at n / design effect rows; all arrays of one shape. NaN where p is
    NaN.

    The design effect is the clustered variance over p (1 - p) / n. Where all answers agree it can't
    be seen: clusters count as rows, the cautious choice. One cluster counts as one row.
    """
    simple = p * (1 - p) / np.maximum(n, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.minimum(n, np.maximum(1.0, n * simple / variance))
    effective = np.where((simple == 0) | (variance == 0), groups, effective)
    effective = np.where(groups < 2, 1.0, effective)
    z = float(ndtri(0.5 + LEVEL / 2))
    centre = (p + z * z / (2 * effective)) / (1 + z * z / effective)
    half = (
        z / (1 + z * z / effective) * (p * (1 - p) / effective + z * z / (4 * effective**2)) ** 0.5
    )
    return np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


def macro(values: ArrayLike, classes: ArrayLike, clusters: ArrayLike) -> Estimate:
    """Mean over classes of the class means of (N,) values, each class weighing the same; t interval
    over clusters.

    The variance is that of the linearised statistic: row i of class c contributes (x_i - mean_c) /
    (classes n_c).
    """
    x, (k, c) = known(values, classes, clusters)
    if x.size == 0:
        return Estimate(float("nan"), 0, float("nan"), float("nan"))
    code, many = codes(k)
    count = np.bincount(code, minlength=many)
    means = np.bincount(code, weights=x, minlength=many) / count
    influence = (x - means[code]) * x.size / (many * count[code])
    variance, groups = _cluster_variance(influence, c)
    return t_estimate(float(means.mean()), int(x.size), variance, groups)


def two_way(values: ArrayLike, inner: ArrayLike, outer: ArrayLike) -> tuple[Estimate, str]:
    """Mean of (N,) values clustered two ways, e.g. by DHS cluster (inner) and country (outer), and
    a note.

    V = V_inner + V_outer - V_both (Cameron, Gelbach and Miller 2011). DHS clusters lie within
    countries: then V_both is V_inner, and what is left is the country-level CR1 variance. The
    interval is t on the smaller number of groups minus one. The note warns below ten groups, where
    even that t interval is too narrow; it is '' otherwise.
    """
    x, (a, b) = known(values, inner, outer)
    if x.size == 0:
        return Estimate(float("nan"), 0, float("nan"), float("nan")), ""
    (one, _), (two, many) = codes(a), codes(b)
    (v_one, g_one), (v_two, g_two) = _cluster_variance(x, one), _cluster_variance(x, two)
    both, g_both = codes(one * many + two)
    variance = v_two if g_both == g_one else v_one + v_two - _cluster_variance(x, both)[0]
    if g_both != g_one and variance < max(v_one, v_two):
        variance = max(
            v_one, v_two
        )  # the difference of three estimates may fall below either way alone, even below zero
    fewest = min(g_one, g_two)
    note = f"{fewest} groups: fewer than {FEW}, the interval is too narrow" if fewest < FEW else ""
    return t_estimate(float(x.mean()), int(x.size), variance, fewest), note
