"""Tests of one answerer against another on the same rows, and the smallest difference that such a
test can see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats
from sdgbias.methods.stats.intervals import FEWEST, ROUNDING, Estimate, Kind, codes

#: Up to so many clusters that changed, the p of right minus wrong is counted out; beyond, sums of
#: clusters are normal enough for t.
EXACT = 100


@dataclass(frozen=True)
class PairedTest:
    """estimate: mean difference with its interval; se: its clustered standard error (of differences
    of right and wrong, that of their interval); df: Satterthwaite's degrees of freedom, clusters -
    1 where clusters are of one size; p two-sided."""

    estimate: Estimate
    se: float
    df: float
    p: float

    @property
    def mde(self) -> float:
        """The `minimum_detectable` difference at 5 % with power 80 %."""
        return minimum_detectable(self.se, self.df)


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


def flip_test(sums: ArrayLike) -> float:
    """Two-sided p of (G,) whole sums of a cluster's differences: how often the sums, each with its
    sign drawn by a fair coin, add up to as much in size. Exact; valid with few clusters, because
    under the hypothesis of no difference each sum is as likely as its opposite (Canay, Romano and
    Shaikh 2017). Of sums that are all 1 or -1 it is the sign test."""
    whole = np.rint(np.abs(np.asarray(sums, dtype=float))).astype(np.int64)
    steps = whole[whole > 0]
    total = int(steps.sum())
    reach = abs(int(np.rint(np.sum(sums))))
    chance = np.zeros(total + 1)  # of each sum of the clusters that keep their sign
    chance[0] = 1.0
    for step in steps:
        chance[step:] = (chance[step:] + chance[: total + 1 - step]) / 2
        chance[:step] /= 2
    far = np.abs(2 * np.arange(total + 1) - total) >= reach
    return float(min(1.0, chance[far].sum()))


def p_of_sums(sums: Floats, value: float, variance: float, df: float, kind: Kind) -> float:
    """p of a mean from the (G,) sums of its clusters and the clustered variance (`measure.paired`);
    NaN below ``FEWEST`` clusters."""
    if len(sums) < FEWEST or np.isnan(value):
        return float("nan")
    if kind == "difference" and np.count_nonzero(sums) <= EXACT:
        return flip_test(sums)
    if variance**0.5 <= ROUNDING * abs(value):
        return sign_test(int((sums > 0).sum()), int((sums < 0).sum()))
    return t_test(value, variance, df)


def t_test(value: float, variance: float, df: float) -> float:
    """Two-sided p of value against zero; 1 where both are zero."""
    from scipy.special import stdtr

    return 1.0 if value == 0 else float(2 * stdtr(df, -abs(value) / variance**0.5))


def p_of_draws(value: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(S,) two-sided p of zero from (B, S) draws of statistics (S,): centred draws at least as
    large, plus-one corrected."""
    defined = ~np.isnan(draws)
    far = np.abs(draws - value) >= np.abs(value) * (1 - 1e-12)
    p = (1 + np.sum(far & defined, axis=0)) / (1 + np.sum(defined, axis=0))
    return np.where(np.isnan(value) | ~defined.any(axis=0), np.nan, p)


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
