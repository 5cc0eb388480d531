"""The objective along a line of settings, exactly: where it changes and by how much.

With gamma = alpha * lambda_kl the score of a candidate, log_img - (alpha + gamma D) log_ctx - beta
log_q, is linear in (alpha, gamma, beta). Along any straight line there the K scores of a row are K
straight lines, its choice follows their upper envelope, and the mean payoff is a step function
whose breakpoints have a closed form. alpha alone, lambda_kl alone and beta alone are such lines.
Along tau it is a step function of the sorted confidences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from sdgbias.methods.cade import Floats
from sdgbias.methods.search.kernel import Packed, count_kept, scored_payoff

#: Steps shorter than this share of the line are no plateau: rounding could not tell which side a
#: setting lies on.
_THINNEST = 1e-9
#: Mean payoffs that differ by less are equal: sums of other numbers than 0 and 1 are rounded.
_SLACK = 1e-12


@dataclass(frozen=True)
class Steps:
    """edges (M + 1,) ascending positions on a line, values (M,) mean payoff between neighbouring
    edges."""

    edges: Floats
    values: Floats


@dataclass(frozen=True)
class Plateau:
    """A run of equal values on a line: from low to high."""

    value: float
    low: float
    high: float

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _walk(table, first, origin, direction, low, high, times, changes, options):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Upper envelope of each scored row: (payoff just after `low`, number of changes written to
    times and changes)."""
    k = len(options)
    at, slope = np.empty(k), np.empty(k)
    start, count = 0.0, 0
    for i in range(first, table.shape[0]):
        divergence = table[i, 0]
        fixed, moving = origin[0] + origin[1] * divergence, direction[0] + direction[1] * divergence
        now = -1
        top = -np.inf
        for a in range(k):
            at[a] = (
                table[i, 4 * a + 1] - fixed * table[i, 4 * a + 2] - origin[2] * table[i, 4 * a + 3]
            )
            slope[a] = -(moving * table[i, 4 * a + 2] + direction[2] * table[i, 4 * a + 3])
            score = at[a] + slope[a] * low
            if score > top:
                now, top = a, score
        start += table[i, 4 * now + 4]
        here = low
        while True:
            nearest, new = np.inf, -1
            for b in range(k):
                if at[b] > -np.inf and slope[b] > slope[now]:
                    crossing = (at[now] - at[b]) / (slope[b] - slope[now])
                    if crossing < nearest:
                        nearest, new = crossing, b
            if new < 0 or nearest >= high:
                break
            here = max(here, nearest)
            change = table[i, 4 * new + 4] - table[i, 4 * now + 4]
            if change != 0.0:
                times[count], changes[count] = here, change
                count += 1
            now = new
    return start, count


def along(
    rows: Packed, origin: Floats, direction: Floats, low: float, high: float, tau: float
) -> Steps:
    """Mean payoff at origin + t * direction for t in [low, high]; origin and direction are (3,) as
    alpha, gamma, beta."""
    first = int(count_kept(rows, tau))
    room = (rows.n - first) * max(1, len(rows.options) - 1)
    times, changes = np.empty(room), np.empty(room)
    start, count = _walk(
        rows.table, first, origin, direction, low, high, times, changes, rows.options
    )
    order = np.argsort(times[:count], kind="stable")
    edges = np.concatenate(([low], times[:count][order], [high]))
    sums = rows.kept[first] + start + np.concatenate(([0.0], np.cumsum(changes[:count][order])))
    return Steps(edges, sums / rows.n)


def along_tau(
    rows: Packed, alpha: float, lambda_kl: float, beta: float, low: float, high: float
) -> Steps:
    """Mean payoff for tau in [low, high] with the other three fixed: kept rows are a prefix of the
    sorted confidences."""
    least, most = (int(count_kept(rows, tau)) for tau in (high, low))
    scored = scored_payoff(rows, alpha, lambda_kl, beta, least)
    # (n - least + 1,) what rows from j on earn
    behind = np.concatenate(([0.0], np.cumsum(scored[least:][::-1])))[::-1]
    kept = np.arange(most, least - 1, -1)  # fewer rows are kept as tau rises
    edges = np.concatenate(([low], rows.confidence[kept[:-1] - 1], [high]))
    return Steps(edges, (rows.kept[kept] + behind[kept - least]) / rows.n)


def _runs(steps: Steps) -> tuple[Floats, Floats, Floats]:
    """(value, low, high) of each run of equal values, in order; steps too thin to stand on are left
    out."""
    wide = np.flatnonzero(np.diff(steps.edges) > _THINNEST * (steps.edges[-1] - steps.edges[0]))
    values = steps.values[wide]
    starts = np.flatnonzero(np.concatenate(([True], np.abs(np.diff(values)) > _SLACK))[: wide.size])
    ends = np.append(starts[1:], wide.size)[: starts.size] - 1
    return values[starts], steps.edges[wide[starts]], steps.edges[wide[ends] + 1]


def best(steps: Steps) -> Plateau | None:
    """The widest of the highest plateaus, the lowest of equally wide ones; None on a line without
    length."""
    values, low, high = _runs(steps)
    if values.size == 0:
        return None
    tops = np.flatnonzero(values >= values.max() - _SLACK)
    chosen = tops[np.argmax(high[tops] - low[tops])]
    return Plateau(float(values[chosen]), float(low[chosen]), float(high[chosen]))


def around(steps: Steps, position: float) -> Plateau | None:
    """The plateau that `position` lies on; the higher one of two that meet there."""
    values, low, high = _runs(steps)
    hits = np.flatnonzero((low <= position) & (position <= high))
    if hits.size == 0:
        return None
    chosen = hits[np.argmax(values[hits])]
    return Plateau(float(values[chosen]), float(low[chosen]), float(high[chosen]))
