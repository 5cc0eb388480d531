"""Exact search: from the best random draws along lines whose best plateau is known in closed form,
until no line gains.

Each line is exact, not the whole search: the best setting of all four at once is not known to be
found. Starting from the best of the paper's 10,000 draws, scored on all rows, the result is never
worse than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import BASELINE, Floats, Streams
from sdgbias.methods.protocol import RANGES, Ranges
from sdgbias.methods.search.kernel import Packed, mean_payoff, one_payoff, pack, row_payoff
from sdgbias.methods.search.lines import Plateau, Steps, along, along_tau, around, best
from sdgbias.methods.search.random import (
    SearchResult,
    SearchSettings,
    baseline_value,
    decidable,
    draw_settings,
    random_search,
    take,
)
from sdgbias.types import CadeParams, Task

Kind = Literal["random", "exact"]
ALPHA, LAMBDA, BETA, TAU = range(4)
#: Most rounds over all lines, oblique lines per round, and how much a step must gain.
_ROUNDS, _OBLIQUE, _GAIN = 20, 2, 1e-12
#: Best random draws that a search starts from.
_STARTS = 3


@dataclass(frozen=True)
class ExactResult(SearchResult):
    """A SearchResult with details of the search.

    drawn: the best of the random draws on all rows, where it started. peak: where it ended, before
    it was centred. plateau: (low, high) of alpha, lambda_kl, beta and tau, each with the other
    three held, within which the value doesn't fall; params is its centre. held_out: mean payoff of
    rows whose place was left out of the tuning (K-fold cross-validation over places), NaN where it
    wasn't requested; optimism: value - held_out.
    """

    drawn: float
    peak: CadeParams
    plateau: tuple[tuple[float, float], ...]
    held_out: float
    optimism: float
    folds: int


def _line(rows: Packed, point: Floats, which: int, ranges: Ranges) -> Steps:
    """The objective along one parameter, the other three held."""
    alpha, lambda_kl, beta, tau = point
    low, high = ranges[which]
    if which == TAU:
        return along_tau(rows, alpha, lambda_kl, beta, low, high)
    origin, direction = {
        ALPHA: ((0.0, 0.0, beta), (1.0, lambda_kl, 0.0)),
        LAMBDA: ((alpha, 0.0, beta), (0.0, alpha, 0.0)),
        BETA: ((alpha, alpha * lambda_kl, 0.0), (0.0, 0.0, 1.0)),
    }[which]
    return along(rows, np.array(origin), np.array(direction), low, high, tau)


def _oblique(rows: Packed, point: Floats, ranges: Ranges, rng: np.random.Generator) -> Floats:
    """The best point of a random line through `point` in (alpha, gamma, beta), as far as the ranges
    reach."""
    alpha, lambda_kl, beta, tau = point
    (a0, a1), (l0, l1), (b0, b1), _ = ranges
    origin = np.array([alpha, alpha * lambda_kl, beta])
    direction = rng.normal(size=3) * (a1 - a0, alpha * (l1 - l0), b1 - b0)
    # every bound is normal . x <= limit: alpha, beta, and gamma between l0 alpha and l1 alpha
    normals = np.array(
        [(1, 0, 0), (-1, 0, 0), (0, 0, 1), (0, 0, -1), (-l1, 1, 0), (l0, -1, 0)], dtype=np.float64
    )
    room = np.maximum(np.array([a1, -a0, b1, -b0, 0.0, 0.0]) - normals @ origin, 0.0)
    speed = normals @ direction
    high = min((room[speed > 0] / speed[speed > 0]).tolist(), default=0.0)
    low = max((room[speed < 0] / speed[speed < 0]).tolist(), default=0.0)
    top = best(along(rows, origin, direction, low, high, tau)) if low < high else None
    if top is None:
        return point
    x = origin + top.centre * direction
    ratio = x[1] / x[0] if x[0] > 0 else lambda_kl
    return _inside(np.array([x[0], ratio, x[2], tau]), ranges)


def _inside(point: Floats, ranges: Ranges) -> Floats:
    low, high = np.array(ranges, dtype=np.float64).T
    return np.clip(point, low, high)


def _moved(point: Floats, which: int, value: float) -> Floats:
    out = point.copy()
    out[which] = value
    return out


def ascend(
    rows: Packed, start: ArrayLike, ranges: Ranges, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Line by line uphill from `start`: (point (4,), its mean payoff). Only gains that the kernel
    confirms are taken."""
    point = _inside(np.asarray(start, dtype=np.float64), ranges)
    value = one_payoff(rows, point)
    free = [which for which in (TAU, ALPHA, LAMBDA, BETA) if ranges[which][0] < ranges[which][1]]
    for _ in range(_ROUNDS):
        before = value
        for which in free + [-1] * _OBLIQUE:
            if which < 0:
                candidate = _oblique(rows, point, ranges, rng)
            else:
                top = best(_line(rows, point, which, ranges))
                gains = top is not None and top.value > value + _GAIN
                candidate = _moved(point, which, top.centre) if top and gains else point
            if candidate is not point:
                got = one_payoff(rows, candidate)
                if got > value + _GAIN:
                    point, value = candidate, got
        if value <= before:
            break
    return point, value


