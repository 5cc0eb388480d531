"""The answers of a run on the test split, as arrays shared by all studies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import pandas as pd

from sdgbias.analysis.run import RunData, TaskCell, once
from sdgbias.methods import metrics
from sdgbias.methods.cade import Bools, Decision, Floats, Ints, Streams, argmax_view, decide, usable
from sdgbias.types import Task, View

CADE = "cade"
L = TypeVar("L")


@dataclass(frozen=True)
class TaskOutcome:
    """n answers of a task under one context test, or pooled over tests (test 'all').

    task: 'mcq', 'regression', or 'choice' of people. items: n rows. place (n,): codes of what rows
    are sampled by. choice (n,) by method: candidate index, -1 without an answer. hit (n,) by
    method: 1 right, 0 wrong, NaN without an answer; for numbers, right means within the tolerance;
    of people 1 yes, 0 no. error (n,) by method; {} but for numbers. Of tasks about places methods
    are always 'full'; the other views and 'cade' if they answered anything.
    cells: where the rows come from. notes: by method, what its rows say beside the numbers. at:
    columns that all rows share. more: further columns (n,) of a study, by name.
    """

    task: str
    test: str
    items: pd.DataFrame
    place: Ints
    choice: Mapping[str, Ints]
    hit: Mapping[str, Floats]
    error: Mapping[str, Floats]
    cells: Sequence[TaskCell] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    at: Mapping[str, object] = field(default_factory=dict)
    more: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def prompt(self) -> Ints:
        """(n,) codes of the distinct Q-only prompts: question text and options."""
        if "prompt" in self.more:
            return self.more["prompt"]
        texts = self.items["question"] + "\t" + self.items["options"]
        return pd.factorize(texts, sort=True)[0].astype(np.int64)

    @cached_property
    def context(self) -> Ints:
        """(n,) codes of the distinct CTX+Q prompts: question, options and the context's values."""
        lines = self.items["context"]
        texts = self.items["question"] + "\t" + self.items["options"] + "\t" + lines
        return pd.factorize(texts, sort=True)[0].astype(np.int64)

    def codes(self, unit: str) -> Ints:
        """(n,) codes of what rows are sampled by: 'place', 'prompt', 'context', or a column of
        ``more``."""
        of_study = self.more.get(unit)
        codes: Ints = getattr(self, unit) if of_study is None else of_study
        return codes

    def grouped(self, by: Callable[[TaskOutcome], Iterable[L]]) -> Sequence[L]:
        """The groupings of these rows, made once for all studies."""
        return once(self, by, lambda: list(by(self)))

    def columns(self, method: str) -> dict[str, object]:
        """What the rows of a method have in common."""
        key = {"task": str(self.task), "test": self.test, "method": method}
        return key | {"note": self.notes.get(method, "")} | dict(self.at)


def reportable(run: RunData, task: Task) -> list[TaskCell]:
    """The cells of a task with results to report: test rows and, for numbers, a decoded Full
    view."""
    full = View.FULL
    return [
        cell
        for cell in run.of(task)
        if cell.test_rows.any()
        and (
            cell.task is Task.MCQ
            or (full in cell.free and np.isfinite(cell.free[full][cell.test_rows]).any())
        )
    ]


def outcomes(cells: Sequence[TaskCell]) -> list[TaskOutcome]:
    """One Outcome per cell of a task, with the same place codes in all."""
    if not cells:
        return []
    tables = [_shown(cell) for cell in cells]
    place, _ = pd.factorize(pd.concat([t["cluster_id"] for t in tables]), sort=True)
    places = np.split(place.astype(np.int64), np.cumsum([len(t) for t in tables])[:-1])
    return [_outcome(*of_one) for of_one in zip(cells, tables, places, strict=True)]


def pools(run: RunData, task: Task) -> list[TaskOutcome]:
    """One Outcome per reportable cell, followed by all of them pooled; empty if there are none.
    Places have the same codes in all."""

    def pool() -> list[TaskOutcome]:
        of_tests = outcomes(reportable(run, task))
        return [*of_tests, pooled(of_tests)] if of_tests else []

    return once(run, (pools, task), pool)


def decision(cell: TaskCell) -> tuple[Streams, Decision, Bools] | None:
    """CADE as the run tuned it: streams, decision and the (N,) mask of rows it can answer; None if
    nothing was tuned."""

    def decided() -> tuple[Streams, Decision, Bools] | None:
        if cell.params is None:
            return None
        s = cell.streams()
        return s, decide(s, cell.params), usable(s.valid, cell.payoff)

    return once(cell, decision, decided)


