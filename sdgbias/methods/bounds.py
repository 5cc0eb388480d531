"""CADE (Sec. 4) on scores of which only bounds are known, as pure array code in float64. No I/O, no
pandas.

For a candidate outside its k likeliest tokens, an interface only implies that it lies below the
last one returned. Such a score is *censored*: an interval, never zero. Per row this module finds
every candidate that CADE (`cade.decide`, exact numerics, KL, stream full+img) could choose for
*some* scores within the intervals. Where that is one candidate the decision is certain: no value of
what was withheld can change it. Where it is more the row is open, and what follows from the choice
has a lower and an upper value.

The set is never too small. It may be too large, because the bounds of D and of each pair of
candidates are taken one by one. A candidate censored in CTX+Q or Q-only can usually win, since its
score grows without limit as its probability there goes to zero (Eq. 9 divides by it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdgbias.methods.cade import Bools, Floats, Ints, argmax_view, decide, log_softmax, streams
from sdgbias.types import CadeParams

#: A candidate is ruled out only if it loses by more than this, so that rounding never makes a
#: decision certain.
SLACK = 1e-9


@dataclass(frozen=True)
class Bounds:
    """One view of N rows: low <= logit <= high, both (N, K). low is -inf where nothing bounds it
    from below; both are NaN where the item lacks the candidate; a row of NaN is a missing view. The
    unit of a view's logits may have any offset per row, shared by low and high."""

    low: Floats
    high: Floats


def between(logits: Floats, upper: Floats) -> Bounds:
    """Log-probabilities (N, K), NaN or -inf where censored, with upper bounds (N, K) that are NaN
    where the item lacks the candidate."""
    z, u = np.asarray(logits, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    withheld = ~np.isfinite(z) & ~np.isnan(u)
    return Bounds(np.where(withheld, -np.inf, z), np.where(withheld, u, np.fmax(z, u)))


def fill(view: Bounds) -> Floats:
    """(N, K) scores with which CADE may be tuned: known ones as they are, censored ones at their
    upper bound. Any setting is a fair one to judge by `verdict`, whatever it was tuned on, as long
    as that was not the test rows."""
    return np.where(np.isfinite(view.low), view.low, view.high)


def alone(view: Bounds, present: Bools) -> Bools:
    """(N, K) candidates that may be the argmax of one view; present (N, K). The largest of the
    known scores is always among them, and alone unless a bound reaches it, as it can where several
    spellings of a candidate are withheld or where the known one was the last that was named.
    Without a known score every candidate is possible."""
    possible = _may_lead(view, present & np.isfinite(view.high))
    return _with_exact_rows(possible, [view], argmax_view(fill(view), present))


def verdict(
    full: Bounds,
    ctx: Bounds,
    img: Bounds,
    q: Bounds,
    params: CadeParams,
    present: Bools | None = None,
) -> Bools:
    """(N, K) candidates that CADE may choose, for N rows of four views with bounds (N, K);
    `present` as in `cade.streams`. A row with just one is certain; a row without any is
    undecidable, as in `cade.decide`.

    Rows without any interval are decided by `cade.decide` itself. Raises ValueError for a negative
    alpha, lambda or beta.
    """
    if min(params.alpha, params.lambda_kl, params.beta) < 0:
        raise ValueError(f"bounds of CADE need alpha, lambda_kl and beta >= 0, not {params}")
    views = [full, ctx, img, q]
    # the masks are those of scores that are all at their upper bounds
    s = streams(full.high, ctx.high, img.high, q.high, present)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        least, most = _shares(full, s.valid)
        may_keep = _may_lead(full, s.valid) & (most >= params.tau - SLACK)
        always_keeps = least.max(axis=1) >= params.tau + SLACK
        may_win = s.valid & ~_ruled_out(views, s.valid, params)
    possible = may_keep | (may_win & ~always_keeps[:, None])
    return _with_exact_rows(possible, views, decide(s, params).choice)


def payoff_bounds(possible: Bools, payoff: Floats) -> tuple[Floats, Floats]:
    """Least and largest payoff (N,) over the candidates that are possible; payoff (N, K) as in
    `search.pack` (1 or 0 for a multiple-choice question). NaN for undecidable rows. Their means
    bound the accuracy that the full scores would give."""
    some = possible.any(axis=1)
    low = np.where(possible, payoff, np.inf).min(axis=1)
    high = np.where(possible, payoff, -np.inf).max(axis=1)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)


