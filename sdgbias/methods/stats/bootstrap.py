"""Bootstrap over clusters (places are drawn with replacement, with all their rows), of any function
of column means.

A draw is a multinomial weight per cluster; the draws' sums are one matrix product with the
per-cluster sums of the columns, made in blocks so that memory stays bounded. Weights come from a
counter per draw: the same seed gives the same draws, in blocks of any size and for any number of
columns.

Draws of few clusters vary too little: with 5 of them plain percentiles cover 80 to 85 % where 95
are stated. What is read from them is therefore widened (`widening`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats
from sdgbias.methods.stats.intervals import LEVEL

#: Numbers in one block of weights (64 MiB of float64), and the share of non-zeros below which a
#: sparse product is faster.
BLOCK, SPARSE = 1 << 23, 0.08


def replicates(sums: Any, draws: int, seed: int) -> Floats:
    """(G, M) per-cluster sums, dense or scipy.sparse -> (B, M) sums of each bootstrap sample of G
    clusters."""
    from scipy import sparse

    groups, columns = sums.shape
    out = np.empty((draws, columns))
    starts = np.random.SeedSequence(seed).generate_state(draws, np.uint64)
    filled = sums.nnz if sparse.issparse(sums) else np.count_nonzero(sums)
    thin = filled < SPARSE * groups * columns
    turned = sparse.csr_array(sums.T) if thin else None
    whole = None if thin else (sums.toarray() if sparse.issparse(sums) else sums)
    block = max(1, min(64 if thin else draws, BLOCK // max(1, groups)))
    from sdgbias.methods.stats._loops import fill  # numba: not for those who only want an interval

    weights = np.empty((min(block, draws), groups))
    for at in range(0, draws, block):
        now = weights[: min(block, draws - at)]
        fill(starts[at : at + block], now)
        out[at : at + block] = (turned @ np.ascontiguousarray(now.T)).T if thin else now @ whole
    return out


def effective(sizes: ArrayLike) -> Floats:
    """(..., G) rows of each cluster -> (...,) clusters of one size that a mean over them is worth
    (Kish 1965); NaN without rows."""
    n = np.asarray(sizes, dtype=float)
    with np.errstate(invalid="ignore"):
        worth: Floats = n.sum(axis=-1) ** 2 / (n**2).sum(axis=-1)
    return worth


def widening(worth: ArrayLike) -> Floats:
    """How much wider than its draws an interval over so many `effective` clusters is: the t
    quantile on one fewer over the normal one, times sqrt(G / (G - 1)), because resampling G
    clusters loses a degree of freedom (Hesterberg 2015)."""
    from scipy.special import ndtri, stdtrit

    many, tail = np.maximum(np.asarray(worth, dtype=float), 2.0), (1 + LEVEL) / 2
    wider: Floats = stdtrit(many - 1, tail) * np.sqrt(many / (many - 1)) / ndtri(tail)
    return wider
