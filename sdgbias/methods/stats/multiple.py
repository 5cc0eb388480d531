"""Many tests at once: adjusted p-values of a family."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats
from sdgbias.methods.stats.intervals import LEVEL, Estimate


def holm(p: ArrayLike) -> Floats:
    """(M,) p-values -> (M,) adjusted ones (Holm 1979), family-wise error under any dependence. NaN
    is no test and stays NaN."""
    raw = np.asarray(p, dtype=float)
    out = np.full(raw.shape, np.nan)
    tests = np.flatnonzero(~np.isnan(raw))
    order = tests[np.argsort(raw[tests], kind="stable")]
    steps = raw[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return out


def p_of_interval(estimate: Estimate) -> float:
    """Two-sided p of zero, of an estimate that is known by its 95 % interval alone: as if the end
    on the side of zero were the t quantile of clusters - 1 degrees of freedom away. 0.05 where the
    interval ends at zero, NaN without an interval."""
    from scipy.special import stdtr, stdtrit

    near = estimate.value - (estimate.low if estimate.value > 0 else estimate.high)
    if near != near or near == 0:
        return float("nan")
    df = max(estimate.clusters - 1, 1)
    return float(2 * stdtr(df, -abs(estimate.value / near) * stdtrit(df, (1 + LEVEL) / 2)))


def apart_from_zero(family: Sequence[Estimate], alpha: float = 1 - LEVEL) -> list[bool]:
    """Which of a family of differences are measurably other than zero, if the whole family is to be
    wrong in at most 5 of 100: Holm over the p of their intervals."""
    return [bool(p < alpha) for p in holm([p_of_interval(e) for e in family])]
