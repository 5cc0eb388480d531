"""Debiasing baselines from the literature as pure array code in float64. No I/O, no pandas. CADE
itself is in cade.py.

Axes: N rows, K candidates. At the first generated token every method is one score per candidate;
the answer is its argmax, ties go to the lowest index (METHODS section 0). What the methods share:

* probabilities are those of the softmax over the row's candidates O_i, also for the plausibility
cut, so that a token outside
  O_i can never mask them all;
* a candidate without a finite logit in Full, or in a view that the method reads and the row has, is
masked for that row;
* a row that lacks a view which is only contrasted with keeps its Full answer: the missing view
counts as uniform;
* nothing is estimated on test rows.

A contrast is a tuple of names: views ('ctx', 'q', 'img'), extra passes ('noise', 'icd:0', ...), or
'content_free:*' for all that begin so. Formulas and sources: docs/reference/methods.md, section
Baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdgbias.files import packaged_yaml
from sdgbias.methods.cade import Bools, Floats, Ints, fold, log_softmax

Names = tuple[str, ...]
VIEWS = ("full", "ctx", "img", "q")
#: PriDe adds this to every probability before the logarithm.
PRIDE_FLOOR = 1e-10


@dataclass(frozen=True)
class Evidence:
    """N rows of one task under one context test. full, ctx, img, q (N, K): logits, NaN where a row
    lacks the candidate or the view. present (N, K): candidates the item has. group (N,): what a
    prior is estimated within (indicator and number of options; target for digits). fit (N,): rows
    that a method may estimate from (val); labels are never needed. extra: (N, K) logits per pass.
    """

    full: Floats
    ctx: Floats
    img: Floats
    q: Floats
    present: Bools
    group: Ints
    fit: Bools
    extra: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """score: (Evidence, **settings) -> (N, K). settings: its defaults. needs: extra passes
    (suites/extra_prompts.py) without which it can't run, 'a|b' where either will do. digits:
    whether it is defined for the ten digits. tuned: setting -> range, for methods that are tuned on
    val; terms: of those, Evidence -> (valid, log p_full, slope), because their score is log p_full
    + x slope, x the first setting."""

    title: str
    score: Callable[..., Floats]
    settings: Mapping[str, Any]
    needs: Names = ()
    digits: bool = True
    source: str = ""
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


def _expand(e: Evidence, contrast: Names) -> list[str]:
    names = []
    for name in contrast:
        names += (
            sorted(key for key in e.extra if key.startswith(name[:-1]))
            if name.endswith(":*")
            else [name]
        )
    return names


def _read(e: Evidence, contrast: Names) -> tuple[Bools, Floats, list[Floats]]:
    """(valid, log p_full, log-probabilities per contrast): (N, K) each, 0 where masked, NaN rows
    where a contrast is missing."""
    views = [getattr(e, name) if name in VIEWS else e.extra[name] for name in _expand(e, contrast)]
    valid = e.present & np.isfinite(e.full)
    has = [fold(np.logical_or, np.isfinite(z) & e.present)[:, None] for z in views]
    for z, there in zip(views, has, strict=True):
        valid &= np.isfinite(z) | ~there
    logs = [
        np.where(there, np.where(valid, log_softmax(z, valid), 0.0), np.nan)
        for z, there in zip(views, has, strict=True)
    ]
    return valid, np.where(valid, log_softmax(e.full, valid), 0.0), logs


def _mean(parts: list[Floats]) -> Floats:
    """Mean (N, K) over the parts that a row has, NaN where it has none."""
    total, count = np.zeros(parts[0].shape), np.zeros((len(parts[0]), 1))
    for part in parts:
        there = ~np.isnan(part[:, :1])
        total, count = total + np.where(there, part, 0.0), count + there
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
        known = np.where(
            total > 0, p / total, 1.0 / fold(np.add, valid.astype(np.float64))[:, None]
        )
    return np.where(valid, known, 0.0)


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


# ----------------------------------------------------------------------- calibration (METHODS 1.1,
# 1.7, 1.8, 1.9)


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
    its Full answers. Contextual and domain-context calibration are
    the same with content-free and random-word contexts and no floor.
    """
    valid, log_full, logs = _read(e, contrast)
    known = _mean([np.exp(part) for part in logs])
    p_cf = _share(known, valid)
    if scope == "group":
        rows = ~np.isnan(known[:, 0]) & e.fit
        p_cf, floor = _share(_group_mean(p_cf, valid, rows, e.group), valid), 0.0
    score = np.exp(log_full) - p_cf if mode == "identity" else log_full - _log(p_cf + floor)
    return np.where(valid, score, -np.inf)


def _batch_terms(e: Evidence, mean: str = "geometric") -> tuple[Bools, Floats, Floats]:
    valid, log_full, _ = _read(e, ())
    rows = fold(np.logical_or, valid) & e.fit
    prior = _group_mean(log_full if mean == "geometric" else np.exp(log_full), valid, rows, e.group)
    prior = prior if mean == "geometric" else np.where(np.isnan(prior), np.nan, _log(prior))
    return valid, log_full, np.where(valid & ~np.isnan(prior), -prior, 0.0)


