"""Tuning CADE on validation rows: the paper's random search (App. C.4, Table G), compiled and threaded.

The objective is a payoff table: `payoff[i, a]` is what row i earns if candidate a is chosen - 1 or 0 for a multiple-choice
question, minus the absolute error of the number that digit a leads to for a regression question. So one kernel serves both
tasks, and the test rows never enter this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from sdgbias.cade import Floats, Streams, decide
from sdgbias.types import CadeParams, Task

#: Table G, in the order alpha, lambda_kl, beta, tau.
RANGES: dict[Task, tuple[tuple[float, float], ...]] = {
    Task.MCQ: ((0.5, 2.0), (0.0, 5.0), (0.0, 1.5), (0.65, 0.99)),
    Task.REGRESSION: ((0.0, 7.0), (0.0, 7.0), (0.0, 7.0), (0.25, 0.99)),
}
DRAWS, SEARCH_SHARE, FINALISTS = 10_000, 0.2, 100


@dataclass(frozen=True)
class SearchResult:
    """params: the chosen setting; value: its mean payoff on all validation rows; baseline: that of the Full view's argmax;
    n_val, n_search: rows of the full and of the first-stage objective; n_draws, seed: the search itself."""

    params: CadeParams
    value: float
    baseline: float
    n_val: int
    n_search: int
    n_draws: int
    seed: int


@numba.njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _mean_payoff(log_img, log_ctx, log_q, valid, divergence, base, confidence, payoff, draws):  # type: ignore[no-untyped-def]  # pragma: no cover
    """(C, 4) draws -> (C,) mean payoff over N rows; the arithmetic of `cade.decide`, operation for operation."""
    n_rows, n_candidates = payoff.shape
    out = np.empty(draws.shape[0])
    for c in numba.prange(draws.shape[0]):
        alpha, lambda_kl, beta, tau = draws[c, 0], draws[c, 1], draws[c, 2], draws[c, 3]
        total = 0.0
        for i in range(n_rows):
            choice = base[i]
            if choice < 0 or confidence[i] < tau:
                alpha_i = alpha * (1.0 + lambda_kl * divergence[i])
                best = -np.inf
                choice = 0
                for a in range(n_candidates):
                    if valid[i, a]:
                        s = log_img[i, a] + -alpha_i * log_ctx[i, a] + -beta * log_q[i, a]
                        if s > best:
                            best = s
                            choice = a
            total += payoff[i, choice]
        out[c] = total / n_rows
    return out


def evaluate_draws(s: Streams, payoff: Floats, draws: Floats) -> Floats:
    """Mean payoff of each hyper-parameter draw. draws (C, 4) as alpha, lambda_kl, beta, tau; payoff (N, K) -> (C,)."""
    result: Floats = _mean_payoff(
        s.log_img, s.log_ctx, s.log_q, s.valid, s.divergence, s.base, s.confidence,
        np.ascontiguousarray(payoff, dtype=np.float64), np.ascontiguousarray(draws, dtype=np.float64),
    )  # fmt: skip
    return result


def take(s: Streams, rows: np.ndarray) -> Streams:
    """The same streams for a subset of rows (index or mask)."""
    return Streams(s.valid[rows], s.log_img[rows], s.log_ctx[rows], s.log_q[rows], s.divergence[rows], s.base[rows], s.confidence[rows])


def random_search(s: Streams, payoff: Floats, task: Task, *, draws: int = DRAWS, seed: int = 0) -> SearchResult:
    """The paper's protocol: joint uniform draws scored on 20 % of the rows, the best 100 again on all of them (App. C.4).

    `s` and `payoff` hold validation rows only, at least one of them decidable; undecidable rows are left out here and
    counted by the caller. Ties go to the earlier draw. Same seed and rows, same result.
    """
    rows = np.flatnonzero(s.valid.any(axis=1))
    if rows.size == 0:
        raise ValueError("random_search needs at least one validation row with an image view")
    s, payoff = take(s, rows), payoff[rows]
    rng = np.random.default_rng(seed)
    low, high = np.array(RANGES[task]).T
    settings = rng.uniform(low, high, size=(draws, 4))
    n_search = max(1, round(SEARCH_SHARE * rows.size))
    subset = np.sort(rng.permutation(rows.size)[:n_search])
    first = evaluate_draws(take(s, subset), payoff[subset], settings)
    finalists = np.sort(np.argsort(-first, kind="stable")[:FINALISTS])
    final = evaluate_draws(s, payoff, settings[finalists])
    best = int(np.argmax(final))
    params = CadeParams(*(float(x) for x in settings[finalists[best]]))
    baseline_choice = np.where(s.base >= 0, s.base, decide(s, params).choice)
    baseline = float(payoff[np.arange(rows.size), baseline_choice].mean())
    return SearchResult(params, float(final[best]), baseline, int(rows.size), n_search, draws, seed)
