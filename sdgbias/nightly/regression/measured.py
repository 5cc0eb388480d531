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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.run import missing, row_of
from sdgbias.benchmark.people_items import CHOICE, DIRECT
from sdgbias.engines.agreement import TOLERANCES
from sdgbias.errors import StoreError
from sdgbias.files import packaged_sql
from sdgbias.methods.answers import TRUNCATED
from sdgbias.methods.cade import Floats
from sdgbias.nightly.regression.policy import CADE
from sdgbias.raw.facet import SELECTED, UNKNOWN
from sdgbias.suites import sdg_metrics
from sdgbias.suites.sdg_metrics import Answers
from sdgbias.types import DIGITS, GENERATED, NEEDS_PICTURES, OPTION_LETTERS, Task, View

_NAN = float("nan")
#: How a text was read that is no answer.
UNREAD = ("unparsed", "empty", "several")
#: Prefix of the columns of attributes: own questions name theirs as they like.
ATTRIBUTE = "attribute "


@dataclass(frozen=True)
class RunMetrics:
    """One run. run: its row of ``runs``. tests: task -> its tests in this run. of(task, test,
    metric, method): a row per question, None if the run has no such metric. Its columns: ``key``, a
    hash of the question's text, answer and place; ``value``, NaN if there is none; ``cluster``:
    questions of a cluster are dependent; ``attribute NAME``: its group, '' if unknown. missing: by
    task and method what the model lacks for it, as the run was published."""

    run: Mapping[str, Any]
    tests: Mapping[str, Sequence[str]]
    of: Callable[[str, str, str, str], pd.DataFrame | None]
    missing: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def lacks(self, task: str, method: str) -> str:
        """What the model lacks for answers of this method, '' if nothing. A view that is read from
        text needs its picture all the same."""
        shown = self.missing.get((task, method.removesuffix(GENERATED)), "")
        pictures = shown if shown == NEEDS_PICTURES else ""
        return self.missing.get((task, method), pictures)


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
    groups = [f"{ATTRIBUTE}{name}" for name in names]
    frame[groups] = frame[groups].replace(UNKNOWN, "")
    spec = json.loads(run["config"] or "{}").get("spec", {})
    near = TOLERANCES[str(spec.get("dtype", "float32"))]  # the margin of a near tie, in nats
    parts = {
        (str(task), str(test), str(method)): part.reset_index(drop=True)
        for (task, test, method), part in frame.groupby(["task", "test", "method"], sort=True)
    }

    @cache
    def columns_of(task: str, test: str, method: str) -> Answers:
        return _columns(parts[task, test, method], lambda name: parts.get((task, test, name)), near)

    @cache
    def of(task: str, test: str, metric: str, method: str) -> pd.DataFrame | None:
        part = parts.get((task, test, method))
        if part is None:
            return None
        value = _value(columns_of(task, test, method), metric)
        if value is None or np.isnan(value).all():
            return None
        return part[["key", "cluster", *groups]].assign(value=value)

    tests: dict[str, dict[str, None]] = {}
    for task, test, _ in parts:  # sorted
        tests.setdefault(task, {})[test] = None
    ordered = {task: list(listed) for task, listed in tests.items()}
    return RunMetrics(run, ordered, of, missing(results, run_id))


def _attribute(name: str) -> str:
    """SQL of an attribute as a column of its own."""
    text, column = name.replace("'", "''"), name.replace('"', '""')
    return f"coalesce(attributes['{text}'], '') AS \"{ATTRIBUTE}{column}\""


def _value(answers: Answers, metric: str) -> Floats | None:
    """(n,) values of the answers of one task, test and method; None for a metric that they don't
    have. A metric that the suite measures as well is the suite's own function of the answers."""
    task = str(answers["task"][0])
    if metric in _HERE:
        return _HERE[metric](answers)
    # of first-token scores of answers about people the metrics are those of a choice
    of = Task.MCQ if task in (DIRECT, CHOICE) else Task(task)
    by_name = {m.name: m for m in sdg_metrics.METRICS[of]}
    if metric not in by_name:
        return None
    values = np.asarray(by_name[metric].values(answers), dtype=np.float64)
    shown = by_name[metric].shown
    return values if shown is None else np.where(shown(answers), values, _NAN)


def _parse_failures(answers: Answers) -> Floats:
    """1 where an answer is none of those that the question allows, else 0; NaN where it isn't
    known. Of a choice by scores: the likeliest first token is no candidate."""
    if answers["task"][0] in (DIRECT, CHOICE):
        return np.where(answers["parsed"], np.isin(answers["how"], UNREAD), _NAN)
    if answers["task"][0] == Task.REGRESSION:
        return 1.0 - answers["stated"]
    if str(answers["method"][0]).endswith(GENERATED):
        return np.asarray(answers["pred"] == "", dtype=np.float64)
    return answers["off_candidate"]


