"""Near-duplicates: the same groups as comparing everything with everything, whatever the order of
the rows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias.raw.images.near_duplicates import groups

Rows = list[tuple[str, ...]]


def brute_force(keys: list[str], hashes: Rows, threshold: int) -> list[str]:
    """Every pair compared, groups grown until nothing changes."""
    group = list(range(len(keys)))

    def near(a: int, b: int) -> bool:
        pairs = list(zip(hashes[a], hashes[b], strict=True))
        return all(x and y and (int(x, 16) ^ int(y, 16)).bit_count() <= threshold for x, y in pairs)

    for a in range(len(keys)):
        for b in range(a):
            if group[a] != group[b] and near(a, b):
                group = [group[b] if g == group[a] else g for g in group]
    first = {g: min(k for k, h in zip(keys, group, strict=True) if h == g) for g in set(group)}
    return [first[g] for g in group]


@st.composite
def near_tables(draw: st.DrawFn) -> tuple[list[str], Rows]:
    """Few distinct pictures, each with some flipped bits, so that chains, copies and edges at the
    threshold do occur."""
    kinds = draw(st.integers(1, 3))
    seeds = draw(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * kinds), min_size=1, max_size=3))
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        base = draw(st.sampled_from(seeds))
        flips = draw(st.lists(st.integers(0, 63), max_size=7))
        row = [
            value ^ sum(1 << bit for bit in set(flips[: draw(st.integers(0, 7))])) for value in base
        ]
        rows.append(
            tuple("" if draw(st.integers(0, 15)) == 0 else f"{value:016x}" for value in row)
        )
    keys = [f"k{number:02d}" for number in draw(st.permutations(range(len(rows))))]
    return keys, rows


@settings(max_examples=40, deadline=None)
@given(near_tables(), st.sampled_from([0, 1, 3, 4, 5, 20, 63]), st.randoms(use_true_random=False))
def test_same_as_brute_force_in_any_order(
    table: tuple[list[str], Rows], threshold: int, chance: random.Random
) -> None:
    keys, hashes = table
    found = groups(keys, hashes, threshold)
    assert found == brute_force(keys, hashes, threshold)
    order = list(range(len(keys)))
    chance.shuffle(order)
    assert groups([keys[i] for i in order], [hashes[i] for i in order], threshold) == [
        found[i] for i in order
    ]


@pytest.mark.parametrize("threshold", [1, 4, 5, 63])
def test_differences_spread_over_the_bits_hide_nothing(threshold: int) -> None:
    """One flipped bit in each of as many stretches as may differ: only one band more than that
    still agrees."""
    spread = sum(1 << (64 * i + 32) // threshold for i in range(threshold))
    assert spread.bit_count() == threshold
    for start in range(0, 64, 7):
        flips = ((spread << start) | (spread >> (64 - start))) & (2**64 - 1)
        pair = [(f"{0x0123456789ABCDEF:016x}",), (f"{0x0123456789ABCDEF ^ flips:016x}",)]
        assert groups(["a", "b"], pair, threshold) == ["a", "a"]
        assert groups(["a", "b"], pair, threshold - 1) == ["a", "b"]


def test_many_copies_cost_nothing_and_no_rows_give_no_groups() -> None:
    """100,000 copies of one picture: nearly 5,000,000,000 pairs if they were compared one by
    one."""
    keys = [f"{i:06d}" for i in range(100_000)]
    assert set(groups(keys, [("a5" * 8, "c3" * 8)] * len(keys))) == {"000000"}
    assert groups([], []) == []
