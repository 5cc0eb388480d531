"""Checks over many seeds: how often an event happened, or its mean, against the nominal value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binomtest, kstest, ttest_1samp

from sdgbias.analysis.selfcheck.checks import Check, check, p_at_most, p_same
from sdgbias.methods.stats import Estimate

#: How far below the known optimum CADE may truly stay after a search on a fifth of the items.
LOSS = 0.03


def _exact(hits: int, n: int, nominal: float) -> tuple[Estimate, float]:
    """Frequency of an event with its exact interval, and the p of a binomial test."""
    found = binomtest(hits, n, nominal)
    low, high = found.proportion_ci(0.95)
    return Estimate(hits / n, n, float(low), float(high)), float(found.pvalue)


def _mean(values: np.ndarray, expected: float) -> Estimate:
    low, high = ttest_1samp(values, expected).confidence_interval(0.95)
    return Estimate(float(values.mean()), len(values), float(low), float(high))


def rate(plant_name: str, what: str, hits: int, n: int, nominal: float) -> Check:
    """Frequency of an event against its nominal rate, exact binomial."""
    found, p = _exact(hits, n, nominal)
    return check("seeds", plant_name, what, nominal, found, p, headline=True)


def average(plant_name: str, what: str, expected: float, values: np.ndarray) -> Check:
    """A mean over seeds against its expected value (t test; exact if all seeds agree)."""
    n, value = len(values), float(values.mean())
    se = float(values.std(ddof=1) / n**0.5)
    if se < 1e-12:
        found, p = Estimate(value, n, value, value), p_same(expected, value)
    else:
        found = _mean(values, expected)
        p = min(1.0, 2 * p_at_most(0.0, abs(value - expected), se, n - 1))
    return check("seeds", plant_name, what, expected, found, p, headline=True)


def bounded(plant_name: str, what: str, hits: int, n: int, limit: float, *, least: bool) -> Check:
    """Frequency of an event that must not fall below (``least``) or exceed a rate: exact binomial,
    one-sided."""
    p = binomtest(hits, n, limit, alternative="less" if least else "greater").pvalue
    found, _ = _exact(hits, n, limit)
    what = f"{what}: at {'least' if least else 'most'}"
    return check("seeds", plant_name, what, limit, found, float(p), headline=True)


def uniform(plant_name: str, what: str, p_values: np.ndarray) -> Check:
    found = kstest(p_values, "uniform")
    distance = Estimate(float(found.statistic), len(p_values))
    return check("seeds", plant_name, f"{what} (distance)", 0.0, distance, float(found.pvalue))


def at_most(plant_name: str, what: str, limit: float, values: np.ndarray) -> Check:
    n = len(values)
    p = p_at_most(limit, float(values.mean()), float(values.std(ddof=1) / n**0.5), n - 1)
    return check("seeds", plant_name, what, limit, _mean(values, limit), p, headline=True)


def near_optimum(plant_name: str, best: float, error: float, values: np.ndarray) -> Iterator[Check]:
    """Tuned CADE's accuracy lies between the optimum minus LOSS and the optimum."""
    n, found = len(values), _mean(values, best)
    se = float(np.hypot(values.std(ddof=1) / n**0.5, error))
    for what, p in (
        (
            f"tuned CADE's accuracy within {LOSS} of the optimum",
            p_at_most(LOSS - best, -found.value, se, n - 1),
        ),
        ("tuned CADE's accuracy not above the optimum", p_at_most(best, found.value, se, n - 1)),
    ):
        shown = "within" in what
        yield check("seeds", plant_name, what, best, found, p, error=error, headline=shown)
