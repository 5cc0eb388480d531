"""Tuning of a baseline's free parameters on validation rows."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from sdgbias.methods.baselines import METHODS, Evidence, top_score
from sdgbias.methods.cade import Bools, Floats, Ints, usable
from sdgbias.methods.protocol import DRAWS, SEARCH_SHARE, two_stage


@dataclass(frozen=True)
class Tuned:
    """settings: the best draw; value: its mean payoff on all val rows; n_val, n_search: rows of
    both stages."""

    settings: dict[str, float]
    value: float
    n_val: int
    n_search: int


@numba.njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def baseline_payoff(valid, log_full, slope, top, payoff, draws):  # type: ignore[no-untyped-def]  # pragma: no cover
    """(C, 2) draws of x and log b -> (C,) mean payoff over N rows; the arithmetic of `_linear`,
    operation for operation."""
    n_rows, n_candidates = payoff.shape
    out = np.empty(draws.shape[0])
    for c in numba.prange(draws.shape[0]):
        x, cut = draws[c, 0], draws[c, 1]
        total = 0.0
        for i in range(n_rows):
            best, choice = -np.inf, 0
            for a in range(n_candidates):
                if valid[i, a] and log_full[i, a] >= top[i] + cut:
                    s = log_full[i, a] + x * slope[i, a]
                    if s > best:
                        best, choice = s, a
            total += payoff[i, choice]
        out[c] = total / n_rows
    return out


def tune(
    name: str,
    e: Evidence,
    payoff: Floats,
    val: Bools,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    share: float = SEARCH_SHARE,
) -> Tuned | None:
    """A tuned method's settings by CADE's protocol (App. C.4): joint uniform draws over their
    ranges, scored first on a share of the val rows. Rows with an unknown payoff (payoff (N, K) as
    in `search.pack`) are left out. None without val rows."""
    method = METHODS[name]
    if method.tuned is None or method.terms is None:
        raise ValueError(f"{name} has nothing to tune")
    valid, log_full, slope = method.terms(e)
    rows = np.flatnonzero(val & usable(valid, payoff))
    if rows.size == 0:
        return None

    def value(at: Ints, settings: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            more = settings.shape[1] > 1
            cut = np.log(settings[:, 1]) if more else np.full(len(settings), -np.inf)
        of_rows = valid[at], log_full[at], slope[at], top_score(valid[at], log_full[at])
        earned = np.ascontiguousarray(payoff[at], dtype=np.float64)
        return np.asarray(baseline_payoff(*of_rows, earned, np.column_stack([settings[:, 0], cut])))

    rng = np.random.default_rng(seed)
    low, high = np.array(list(method.tuned.values())).T
    drawn = rng.uniform(low, high, size=(draws, len(low)))
    best, final, n_search = two_stage(rows, drawn, value, rng, share)
    chosen = dict(zip(method.tuned, map(float, best), strict=True))
    return Tuned(chosen, final, int(rows.size), n_search)
