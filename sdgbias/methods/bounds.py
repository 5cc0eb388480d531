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


def _others(z: Floats, *left_out: int) -> Floats:
    """(N,) logsumexp of the columns that are not left out; -inf if none."""
    rest = np.delete(z, left_out, axis=1)
    top = np.max(rest, axis=1, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(rest - top[:, None]).sum(axis=1)) + top)


def _shares(view: Bounds, valid: Bools) -> tuple[Floats, Floats]:
    """Smallest and largest probability of each candidate among the valid ones; (N, K) each, 0 where
    masked."""
    low, high = np.where(valid, view.low, -np.inf), np.where(valid, view.high, -np.inf)
    least, most = np.zeros_like(low), np.zeros_like(high)
    for j in range(low.shape[1]):
        for out, own, rest in (
            (least, low[:, j], _others(high, j)),
            (most, high[:, j], _others(low, j)),
        ):
            with np.errstate(invalid="ignore"):
                out[:, j] = np.where(np.isneginf(rest), 1.0, np.exp(own - np.logaddexp(own, rest)))
    return np.where(valid, least, 0.0), np.where(valid, most, 0.0)


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


def _pair(view: Bounds, i: int, j: int, rest: Floats) -> tuple[Floats, Floats]:
    """(log P_j, log P_i) with j as large and i as small as may be and the other candidates summing
    to exp(rest); (N,) each."""
    top, bottom = view.high[:, j], view.low[:, i]
    total = np.logaddexp(np.logaddexp(top, bottom), rest)
    return top - total, bottom - total


def _lead(full: Bounds, img: Bounds, has: tuple[Bools, Bools], i: int, j: int) -> Floats:
    """Largest possible log P_img,j - log P_img,i (Eqs. 5-6); (N,). It is monotone in every score:
    up in j's, down in i's, and in the other candidates only through the ratio of the two views'
    normalisers, so two corners hold the maximum."""
    corners = []
    for f_rest, g_rest in ((full.low, img.high), (full.high, img.low)):
        f_j, f_i = _pair(full, i, j, _others(f_rest, i, j))
        g_j, g_i = _pair(img, i, j, _others(g_rest, i, j))
        corners.append(np.logaddexp(f_j, g_j) - np.logaddexp(f_i, g_i))
    mixed = np.maximum(*corners)
    alone = np.where(has[0], full.high[:, j] - full.low[:, i], img.high[:, j] - img.low[:, i])
    lead: Floats = np.where(has[0] & has[1], mixed, alone)
    return np.where(np.isnan(lead), np.inf, lead)


def _ruled_out(views: list[Bounds], has: list[Bools], valid: Bools, params: CadeParams) -> Bools:
    """(N, K) candidates whose CADE score stays below another's for all scores within the bounds
    (Eqs. 7-9)."""
    full, ctx, img, q = (
        Bounds(np.where(valid, v.low, -np.inf), np.where(valid, v.high, -np.inf)) for v in views
    )
    shares = [_shares(v, valid) for v in (full, img, ctx)]
    both, f = (has[0] & has[2])[:, None], has[0][:, None]
    mixture = [
        np.where(both, (shares[0][s] + shares[1][s]) / 2, np.where(f, shares[0][s], shares[1][s]))
        for s in (0, 1)
    ]
    alpha_low = alpha_high = np.full(len(valid), params.alpha)
    if params.alpha * params.lambda_kl > 0:
        d_low, d_high = _divergence((mixture[0], mixture[1]), shares[2])
        alpha_low, alpha_high = (
            params.alpha * (1.0 + params.lambda_kl * np.where(has[1], d, 0.0))
            for d in (d_low, d_high)
        )
    out = np.zeros_like(valid)
    for i in range(valid.shape[1]):
        for j in range(valid.shape[1]):
            if i == j:
                continue
            most = _lead(full, img, (has[0], has[2]), i, j)
            if params.alpha > 0:
                less = ctx.low[:, j] - ctx.high[:, i]  # the least by which j leads in CTX+Q
                most = most + np.where(
                    has[1], np.where(less < 0, -alpha_high * less, -alpha_low * less), 0.0
                )
            if params.beta > 0:
                most = most + np.where(has[3], -params.beta * (q.low[:, j] - q.high[:, i]), 0.0)
            out[:, j] |= valid[:, i] & (most < -SLACK)
    return out


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
    low = np.where(valid, view.low, -np.inf)
    rival = np.stack(
        [np.max(np.delete(low, j, axis=1), axis=1, initial=-np.inf) for j in range(low.shape[1])],
        axis=1,
    )
    return valid & (view.high >= rival)


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
    search.py (1 or 0 for a multiple-choice question). NaN for undecidable rows. Their means bound
    the accuracy that the full scores would give."""
    some = v.possible.any(axis=1)
    low = np.where(v.possible, payoff, np.inf).min(axis=1)
    high = np.where(v.possible, payoff, -np.inf).max(axis=1)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)
