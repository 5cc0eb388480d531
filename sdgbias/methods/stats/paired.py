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
class McNemar:
    """fixed: wrong before, right after; broken: right before, wrong after; n rows with both
    answers; p two-sided."""

    fixed: int
    broken: int
    n: int
    p: float


@dataclass(frozen=True)
class PairedTest:
    """estimate: mean difference with its interval; se: its clustered standard error; df:
    Satterthwaite's degrees of freedom, clusters - 1 where clusters are of one size; p two-sided."""

    estimate: Estimate
    se: float
    df: float
    p: float


def mcnemar(before: ArrayLike, after: ArrayLike, *, mid_p: bool = False) -> McNemar:
    """Exact McNemar test of (N,) hits before and after: the discordant rows against a fair coin.
    NaN rows are left out.

    It takes rows as independent; where they share places, `paired` is the test to quote. ``mid_p``
    counts half of the observed outcome's probability (Fagerland 2013): closer to its nominal level.
    Without discordant rows p is 1.
    """
    a, b = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    change = (b - a)[~np.isnan(a + b)]
    fixed, broken = int((change > 0).sum()), int((change < 0).sum())
    return McNemar(fixed, broken, int(change.size), sign_test(fixed, broken, mid_p=mid_p))


def net_signs(difference: ArrayLike, clusters: ArrayLike) -> tuple[int, int]:
    """Clusters whose (N,) row differences (NaN counts as none) add up to more than 0, and to less:
    the votes of a sign test whose rows are not independent."""
    code, many = codes(clusters)
    net = np.bincount(code, weights=np.nan_to_num(difference, nan=0.0), minlength=many)
    return int((net > 0).sum()), int((net < 0).sum())


def sign_test(fixed: int, broken: int, *, mid_p: bool = False) -> float:
    """Two-sided p of (fixed, broken) against Binomial(fixed + broken, 1/2); NaN counts of rows
    don't arise here."""
    from scipy.special import betainc

    n, k = fixed + broken, min(fixed, broken)
    if n == 0:
        return 1.0
    # P(X <= k) and P(X < k) of the binomial; scipy.stats takes 0.4 s to import
    upto, below = betainc(n - k, k + 1, 0.5), betainc(n - k + 1, k, 0.5) if k else 0.0
    return min(1.0, float(upto + below if mid_p else 2 * upto))


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


def paired_bootstrap(
    difference: ArrayLike, clusters: ArrayLike, draws: int = 2_000, seed: int = 0
) -> float:
    """Two-sided p: share of cluster-bootstrap means that lie as far from the mean difference as
    zero does, plus-one corrected."""
    from sdgbias.methods.stats.bootstrap import bootstrap

    x, (c,) = known(difference, clusters)
    if x.size == 0 or codes(c)[1] < FEWEST:
        return float("nan")
    found = bootstrap(x, c, draws, seed)
    return float(p_of_draws(found.value, found.draws)[0])


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
