"""Compiled loops: how often each of G clusters is drawn in a bootstrap sample, and sums by group in
one pass."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def fill(starts, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """(b,) uint64 starting points -> out (b, G) float64 counts. SplitMix64 (Steele 2014), two draws
    from each 64 bits."""
    groups = np.uint64(out.shape[1])
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for b in range(out.shape[0]):
        weights = out[b]
        weights[:] = 0.0
        state = starts[b]
        left = out.shape[1]
        while left > 0:
            state += np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            weights[((z >> half) * groups) >> half] += 1.0
            left -= 1
            if left > 0:
                weights[((z & low) * groups) >> half] += 1.0
                left -= 1


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def add_up(column, code, sums, rows):  # type: ignore[no-untyped-def]  # pragma: no cover
    """(N,) column and codes -> sums (G,) and rows (G,) of its numbers, added in place; NaN is no
    row."""
    for i in range(column.size):
        x = column[i]
        if x == x:
            sums[code[i]] += x
            rows[code[i]] += 1.0
