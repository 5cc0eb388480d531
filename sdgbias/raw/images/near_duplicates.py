"""Exact search for near-duplicates among perceptual hashes: groups of rows that lie within a few
bits of each other.

Two hashes that differ in at most t bits agree entirely in at least one of t+1 bands of their bits,
so that only rows that share a band are compared. Groups are connected components: a chain of small
steps is one group. Equal rows are collapsed first, so that many copies of one picture cost nothing.
Pure array code, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

BITS = 64


def groups(keys: Sequence[str], hashes: Sequence[Sequence[str]], threshold: int = 4) -> list[str]:
    """Per row the first key, in sorted order, of its group of near-duplicates; a row without any
    has its own key.

    ``keys``: N texts. ``hashes``: per row (N) its hashes, 16 hex digits (64 bits) each, the same
    number for every row. Two rows are near when every pair of hashes differs in at most
    ``threshold`` bits, 0 to 63; a row with an empty hash is near to none. The order of the rows
    never matters.
    """
    names = pd.Series(list(keys), dtype=object)
    if names.empty:
        return []
    numbers = np.array([[int(text or "0", 16) for text in row] for row in hashes], dtype=np.uint64)
    label = np.arange(len(names), dtype=np.int64)
    at = np.flatnonzero([all(row) for row in hashes])
    distinct, first, inverse = np.unique(
        numbers[at], axis=0, return_index=True, return_inverse=True
    )
    if len(distinct):
        label[at] = at[first[_components(distinct, threshold)[inverse]]]
    leaders: list[str] = names.groupby(label).transform("min").tolist()
    return leaders


def _components(hashes: np.ndarray, threshold: int) -> np.ndarray:
    """(M,) the component of each distinct row (M, K), as the lowest row in it."""
    edges = np.linspace(0, BITS, threshold + 2).astype(np.int64)
    cuts = [
        (np.uint64(low), np.uint64((1 << int(high - low)) - 1)) for low, high in pairwise(edges)
    ]
    banded = [[(column >> low) & mask for low, mask in cuts] for column in hashes.T]
    near: list[np.ndarray] = []
    for band in min(banded, key=_pairs):  # the kind of hash that separates the rows best
        near += [
            pairs[(np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]) <= threshold).all(1)]
            for pairs in _pairs_of_a_band(band)
        ]
    edges_found = np.concatenate([*near, np.zeros((0, 2), dtype=np.int64)])
    graph = coo_array(
        (np.ones(len(edges_found), dtype=bool), tuple(edges_found.T)), shape=(len(hashes),) * 2
    )
    _, labels = connected_components(graph, directed=False)
    _, lowest = np.unique(labels, return_index=True)
    return np.asarray(lowest[labels])


def _pairs_of_a_band(band: np.ndarray) -> Iterator[np.ndarray]:
    """The pairs of rows that share a band, (n, 2) at a time: the rows sorted by band, each merged
    with the next one, the one after it and so on, as long as the band is the same."""
    order = np.argsort(band, kind="stable")
    values = band[order]
    left = np.arange(len(values))
    for step in range(1, len(values)):
        left = left[: np.searchsorted(left, len(values) - step)]
        left = left[values[left] == values[left + step]]
        if not len(left):
            return
        yield np.stack([order[left], order[left + step]], axis=1)


def _pairs(bands: list[np.ndarray]) -> float:
    """Pairs of rows that share a band."""
    counts = (pd.Series(band).value_counts().to_numpy(dtype=float) for band in bands)
    return float(sum((shared**2).sum() for shared in counts))