def batch(e: Evidence, mean: str = "arithmetic", gamma: float = 1.0) -> Floats:
    """log p_full - gamma log(mean of p_full over the group's fit rows), Full alone (METHODS 1.9).
    'geometric' averages log p_full."""
    return _linear(*_batch_terms(e, mean), gamma, 0.0)


# ------------------------------------------------------------------------------- contrastive
# decoding (METHODS 1.2 to 1.6, 1.12)


def _contrast_terms(e: Evidence, contrast: Names = ("ctx",)) -> tuple[Bools, Floats, Floats]:
    valid, log_full, logs = _read(e, contrast)
    against = _mean(logs)
    return valid, log_full, np.where(valid & ~np.isnan(against), log_full - against, 0.0)


def contrastive(e: Evidence, contrast: Names = ("ctx",), a: float = 1.0, b: float = 0.1) -> Floats:
    """(1 + a) log p_full - a log p_contrast where p_full >= b max p_full. Several contrasts: the
    mean of their logits. VDD contrasts with the text alone, VCD with a noised picture, ICD with a
    disturbed instruction."""
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


# --------------------------------------------------------------------------------- permuted options
# (METHODS 1.10, 1.11)


def _permuted(e: Evidence) -> tuple[Bools, Bools, list[Floats]]:
    """(valid, complete (N,), p of each letter when position j shows content (j + k) mod n; k = 0,
    1, ...). Rows whose item has n options are complete with the first n of them."""
    valid, log_full, _ = _read(e, ())
    n = e.present.sum(axis=1)
    shifts, complete = (
        [np.where(valid, np.exp(log_full), 0.0)],
        (valid == e.present).all(axis=1) & (n > 1),
    )
    for k in range(1, e.present.shape[1]):
        z = e.extra.get(f"perm:{k}", np.full(e.full.shape, np.nan))
        asked = e.present & (n > k)[:, None]
        complete &= (np.isfinite(z) | ~asked).all(axis=1)
        shifts.append(
            np.where(asked & np.isfinite(z), np.exp(log_softmax(z, asked & np.isfinite(z))), 0.0)
        )
    return valid, complete, shifts


def _content_mean(e: Evidence, shifts: list[Floats]) -> Floats:
    """Mean probability of each *content* over the shifts: content o stands at position (o - k) mod
    n under shift k."""
    n = np.maximum(e.present.sum(axis=1), 1)[:, None]
    at = np.arange(e.present.shape[1])[None, :]
    total = np.zeros(e.present.shape)
    for k, p in enumerate(shifts):
        total += np.where(k < n, np.take_along_axis(p, (at - k) % n, axis=1), 0.0)
    return np.where(e.present, total / n, 0.0)


def permutation_average(e: Evidence) -> Floats:
    """Mean probability of each option's content over the n cyclic shifts of contents under fixed
    letters (METHODS 1.11). Rows that were not scored under all shifts have no answer."""
    valid, complete, shifts = _permuted(e)
    return np.where(valid & complete[:, None], _log(_content_mean(e, shifts)), -np.inf)


def pride(e: Evidence) -> Floats:
    """Full over a prior of the letters that is estimated from the fit rows scored under all shifts
    (METHODS 1.10).

    A row's prior: softmax over letters of the mean over shifts of log(p + 1e-10). The global prior,
    their mean, is one per number of options; without estimation rows it is uniform. Estimation rows
    themselves get the permutation average.
    """
    valid, complete, shifts = _permuted(e)
    n = np.maximum(e.present.sum(axis=1), 1)
    means = (
        sum(np.where((k < n)[:, None], np.log(p + PRIDE_FLOOR), 0.0) for k, p in enumerate(shifts))
        / n[:, None]
    )
    row_prior = np.exp(np.where(valid, log_softmax(means, valid), -np.inf))
    estimated = complete & e.fit
    prior = _share(_group_mean(row_prior, valid, estimated, n), valid)
    score = np.log(shifts[0] + PRIDE_FLOOR) - np.log(prior + PRIDE_FLOOR)
    return np.where(
        valid, np.where(estimated[:, None], _log(_content_mean(e, shifts)), score), -np.inf
    )


# ----------------------------------------------------------------------
# the table of methods

_SCORES: dict[str, Callable[..., Floats]] = {
    score.__name__: score
    for score in (
        *(post_hoc, contrastive, m3id, pai_logit, batch),
        *(pride, permutation_average, pmi, mean_views),
    )
}
_TERMS = {"contrastive": _contrast_terms, "batch": _batch_terms, "pmi": _pmi_terms}


def _method(about: Mapping[str, Any]) -> Method:
    settings = {
        k: tuple(v) if isinstance(v, list) else v for k, v in about.get("settings", {}).items()
    }
    given = {**about, "score": _SCORES[about["score"]], "settings": settings}
    given["needs"] = tuple(about.get("needs", ()))
    if "tuned" in about:
        given["tuned"] = {name: tuple(ends) for name, ends in about["tuned"].items()}
        given["terms"] = _TERMS[about["score"]]
    return Method(**given)


METHODS = {name: _method(about) for name, about in packaged_yaml("baselines.yaml").items()}