def answered(
    o: TaskOutcome, cell: TaskCell, method: str, choice: Ints, number: Floats | None = None
) -> TaskOutcome:
    """The outcome of a cell with one more method. choice (N,): candidate index, -1 without an
    answer. number (N,): its number, by default the one that the chosen first digit leads to."""
    rows, error = cell.test_rows, dict(o.error)
    if cell.task is Task.REGRESSION:
        if number is None:
            assert cell.by_digit is not None
            of_digit = cell.by_digit[np.arange(len(choice)), np.maximum(choice, 0)]
            number = np.where(choice >= 0, of_digit, np.nan)
        gold = cell.items["gold_value"].to_numpy(dtype=float)
        error[method] = metrics.absolute_error(gold, number)[rows]
    return replace(
        o,
        choice={**o.choice, method: choice[rows]},
        hit={**o.hit, method: hits(cell, choice, number)[rows]},
        error=error,
    )


def hits(cell: TaskCell, choice: Ints, number: Floats | None = None) -> Floats:
    """(N,) 1 right, 0 wrong, NaN without an answer, or for a number without a tolerance."""
    if number is None:
        return np.where(choice >= 0, metrics.correct(cell.gold, choice), np.nan)
    error = metrics.absolute_error(cell.items["gold_value"].to_numpy(dtype=float), number)
    tolerance = cell.items["tolerance"].to_numpy(dtype=float)
    right = metrics.within_tolerance(error, tolerance)
    return np.where(np.isnan(number) | np.isnan(tolerance), np.nan, right)


def pooled(parts: Sequence[TaskOutcome]) -> TaskOutcome:
    """All tests of a task as one Outcome (test 'all'), limited to methods with answers under every
    test."""
    first = parts[0]
    methods = [m for m in first.hit if all(m in o.hit for o in parts)]

    def join(name: str, names: Iterable[str] = methods) -> dict[str, np.ndarray]:
        return {
            m: np.concatenate([getattr(o, name)[m] for o in parts])
            for m in names
            if all(m in getattr(o, name) for o in parts)
        }

    return replace(
        first,
        test="all",
        items=pd.concat([o.items for o in parts], ignore_index=True),
        place=np.concatenate([o.place for o in parts]),
        choice=join("choice"),
        hit=join("hit"),
        error=join("error"),
        cells=[cell for o in parts for cell in o.cells],
        more=join("more", first.more),
    )


def unit(o: TaskOutcome, method: str, versus: str = "") -> tuple[str, ...]:
    """What a method's answers are sampled by: those of Q-only by distinct prompts, because many
    places share one."""
    return ("prompt",) if method == View.Q_ONLY.value else units(o, method)


def units(o: TaskOutcome, method: str, versus: str = "") -> tuple[str, ...]:
    """What values that the answers of one or two methods have a part in are clustered by: places,
    and where a view has no picture, the prompts that places share, too."""
    shared = {View.Q_ONLY.value: "prompt", View.CTX_Q.value: "context"}
    return ("place", *(name for view, name in shared.items() if view in (method, versus)))


def _shown(cell: TaskCell) -> pd.DataFrame:
    """The test rows of a cell's items, with the context line of its test where that has values:
    prompts of one question that differ in names alone are no independent ones."""
    items = cell.items.loc[cell.test_rows].reset_index(drop=True)
    if not cell.test.has_values:
        return items.assign(context="")
    code, texts = pd.factorize(items["context"])
    lines = [json.loads(text).get(cell.test.value, "") if text else "" for text in texts]
    return items.assign(context=np.array([*lines, ""], dtype=object)[code])


def _outcome(cell: TaskCell, items: pd.DataFrame, place: Ints) -> TaskOutcome:
    o = TaskOutcome(cell.task, cell.test.value, items, place, {}, {}, {}, [cell])
    for view in View:
        choice = argmax_view(cell.logits[view], cell.present)
        number = cell.free[view] if cell.task is Task.REGRESSION else None
        has_answer = choice >= 0 if number is None else ~np.isnan(number)
        if view is View.FULL or has_answer[cell.test_rows].any():
            o = answered(o, cell, view.value, choice, number)
    cade = decision(cell)
    if cade is not None:
        choice = np.where(cade[2], cade[1].choice, -1)
        if (choice[cell.test_rows] >= 0).any():
            o = answered(o, cell, CADE, choice)
    return o
