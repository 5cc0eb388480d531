"""One check: a planted truth beside the measured value, with the probability of a difference this
large if the instrument is correct.

All p-values are two-sided unless stated otherwise. Together they are one family: Holm's rule limits
the chance of any false alarm in a whole self-check to FALSE_ALARM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, ndtri, stdtr, stdtrit

from sdgbias.methods import stats

#: Probability that a self-check of a correct instrument fails anywhere.
FALSE_ALARM = 0.01
_Z = float(ndtri(0.975))
_SAME = 1e-6


@dataclass(frozen=True)
class Check:
    """plant: the planted model. what: the measured quantity. truth, with its standard error `error`
    (0: closed form). measured, with n and its 95 % interval (NaN if it has none). p. headline:
    shown on the page."""

    plant: str
    what: str
    truth: float
    measured: float
    n: int
    low: float
    high: float
    p: float
    error: float = 0.0
    headline: bool = False

    @property
    def covered(self) -> bool | None:
        """Whether the 95 % interval covers the truth; None without an interval."""
        if not np.isfinite(self.low + self.high):
            return None
        return bool(self.low - _SAME <= self.truth <= self.high + _SAME)


def failed(checks: Sequence[Check], alpha: float = FALSE_ALARM) -> list[Check]:
    """Checks rejected by Holm's rule. A NaN p (nothing could be measured) also fails."""
    p = np.array([c.p for c in checks], dtype=float)
    adjusted = stats.holm(np.nan_to_num(p, nan=0.0))
    return [c for c, a in zip(checks, adjusted, strict=True) if a <= alpha]


def p_same(truth: float, measured: float) -> float:
    """1 if the two numbers are equal (to 1e-6), else 0: for deterministic quantities."""
    return 1.0 if abs(truth - measured) <= _SAME else 0.0


def effective_size(value: float, low: float, high: float) -> float:
    """The n behind a 95 % Wilson interval: its bounds multiply to value^2 / (1 + z^2 / n), and so
    do their complements."""
    a, b, v = (low, high, value) if value >= 0.5 else (1 - low, 1 - high, 1 - value)
    c = v * v / (a * b) - 1 if a * b > 0 else np.nan
    return float(_Z**2 / c) if c > 0 else float("nan")


def p_share(truth: float, value: float, low: float, high: float) -> float:
    """Exact binomial p of a share against the truth, at the effective size implied by its Wilson
    interval."""
    n = effective_size(value, low, high)
    if not np.isfinite(n):
        return float("nan")
    truth = min(max(truth, 1e-12), 1 - 1e-12)
    hits = min(max(value * n, 0.0), n)
    at_least = float(betainc(hits, n - hits + 1, truth)) if hits > 0 else 1.0
    at_most = 1.0 - float(betainc(hits + 1, n - hits, truth)) if hits < n else 1.0
    return min(1.0, 2 * min(at_least, at_most))


def p_mean(
    truth: float,
    value: float,
    low: float,
    high: float,
    df: int,
    *,
    error: float = 0.0,
    spread: float = 0.0,
) -> float:
    """t test of a mean against the truth. The standard error is the interval's, or `spread` (that
    of the process itself) if larger; `error` of the truth is added."""
    se = (high - low) / 2 / float(stdtrit(df, 0.975)) if df >= 1 else float("nan")
    if not np.isfinite(se):
        return float("nan")
    se = float(np.hypot(max(se, spread), error))
    return p_same(truth, value) if se < 1e-12 else float(2 * stdtr(df, -abs(value - truth) / se))


def p_at_most(limit: float, value: float, se: float, df: int) -> float:
    """One-sided p: the probability of a value this high if the truth is at most `limit`."""
    if se < 1e-12:
        return 1.0 if value <= limit + _SAME else 0.0
    return float(stdtr(df, -(value - limit) / se))
