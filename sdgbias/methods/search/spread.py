"""How far the optimum moves when places are drawn anew: a bootstrap over clusters of the tuning
itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats, Streams
from sdgbias.methods.protocol import RANGES, Ranges
from sdgbias.methods.search.kernel import Packed, mean_payoff, pack, row_payoff
from sdgbias.methods.search.random import SearchSettings, decidable, draw_settings, take
from sdgbias.types import CadeParams, Task

#: Resamples held in memory at a time.
_CHUNK = 50
#: Settings that may win beside the found one: the best draws, and around it, at each distance (as a
#: share of the ranges), the best of some that are drawn there. Without the near ones a finely tuned
#: setting would win every resample.
_DRAWN, _SCALES, _NEAR, _NEAR_DRAWN = 100, (0.3, 0.1, 0.03, 0.01, 0.003), 40, 1000


@dataclass(frozen=True)
class SearchSpread:
    """95 % percentile intervals over resampled places. params (4, 2): of the winning alpha,
    lambda_kl, beta, tau; value: of what the winner earns in its own resample; given: of what the
    given setting earns there.
    n_candidates: settings that could win; clusters: places that are resampled."""

    params: Floats
    value: tuple[float, float]
    given: tuple[float, float]
    n_candidates: int
    clusters: int


def search_spread(
    s: Streams,
    payoff: Floats,
    task: Task,
    found: CadeParams,
    clusters: ArrayLike,
    settings: SearchSettings = SearchSettings(),
    *,
    resamples: int = 500,
) -> SearchSpread:
    """Repeats the choice of the best setting on `resamples` resamples of the places (clusters (N,),
    with replacement).

    The choice is among `found`, the best random draws and settings near `found`, some 300 in all,
    not a search of its own: the intervals are of the optimum among these. Ties go to `found`.
    Undecidable rows are left out.
    """
    use = decidable(s)
    rows = pack(take(s, use), payoff[use])
    at = np.array([found.alpha, found.lambda_kl, found.beta, found.tau])
    limits = settings.ranges or RANGES[task]
    pool = _candidates(rows, at, limits, settings.draws, settings.seed)
    names, codes = np.unique(np.asarray(clusters)[use], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(names.size))
    earned = (row_payoff(rows, setting[None])[0][order] for setting in pool)
    by_place = np.vstack([np.add.reduceat(each, starts) for each in earned])
    sizes = np.bincount(codes).astype(np.float64)
    rng = np.random.default_rng([settings.seed, 2])
    winners, values, given = [], [], []
    for start in range(0, resamples, _CHUNK):
        many = min(_CHUNK, resamples - start)
        drawn = (rng.integers(names.size, size=names.size) for _ in range(many))
        weights = np.vstack([np.bincount(d, minlength=names.size) for d in drawn])
        means = weights @ by_place.T / (weights @ sizes)[:, None]  # (many, candidates + 1)
        winner = means.argmax(axis=1)
        winners.append(winner)
        values.append(means[np.arange(many), winner])
        given.append(means[:, 0])
    chosen = pool[np.concatenate(winners)]
    low_high = np.quantile(chosen, [0.025, 0.975], axis=0).T
    return SearchSpread(low_high, _interval(values), _interval(given), len(pool), names.size)


def _candidates(rows: Packed, found: Floats, ranges: Ranges, draws: int, seed: int) -> Floats:
    """(C, 4) settings that may win, `found` first."""
    low, high = np.array(ranges, dtype=np.float64).T
    rng = np.random.default_rng([seed, 3])
    clouds = [(draw_settings(ranges, draws, np.random.default_rng(seed)), _DRAWN)]
    for scale in _SCALES:
        near = found + rng.normal(size=(_NEAR_DRAWN, 4)) * (high - low) * scale
        clouds.append((np.clip(near, low, high), _NEAR))
    best = [
        cloud[np.argsort(-mean_payoff(rows, cloud), kind="stable")[:many]] for cloud, many in clouds
    ]
    return np.concatenate([found[None], *best])


def _interval(parts: list[np.ndarray]) -> tuple[float, float]:
    low, high = np.quantile(np.concatenate(parts), [0.025, 0.975])
    return float(low), float(high)
