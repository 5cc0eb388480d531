"""Token trees: every prompt can be read back along the mask, whatever else is in the tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias.engines.hf.token_tree import build, common, common_prefix, count, prefilled, split

PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(PATHS)
def test_every_prompt_is_read_back_along_its_leafs_mask(paths: list[list[int]]) -> None:
    tree = build(paths)
    mask = tree.mask()
    for path, leaf in zip(paths, tree.leaf, strict=True):
        seen = np.flatnonzero(mask[leaf])
        assert tree.tokens[seen].tolist() == path
        assert tree.depth[seen].tolist() == list(range(len(path)))
    for node, (owner, depth) in enumerate(zip(tree.path, tree.depth, strict=True)):
        assert paths[owner][depth] == tree.tokens[node]


@settings(max_examples=100, deadline=None)
@given(PATHS)
def test_a_tree_holds_each_distinct_prefix_once(paths: list[list[int]]) -> None:
    prefixes = {tuple(path[: n + 1]) for path in paths for n in range(len(path))}
    assert len(build(paths).tokens) == len(prefixes) == count(paths)
    assert build(paths[::-1]).tokens.tolist() == build(paths).tokens.tolist()


def test_by_hand() -> None:
    """7 8 9, 7 8 5 6 and 7: the first in token order is 7, then 7 8 5 6, then 7 8 9."""
    tree = build([[7, 8, 9], [7, 8, 5, 6], [7]])
    assert tree.tokens.tolist() == [7, 8, 5, 6, 9]
    assert tree.depth.tolist() == [0, 1, 2, 3, 2]
    assert tree.leaf.tolist() == [4, 3, 0]
    assert tree.mask().astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


@settings(max_examples=100, deadline=None)
@given(PATHS, st.integers(1, 30))
def test_split_keeps_every_prompt_and_the_limit(paths: list[list[int]], limit: int) -> None:
    groups = split(paths, limit)
    assert sorted(p for group in groups for p in group) == list(range(len(paths)))
    for group in groups:
        assert len(group) == 1 or count([paths[p] for p in group]) <= limit


@pytest.mark.parametrize(
    ("one", "two", "shared"),
    [([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2)],
)
def test_common_prefix(one: list[int], two: list[int], shared: int) -> None:
    assert common_prefix(np.array(one), np.array(two)) == shared


@settings(max_examples=100, deadline=None)
@given(PATHS, st.integers(1, 30))
def test_prefilled_lies_between_a_perfect_cache_and_none(
    paths: list[list[int]], limit: int
) -> None:
    assert count(paths) <= prefilled(paths, limit) <= sum(map(len, paths))
    assert prefilled(paths, 10_000) == count(paths)


def test_what_all_begin_with_leaves_a_token_of_each() -> None:
    paths = [np.array([1, 2, 3]), np.array([1, 2]), np.array([1, 2, 4])]
    assert common(paths) == 1
    assert prefilled(paths, 10_000) == 4
    assert prefilled(paths, 1) == 1 + 1 + 2 + 2
