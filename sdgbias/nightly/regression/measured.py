"""Metrics of a run per question, and the questions of two runs side by side. The answers are those
that the run published, of whatever suite: nothing is decided again.

Answers share a place or a picture, so rows are clustered by it; where a prompt holds neither a
picture nor a value of the place, by prompt (``unit`` of the store's view ``answers``). Recall is
that of the 13 reported classes of people, on questions about a class that the person has; data
without classes counts as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.run import row_of
from sdgbias.benchmark.people_items import CHOICE, DIRECT
from sdgbias.engines.agreement import TOLERANCES
from sdgbias.errors import StoreError
from sdgbias.files import packaged_sql
from sdgbias.methods.cade import Floats
from sdgbias.raw.facet import SELECTED, UNKNOWN
from sdgbias.raw.indicators import POLARITIES, directions
from sdgbias.types import GENERATED, OPTION_LETTERS, Task, View

_NAN = float("nan")
CADE = "cade"
#: How a text was read that is no answer.
UNREAD = ("unparsed", "empty", "several")
#: Prefix of the columns of attributes: own questions name theirs as they like.
_ATTRIBUTE = "attribute "
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


def load(results: Path, run_id: str) -> RunMetrics:
    """The answers of a run that are reported, from the store's view ``answers``. Raises StoreError
    for a run that doesn't exist or has none."""
    run = row_of(results, run_id)
    suite = suites.named(str(run["suite"]))
    given = {"run": run_id, "classes": list(SELECTED)}
    sql = packaged_sql("nights.sql")
    benchmark = {"benchmark": run["benchmark_id"]}
    names = store.query(results, sql["attributes"], benchmark)["name"].tolist()
    columns = "".join(f", {_attribute(name)}" for name in names)
    frame = store.query(
        results,
        sql["answers"].format(attributes=columns, reported=suite.reported("a")),
        given,
        runs=[run_id],
    )
    if frame.empty:
        raise StoreError(
            f"{results}: run {run_id} holds no answers; evaluate the model again: sdgbias evaluate"
            f" {run['model']}"
        )
    spec = json.loads(run["config"] or "{}").get("spec", {})
    near = TOLERANCES[str(spec.get("dtype", "float32"))]  # the margin of a near tie, in nats
    parts = {
        (str(task), str(test), str(method)): part.reset_index(drop=True)
        for (task, test, method), part in frame.groupby(["task", "test", "method"], sort=True)
    }

    @cache
    def of(task: str, test: str, metric: str, method: str) -> Measured | None:
        part = parts.get((task, test, method))
        if part is None:
            return None
        value = _value(part, parts.get((task, test, View.FULL.value)), metric, near)
        if value is None or np.isnan(value).all():
            return None
        groups = {
            name: part[f"{_ATTRIBUTE}{name}"].replace(UNKNOWN, "").to_numpy(dtype=str)
            for name in names
        }
        return Measured(
            part["content"].to_numpy(dtype=np.uint64),
            value,
            part["cluster"].to_numpy(dtype=np.uint64),
            groups,
        )

    tests: dict[str, dict[str, None]] = {}
    for task, test, _ in parts:  # sorted
        tests.setdefault(task, {})[test] = None
    return RunMetrics(run, {task: list(known) for task, known in tests.items()}, of)


def _attribute(name: str) -> str:
    """SQL of an attribute as a column of its own."""
    text, column = name.replace("'", "''"), name.replace('"', '""')
    return f"coalesce(attributes['{text}'], '') AS \"{_ATTRIBUTE}{column}\""


def _value(
    part: pd.DataFrame, full: pd.DataFrame | None, metric: str, near: float
) -> Floats | None:
    """(n,) values of the answers of one task, test and method; None for a metric that they don't
    have. full: the answers of the Full view."""
    of_people = part["task"].isin([DIRECT, CHOICE]).all()
    if metric in ("accuracy", "interval_accuracy", "disparity", "recall"):
        return np.where(part["counted"], part["correct"].to_numpy(dtype=float), _NAN)
    if metric == "mae":
        return np.asarray(part["error"] / part["tolerance"], dtype=np.float64)
    if metric == "cade_gain":
        if full is None or (part["method"] != CADE).any():
            return None
        before = full.set_index("item_id")["correct"].reindex(part["item_id"])
        return part["correct"].to_numpy(dtype=float) - before.to_numpy(dtype=float)
    if metric.startswith("share_"):
        return _share(part, metric.removeprefix("share_"))
    if metric == "candidate_mass":
        return part["mass"].to_numpy(dtype=float)
    if metric in ("tie_rate", "near_tie_rate"):
        lead = part["lead"].to_numpy(dtype=float)
        near = near if metric == "near_tie_rate" else 0.0
        return np.where(np.isnan(lead), _NAN, np.asarray(lead <= near, dtype=np.float64))
    if metric == "refusals" or of_people:
        flag = part["how"] == "refusal" if metric == "refusals" else part["how"].isin(UNREAD)
        return np.where(part["how"].isna(), _NAN, flag.to_numpy(dtype=float))
    if part["task"].iloc[0] == Task.REGRESSION.value:
        parsed = part["parsed"].astype("boolean").to_numpy(dtype=float, na_value=_NAN)
        return np.asarray(1.0 - parsed, dtype=np.float64)
    if part["method"].iloc[0].endswith(GENERATED):
        return np.asarray(part["pred"].fillna("") == "", dtype=np.float64)
    return _no_letter(part)


def _share(part: pd.DataFrame, direction: str) -> Floats:
    """1 where an answer to a question of three options has this direction, 0 where another, NaN
    where none."""
    value = np.full(len(part), _NAN)
    for polarity in POLARITIES:
        letter = OPTION_LETTERS[directions(polarity, 3).index(direction)]
        rows = (part["n_options"] == 3) & (part["polarity"] == polarity) & (part["pred"] != "")
        value[rows] = (part.loc[rows, "pred"] == letter).to_numpy(dtype=float)
    return value


def _no_letter(part: pd.DataFrame) -> Floats:
    """1 where the likeliest first token is none of the question's letters, else 0; NaN where it
    isn't known."""
    token = part["top_token"].fillna("").str.strip()
    place = token.map(lambda text: OPTION_LETTERS.find(text) if len(text) == 1 else -1)
    wrong = (place < 0) | (place >= part["n_options"])
    return np.where(part["top_token"].fillna("") == "", _NAN, wrong.to_numpy(dtype=float))


def within(of: Measured, attribute: str, group: str) -> Measured:
    """The questions about one group of an attribute."""
    rows = of.groups[attribute] == group
    groups = {name: column[rows] for name, column in of.groups.items()}
    return Measured(of.key[rows], of.value[rows], of.cluster[rows], groups)


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
