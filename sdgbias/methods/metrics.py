"""Metrics that know no groups, models or files: per-row f(gold, prediction), and reductions of sums
and of group values.

Groups, intervals and tests are in ``stats``.
"""

from __future__ import annotations

import numpy as np

from sdgbias.methods.cade import Bools, Floats, Ints

#: Decimal inputs such as 27.1 - 22.1 miss their exact value by less than this (Table F is
#: inclusive).
SLACK = 1e-9


def correct(gold: Ints, choice: Ints) -> Bools:
    """(N,) candidate indices -> (N,) bool. A choice of -1 (no answer) is never correct."""
    return (choice == gold) & (choice >= 0)


def absolute_error(gold: Floats, value: Floats) -> Floats:
    """(N,) |prediction - gold| in the target's unit; NaN where there is no prediction."""
    return np.abs(value - gold)


def within_tolerance(error: Floats, tolerance: Floats) -> Bools:
    """(N,) interval accuracy's hit (App. C.3, Table F): |error| <= tolerance, inclusive; a missing
    prediction is a miss."""
    return np.nan_to_num(error, nan=np.inf) <= tolerance + SLACK


def margin(logits: Floats) -> Floats:
    """(N, K) logits, or log-probabilities up to a constant per row -> (N,) lead of the best
    candidate over the second in nats, 0 for a tie. Withheld and missing ones (-inf, NaN) don't
    count; NaN where fewer than two are known."""
    finite = np.where(np.isfinite(logits), logits, -np.inf).astype(float)
    if finite.shape[1] < 2:
        return np.full(len(finite), np.nan)
    second, best = np.partition(finite, finite.shape[1] - 2, axis=1)[:, -2:].T
    return np.where(np.isfinite(second), best - np.where(np.isfinite(second), second, 0.0), np.nan)


def tie_flags(logits: Floats, near: float) -> tuple[Floats, Floats]:
    """(N, K) logits -> (tie (N,), near tie (N,)): 1.0 where the best two candidates have equal
    logits, or logits at most ``near`` nats apart (a tie is a near tie), else 0.0; NaN where fewer
    than two candidates are known."""
    lead = margin(logits)
    unknown = np.isnan(lead)
    return np.where(unknown, np.nan, lead == 0.0), np.where(unknown, np.nan, lead <= near)


def brier(p: Floats, gold: Ints) -> Floats:
    """(N, K) probabilities -> (N,) squared distance to the gold answer, summed over candidates: 0
    to 2. NaN without scores."""
    hit = np.arange(p.shape[1]) == gold[:, None]
    return np.sum((p - hit) ** 2, axis=1)


def negative_log_likelihood(log_p: Floats, gold: Ints) -> Floats:
    """(N, K) log-probabilities -> (N,) -log p of the gold candidate in nats; NaN where it is masked
    (no score)."""
    log_p_gold = log_p[np.arange(len(gold)), gold]
    return np.where(np.isfinite(log_p_gold), -log_p_gold, np.nan)


def equal_width(confidence: Floats, bins: int) -> Ints:
    """(N,) confidences in [0, 1] -> (N,) bin numbers of equal width; an edge belongs to the bin
    below, as Guo (2017)."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def equal_mass(confidence: Floats, bins: int) -> Ints:
    """(N,) -> (N,) bin numbers, each with N / bins rows; equal confidences share the bin of their
    middle rank."""
    _, code, count = np.unique(confidence, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count + 1) / 2  # rank from 0
    return np.minimum((middle * bins / max(1, confidence.size)).astype(np.int64), bins - 1)[
        code.reshape(-1)
    ]


def calibration_error(gaps: Floats, n: Floats) -> Floats:
    """ECE: (..., bins) sums of (confidence - hit) per bin and (...,) rows -> (...,) sum of |gap|
    over rows."""
    return np.sum(np.abs(gaps), axis=-1) / n


def max_min(values: Floats) -> Floats:
    """(..., g) values of groups, NaN unknown -> (...,) largest minus smallest; NaN with fewer than
    two known groups."""
    has_value = ~np.isnan(values)
    top = np.max(np.where(has_value, values, -np.inf), axis=-1, initial=-np.inf)
    low = np.min(np.where(has_value, values, np.inf), axis=-1, initial=np.inf)
    enough = has_value.sum(axis=-1) >= 2
    return np.where(enough, np.where(enough, top, 0.0) - np.where(enough, low, 0.0), np.nan)


def difference(values: Floats, one: int, other: int) -> Floats:
    """(..., g) values of groups -> (...,) group ``one`` minus group ``other``; NaN where either
    is."""
    return values[..., one] - values[..., other]
