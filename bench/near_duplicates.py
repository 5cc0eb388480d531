"""How long the near-duplicate search takes over 100,000 images with two 64-bit hashes each, beside
brute force in numpy.

    python bench/near_duplicates.py [--rows 100000]

`mixed`: half of the rows are random, 30 % lie in chains one to three bits apart, 20 % are copies.
`alike`: all rows are 500 pictures of one kind (56 of 64 bits or more agree in both hashes) with up
to six bits of noise, where bands part them worst. Brute force compares every row with every row at
a tenth of the size; what it would need at full size is its time x 100.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import summary
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from sdgbias.raw.images.near_duplicates import groups

THRESHOLD = 4


def flipped(chance: np.random.Generator, values: np.ndarray, bits: int) -> np.ndarray:
    """Up to so many bits of every value (N, 2) flipped."""
    for _ in range(bits):
        values = values ^ (np.uint64(1) << chance.integers(0, 64, values.shape, dtype=np.uint64))
    return values


def mixed(chance: np.random.Generator, rows: int) -> np.ndarray:
    alone = chance.integers(0, 2**64, (rows // 2, 2), dtype=np.uint64)
    chained = np.repeat(chance.integers(0, 2**64, (rows * 3 // 40, 2), dtype=np.uint64), 4, axis=0)
    copies = np.repeat(chance.integers(0, 2**64, (rows // 50, 2), dtype=np.uint64), 10, axis=0)
    return chance.permutation(np.concatenate([alone, flipped(chance, chained, 3), copies]))


def alike(chance: np.random.Generator, rows: int) -> np.ndarray:
    first = flipped(chance, np.full((500, 2), 0xAAAA5555AAAA5555, dtype=np.uint64), 4)
    return flipped(chance, first[chance.integers(0, 500, rows)], 6)


def brute_force(values: np.ndarray) -> int:
    """Number of groups, every row against every row."""
    left, right = [], []
    for row in range(len(values) - 1):
        apart = np.bitwise_count(values[row + 1 :] ^ values[row])
        near = np.flatnonzero((apart <= THRESHOLD).all(axis=1)) + row + 1
        left.append(np.full(len(near), row))
        right.append(near)
    a, b = np.concatenate(left), np.concatenate(right)
    graph = coo_array((np.ones(len(a), dtype=bool), (a, b)), shape=(len(values), len(values)))
    return int(connected_components(graph, directed=False)[0])


def search(values: np.ndarray) -> int:
    keys = [f"{i:06d}" for i in range(len(values))]
    return len(
        set(groups(keys, [(f"{a:016x}", f"{b:016x}") for a, b in values.tolist()], THRESHOLD))
    )


def median_seconds(
    work: Callable[[np.ndarray], int], values: np.ndarray, repeats: int
) -> tuple[float, int]:
    taken, found = [], 0
    for _ in range(repeats):
        began = time.perf_counter()
        found = work(values)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    search(mixed(np.random.default_rng(0), 1000))  # compiled before it is timed
    print(
        "| hashes | images | search s | groups | brute force s | groups"
        " |\n|---|---|---|---|---|---|"
    )
    headlines, brute = [], (0.0, 0)
    for kind in (mixed, alike):
        for size in (rows // 10, rows // 4, rows // 2, rows):
            values = kind(np.random.default_rng(size), size)
            seconds, found = median_seconds(search, values, 3)
            slow = median_seconds(brute_force, values, 1) if size == rows // 10 else None
            beside = "| |" if slow is None else f" {slow[0]:.2f} | {slow[1]:,} |"
            print(
                f"| {kind.__name__} | {len(values):,} | {seconds:.2f} | {found:,} |{beside}",
                flush=True,
            )
            if slow is not None and slow[1] != found:
                raise SystemExit("the search and brute force disagree")
            brute = slow or brute
        n = f"{len(values):,} hashes, median of 3"
        beside = f"brute force over {rows // 10:,}: {brute[0]:.2f} s"
        what = f"near-duplicates within 4 of 64 bits, {kind.__name__} hashes"
        headlines.append(summary.Row(what, n, f"{seconds:.2f} s", "10 s", beside))
    if rows >= 100_000:
        summary.record("near_duplicates", headlines)


if __name__ == "__main__":
    main()
