"""The bootstrap of a function of column means, composed of the draws of the package as
the studies compose it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods import stats
from sdgbias.methods.cade import Floats


@dataclass(frozen=True)
class Resampled:
    """value (S,) of S statistics; draws (B, S)."""

    value: Floats
    draws: Floats


def resampled(
    values: ArrayLike,
    clusters: ArrayLike,
    draws: int,
    seed: int = 0,
    *,
    statistic: Callable[[Floats], Floats] = lambda means: means,
) -> Resampled:
    """(N, M) values; ``statistic``: (..., M) means -> (..., S)."""
    x = np.asarray(values, dtype=float)
    x = x[:, None] if x.ndim == 1 else x
    code, groups = stats.codes(clusters)
    columns = [*x.T, np.ones(len(x))]
    sums = np.stack([np.bincount(code, weights=c, minlength=groups) for c in columns], axis=1)

    def of(totals: Floats) -> Floats:
        return statistic(totals[..., :-1] / totals[..., -1:])

    return Resampled(of(sums.sum(axis=0)), of(stats.replicates(sums, draws, seed)))
