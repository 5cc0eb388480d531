"""Tests of one answerer against another on the same rows, and the smallest difference that such a
test can see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.stats.intervals import (
    FEWEST,
    Estimate,
    cluster_spread,
    codes,
    estimate,
    known,
    nothing,
)


@dataclass(frozen=True)
class PairedTest:
    """estimate: mean difference with its interval; se: its clustered standard error; df:
    Satterthwaite's degrees of freedom, clusters - 1 where clusters are of one size; p two-sided."""

    estimate: Estimate
    se: float
    df: float
    p: float


def net_signs(difference: ArrayLike, clusters: ArrayLike) -> tuple[int, int]:
    """Clusters whose (N,) row differences (NaN counts as none) add up to more than 0, and to less:
    the votes of a sign test whose rows are not independent."""
    code, many = codes(clusters)
    net = np.bincount(code, weights=np.nan_to_num(difference, nan=0.0), minlength=many)
    return int((net > 0).sum()), int((net < 0).sum())


def sign_test(fixed: int, broken: int) -> float:
    """Two-sided p of (fixed, broken) against Binomial(fixed + broken, 1/2), as the exact test of
    McNemar has it."""
    from scipy.special import betainc

    n, k = fixed + broken, min(fixed, broken)
    # twice P(X <= k) of the binomial; scipy.stats takes 0.4 s to import
    return min(1.0, 2 * float(betainc(n - k, k + 1, 0.5))) if n else 1.0


def paired(difference: ArrayLike, clusters: ArrayLike) -> PairedTest:
    """t test of the mean of (N,) row differences (NaN left out), as `intervals.mean` judges it.

    Differences that are all zero: p is 1. Fewer than ``FEWEST`` clusters: no interval and no p;
    fewer than two: no standard error either.
    """
    x, (c,) = known(difference, clusters)
    if x.size == 0:
        return PairedTest(nothing(), float("nan"), 0.0, float("nan"))
    value = float(x.mean())
    spread = cluster_spread(x - value, c)
    variance, df = float(spread.variance[0]), float(np.nan_to_num(spread.df[0]))
    return PairedTest(
        estimate(value, int(x.size), spread),
        variance**0.5,
        df,
        t_test(value, variance, df, int(spread.clusters[0])),
    )


def t_test(value: float, variance: float, df: float, clusters: int) -> float:
    """Two-sided p of value against zero, NaN below ``FEWEST`` clusters; as scipy, 0 where the
    variance is zero and the value isn't."""
    from scipy.special import stdtr

    if clusters < FEWEST or np.isnan(variance) or np.isnan(value):
        return float("nan")
    if value == 0:
        return 1.0
    return 0.0 if variance == 0 else float(2 * stdtr(df, -abs(value) / variance**0.5))


def p_of_draws(value: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(S,) two-sided p of zero from (B, S) draws of statistics (S,): centred draws at least as
    large, plus-one corrected."""
    there = ~np.isnan(draws)
    far = np.abs(draws - value) >= np.abs(value) * (1 - 1e-12)
    p = (1 + np.sum(far & there, axis=0)) / (1 + np.sum(there, axis=0))
    return np.where(np.isnan(value) | ~there.any(axis=0), np.nan, p)


def minimum_detectable(se: float, df: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest true difference that a two-sided t test at ``alpha`` finds with ``power``, given its
    clustered standard error.

    (t_{1-alpha/2, df} + t_{power, df}) se: about 2.8 standard errors at 5 % and 80 %. In the
    difference's own unit.
    """
    from scipy.special import stdtrit

    if df < 1 or not np.isfinite(se):
        return float("nan")
    return float((stdtrit(df, 1 - alpha / 2) + stdtrit(df, power)) * se)
