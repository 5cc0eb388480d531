"""Metrics of a run per question, and the questions of two runs side by side. The answers are those
that the run published, of whatever suite: nothing is decided again.

Answers share a place or a picture, so rows are clustered by it; where a prompt holds neither a
picture nor a value of the place, by prompt (``unit`` of the store's view ``answers``). Recall is
that of the 13 reported classes of people, on questions about a class that the person has; data
without classes counts as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.run import missing
from sdgbias.benchmark.people_items import CHOICE, DIRECT
from sdgbias.engines.agreement import TOLERANCES
from sdgbias.errors import StoreError
from sdgbias.files import packaged_sql
from sdgbias.raw.facet import SELECTED, UNKNOWN
from sdgbias.suites import sdg_metrics
from sdgbias.suites.sdg_metrics import Answers
from sdgbias.types import GENERATED, NEEDS_PICTURES, OPTION_LETTERS, Task

#: How a text was read that is no answer.
UNREAD = ("unparsed", "empty", "several")
#: Prefix of the columns of attributes: own questions name theirs as they like.
ATTRIBUTE = "attribute "


@dataclass(frozen=True)
class RunAnswers:
    """One run. run: its row of ``runs``. answers: (task, method) -> a row per answer, with the
    columns of which metrics are made and ``test``; ``key``, a hash of the question's text, answer
    and place; ``cluster``: questions of a cluster are dependent; ``attribute NAME``: its group, ''
    if unknown. missing: by task and method what the model lacks for it, as the run was
    published."""

    run: Mapping[str, Any]
    answers: Mapping[tuple[str, str], pd.DataFrame]
    missing: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def tests(self, task: str) -> list[str]:
        """The tests of a task in this run."""
        parts = [part["test"].unique() for (of, _), part in self.answers.items() if of == task]
        return sorted(set().union(*parts))

    @property
    def attributes(self) -> list[str]:
        """The attributes that its questions have."""
        names = [str(name) for part in self.answers.values() for name in part]
        return sorted({name[len(ATTRIBUTE) :] for name in names if name.startswith(ATTRIBUTE)})

    def of(
        self, task: str, tests: Sequence[str], metric: str, method: str, attribute: str = ""
    ) -> pd.DataFrame | None:
        """The answers to the tests with their ``value`` of a metric, NaN where there is none, and
        their ``group`` of an attribute; None if the run has the metric in none of them."""
        part = self.answers.get((task, method))
        if part is None:
            return None
        part = part[part["test"].isin(tests)]
        columns = [str(name) for name in part if not str(name).startswith(ATTRIBUTE)]
        values = _values({name: part[name].to_numpy() for name in columns}, task, metric)
        value = pd.Series(values, part.index, dtype=float)
        measured = part["test"].isin(part["test"][value.notna()].unique())
        group = part.get(f"{ATTRIBUTE}{attribute}", "")
        answers = part[["test", "key", "cluster"]].assign(value=value, group=group)[measured]
        return None if answers.empty else answers.reset_index(drop=True)

    def lacks(self, task: str, method: str) -> str:
        """What the model lacks for answers of this method, '' if nothing. A view that is read from
        text needs its picture all the same."""
        shown = self.missing.get((task, method.removesuffix(GENERATED)), "")
        pictures = shown if shown == NEEDS_PICTURES else ""
        return self.missing.get((task, method), pictures)


def load(results: Path, run_id: str, methods: Collection[str]) -> RunAnswers:
    """The answers of a run by these methods that are reported, from the store's view ``answers``.
    Raises StoreError for a run that doesn't exist or has no answers at all."""
    run, sql = store.run_of(results, run_id), packaged_sql("nights.sql")
    benchmark = {"benchmark": run["benchmark_id"]}
    names = list(store.query(results, sql["attributes"], benchmark)["name"])
    columns = "".join(f", {_attribute(name)}" for name in names)
    reported = suites.named(str(run["suite"])).reported("a")
    given = {"run": run_id, "classes": list(SELECTED), "methods": sorted(methods)}
    query = sql["answers"].format(attributes=columns, reported=reported)
    stored = store.query(results, query, given, runs=[run_id])
    others = f"SELECT 1 FROM answers a WHERE run_id = ?{reported} LIMIT 1"
    if stored.empty and store.query(results, others, [run_id], runs=[run_id]).empty:
        raise StoreError(
            f"{results}: run {run_id} holds no answers; evaluate the model again: sdgbias evaluate"
            f" {run['model']}"
        )
    groups = [f"{ATTRIBUTE}{name}" for name in names]
    stored[groups] = stored[groups].replace(UNKNOWN, "")
    spec = json.loads(run["config"] or "{}").get("spec", {})
    near = TOLERANCES[str(spec.get("dtype", "float32"))]
    parts = stored.groupby(["task", "method"])
    answers = {
        (str(task), str(method)): part.assign(**_columns(part, str(task), near))
        for (task, method), part in parts
    }
    return RunAnswers(run, answers, missing(results, run_id))


