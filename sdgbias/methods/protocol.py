"""The paper's tuning protocol: what a random search depends on besides its rows, draws and seed
(App. C.4, Table G). Apart from the search itself, so that a run's id needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sdgbias.types import Task

Ranges = Sequence[tuple[float, float]]
#: Table G, in the order alpha, lambda_kl, beta, tau.
RANGES: dict[Task, tuple[tuple[float, float], ...]] = {
    Task.MCQ: ((0.5, 2.0), (0.0, 5.0), (0.0, 1.5), (0.65, 0.99)),
    Task.REGRESSION: ((0.0, 7.0), (0.0, 7.0), (0.0, 7.0), (0.25, 0.99)),
}
#: Random draws, the share of val that scores them all, and how many are scored again on all of val.
DRAWS, SEARCH_SHARE, FINALISTS = 10_000, 0.2, 100


def constants() -> dict[str, object]:
    """What a random search depends on besides its rows, draws and seed; JSON values."""
    return {
        "ranges": {task.value: [list(pair) for pair in RANGES[task]] for task in RANGES},
        "search_share": SEARCH_SHARE,
        "finalists": FINALISTS,
    }


def two_stage(
    rows: NDArray[np.int64],
    settings: NDArray[np.float64],
    value: Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]],
    rng: np.random.Generator,
    share: float = SEARCH_SHARE,
) -> tuple[NDArray[np.float64], float, int]:
    """App. C.4: (C, P) settings scored on a ``share`` of the ``rows``, the best 100 again on
    all of them.
    ``value``: rows and settings -> (C,) mean payoff. The best setting (P,), its value and the
    number of rows of the first stage. Ties go to the earlier setting. Raises ValueError for a
    payoff that is NaN, which every comparison would let win."""
    n_search = max(1, round(share * rows.size))
    subset = rows[np.sort(rng.permutation(rows.size)[:n_search])]
    first = value(subset, settings)
    finalists = np.sort(np.argsort(-first, kind="stable")[:FINALISTS])
    final = value(rows, settings[finalists])
    if np.isnan(first).any() or np.isnan(final).any():
        raise ValueError("a payoff is NaN: search only rows whose payoffs are known")
    best = int(np.argmax(final))
    return settings[finalists[best]], float(final[best]), n_search
