"""Prompts with common beginnings as one tree of tokens, so that shared tokens are prefilled once.
Pure arrays, independent of any model.

The tree is laid out in depth-first order: a token comes after all of its ancestors, and its
descendants follow it without a gap. Hence token j is an ancestor of token i exactly if j <= i <
end[j], and the attention mask of a whole tree is one comparison. One forward pass over the tree
with this mask and each token's original position gives every prompt the hidden states that it would
have alone: attention sees the same tokens at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """A tree of P prompts with N distinct tokens: tokens (N,), path (N,) the prompt that first
    added the token, depth (N,) its position in that prompt, end (N,) one past its last descendant,
    leaf (P,) where each prompt ends. All int64."""

    tokens: np.ndarray
    path: np.ndarray
    depth: np.ndarray
    end: np.ndarray
    leaf: np.ndarray

    def mask(self) -> np.ndarray:
        """(N, N) bool: row i may attend to column j."""
        at = np.arange(len(self.tokens))
        return np.asarray((at[:, None] >= at[None, :]) & (at[:, None] < self.end[None, :]))


def build(paths: Sequence[Sequence[int] | np.ndarray]) -> Tree:
    """The tree of P token sequences (none empty). Equal sequences share a leaf; the order of
    ``paths`` doesn't change the tokens."""
    arrays = [np.asarray(path, dtype=np.int64) for path in paths]
    order = sorted(range(len(arrays)), key=lambda p: tuple(arrays[p]))
    tokens: list[int] = []
    owner: list[int] = []
    depth: list[int] = []
    end: list[int] = []
    leaf = np.zeros(len(arrays), dtype=np.int64)
    nodes: list[int] = []  # of the previous sequence: its tokens' indices in the tree
    before = np.array([], dtype=np.int64)
    for p in order:
        own = arrays[p]
        shared = common_prefix(before, own)
        for node in nodes[shared:]:
            end[node] = len(tokens)
        del nodes[shared:]
        for at in range(shared, len(own)):
            nodes.append(len(tokens))
            tokens.append(int(own[at]))
            owner.append(p)
            depth.append(at)
            end.append(0)
        leaf[p] = nodes[-1]
        before = own
    for node in nodes:
        end[node] = len(tokens)
    columns = [np.asarray(column, dtype=np.int64) for column in (tokens, owner, depth, end)]
    return Tree(columns[0], columns[1], columns[2], columns[3], leaf)


def common_prefix(one: np.ndarray, two: np.ndarray) -> int:
    """Length of the common prefix of two sequences, in tokens."""
    n = min(len(one), len(two))
    different = np.flatnonzero(one[:n] != two[:n])
    return int(different[0]) if len(different) else n


def common(paths: Sequence[np.ndarray]) -> int:
    """Length of the common prefix of all sequences, in tokens, leaving at least one token of
    each."""
    return min(min(common_prefix(paths[0], own) for own in paths), min(map(len, paths)) - 1)


def split(paths: Sequence[Sequence[int] | np.ndarray], limit: int) -> list[list[int]]:
    """Prompts (by number) in trees of at most ``limit`` tokens, neighbours in token order together;
    a longer prompt gets its own tree.

    Attention over a tree costs the square of its tokens, so a tree that is too large costs more
    than sharing saves.
    """
    arrays = [np.asarray(path, dtype=np.int64) for path in paths]
    order = sorted(range(len(arrays)), key=lambda p: tuple(arrays[p]))
    groups: list[list[int]] = []
    size = 0
    for at, p in enumerate(order):
        new = len(arrays[p]) - (common_prefix(arrays[order[at - 1]], arrays[p]) if at else 0)
        if groups and size + new <= limit:
            groups[-1].append(p)
            size += new
        else:
            groups.append([p])
            size = len(arrays[p])
    return groups


def count(paths: Sequence[Sequence[int] | np.ndarray]) -> int:
    """Distinct tokens of the tree, without building it: the number that a perfect prefix cache
    would prefill."""
    arrays = sorted((np.asarray(path, dtype=np.int64) for path in paths), key=lambda a: tuple(a))
    before, total = np.array([], dtype=np.int64), 0
    for own in arrays:
        total += len(own) - common_prefix(before, own)
        before = own
    return total


def prefilled(paths: Sequence[Sequence[int] | np.ndarray], limit: int) -> int:
    """Tokens prefilled when prompts about one picture are scored together (shared_prefix.py): the
    common prefix of all once, and the rest in trees of at most ``limit`` tokens."""
    arrays = [np.asarray(path, dtype=np.int64) for path in paths]
    begin = common(arrays)
    tails = [own[begin:] for own in arrays]
    return begin + sum(count([tails[m] for m in members]) for members in split(tails, limit))