#: Metrics that are judged otherwise than the suite measures them.
_HERE: Mapping[str, Callable[[Answers], Floats]] = {
    "recall": lambda a: a["correct"],
    "disparity": lambda a: a["correct"],
    "mae": lambda a: a["error"] / a["tolerance"],
    "cade_gain": lambda a: sdg_metrics.among(a["compared"], a["right_gain"]),
    "parse_failures": _parse_failures,
    "refusals": lambda a: np.where(a["parsed"], a["refused"], _NAN),
}


def _letter(texts: pd.Series, count: np.ndarray) -> np.ndarray:
    """(n,) index of the option letter that each text is, -1 where it is none of its question's."""
    at = texts.map(lambda text: OPTION_LETTERS.find(text) if len(text) == 1 else -1).to_numpy(int)
    return np.where(at < count, at, -1)


def _columns(
    part: pd.DataFrame, beside: Callable[[str], pd.DataFrame | None], near: float
) -> Answers:
    """The stored answers of one task, test and method as the columns of which the suite's metrics
    are made. beside: method -> its answers in the same test. near: margin of a near tie, nats."""
    method, task = str(part["method"].iloc[0]), str(part["task"].iloc[0])

    def of(name: str, column: str) -> pd.Series:
        """The values of another method's answers to the same questions."""
        other = beside(name)
        if other is None:
            return pd.Series(np.nan, index=part.index)
        values = other.drop_duplicates("item_id").set_index("item_id", drop=False)[column]
        return values.reindex(part["item_id"]).set_axis(part.index)

    def number(values: pd.Series) -> Floats:
        return np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)

    full, lead = View.FULL.value, number(part["lead"])
    correct = np.where(part["counted"], number(part["correct"]), _NAN)
    pred, how = part["pred"].fillna(""), part["how"].fillna("")
    token, count = part["top_token"].fillna("").str.strip(), part["n_options"].fillna(0)
    n, numeric = count.to_numpy(dtype=int), task == Task.REGRESSION
    if numeric:  # a number of several digits that is one token begins with its first digit
        off = ~token.where(~token.str.isdecimal(), token.str[:1]).isin(list(DIGITS)).to_numpy()
    else:
        off = _letter(token, n) < 0
    chosen = "value" if numeric else "pred"
    stated = part["parsed"].astype("boolean").to_numpy(dtype=float, na_value=_NAN)
    right_gain = correct - number(of(full, "correct"))
    columns = {
        **{name: part[name].to_numpy() for name in ("task", "method")},
        **{"pred": pred.to_numpy(dtype=str), "how": how.to_numpy(dtype=str)},
        **{name: number(part[name]) for name in ("mass", "error", "tolerance", "kept")},
        "correct": correct,
        "off_candidate": np.where(token == "", _NAN, off),
        "tie": np.where(np.isnan(lead), _NAN, lead <= 0.0),
        "near_tie": np.where(np.isnan(lead), _NAN, lead <= near),
        "correct_generated": number(of(f"{full}{GENERATED}", "correct")),
        "parsed": (how != "").to_numpy() | ~np.isnan(stated),
        "unparsed": np.where(np.isnan(stated), how.isin(["unparsed", "empty"]), stated == 0.0),
        # of numbers it isn't stored whether the limit of tokens ended them
        "truncated": np.where(numeric, _NAN, how == TRUNCATED),
        "refused": (how == "refusal").to_numpy(),
        "stated": stated,
        "compared": (method == CADE) & of(full, "item_id").notna().to_numpy(),
        "over_generated": np.full(len(part), method in (CADE, full)),
        "right_gain": right_gain,
        "gain": number(part["error"]) - number(of(full, "error")) if numeric else right_gain,
        "changed": (of(full, chosen) != part[chosen]).to_numpy(),
    }
    if numeric or task in (DIRECT, CHOICE):
        return columns
    polarity = part["polarity"].fillna("").to_numpy(dtype=object)
    directions = sdg_metrics.directions_of(polarity, n, len(OPTION_LETTERS))
    says = directions[np.arange(len(n)), _letter(pred, n)]
    return {**columns, **sdg_metrics.direction_columns(says, n)}


def pooled(
    side: RunMetrics, task: str, tests: Sequence[str], metric: str, method: str
) -> pd.DataFrame | None:
    """The answers of one run to several tests, with a column ``test``; None if the run has the
    metric in none of them."""
    by_test = {test: side.of(task, test, metric, method) for test in tests}
    parts = [part.assign(test=test) for test, part in by_test.items() if part is not None]
    return pd.concat(parts, ignore_index=True) if parts else None


def in_group(answers: pd.DataFrame | None, attribute: str, group: str) -> pd.DataFrame | None:
    """The answers about one group of an attribute; None where there is no such attribute."""
    column = f"{ATTRIBUTE}{attribute}"
    if answers is None or column not in answers:
        return None
    return answers[answers[column] == group]


def paired(old: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """(the answers of ``new`` to questions with a value in both runs, with the old value in the
    column ``before``; the number of questions in only one of the runs)."""
    before = old.rename(columns={"value": "before"})[["test", "key", "before"]]
    both = new.merge(before, on=["test", "key"], sort=True)
    return both.dropna(subset=["value", "before"]), len(old) + len(new) - 2 * len(both)
