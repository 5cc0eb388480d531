"""CADE (Sec. 4) as pure array code in float64. No I/O, no pandas: `streams` of four arrays of
logits, `search` on validation rows, `decide`.

Axes: N rows, K candidates (3 letters or 10 digits). A view is (N, K) raw first-token logits; NaN
marks a candidate that the item lacks. `streams` does everything that does not depend on the
hyper-parameters; `decide` applies them.

Two numerics:

* ``exact``: log-sum-exp throughout, exact KL with 0 log 0 = 0, no clamp. A view missing for a row
drops out: no term in
  the score and no divergence (D = 0).
* ``reference``: probabilities floored at 1e-9 before the log and KL clamped at >= 0, as the
authors' code does; a missing
  view counts as the uniform distribution and is left out of the image stream.

In both, a candidate whose logit is not finite in a view that the row does have is masked for that
row, never scored as zero. Ties go to the lowest index, i.e. to A or digit 0 (METHODS section 0);
`decide` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdgbias.types import CadeParams, Task

if TYPE_CHECKING:
    from sdgbias.methods.search import Kind, SearchResult

Numerics = Literal["exact", "reference"]
Stream = Literal["full+img", "full", "img"]
Divergence = Literal["kl", "js"]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

REFERENCE_FLOOR = 1e-9
#: With every term off CADE is the Full-view argmax: a gate of 0 keeps every row.
BASELINE = CadeParams(alpha=0.0, lambda_kl=0.0, beta=0.0, tau=0.0)


@dataclass(frozen=True)
class Form:
    """The form of Eqs. 1-7. numerics: see above. stream: the views that the image stream mixes.
    divergence: of the image stream from the context's, Kullback-Leibler or Jensen-Shannon."""

    numerics: Numerics = "exact"
    stream: Stream = "full+img"
    divergence: Divergence = "kl"


@dataclass(frozen=True)
class Streams:
    """What CADE needs of N rows before any hyper-parameter is known.

    valid (N, K) candidate may be chosen; log_img, log_ctx, log_q (N, K) stream log-probabilities (0
    where a stream is absent, -inf where masked); divergence (N,) D_i in nats; base (N,) index of
    the Full view's argmax, -1 where the row has no Full view; confidence (N,) m_i. A row with
    neither Full nor IMG+Q has no valid candidate: it is undecidable.
    """

    valid: Bools
    log_img: Floats
    log_ctx: Floats
    log_q: Floats
    divergence: Floats
    base: Ints
    confidence: Floats


@dataclass(frozen=True)
class Decision:
    """choice (N,) candidate index, -1 where undecidable; kept (N,) gate kept the baseline; score
    (N, K); ties (int)."""

    choice: Ints
    kept: Bools
    score: Floats
    ties: int


def fold(op: np.ufunc, columns: np.ndarray) -> np.ndarray:
    """(N, K) -> (N,), column by column: several times faster than reducing along so short an
    axis."""
    return np.asarray(reduce(op, columns.T))


def log_softmax(logits: Floats, valid: Bools) -> Floats:
    """Row-wise log-softmax over valid candidates; (N, K) -> (N, K), -inf where masked. Rows without
    any stay -inf."""
    z = np.where(valid, logits, -np.inf)
    top = fold(np.maximum, z)
    z -= np.where(np.isfinite(top), top, 0.0)[:, None]
    with np.errstate(divide="ignore"):
        norm = np.log(fold(np.add, np.exp(z)))
    return np.where(valid, z - np.where(np.isfinite(norm), norm, 0.0)[:, None], -np.inf)


def _kl(log_p: Floats, log_c: Floats) -> Floats:
    """KL(P || C) per row in nats over the candidates where P > 0."""
    live = np.isfinite(log_p)
    diff = np.where(live, log_p, 0.0) - np.where(live, log_c, 0.0)
    return np.sum(np.where(live, np.exp(log_p) * diff, 0.0), axis=1)


def divergence_of(log_p: Floats, log_c: Floats, kind: Divergence = "kl") -> Floats:
    """Row-wise KL(P||C), or Jensen-Shannon (bounded by ln 2), of two (N, K) log-distributions. Eq.
    7."""
    if kind == "kl":
        return _kl(log_p, log_c)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_m = np.logaddexp(log_p, log_c) - np.log(2.0)
    return 0.5 * _kl(log_p, log_m) + 0.5 * _kl(log_c, log_m)


