"""The paper's random search (App. C.4, Table G)."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sdgbias.methods.cade import Floats, Ints, Streams, decide
from sdgbias.methods.protocol import DRAWS, RANGES, SEARCH_SHARE, Ranges, two_stage
from sdgbias.methods.search.kernel import mean_payoff, pack
from sdgbias.types import CadeParams, Task


@dataclass(frozen=True)
class SearchResult:
    """params: the chosen setting; value: its mean payoff on all validation rows; baseline: that of
    the Full view's argmax; n_val, n_search: rows of the full and of the first-stage objective;
    n_draws, seed: the search itself."""

    params: CadeParams
    value: float
    baseline: float
    n_val: int
    n_search: int
    n_draws: int
    seed: int


def take(s: Streams, rows: np.ndarray) -> Streams:
    """The same streams for a subset of rows (index or mask)."""
    return Streams(*(getattr(s, field.name)[rows] for field in fields(Streams)))


def decidable(s: Streams) -> np.ndarray:
    """Indices of the rows that can be tuned on. Raises ValueError where there are none."""
    rows = np.flatnonzero(s.valid.any(axis=1))
    if rows.size == 0:
        raise ValueError("a search needs at least one validation row with an image view")
    return rows


@dataclass(frozen=True)
class SearchSettings:
    """draws: random draws; seed: of all that is drawn; ranges: of alpha, lambda_kl, beta and tau,
    None for Table G's; share: of the rows, that score all draws of a random search first."""

    draws: int = DRAWS
    seed: int = 0
    ranges: Ranges | None = None
    share: float = SEARCH_SHARE


def draw_settings(ranges: Ranges, draws: int, rng: np.random.Generator) -> Floats:
    """(draws, 4) joint uniform draws; a range of width 0 holds a parameter fixed."""
    low, high = np.array(ranges, dtype=np.float64).T
    return rng.uniform(low, high, size=(draws, 4))


def baseline_value(s: Streams, payoff: Floats, params: CadeParams) -> float:
    """Mean payoff of the Full view's argmax; a row without a Full view counts as CADE decides
    it."""
    choice = np.where(s.base >= 0, s.base, decide(s, params).choice)
    return float(payoff[np.arange(len(payoff)), choice].mean())


def random_search(
    s: Streams,
    payoff: Floats,
    task: Task,
    settings: SearchSettings = SearchSettings(),
) -> SearchResult:
    """The paper's protocol: joint uniform draws scored on 20 % of the rows, the best 100 again on
    all of them (App. C.4).

    `s` and `payoff` hold validation rows only, at least one of them decidable; undecidable rows are
    left out here and counted by the caller. Ties go to the earlier draw. Same seed and rows, same
    result.
    """
    rows = decidable(s)
    s, payoff = take(s, rows), payoff[rows]
    draws, seed = settings.draws, settings.seed
    rng = np.random.default_rng(seed)

    def value(some: Ints, points: Floats) -> Floats:
        return mean_payoff(pack(take(s, some), payoff[some]), points)

    drawn = draw_settings(settings.ranges or RANGES[task], draws, rng)
    best, final, n_search = two_stage(np.arange(rows.size), drawn, value, rng, settings.share)
    params = CadeParams(*map(float, best))
    baseline = baseline_value(s, payoff, params)
    return SearchResult(params, final, baseline, int(rows.size), n_search, draws, seed)