def _with_exact_rows(possible: Bools, views: list[Bounds], choice: Ints) -> Bools:
    """``possible``, with the one `choice` of rows without any interval, ties included."""
    exact = np.all([(v.low == v.high) | np.isnan(v.high) for v in views], axis=(0, 2))
    return np.where(exact[:, None], np.arange(possible.shape[1]) == choice[:, None], possible)


def _leads(low: Floats, high: Floats) -> Floats:
    """(N, i, j): the most by which i may lead j."""
    return np.asarray(high[:, :, None] - low[:, None, :])


def _may_lead(view: Bounds, valid: Bools) -> Bools:
    """(N, K) valid candidates whose largest score reaches the smallest score of every other one."""
    with np.errstate(invalid="ignore"):
        behind = _leads(view.low, view.high) < 0
    return valid & ~(behind & valid[:, None, :]).any(axis=2)


def _shares(view: Bounds, valid: Bools) -> tuple[Floats, Floats]:
    """Least and largest probability of each candidate among the valid ones, (N, K) each: its score
    at one end, all others at the other. NaN where the view is missing."""
    candidates = np.arange(valid.shape[1])

    def share(own: Floats, others: Floats) -> Floats:
        logs = [log_softmax(np.where(candidates == k, own, others), valid) for k in candidates]
        return np.exp(np.stack([logs[k][:, k] for k in candidates], axis=1))

    return share(view.low, view.high), share(view.high, view.low)


def _gap(m: Floats, c: Floats) -> Floats:
    """m log(m / c) - m + c >= 0 element-wise; its sum over candidates is KL(m || c), because both
    sum to one."""
    return np.where(m > 0, m * (np.log(m) - np.log(c)) - m + c, c)


def _divergence(m: tuple[Floats, Floats], c: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Bounds (N,) of KL(m || c). Each term is convex in (m, c), zero where equal and grows as the
    two part."""
    (m0, m1), (c0, c1) = m, c
    near = np.where(m0 > c1, _gap(m0, c1), np.where(m1 < c0, _gap(m1, c0), 0.0))
    far = np.max([_gap(a, b) for a in m for b in c], axis=0)
    return near.sum(axis=1), far.sum(axis=1)


def _ruled_out(views: list[Bounds], valid: Bools, params: CadeParams) -> Bools:
    """(N, K) candidates whose CADE score stays below another's for all scores within the bounds
    (Eqs. 5-9). Each term of the difference of two scores is bounded by itself; it is linear in
    alpha_i, so its largest value lies at an end of that range. A missing view gives no term."""
    full, ctx, img, q = views
    low, high = (
        np.where(np.isnan(a), b, np.where(np.isnan(b), a, (a + b) / 2))
        for a, b in zip(_shares(full, valid), _shares(img, valid), strict=True)
    )
    lead = _leads(np.log(low), np.log(high))
    if params.alpha > 0:
        alphas = [np.full(len(valid), params.alpha)]
        if params.lambda_kl > 0:
            ends = _divergence((low, high), _shares(ctx, valid))
            alphas = [params.alpha * (1.0 + params.lambda_kl * d) for d in ends]
        by_ctx = _leads(-ctx.high, -ctx.low)
        term = np.max([alpha[:, None, None] * by_ctx for alpha in alphas], axis=0)
        lead = lead + np.where(np.isnan(ctx.high)[:, :, None], 0.0, term)
    if params.beta > 0:
        term = params.beta * _leads(-q.high, -q.low)
        lead = lead + np.where(np.isnan(q.high)[:, :, None], 0.0, term)
    return np.asarray(((lead < -SLACK) & valid[:, None, :]).any(axis=2))