def streams(
    full: Floats,
    ctx: Floats,
    img: Floats,
    q: Floats,
    present: Bools | None = None,
    form: Form = Form(),
) -> Streams:
    """Eqs. 1-7 for N rows. Each view is (N, K) logits; `present` (N, K) says which candidates the
    item has.

    Without `present` a candidate counts as present when any view has a number for it. A row of a
    view with no finite candidate is a missing view.
    """
    numerics, stream, divergence = form.numerics, form.stream, form.divergence
    views = [np.asarray(v, dtype=np.float64) for v in (full, ctx, img, q)]
    finite = [np.isfinite(v) for v in views]
    if present is None:
        present = np.logical_or.reduce([~np.isnan(v) for v in views])
    has = [np.any(f & present, axis=1) for f in finite]  # (N,) the row has this view at all
    valid = present.copy()
    for f, h in zip(finite, has, strict=True):
        valid &= f | ~h[:, None]
    has_full, has_ctx, has_img, has_q = has
    valid &= (has_full | has_img)[:, None]
    logp = [log_softmax(v, valid) for v in views]
    count = np.maximum(valid.sum(axis=1, keepdims=True), 1)
    uniform = np.where(valid, -np.log(count), -np.inf)
    if numerics == "reference":
        logp = [np.where(h[:, None], lp, uniform) for lp, h in zip(logp, has, strict=True)]
        logp = [
            np.where(valid, np.log(np.maximum(np.exp(lp), REFERENCE_FLOOR)), -np.inf) for lp in logp
        ]
    l_full, l_ctx, l_img, l_q = logp

    use_full = has_full & (stream != "img") | ~has_img
    use_img = has_img & (stream != "full") | ~has_full
    both = (use_full & use_img)[:, None]
    with np.errstate(invalid="ignore"):
        mixed = np.where(valid, np.logaddexp(l_full, l_img) - np.log(2.0), -np.inf)
    log_img = np.where(both, mixed, np.where(use_full[:, None], l_full, l_img))

    if numerics == "exact":
        d = np.where(
            has_ctx,
            divergence_of(log_img, np.where(has_ctx[:, None], l_ctx, uniform), divergence),
            0.0,
        )
        l_ctx = np.where(has_ctx[:, None], l_ctx, np.where(valid, 0.0, -np.inf))
        l_q = np.where(has_q[:, None], l_q, np.where(valid, 0.0, -np.inf))
    else:
        d = np.maximum(divergence_of(log_img, l_ctx, divergence), 0.0)

    decidable = valid.any(axis=1)
    # Without a Full view there is no baseline to be confident in: exact leaves it open, reference
    # has it uniform.
    has_base = decidable & (has_full | (numerics == "reference"))
    base = np.where(has_base, np.argmax(l_full, axis=1), -1).astype(np.int64)
    confidence = np.where(has_base, np.exp(np.max(l_full, axis=1, initial=-np.inf)), 0.0)
    return Streams(valid, log_img, l_ctx, l_q, d, base, confidence)


def usable(valid: Bools, payoff: Floats) -> Bools:
    """(N,) rows with a candidate to choose (``valid``, (N, K)) and a known payoff of each
    (``payoff``, (N, K)): the rows that CADE and the methods beside it are tuned on and answer, in
    the published numbers and in their studies alike."""
    return np.asarray(valid.any(axis=1) & np.isfinite(payoff).all(axis=1))


def score_terms(s: Streams, params: CadeParams) -> tuple[Floats, Floats, Floats]:
    """The three terms of Eq. 9, each (N, K): log P_img, -alpha_i log P_ctx, -beta log P_q; 0 where
    masked."""
    alpha = params.alpha * (1.0 + params.lambda_kl * s.divergence)[:, None]
    ok = s.valid
    img = np.where(ok, s.log_img, 0.0)
    ctx = -alpha * np.where(ok, s.log_ctx, 0.0)
    prior = -params.beta * np.where(ok, s.log_q, 0.0)
    return img, ctx, prior


def decide(s: Streams, params: CadeParams) -> Decision:
    """Eqs. 2 and 8-10: keep the baseline where m_i >= tau, else the argmax of the CADE score."""
    img, ctx, prior = score_terms(s, params)
    score = np.where(s.valid, img + ctx + prior, -np.inf)
    decidable = s.valid.any(axis=1)
    kept = (s.base >= 0) & (s.confidence >= params.tau)
    best = np.argmax(score, axis=1)
    top = np.max(score, axis=1, keepdims=True, initial=-np.inf)
    ties = int(np.sum((np.sum(s.valid & (score == top), axis=1) > 1) & ~kept & decidable))
    choice = np.where(kept, s.base, np.where(decidable, best, -1))
    return Decision(choice.astype(np.int64), kept, score, ties)


def search(
    s: Streams,
    right: ArrayLike,
    task: Task | str = Task.MCQ,
    *,
    kind: Kind = "random",
    draws: int = 10_000,
    seed: int = 0,
) -> SearchResult:
    """The four hyper-parameters that serve validation rows best; `.params` is what `decide` takes.

    ``s``: the streams of the validation rows alone. ``right``: (N,) the index of the right
    candidate of each row, or (N, K) what choosing each candidate earns (1 or 0, or minus its
    error), NaN where unknown: such rows are left out. ``task``: the ranges, of 'mcq' or
    'regression' (Table G). ``kind``: 'random', the paper's protocol of ``draws`` (App. C.4), or
    'exact', line searches over the breakpoints of the objective. Raises ValueError where no row can
    be tuned on, or the shapes don't fit.
    """
    from sdgbias.methods.search import SearchSettings, take, tune  # which import this module

    earned = np.asarray(right)
    if earned.ndim == 1:
        earned = np.arange(s.valid.shape[1]) == earned[:, None]
    if earned.shape != s.valid.shape:
        raise ValueError(f"right has shape {np.shape(right)}; the views are {s.valid.shape}")
    payoff = earned.astype(np.float64)
    rows = usable(s.valid, payoff)
    if not rows.any():
        raise ValueError("no row has a picture view, a candidate and a right answer")
    how = SearchSettings(draws, seed)
    return tune(take(s, rows), payoff[rows], Task(task), search=kind, settings=how)


def argmax_view(logits: Floats, present: Bools) -> Ints:
    """Candidate argmax of one view; (N, K) -> (N,), -1 where the row has no finite candidate. Ties:
    lowest index."""
    z = np.where(present & np.isfinite(logits), logits, -np.inf)
    return np.where(np.isfinite(z).any(axis=1), np.argmax(z, axis=1), -1).astype(np.int64)
