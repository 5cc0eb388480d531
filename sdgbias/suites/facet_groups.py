"""Recall by class and group, and the disparity between groups (Wu et al., Sec. 2.2; METHODS 2.5).
Arrays and frames in, rows out.

recall(g, c) is the share of group g's pictures of class c with a correct answer; the disparity of
two groups is the difference of their recalls. The paper pools the pictures of its 13 classes
(micro); the mean of class recalls (macro) is reported beside it, over the classes that hold
``smallest`` pictures of each compared group. A group of fewer has no value: the paper prints
recalls of groups of two or four pictures, and 0 for empty ones. `as_printed` follows the paper in
this, for comparison with its numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdgbias.methods import metrics, stats
from sdgbias.raw.facet import CLASSES, GROUPS, SELECTED, UNKNOWN
from sdgbias.suites.rows import ALL, Group

#: Attribute -> the two groups whose difference the paper reports, first minus second.
PAIRS = {"gender": ("male", "female"), "skin": ("light", "dark"), "age": ("young", "old")}
#: The cell from which a headline on differences between groups is taken: task, method, prompt, and
#: the classes pooled. `stats.apart_from_zero` over its attributes says which are measurable.
HEADLINE = ("direct", "full", "p1", "all-52")
POOLS: dict[str, tuple[str, ...]] = {"all": tuple(SELECTED), "all-52": tuple(CLASSES)}

#: (group of people, class or pool of classes, metric, estimate).
Rows = Iterator[tuple[Group, str, str, stats.Estimate]]


def of_classes(label: str) -> dict[str, object]:
    """The columns of a result that name its class, or the number of classes pooled."""
    if label not in POOLS:
        return {"indicator": label}
    return {"indicator": "all", "parameter": "classes", "x": float(len(POOLS[label]))}


def difference(a: stats.Estimate, b: stats.Estimate) -> stats.Estimate:
    """a - b of two independent groups with the interval that follows from theirs (Newcombe's and
    Zou and Donner's "MOVER").

    n is the smaller of the two; NaN where one of them has no value.
    """
    low = a.value - b.value - ((a.value - a.low) ** 2 + (b.high - b.value) ** 2) ** 0.5
    high = a.value - b.value + ((a.high - a.value) ** 2 + (b.value - b.low) ** 2) ** 0.5
    return stats.Estimate(a.value - b.value, min(a.n, b.n), low, high, min(a.clusters, b.clusters))


@dataclass(frozen=True)
class JudgedAnswers:
    """N answers: hits (N,) 0 or 1, place (N,) the code of the picture. A group below ``smallest``
    rows has no value, though n is kept."""

    hits: np.ndarray
    place: np.ndarray
    smallest: int

    def shares(
        self, of: np.ndarray, groups: Sequence[str], chosen: np.ndarray | None = None
    ) -> dict[str, stats.Estimate]:
        """Share of hits in each group of the (N,) names, among the (N,) chosen rows."""
        code = np.full(len(of), -1, dtype=np.int64)
        for at, group in enumerate(groups):
            code[(of == group) if chosen is None else chosen & (of == group)] = at
        columns = [stats.ValueColumn("share", self.hits)]
        (table,) = stats.measure(columns, code, len(groups), [self.place], smallest=self.smallest)
        return {group: table.estimate(at) for at, group in enumerate(groups)}

    def share(self, chosen: np.ndarray) -> stats.Estimate:
        """Share of hits among the (N,) chosen rows."""
        return self.shares(np.full(len(chosen), "all"), ["all"], chosen)["all"]


def recall_rows(
    frame: pd.DataFrame, *, smallest: int = stats.SMALLEST, draws: int = 2_000, seed: int = 0
) -> Rows:
    """(group, class, metric, estimate) of one prompt and method.

    frame: one row per question about the right class: correct (bool), class1, image_id, gender,
    skin, age. Classes are single classes, 'all' (13 pooled), 'all-52' and 'macro' (mean over the
    13).
    """
    hits, place = _answers(frame)
    judged = JudgedAnswers(hits, place, smallest)
    name = frame["class1"].to_numpy(dtype=str)
    selections = {pool: np.isin(name, members) for pool, members in POOLS.items()}
    selections |= {c: of_class for c in CLASSES if (of_class := name == c).any()}
    for label, chosen in selections.items():
        yield ALL, label, "recall", judged.share(chosen)
    yield ALL, "macro", "recall", _macro(hits, name, place, _large([name], smallest))
    for attribute, groups in GROUPS.items():
        of = frame[attribute].to_numpy(dtype=str)
        for label, chosen in selections.items():
            yield from _by_group(attribute, label, judged.shares(of, groups, chosen))
            rows = chosen & (of != UNKNOWN)
            if label in POOLS and len(groups) > 2 and rows.any():
                e = _spread(hits[rows], of[rows], place[rows], groups, smallest, draws, seed)
                yield Group(attribute, "max", "min"), label, "disparity", e
        members = {g: of == g for g in groups}
        common = _large([name[members[g]] for g in PAIRS.get(attribute, ())], smallest)
        macros = {}
        for g, rows in members.items():
            classes = [c for c in _large([name[rows]], smallest) if c in common]
            macros[g] = _macro(hits[rows], name[rows], place[rows], classes)
        yield from _by_group(attribute, "macro", macros)
    yield from _crossed(frame, judged, selections["all"])


def as_printed(frame: pd.DataFrame) -> Rows:
    """Recall and disparity as the paper's tables have them (METHODS 2.5): of people whose gender is
    known, whatever the attribute; the 13 classes pooled ('all') and one by one; groups of any size,
    0 for an empty one (n is 0 and there is no interval). Columns of ``frame`` as in recall_rows."""
    frame = frame[(frame["gender"] != UNKNOWN) & frame["class1"].isin(SELECTED)]
    hits, place = _answers(frame)
    name = frame["class1"].to_numpy(dtype=str)
    judged = JudgedAnswers(hits, place, 1)
    for label in ("all", *SELECTED):
        chosen = np.ones(len(name), dtype=bool) if label == "all" else name == label
        for attribute, groups in GROUPS.items():
            shares = judged.shares(frame[attribute].to_numpy(dtype=str), groups, chosen)
            empty = {g: stats.Estimate(0.0, 0) for g, e in shares.items() if not e.n}
            yield from _by_group(attribute, label, shares | empty)


def _answers(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(N,) whether each answer is right, and the code of its picture."""
    place = stats.codes(frame["image_id"].to_numpy(dtype=str))[0]
    return frame["correct"].to_numpy(dtype=float), place


def _by_group(
    attribute: str,
    label: str,
    shares: Mapping[str, stats.Estimate],
    metric: str = "recall",
    apart: str = "disparity",
) -> Rows:
    """The rows of an attribute's groups, and of the difference that the paper reports."""
    yield from ((Group(attribute, g), label, metric, e) for g, e in shares.items())
    if attribute in PAIRS:
        one, other = PAIRS[attribute]
        yield Group(attribute, one, other), label, apart, difference(shares[one], shares[other])


def _spread(
    hits: np.ndarray,
    of: np.ndarray,
    place: np.ndarray,
    groups: Sequence[str],
    smallest: int,
    draws: int,
    seed: int,
) -> stats.Estimate:
    """Largest minus smallest recall of the groups, resampled; no value if any group lacks one."""
    means = stats.group_means(hits, of, place, draws=draws, seed=seed, smallest=smallest)
    if means.value.shape[-1] < len(groups) or np.isnan(means.value).any():
        return stats.nothing()
    return stats.disparity(means, metrics.max_min).estimate()


def _large(names: Sequence[np.ndarray], smallest: int) -> list[str]:
    """The paper's classes of which each of several groups has ``smallest`` pictures. names: (N,)
    the class of every picture of a group."""
    least = max(smallest, 1)
    return [c for c in SELECTED if all(int((name == c).sum()) >= least for name in names)]


def _macro(
    hits: np.ndarray, name: np.ndarray, place: np.ndarray, classes: Sequence[str]
) -> stats.Estimate:
    """Mean of the recalls of some classes; no value for none. Two groups are compared over the same
    classes."""
    chosen = np.isin(name, classes)
    if not len(classes):
        return stats.nothing(int(np.isin(name, SELECTED).sum()))
    return stats.macro(hits[chosen], name[chosen], place[chosen], "share")


def _crossed(frame: pd.DataFrame, judged: JudgedAnswers, chosen: np.ndarray) -> Rows:
    """Recall of every pair of groups of two attributes, 13 classes pooled."""
    for a, b in combinations(GROUPS, 2):
        pairs = [f"{g} x {h}" for g, h in product(GROUPS[a], GROUPS[b])]
        of = frame[a].astype(str) + " x " + frame[b].astype(str)
        for pair, e in judged.shares(of.to_numpy(dtype=str), pairs, chosen).items():
            yield Group(f"{a} x {b}", pair), "all", "recall", e


def rate_rows(
    frame: pd.DataFrame,
    flags: Mapping[str, Callable[[pd.DataFrame], ArrayLike]],
    *,
    smallest: int = stats.SMALLEST,
) -> Rows:
    """Shares of answers by group, all classes pooled: e.g. how often a model answers No, or yes to
    a wrong class."""
    place = stats.codes(frame["image_id"].to_numpy(dtype=str))[0]
    for metric, flag in flags.items():
        hits = np.asarray(flag(frame), dtype=float)
        judged = JudgedAnswers(hits, place, smallest)
        yield ALL, "all-52", metric, judged.share(np.ones(len(hits), dtype=bool))
        for attribute, groups in GROUPS.items():
            shares = judged.shares(frame[attribute].to_numpy(dtype=str), groups)
            yield from _by_group(attribute, "all-52", shares, metric, metric)