def centre(
    rows: Packed, point: Floats, ranges: Ranges
) -> tuple[Floats, tuple[tuple[float, float], ...]]:
    """Move each parameter to the middle of the plateau it lies on: (point (4,), the plateaus
    there). The value doesn't fall."""
    value = one_payoff(rows, point)
    for which in (TAU, ALPHA, LAMBDA, BETA) * 2:
        plateau = _plateau(rows, point, which, ranges, value)
        candidate = _moved(point, which, plateau.centre)
        if one_payoff(rows, candidate) >= value - _GAIN:
            point = candidate
    return point, tuple(
        (p.low, p.high) for p in (_plateau(rows, point, which, ranges, value) for which in range(4))
    )


def _plateau(rows: Packed, point: Floats, which: int, ranges: Ranges, value: float) -> Plateau:
    position = float(point[which])
    plateau = around(_line(rows, point, which, ranges), position)
    # a setting on a breakpoint has no plateau of its own value
    holds_value = plateau is not None and plateau.value >= value - _GAIN
    return plateau if plateau and holds_value else Plateau(value, position, position)


def climb(
    rows: Packed, starts: Sequence[Floats], ranges: Ranges, seed: int
) -> tuple[Floats, float]:
    """The best of the ascents from `starts`; ties go to the earlier one."""
    ascents = [
        ascend(rows, start, ranges, np.random.default_rng([seed, i]))
        for i, start in enumerate(starts)
    ]
    return ascents[int(np.argmax([value for _, value in ascents]))]


def exact_search(
    s: Streams,
    payoff: Floats,
    task: Task,
    settings: SearchSettings = SearchSettings(),
    *,
    clusters: ArrayLike | None = None,
    folds: int = 0,
) -> ExactResult:
    """Tunes CADE on all validation rows, within Table G's ranges; at least as good there as the
    best of the random draws.

    It starts from the best draws, the baseline (as near as the ranges come to it) and the
    middle of the ranges. `clusters` (N,) names the place of each row for the folds (default: every
    row its own); `folds` = 0 leaves held_out out. Undecidable rows are left out. Same seed and
    rows, same result.
    """
    use = decidable(s)
    s, payoff = take(s, use), payoff[use]
    limits = settings.ranges or RANGES[task]
    drawn = draw_settings(limits, settings.draws, np.random.default_rng(settings.seed))
    rows = pack(s, payoff)
    values = mean_payoff(rows, drawn)
    off = np.array([BASELINE.alpha, BASELINE.lambda_kl, BASELINE.beta, BASELINE.tau])
    begin = [
        *drawn[np.argsort(-values, kind="stable")[:_STARTS]],
        off,
        np.array(limits).mean(axis=1),
    ]
    peak, _ = climb(rows, begin, limits, settings.seed)
    point, plateau = centre(rows, peak, limits)
    value = one_payoff(rows, point)
    params, end = (CadeParams(*(float(x) for x in p)) for p in (point, peak))
    held = float("nan")
    if folds:
        places = np.arange(use.size) if clusters is None else np.asarray(clusters)[use]
        held = float(held_out(s, payoff, task, places, settings, folds=folds).mean())
    baseline, drawn_best = baseline_value(s, payoff, params), float(values.max())
    common, gap = (use.size, use.size, settings.draws, settings.seed), value - held
    return ExactResult(params, value, baseline, *common, drawn_best, end, plateau, held, gap, folds)


def held_out(
    s: Streams,
    payoff: Floats,
    task: Task,
    clusters: ArrayLike,
    settings: SearchSettings = SearchSettings(),
    *,
    folds: int = 5,
) -> Floats:
    """(N,) what each row earns with a setting tuned on the places of the other folds: the honest
    side of `value`.

    Each fold's search is exact and starts from its best draw alone. All rows must be decidable.
    Folds are drawn by place with the seed. NaN everywhere with fewer than two places.
    """
    limits, seed = settings.ranges or RANGES[task], settings.seed
    names, codes = np.unique(np.asarray(clusters), return_inverse=True)
    parts = min(folds, names.size)
    out = np.full(len(payoff), np.nan)
    if parts < 2:
        return out
    fold = (np.random.default_rng([seed, 1]).permutation(names.size) % parts)[codes]
    draws = draw_settings(limits, settings.draws, np.random.default_rng(seed))
    left = [np.flatnonzero(fold == f) for f in range(parts)]
    sums = np.array(
        [mean_payoff(pack(take(s, rows), payoff[rows]), draws) * rows.size for rows in left]
    )
    for f, rows in enumerate(left):
        rest = np.flatnonzero(fold != f)
        packed = pack(take(s, rest), payoff[rest])
        drawn = draws[np.argmax(sums.sum(axis=0) - sums[f])]
        point, _ = climb(packed, [drawn], limits, seed)
        point, _ = centre(packed, point, limits)
        chosen = pack(take(s, rows), payoff[rows])
        out[rows] = row_payoff(chosen, point[None])[0]
    return out


def tune(
    s: Streams,
    payoff: Floats,
    task: Task,
    *,
    search: Kind = "random",
    settings: SearchSettings = SearchSettings(),
    clusters: ArrayLike | None = None,
    folds: int = 0,
) -> SearchResult:
    """random_search or exact_search, by name."""
    if search == "random":
        return random_search(s, payoff, task, settings)
    return exact_search(s, payoff, task, settings, clusters=clusters, folds=folds)
