"""Debiasing baselines from the literature as pure array code in float64. No I/O, no pandas. CADE
itself is in cade.py.

Axes: N rows, K candidates. At the first generated token every method is one score per candidate;
the answer is its argmax, ties go to the lowest index (METHODS section 0). What the methods share:

* probabilities are those of the softmax over the row's candidates O_i, also for the plausibility
  cut, so that a token outside O_i can never mask them all;
* a candidate without a finite logit in Full, or in a view that the method reads and the row has, is
  masked for that row;
* a row that lacks a view which is only contrasted with keeps its Full answer: the missing view
  counts as uniform;
* nothing is estimated on test rows.

A contrast is a tuple of names: the views 'ctx', 'q' and 'img'. Formulas and sources:
docs/reference/methods.md, section Baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdgbias.methods.cade import Bools, Floats, Ints, fold, log_softmax

Names = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """N rows of one task under one context test. full, ctx, img, q (N, K): logits, NaN where a row
    lacks the candidate or the view. present (N, K): candidates the item has. group (N,): what a
    prior is estimated within (indicator and number of options; target for digits). fit (N,): rows
    that a method may estimate from (val); labels are never needed.
    """

    full: Floats
    ctx: Floats
    img: Floats
    q: Floats
    present: Bools
    group: Ints
    fit: Bools


@dataclass(frozen=True)
class Method:
    """score: (Evidence, **settings) -> (N, K). settings: its defaults. tuned: setting -> range,
    for methods that are tuned on val; terms: of those, Evidence -> (valid, log p_full, slope),
    because their score is log p_full + x slope, x the first setting."""

    title: str
    score: Callable[..., Floats]
    settings: Mapping[str, Any]
    tuned: Mapping[str, tuple[float, float]] | None = None
    terms: Callable[[Evidence], tuple[Bools, Floats, Floats]] | None = None


def scores(name: str, e: Evidence, **settings: Any) -> Floats:
    """Scores (N, K) of a method of ``METHODS``, -inf where masked. ``settings`` replace its
    defaults."""
    method = METHODS[name]
    return method.score(e, **{**method.settings, **settings})


def predict(score: Floats) -> Ints:
    """Argmax (N,), ties to the lowest index, -1 where the row has no candidate."""
    some = fold(np.maximum, score) > -np.inf  # False for NaN, too
    return np.where(some, np.argmax(score, axis=1), -1).astype(np.int64)


# ----------------------------------------------------------------------
# what all methods read


def _read(e: Evidence, contrast: Names) -> tuple[Bools, Floats, list[Floats]]:
    """(valid, log p_full, log-probabilities per contrast): (N, K) each, 0 where masked, NaN rows
    where a contrast is missing."""
    views: list[Floats] = [getattr(e, name) for name in contrast]
    valid = e.present & np.isfinite(e.full)
    has = [fold(np.logical_or, np.isfinite(z) & e.present)[:, None] for z in views]
    for z, there in zip(views, has, strict=True):
        valid &= np.isfinite(z) | ~there
    logs = [
        np.where(has_view, np.where(valid, log_softmax(z, valid), 0.0), np.nan)
        for z, has_view in zip(views, has, strict=True)
    ]
    return valid, np.where(valid, log_softmax(e.full, valid), 0.0), logs


def _mean(parts: list[Floats]) -> Floats:
    """Mean (N, K) over the parts that a row has, NaN where it has none."""
    total, count = np.zeros(parts[0].shape), np.zeros((len(parts[0]), 1))
    for part in parts:
        has_view = ~np.isnan(part[:, :1])
        total, count = total + np.where(has_view, part, 0.0), count + has_view
    with np.errstate(invalid="ignore"):
        return total / np.where(count > 0, count, np.nan)


def _group_mean(values: Floats, valid: Bools, rows: Bools, group: Ints) -> Floats:
    """Mean of ``values`` per group and candidate over ``rows``, given back to all N rows; NaN for a
    group without such rows."""
    out = np.full(values.shape, np.nan)
    size = int(group.max(initial=-1)) + 1
    for j in range(values.shape[1]):
        use = rows & valid[:, j]
        count = np.bincount(group[use], minlength=size)
        with np.errstate(invalid="ignore"):
            out[:, j] = (np.bincount(group[use], weights=values[use, j], minlength=size) / count)[
                group
            ]
    return out


def _share(p: Floats, valid: Bools) -> Floats:
    """Rows that sum to one over the valid candidates, uniform where a row's numbers are unknown; 0
    where masked."""
    total = fold(np.add, np.where(valid, p, 0.0))[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(
            total > 0, p / total, 1.0 / fold(np.add, valid.astype(np.float64))[:, None]
        )
    return np.where(valid, shares, 0.0)


def _log(p: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(p, np.finfo(float).tiny)))


def _linear(valid: Bools, log_full: Floats, slope: Floats, x: float, b: float) -> Floats:
    """log p_full + x slope on the candidates with p_full >= b max p_full, the adaptive plausibility
    cut over O_i (b = 0: all)."""
    with np.errstate(divide="ignore"):
        keep = valid & (log_full >= top_score(valid, log_full)[:, None] + np.log(b))
    return np.where(keep, log_full + x * slope, -np.inf)


def top_score(valid: Bools, log_full: Floats) -> Floats:
    return fold(np.maximum, np.where(valid, log_full, -np.inf))


# ----------------------------------------------------------------------
# calibration (METHODS 1.1, 1.7, 1.9)


def post_hoc(
    e: Evidence,
    contrast: Names = ("ctx",),
    mode: str = "diagonal",
    scope: str = "row",
    floor: float = 1e-4,
) -> Floats:
    """Affine calibration with p_cf, the answer distribution without the evidence: the contrasts'
    sum, normalised.

    'diagonal': log p_full - log(p_cf + floor). 'identity': p_full - p_cf, **not** divided by its
    sum, which is negative and would turn the order round (METHODS 1.1, bug a). scope 'row': p_cf of
    the row; 'group': its mean over the group's fit rows, without floor; a group without any keeps
    its Full answers.
    """
    valid, log_full, logs = _read(e, contrast)
    blind = _mean([np.exp(part) for part in logs])
    p_cf = _share(blind, valid)
    if scope == "group":
        rows = ~np.isnan(blind[:, 0]) & e.fit
        p_cf, floor = _share(_group_mean(p_cf, valid, rows, e.group), valid), 0.0
    score = np.exp(log_full) - p_cf if mode == "identity" else log_full - _log(p_cf + floor)
    return np.where(valid, score, -np.inf)


def _batch_terms(e: Evidence, mean: str = "geometric") -> tuple[Bools, Floats, Floats]:
    valid, log_full, _ = _read(e, ())
    of_row = log_full if mean == "geometric" else np.exp(log_full)
    prior = _group_mean(of_row, valid, e.fit, e.group)
    prior = prior if mean == "geometric" else np.where(np.isnan(prior), np.nan, _log(prior))
    return valid, log_full, np.where(valid & ~np.isnan(prior), -prior, 0.0)


def batch(e: Evidence, mean: str = "arithmetic", gamma: float = 1.0) -> Floats:
    """log p_full - gamma log(mean of p_full over the group's fit rows), Full alone (METHODS 1.9).
    'geometric' averages log p_full."""
    return _linear(*_batch_terms(e, mean), gamma, 0.0)


# ----------------------------------------------------------------------
# contrastive decoding (METHODS 1.2, 1.5, 1.6, 1.12)


def _contrast_terms(e: Evidence, contrast: Names = ("ctx",)) -> tuple[Bools, Floats, Floats]:
    valid, log_full, logs = _read(e, contrast)
    against = _mean(logs)
    return valid, log_full, np.where(valid & ~np.isnan(against), log_full - against, 0.0)


def contrastive(e: Evidence, contrast: Names = ("ctx",), a: float = 1.0, b: float = 0.1) -> Floats:
    """(1 + a) log p_full - a log p_contrast where p_full >= b max p_full. Several contrasts: the
    mean of their logits. VDD contrasts with the text alone."""
    return _linear(*_contrast_terms(e, contrast), a, b)


def m3id(e: Evidence, t: int = 1, decay: float = 0.02, b: float = 0.1) -> Floats:
    """VDD whose strength is kappa = (1 - gamma) / gamma, gamma = exp(-decay t): 0 at t = 0, 0.0202
    at t = 1, so that at the first token it is nearly the Full answer (METHODS 1.5)."""
    return contrastive(e, ("ctx",), float(np.expm1(decay * t)), b)


def pai_logit(e: Evidence, gamma: float = 1.1, b: float = 0.1) -> Floats:
    """PAI's logit part, gamma (l_full - l_ctx) + l_ctx: VDD with a = gamma - 1. Its attention part
    needs the model (METHODS 1.6)."""
    return contrastive(e, ("ctx",), gamma - 1.0, b)


def _pmi_terms(e: Evidence) -> tuple[Bools, Floats, Floats]:
    valid, log_full, logs = _read(e, ("q",))
    return valid, log_full, np.where(valid & ~np.isnan(logs[0]), -logs[0], 0.0)


def pmi(e: Evidence, gamma: float = 1.0) -> Floats:
    """log p_full - gamma log p_q (METHODS 1.12)."""
    return _linear(*_pmi_terms(e), gamma, 0.0)


def mean_views(e: Evidence) -> Floats:
    """Control: log of the mean probability over the views that the row has."""
    valid, log_full, logs = _read(e, ("ctx", "img", "q"))
    return np.where(valid, _log(_mean([np.exp(part) for part in (log_full, *logs)])), -np.inf)


# ----------------------------------------------------------------------
# the table of methods

_CTX, _Q = {"contrast": ("ctx",)}, {"contrast": ("q",)}
_BOTH = {"contrast": ("ctx", "q")}

METHODS: dict[str, Method] = {
    "post_hoc": Method("Post-Hoc debias, diagonal", post_hoc, {**_CTX, "floor": 1e-4}),
    "post_hoc_identity": Method(
        "Post-Hoc debias, identity", post_hoc, {**_CTX, "mode": "identity"}
    ),
    "post_hoc_q": Method("Post-Hoc debias against Q-only", post_hoc, {**_Q, "floor": 1e-4}),
    "post_hoc_mean": Method(
        "Post-Hoc debias, CTX+Q and Q-only", post_hoc, {**_BOTH, "floor": 1e-4}
    ),
    "post_hoc_group": Method("Post-Hoc debias by indicator", post_hoc, {**_CTX, "scope": "group"}),
    "vdd": Method("VDD", contrastive, {**_CTX, "a": 1.0, "b": 0.1}),
    "vdd_b02": Method("VDD, b = 0.2", contrastive, {**_CTX, "a": 1.0, "b": 0.2}),
    "vdd_q": Method("VDD against Q-only", contrastive, {**_Q, "a": 1.0, "b": 0.1}),
    "vdd_mean": Method("VDD, CTX+Q and Q-only", contrastive, {**_BOTH, "a": 1.0, "b": 0.1}),
    "vdd_tuned": Method(
        "VDD, tuned on val",
        contrastive,
        _CTX,
        tuned={"a": (0.0, 3.0), "b": (0.0, 0.5)},
        terms=_contrast_terms,
    ),
    "m3id": Method("M3ID", m3id, {"t": 1, "decay": 0.02, "b": 0.1}),
    "pai_logit": Method("PAI, logit part", pai_logit, {"gamma": 1.1, "b": 0.1}),
    "cc_q": Method("Contextual calibration by Q-only", post_hoc, {**_Q, "scope": "group"}),
    "bc": Method("Batch calibration", batch, {"mean": "arithmetic", "gamma": 1.0}),
    "bc_geometric": Method(
        "Batch calibration, geometric", batch, {"mean": "geometric", "gamma": 1.0}
    ),
    "bcl": Method(
        "Batch calibration, tuned on val",
        batch,
        {"mean": "geometric"},
        tuned={"gamma": (-5.0, 5.0)},
        terms=_batch_terms,
    ),
    "pmi": Method("PMI", pmi, {"gamma": 1.0}),
    "pmi_tuned": Method(
        "PMI, tuned on val", pmi, {}, tuned={"gamma": (0.0, 3.0)}, terms=_pmi_terms
    ),
    "mean_views": Method("Mean of the four views", mean_views, {}),
}
