"""Scoring many hyper-parameter draws on the same rows: compiled, threaded, without an array of
draws x rows x candidates.

Rows stand by falling confidence. The gate of a draw then keeps a prefix of them, whose payoff is a
prefix sum; only the rest is scored. Draws stand by falling tau, so that the draws which score a row
are a prefix as well, and the innermost loop runs over them side by side. Every draw adds up its
rows in one fixed order, whatever the threads do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats, Ints, Streams

#: Draws per piece of work, and how many of them the inner loop takes at once.
_BLOCK, _LANES = 256, 32


@dataclass(frozen=True)
class Packed:
    """Rows as the kernel reads them, by falling confidence (rows without a baseline last).

    table (N, 1 + 4K): D, then log_img, log_ctx, log_q and payoff of each candidate in turn; a
    masked candidate has log_img = -inf. confidence (N,): -inf without a baseline. base (N,): payoff
    of the baseline, 0 without one. kept (N + 1,): its running sum. order (N,): which of the given
    rows stands where.
    """

    table: Floats
    confidence: Floats
    base: Floats
    kept: Floats
    order: Ints

    @property
    def n(self) -> int:
        return len(self.table)

    @property
    def options(self) -> tuple[int, ...]:
        """K zeros: the kernels are compiled for each length of this tuple, so that their loops over
        candidates are unrolled."""
        return (0,) * int((self.table.shape[1] - 1) // 4)


def pack(s: Streams, payoff: Floats) -> Packed:
    """Streams and payoff (N, K) as the kernel reads them. Every row must have a valid candidate.

    payoff[i, a] is what row i earns if candidate a is chosen: 1 or 0 for a multiple-choice
    question, minus the absolute error of the number that digit a leads to for a regression
    question. One kernel serves both tasks.
    """
    n, k = payoff.shape
    has_base = s.base >= 0
    confidence = np.where(has_base, s.confidence, -np.inf)
    order = np.argsort(-confidence, kind="stable")
    valid = s.valid[order]
    table = np.empty((n, 1 + 4 * k))
    table[:, 0] = s.divergence[order]
    table[:, 1::4] = np.where(valid, s.log_img[order], -np.inf)
    table[:, 2::4] = np.where(valid, s.log_ctx[order], 0.0)
    table[:, 3::4] = np.where(valid, s.log_q[order], 0.0)
    table[:, 4::4] = payoff[order]
    base = np.where(has_base, payoff[np.arange(n), np.maximum(s.base, 0)], 0.0)[order]
    return Packed(table, confidence[order], base, np.concatenate(([0.0], np.cumsum(base))), order)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _sum_block(table, confidence, alpha, lambda_kl, beta, tau, total, options):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Adds to total (B,) what the rows behind each draw's gate earn; the arithmetic of
    `cade.decide`, operation for operation."""
    live = 0
    for i in range(table.shape[0]):
        sure = confidence[i]
        while live < tau.size and tau[live] > sure:
            live += 1
        divergence = table[i, 0]
        for c in range((live + _LANES - 1) // _LANES * _LANES):
            alpha_i = alpha[c] * (1.0 + lambda_kl[c] * divergence)
            best = table[i, 1] - alpha_i * table[i, 2] - beta[c] * table[i, 3]
            earned = table[i, 4]
            for a in range(1, len(options)):
                score = (
                    table[i, 4 * a + 1]
                    - alpha_i * table[i, 4 * a + 2]
                    - beta[c] * table[i, 4 * a + 3]
                )
                payoff = table[i, 4 * a + 4]
                earned = payoff if score > best else earned
                best = score if score > best else best
            total[c] += earned if tau[c] > sure else 0.0


@numba.njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _sum(table, confidence, alpha, lambda_kl, beta, tau, total, options):  # type: ignore[no-untyped-def]  # pragma: no cover
    blocks = alpha.size // _BLOCK
    for j in numba.prange(blocks):
        # a block of high tau scores more rows: taken in turns from both ends, neighbours cost the
        # same
        low = _BLOCK * (j // 2 if j % 2 == 0 else blocks - 1 - j // 2)
        high = low + _BLOCK
        _sum_block(
            table,
            confidence,
            alpha[low:high],
            lambda_kl[low:high],
            beta[low:high],
            tau[low:high],
            total[low:high],
            options,
        )


def mean_payoff(rows: Packed, draws: ArrayLike) -> Floats:
    """Mean payoff of each draw over the packed rows. draws (C, 4) as alpha, lambda_kl, beta, tau ->
    (C,).

    Choices are those of `cade.decide`, bit for bit. Sums of 0 and 1 are exact; other sums can
    differ from numpy's by rounding.
    """
    settings = np.asarray(draws, dtype=np.float64)
    order = np.argsort(-settings[:, 3], kind="stable")
    columns = np.zeros((4, -(-len(settings) // _BLOCK) * _BLOCK))
    columns[3] = -np.inf  # a draw that fills up the last block keeps every row
    columns[:, : len(settings)] = settings[order].T
    total = np.zeros(columns.shape[1])
    _sum(rows.table, rows.confidence, *columns, total, rows.options)
    out: Floats = rows.kept[count_kept(rows, settings[:, 3])]
    out[order] += total[: len(settings)]
    return out / rows.n


def count_kept(rows: Packed, tau: ArrayLike) -> Ints:
    """How many rows a gate keeps: those with confidence >= tau, which are the first ones."""
    return rows.n - np.asarray(
        np.searchsorted(rows.confidence[::-1], tau, side="left"), dtype=np.int64
    )


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _each(table, first, alpha, lambda_kl, beta, out, options):  # type: ignore[no-untyped-def]  # pragma: no cover
    """What each row from `first` on earns when it is scored -> out[first:]."""
    for i in range(first, table.shape[0]):
        alpha_i = alpha * (1.0 + lambda_kl * table[i, 0])
        best = table[i, 1] - alpha_i * table[i, 2] - beta * table[i, 3]
        earned = table[i, 4]
        for a in range(1, len(options)):
            score = table[i, 4 * a + 1] - alpha_i * table[i, 4 * a + 2] - beta * table[i, 4 * a + 3]
            earned = table[i, 4 * a + 4] if score > best else earned
            best = score if score > best else best
        out[i] = earned


def scored_payoff(
    rows: Packed, alpha: float, lambda_kl: float, beta: float, first: int = 0
) -> Floats:
    """(N,) what each packed row earns without a gate; baseline payoff for the rows before
    `first`."""
    out = rows.base.copy()
    _each(rows.table, first, alpha, lambda_kl, beta, out, rows.options)
    return out


def one_payoff(rows: Packed, point: Floats) -> float:
    """Mean payoff of one setting (4,), the very number that `mean_payoff` gives, on this thread:
    for searches that go step by step."""
    alpha, lambda_kl, beta, tau = (float(x) for x in point)
    first = int(count_kept(rows, tau))
    scored = scored_payoff(rows, alpha, lambda_kl, beta, first)[first:]
    # cumsum adds one by one, as the kernel does
    behind = float(np.cumsum(scored)[-1]) if scored.size else 0.0
    return float(rows.kept[first] + behind) / rows.n


def row_payoff(rows: Packed, draws: ArrayLike) -> Floats:
    """(C, N) what each row earns under each draw, in the order of the rows that were packed."""
    settings = np.asarray(draws, dtype=np.float64)
    out = np.empty((len(settings), rows.n))
    for c, (alpha, lambda_kl, beta, tau) in enumerate(settings):
        out[c, rows.order] = scored_payoff(rows, alpha, lambda_kl, beta, int(count_kept(rows, tau)))
    return out
