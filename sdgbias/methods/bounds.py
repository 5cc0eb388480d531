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

from sdgbias.methods.cade import Bools, Floats, Ints, argmax_view, decide, streams
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


@dataclass(frozen=True)
class BoundedChoice:
    """possible (N, K): candidates that CADE may choose; certain (N,): exactly one; choice (N,):
    that one, else -1. A row without any possible candidate is undecidable, as in `cade.decide`."""

    possible: Bools
    certain: Bools
    choice: Ints


def between(logits: Floats, upper: Floats) -> Bounds:
    """Log-probabilities (N, K), NaN or -inf where censored, with upper bounds (N, K) that are NaN
    where the item lacks the candidate."""
    z, u = np.asarray(logits, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    finite, has = np.isfinite(z), ~np.isnan(u)
    low = np.where(finite, z, np.where(has, -np.inf, np.nan))
    return Bounds(low, np.where(has, np.where(finite, np.maximum(z, u), u), z))


def fill(view: Bounds) -> Floats:
    """(N, K) scores with which CADE may be tuned: known ones as they are, censored ones at their
    upper bound. Any setting is a fair one to judge by `verdict`, whatever it was tuned on, as long
    as that was not the test rows."""
    return np.where(np.isfinite(view.low), view.low, view.high)


def _pairs(upper: Floats, lower: Floats) -> Floats:
    """(N, i, j): by how much j, taken as large as may be, leads i, taken as small as may be."""
    with np.errstate(invalid="ignore"):
        return np.asarray(upper[:, None, :] - lower[:, :, None])


def _shares(view: Bounds, valid: Bools) -> tuple[Floats, Floats]:
    """Smallest and largest probability of each candidate among the valid ones; (N, K) each, 0 where
    masked."""
    others = valid[:, :, None] & ~np.eye(valid.shape[1], dtype=bool)
    with np.errstate(over="ignore"):
        behind, ahead = (
            np.exp(-_pairs(own, rest), where=others, out=np.zeros(others.shape)).sum(axis=1)
            for own, rest in ((view.low, view.high), (view.high, view.low))
        )
    return np.where(valid, 1 / (1 + behind), 0.0), np.where(valid, 1 / (1 + ahead), 0.0)


def _gap(m: Floats, c: Floats) -> Floats:
    """m log(m / c) - m + c >= 0 element-wise; its sum over candidates is KL(m || c), because both
    sum to one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(m > 0, m * (np.log(m) - np.log(c)) - m + c, c)


def _divergence(m: tuple[Floats, Floats], c: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Bounds (N,) of KL(m || c). Each term is convex in (m, c), zero where equal and grows as the
    two part."""
    (m0, m1), (c0, c1) = m, c
    near = np.where(m0 > c1, _gap(m0, c1), np.where(m1 < c0, _gap(m1, c0), 0.0))
    far = np.max([_gap(a, b) for a in m for b in c], axis=0)
    return near.sum(axis=1), far.sum(axis=1)


def _ruled_out(views: list[Bounds], has: list[Bools], valid: Bools, params: CadeParams) -> Bools:
    """(N, K) candidates whose CADE score stays below another's for all scores within the bounds
    (Eqs. 5-9). Each term of the difference of two scores is bounded by itself; it is linear in
    alpha_i, so its largest value lies at an end of that range."""
    _, ctx, _, q = views
    full_share, img_share, ctx_share = (_shares(views[v], valid) for v in (0, 2, 1))
    both, f = (has[0] & has[2])[:, None], has[0][:, None]
    low, high = (
        np.where(both, (a + b) / 2, np.where(f, a, b))
        for a, b in zip(full_share, img_share, strict=True)
    )
    with np.errstate(divide="ignore"):
        most = _pairs(np.log(high), np.log(low))
    if params.alpha > 0:
        lead = -_pairs(ctx.low, ctx.high)
        ends = [
            params.alpha * (1.0 + params.lambda_kl * d) if params.lambda_kl > 0 else params.alpha
            for d in _divergence((low, high), ctx_share)
        ]
        term = np.maximum(*(np.reshape(alpha, (-1, 1, 1)) * lead for alpha in ends))
        most = most + np.where(has[1][:, None, None], term, 0.0)
    if params.beta > 0:
        term = -params.beta * _pairs(q.low, q.high)
        most = most + np.where(has[3][:, None, None], term, 0.0)
    rivals = valid[:, :, None] & ~np.eye(valid.shape[1], dtype=bool)
    return np.asarray((rivals & (most < -SLACK)).any(axis=1))


def verdict(
    full: Bounds,
    ctx: Bounds,
    img: Bounds,
    q: Bounds,
    params: CadeParams,
    present: Bools | None = None,
) -> BoundedChoice:
    """Which candidates CADE may choose, for N rows of four views with bounds (N, K); `present` as
    in `cade.streams`.

    Rows without any interval are decided by `cade.decide` itself. Raises ValueError for a negative
    alpha, lambda or beta.
    """
    if min(params.alpha, params.lambda_kl, params.beta) < 0:
        raise ValueError(f"bounds of CADE need alpha, lambda_kl and beta >= 0, not {params}")
    views = [full, ctx, img, q]
    s = streams(
        full.high, ctx.high, img.high, q.high, present
    )  # same masks as if every score were at its upper bound
    has = [
        np.any(np.isfinite(v.high) & (present if present is not None else True), axis=1)
        for v in views
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        beaten = _ruled_out(views, has, s.valid, params)
    least, most = _shares(full, s.valid)
    kept = _leading(full, s.valid & has[0][:, None]) & (most >= params.tau - SLACK)
    always_kept = has[0] & (least.max(axis=1, initial=0.0) >= params.tau + SLACK)
    possible = kept | (s.valid & ~beaten & ~always_kept[:, None])
    return _told(views, possible, decide(s, params).choice)


def alone(view: Bounds, present: Bools) -> BoundedChoice:
    """Which candidates the argmax of one view may be; (N, K). The largest of the known scores is
    always among them: it is certain unless a bound reaches it, as it can where several spellings of
    a candidate are withheld or where the known one was the last that was named. Without a known
    score every candidate is possible."""
    return _told(
        [view], _leading(view, present & np.isfinite(view.high)), argmax_view(fill(view), present)
    )


def _leading(view: Bounds, valid: Bools) -> Bools:
    """(N, K) valid candidates whose largest score reaches the smallest score of every other one."""
    rivals = valid[:, :, None] & ~np.eye(valid.shape[1], dtype=bool)
    return valid & ~(rivals & (_pairs(view.high, view.low) < 0)).any(axis=1)


def _told(views: list[Bounds], possible: Bools, choice: Ints) -> BoundedChoice:
    """The verdict on the possible choices; rows without any interval get their one `choice`, ties
    included."""
    exact = np.logical_and.reduce(
        [np.all((v.low == v.high) | np.isnan(v.high), axis=1) for v in views]
    )
    possible = np.where(exact[:, None], np.arange(possible.shape[1]) == choice[:, None], possible)
    certain = possible.sum(axis=1) == 1
    return BoundedChoice(
        possible, certain, np.where(certain, np.argmax(possible, axis=1), -1).astype(np.int64)
    )


def payoff_bounds(v: BoundedChoice, payoff: Floats) -> tuple[Floats, Floats]:
    """Least and largest payoff (N,) over the candidates that are possible; payoff (N, K) as in
    `search.pack` (1 or 0 for a multiple-choice question). NaN for undecidable rows. Their means
    bound the accuracy that the full scores would give."""
    some = v.possible.any(axis=1)
    low = np.where(v.possible, payoff, np.inf).min(axis=1)
    high = np.where(v.possible, payoff, -np.inf).max(axis=1)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)