def _attribute(name: str) -> str:
    """SQL of an attribute as a column of its own."""
    text, column = name.replace("'", "''"), name.replace('"', '""')
    return f"coalesce(attributes['{text}'], '') AS \"{ATTRIBUTE}{column}\""


def _columns(stored: pd.DataFrame, task: str, near: float) -> dict[str, np.ndarray]:
    """The columns of which the suite's metrics are made, (n,) each, from n stored answers to a
    task. near: margin of a near tie, nats."""
    a = {str(name): stored[name].to_numpy() for name in stored}
    of = _like(task)
    numeric, count, token = of is Task.REGRESSION, a["n_options"], stored["top_token"].str.strip()
    # a number of several digits that is one token begins with its first digit
    off = ~token.str.fullmatch("[0-9]+") if numeric else _letter(token, count) < 0
    columns = {
        "off_candidate": np.where(token == "", np.nan, off),
        "tie": np.where(np.isnan(a["lead"]), np.nan, a["lead"] <= 0.0),
        "near_tie": np.where(np.isnan(a["lead"]), np.nan, a["lead"] <= near),
        **sdg_metrics.compared_columns(a, of),
    }
    if numeric:  # whether the limit of tokens ended them isn't stored
        return columns | {"truncated": np.full(len(stored), np.nan)}
    directions = sdg_metrics.directions_of(a["polarity"], count, len(OPTION_LETTERS))
    says = directions[np.arange(len(count)), _letter(stored["pred"], count)]
    return columns | sdg_metrics.direction_columns(says, count)


def _like(task: str) -> Task:
    """The task whose metrics the answers have: those about people are choices."""
    return Task.MCQ if task in (DIRECT, CHOICE) else Task(task)


def _letter(texts: pd.Series, count: np.ndarray) -> np.ndarray:
    """(n,) index of the option letter that each text is, -1 where it is none of its question's."""
    code, distinct = pd.factorize(texts)
    letter = [OPTION_LETTERS.find(text) if len(text) == 1 else -1 for text in distinct]
    at = np.array(letter, dtype=int)[code]
    return np.where(at < count, at, -1)


def _values(answers: Answers, task: str, metric: str) -> Any:
    """(n,) values of the answers to one task by one method; NaN for a metric that they don't have.
    A metric that the suite measures as well is the suite's own function of the answers."""
    if metric in _HERE:
        return _HERE[metric](answers)
    measured = next((m for m in sdg_metrics.METRICS[_like(task)] if m.name == metric), None)
    if measured is None:
        return np.nan
    values = np.asarray(measured.values(answers), dtype=float)
    return values if measured.shown is None else np.where(measured.shown(answers), values, np.nan)


def _parse_failures(answers: Answers) -> Any:
    """1 where an answer is none of those that the question allows, else 0; NaN where it isn't
    known. Of a choice by scores: the likeliest first token is no candidate."""
    task, method = (answers[name][:1].tolist() for name in ("task", "method"))
    if task in ([DIRECT], [CHOICE], [Task.REGRESSION]):
        return np.where(answers["parsed"], np.isin(answers["how"], UNREAD), np.nan)
    generated = "".join(method).endswith(GENERATED)
    return answers["pred"] == "" if generated else answers["off_candidate"]


#: Metrics that are judged otherwise than the suite measures them.
_HERE: Mapping[str, Callable[[Answers], Any]] = {
    "recall": lambda a: a["correct"],
    "disparity": lambda a: a["correct"],
    "mae": lambda a: a["error"] / a["tolerance"],
    "cade_gain": lambda a: sdg_metrics.among(a["compared"], a["correct"] - a["full_correct"]),
    "parse_failures": _parse_failures,
    "refusals": lambda a: np.where(a["parsed"], a["refused"], np.nan),
}


def paired(old: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """(the answers of ``new`` to questions with a value in both runs, with the old value in the
    column ``before``; the number of questions in only one of the runs)."""
    before = old[["test", "key", "value"]].set_axis(["test", "key", "before"], axis="columns")
    both = new.merge(before, on=["test", "key"], sort=True)
    return both.dropna(subset=["value", "before"]), len(old) + len(new) - 2 * len(both)
