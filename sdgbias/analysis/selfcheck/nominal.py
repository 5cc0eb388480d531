"""Checks over many seeds: how often an event happened, or its mean, against the nominal value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binomtest, kstest, ttest_1samp

from sdgbias.analysis.selfcheck.checks import Check, p_at_most, p_same

#: How far below the known optimum CADE may truly stay after a search on a fifth of the items.
LOSS = 0.03
_NAN = float("nan")


def rate(plant_name: str, what: str, hits: int, n: int, nominal: float) -> Check:
    """Frequency of an event against its nominal rate, exact binomial."""
    found = binomtest(hits, n, nominal)
    low, high = found.proportion_ci(0.95, method="exact")
    return Check(
        "seeds",
        plant_name,
        what,
        nominal,
        hits / n,
        n,
        float(low),
        float(high),
        float(found.pvalue),
        headline=True,
    )


def average(
    plant_name: str,
    what: str,
    expected: float,
    values: np.ndarray,
    error: float = 0.0,
    headline: bool = True,
) -> Check:
    """A mean over seeds against its expected value (t test; exact if all seeds agree)."""
    n, value = len(values), float(values.mean())
    se = float(np.hypot(values.std(ddof=1) / n**0.5, error))
    if se < 1e-12:
        return Check(
            "seeds",
            plant_name,
            what,
            expected,
            value,
            n,
            value,
            value,
            p_same(expected, value),
            headline=headline,
        )
    low, high = ttest_1samp(values, expected).confidence_interval(0.95)
    p = 2 * p_at_most(0.0, abs(value - expected), se, n - 1)
    return Check(
        "seeds",
        plant_name,
        what,
        expected,
        value,
        n,
        float(low),
        float(high),
        min(1.0, p),
        error,
        headline=headline,
    )


def bounded(plant_name: str, what: str, hits: int, n: int, limit: float, *, least: bool) -> Check:
    """Frequency of an event that must not fall below (``least``) or exceed a rate: exact binomial,
    one-sided."""
    found = binomtest(hits, n, limit, alternative="less" if least else "greater")
    low, high = binomtest(hits, n, limit).proportion_ci(0.95, method="exact")
    return Check(
        "seeds",
        plant_name,
        f"{what}: at {'least' if least else 'most'}",
        limit,
        hits / n,
        n,
        float(low),
        float(high),
        float(found.pvalue),
        headline=True,
    )


def uniform(plant_name: str, what: str, p_values: np.ndarray) -> Check:
    found = kstest(p_values, "uniform")
    return Check(
        "seeds",
        plant_name,
        f"{what} (distance)",
        0.0,
        float(found.statistic),
        len(p_values),
        _NAN,
        _NAN,
        float(found.pvalue),
    )


def at_most(plant_name: str, what: str, limit: float, values: np.ndarray) -> Check:
    low, high = ttest_1samp(values, limit).confidence_interval(0.95)
    p = p_at_most(
        limit, float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5), len(values) - 1
    )
    return Check(
        "seeds",
        plant_name,
        what,
        limit,
        float(values.mean()),
        len(values),
        float(low),
        float(high),
        p,
        headline=True,
    )


def near_optimum(plant_name: str, best: float, error: float, values: np.ndarray) -> Iterator[Check]:
    """Tuned CADE's accuracy lies between the optimum minus LOSS and the optimum."""
    n, value = len(values), float(values.mean())
    se = float(np.hypot(values.std(ddof=1) / n**0.5, error))
    low, high = ttest_1samp(values, best).confidence_interval(0.95)
    for what, p in (
        (
            f"tuned CADE's accuracy within {LOSS} of the optimum",
            p_at_most(LOSS - best, -value, se, n - 1),
        ),
        ("tuned CADE's accuracy not above the optimum", p_at_most(best, value, se, n - 1)),
    ):
        yield Check(
            "seeds",
            plant_name,
            what,
            best,
            value,
            n,
            float(low),
            float(high),
            p,
            error,
            headline="within" in what,
        )
