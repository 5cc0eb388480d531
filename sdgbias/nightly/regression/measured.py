"""Metrics of a run per question, and the questions of two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.analysis.run import SAME, group_columns
from sdgbias.methods.cade import Floats

Keys = np.ndarray


@dataclass(frozen=True)
class Measured:
    """n questions under one test. key (n,): hash of the question's text, answer and place; value
    (n,): NaN if there is none; cluster (n,): questions of a cluster are dependent. groups: grouping
    -> (n,) group of each row, '' if unknown."""

    key: Keys
    value: Floats
    cluster: Keys
    groups: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RunMetrics:
    """One run. run: its row of ``runs``. tests: task -> its tests in this run. of(task, test,
    metric, method): None if the run has no such metric."""

    run: Mapping[str, Any]
    tests: Mapping[str, Sequence[str]]
    of: Callable[[str, str, str, str], Measured | None]


@dataclass(frozen=True)
class Pairs:
    """n questions answered in both runs. before, after (n,); left: number of questions in only one
    of the runs."""

    before: Floats
    after: Floats
    cluster: Keys
    groups: Mapping[str, np.ndarray]
    left: int


def hashed(frame: pd.DataFrame) -> Keys:
    """(n,) one hash per distinct row."""
    return np.asarray(pd.util.hash_pandas_object(frame, index=False), dtype=np.uint64)


def columns(items: pd.DataFrame, image_free: bool) -> tuple[Keys, Keys, dict[str, np.ndarray]]:
    """key, cluster and groups (as in `Measured`) of questions of suite sdg or of a suite of custom
    questions. image_free: they are asked without picture, so those of one prompt are dependent;
    others are by place."""
    unit = ["question", "options"] if image_free else ["cluster_id"]
    usual = ("country", "urban", "wealth")
    groups = group_columns(items) or {name: items[name].to_numpy(dtype=str) for name in usual}
    return hashed(items[list(SAME)].fillna({"gold_value": 0.0})), hashed(items[unit]), groups


def pooled(
    side: RunMetrics, task: str, tests: Sequence[str], metric: str, method: str
) -> Measured | None:
    """A metric of one run pooled over several tests; None if it is missing for all of them."""
    found = [m for test in tests if (m := side.of(task, test, metric, method)) is not None]
    if not found:
        return None
    value = np.concatenate([m.value for m in found])
    there = ~np.isnan(value)
    names = found[0].groups
    groups = {name: np.concatenate([m.groups[name] for m in found])[there] for name in names}
    return Measured(
        np.concatenate([m.key for m in found])[there],
        value[there],
        np.concatenate([m.cluster for m in found])[there],
        groups,
    )


def paired(
    old: RunMetrics, new: RunMetrics, task: str, tests: Sequence[str], metric: str, method: str
) -> Pairs | None:
    """The questions with a value in both runs, matched within each test; None if one of the runs
    doesn't have the metric."""
    parts = []
    for test in tests:
        before, after = old.of(task, test, metric, method), new.of(task, test, metric, method)
        if before is not None and after is not None:
            _, a, b = np.intersect1d(before.key, after.key, assume_unique=True, return_indices=True)
            parts.append((before, after, a, b))
    if not parts:
        return None
    there = np.concatenate([~np.isnan(o.value[a] + n.value[b]) for o, n, a, b in parts])
    return Pairs(
        np.concatenate([o.value[a] for o, _, a, _ in parts])[there],
        np.concatenate([n.value[b] for _, n, _, b in parts])[there],
        np.concatenate([n.cluster[b] for _, n, _, b in parts])[there],
        {
            name: np.concatenate([n.groups[name][b] for _, n, _, b in parts])[there]
            for name in parts[0][1].groups
        },
        sum(len(o.key) + len(n.key) - 2 * len(a) for o, n, a, _ in parts),
    )
