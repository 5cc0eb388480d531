"""Estimates with their n and 95 % interval, clustered by place.

Items of one DHS cluster share an image and survey answers, so they are not independent: intervals use the between-cluster
variance of the mean (linearised, G/(G-1) corrected). Shares get a Wilson interval at the effective sample size
n / design effect, which stays inside [0, 1] and never collapses when all answers agree; means get a t interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """value with its n (rows) and interval; NaN bounds where an interval can't be had (fewer than two clusters)."""

    value: float
    n: int
    low: float
    high: float


def _cluster_variance(values: np.ndarray, clusters: np.ndarray) -> tuple[float, int]:
    """Cluster-robust variance of the mean and the number of clusters."""
    _, codes = np.unique(clusters, return_inverse=True)
    groups = int(codes.max()) + 1
    if groups < 2:
        return float("nan"), groups
    sums = np.bincount(codes, weights=values - values.mean(), minlength=groups)
    return float(groups / (groups - 1) * np.sum(sums**2) / values.size**2), groups


def mean(values: ArrayLike, clusters: ArrayLike) -> Estimate:
    """Mean of (N,) values with a t interval on clusters - 1 degrees of freedom. NaN values are left out of value and n."""
    x, c = np.asarray(values, dtype=float), np.asarray(clusters)
    x, c = x[~np.isnan(x)], c[~np.isnan(x)]
    if x.size == 0:
        return Estimate(float("nan"), 0, float("nan"), float("nan"))
    variance, groups = _cluster_variance(x, c)
    if groups < 2:
        return Estimate(float(x.mean()), int(x.size), float("nan"), float("nan"))
    half = float(stdtrit(groups - 1, 0.5 + LEVEL / 2)) * variance**0.5
    return Estimate(float(x.mean()), int(x.size), float(x.mean() - half), float(x.mean() + half))


def share(hits: ArrayLike, clusters: ArrayLike) -> Estimate:
    """Share of (N,) booleans with a Wilson interval at the effective sample size (at most n, at least 1)."""
    x, c = np.asarray(hits, dtype=float), np.asarray(clusters)
    if x.size == 0:
        return Estimate(float("nan"), 0, float("nan"), float("nan"))
    p, n = float(x.mean()), int(x.size)
    variance, groups = _cluster_variance(x, c)
    simple = p * (1 - p) / n
    if groups < 2:
        effective = 1.0
    elif simple == 0 or variance == 0:
        effective = float(groups)  # all answers agree: count clusters, the cautious choice
    else:
        effective = min(float(n), max(1.0, n * simple / variance))
    z = float(ndtri(0.5 + LEVEL / 2))
    centre = (p + z * z / (2 * effective)) / (1 + z * z / effective)
    half = z / (1 + z * z / effective) * (p * (1 - p) / effective + z * z / (4 * effective**2)) ** 0.5
    return Estimate(p, n, max(0.0, centre - half), min(1.0, centre + half))
