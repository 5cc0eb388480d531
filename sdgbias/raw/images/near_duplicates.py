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
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from sdgbias.errors import InputError, UsageError

BITS = 64
_HEX = f"^[0-9a-f]{{{BITS // 4}}}$"


def groups(keys: Sequence[str], hashes: Sequence[Sequence[str]], threshold: int = 4) -> list[str]:
    """Per row the first key, in sorted order, of its group of near-duplicates; a row without any
    has its own key.

    ``keys``: N texts. ``hashes``: per row (N) its hashes, 16 hex digits (64 bits) each, the same
    number for every row. Two rows are near when every pair of hashes differs in at most
    ``threshold`` bits; a row with an empty hash is near to none. The order of the rows never
    matters. Raises UsageError for a threshold outside 0 to 63, InputError for an invalid hash.
    """
    if not 0 <= threshold < BITS:
        raise UsageError(f"threshold {threshold}: bits that may differ, 0 to {BITS - 1}")
    if len(keys) != len(hashes):
        raise InputError(
            f"{len(keys)} keys but {len(hashes)} rows of hashes; give one row of hashes for"
            " every key"
        )
    names = np.asarray(list(keys), dtype=object)
    if not len(names):
        return []
    numbers, known = _numbers(hashes)
    label = np.arange(len(names), dtype=np.int64)
    at = np.flatnonzero(known)
    distinct, first, inverse = np.unique(
        numbers[at], axis=0, return_index=True, return_inverse=True
    )
    if len(distinct):
        label[at] = at[first[_components(distinct, threshold)[inverse]]]
    order = np.argsort(names, kind="stable")
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    lowest = np.full(len(names), len(names), dtype=np.int64)
    np.minimum.at(lowest, label, rank)
    return [str(name) for name in names[order[lowest[label]]]]


def _numbers(hashes: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """((N, K) uint64, (N,) bool: no hash is missing)."""
    try:
        columns = list(zip(*hashes, strict=True))
    except ValueError:
        raise InputError(
            "rows with different numbers of hashes; give every row the same kinds of hashes"
        ) from None
    if not columns:
        return np.zeros((len(hashes), 0), dtype=np.uint64), np.zeros(len(hashes), dtype=bool)
    numbers = np.zeros((len(hashes), len(columns)), dtype=np.uint64)
    known = np.ones(len(hashes), dtype=bool)
    for number, column in enumerate(columns):
        texts = pa.array(column, pa.string()).fill_null("")
        empty = pc.equal(texts, "")
        bad = pc.invert(pc.or_(empty, pc.match_substring_regex(texts, _HEX)))
        if pc.any(bad).as_py():
            value = texts.filter(bad)[0].as_py()
            raise InputError(
                f"{value!r} is no perceptual hash; wants {BITS // 4} hex digits; render the images"
                " again: sdgbias build"
            )
        blank = empty.to_numpy(zero_copy_only=False)
        whole = np.where(blank, "0" * (BITS // 4), texts.to_numpy(zero_copy_only=False)).tolist()
        numbers[:, number] = np.frombuffer(bytes.fromhex("".join(whole)), dtype=">u8")
        known &= ~blank
    return numbers, known


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
