"""The answers of a run on the test split, as arrays shared by all studies, and study rows by pillar
and indicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import row
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Bools, Decision, Floats, Ints, Streams, argmax_view, decide, usable
from sdgbias.types import ContextTest, Task, View

CADE = "cade"


@dataclass(frozen=True)
class TaskOutcome:
    """The n test rows of a task under one context test, or pooled over tests (test 'all').

    items: n rows. place, country (n,): codes. polarity (n,): 1 higher is better, -1 lower, 0
    unknown. choice (n,) by method: candidate index, -1 without an answer. hit (n,) by method: 1
    right, 0 wrong, NaN without an answer; for numbers, right means within the tolerance. error (n,)
    by method; {} for multiple choice. Methods: always 'full'; the other views and 'cade' if they
    answered anything.
    """

    task: Task
    test: str
    items: pd.DataFrame
    place: Ints
    country: Ints
    polarity: Ints
    choice: Mapping[str, Ints]
    hit: Mapping[str, Floats]
    error: Mapping[str, Floats]

    def columns(self, method: str, **more: object) -> dict[str, object]:
        """What the rows of a method have in common."""
        return {"task": self.task.value, "test": self.test, "method": method, **more}


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
    """One Outcome per cell of a task, with the same place and country codes in all."""
    if not cells:
        return []
    tables: dict[int, pd.DataFrame] = {}  # the tests of a task share one table of items
    for cell in cells:
        if id(cell.items) not in tables:
            tables[id(cell.items)] = cell.items.loc[cell.test_rows].reset_index(drop=True)
    places, countries = _coded(tables, "cluster_id"), _coded(tables, "country")
    return [
        _outcome(cell, tables[id(cell.items)], places[id(cell.items)], countries[id(cell.items)])
        for cell in cells
    ]


def pools(run: RunData, task: Task) -> list[TaskOutcome]:
    """One Outcome per reportable cell, followed by all of them pooled; empty if there are none.
    Places and countries have the same codes in all.

    Computed once per run and cached on it, because every study starts here.
    """
    kept: dict[Task, list[TaskOutcome]] = run.__dict__.setdefault("_pools", {})
    if task not in kept:
        found = outcomes(reportable(run, task))
        kept[task] = [*found, pooled(found)] if found else []
    return kept[task]


def decision(cell: TaskCell) -> tuple[Streams, Decision, Bools] | None:
    """CADE as the run tuned it: streams, decision and the (N,) mask of rows it can answer; None if
    nothing was tuned.

    Computed once per cell and cached on it.
    """
    if cell.params is None:
        return None
    if "_decision" not in cell.__dict__:
        s = cell.streams()
        known = usable(s.valid, cell.payoff)
        cell.__dict__["_decision"] = s, decide(s, cell.params), known
    found: tuple[Streams, Decision, Bools] = cell.__dict__["_decision"]
    return found


def chosen_number(cell: TaskCell, choice: Ints) -> Floats:
    """(N,) the number that each chosen first digit leads to; NaN without a choice."""
    assert cell.by_digit is not None
    return np.where(
        choice >= 0, cell.by_digit[np.arange(len(choice)), np.maximum(choice, 0)], np.nan
    )


def hits(cell: TaskCell, choice: Ints, number: Floats | None = None) -> Floats:
    """(N,) 1 right, 0 wrong, NaN without an answer."""
    if number is None:
        return np.where(choice >= 0, metrics.correct(cell.gold, choice), np.nan)
    error = metrics.absolute_error(cell.items["gold_value"].to_numpy(dtype=float), number)
    right = metrics.within_tolerance(error, cell.items["tolerance"].to_numpy(dtype=float))
    return np.where(np.isnan(number), np.nan, right)


def pooled(found: Sequence[TaskOutcome]) -> TaskOutcome:
    """All tests of a task as one Outcome (test 'all'), limited to methods with answers under every
    test."""
    methods = [m for m in found[0].hit if all(m in o.hit for o in found)]

    def join(name: str) -> dict[str, np.ndarray]:
        return {
            m: np.concatenate([getattr(o, name)[m] for o in found])
            for m in methods
            if m in getattr(found[0], name)
        }

    return TaskOutcome(
        found[0].task,
        "all",
        pd.concat([o.items for o in found], ignore_index=True),
        np.concatenate([o.place for o in found]),
        np.concatenate([o.country for o in found]),
        np.concatenate([o.polarity for o in found]),
        join("choice"),
        join("hit"),
        join("error"),
    )


def image_free(method: str, test: str) -> bool:
    """Whether many places share the prompts of a view, because it contains neither the picture nor
    a context value."""
    valued = test in (ContextTest.T1.value, ContextTest.T2.value)
    return method == View.Q_ONLY.value or (method == View.CTX_Q.value and not valued)


def prompts(items: pd.DataFrame) -> Ints:
    """(n,) codes of the distinct Q-only prompts: question text and options."""
    return pd.factorize(items["question"] + "\t" + items["options"], sort=True)[0].astype(np.int64)


def unit(o: TaskOutcome, method: str) -> Ints:
    """(n,) codes of the sampling units for intervals of a method's answers: distinct prompts where
    many places share them, else places."""
    return prompts(o.items) if image_free(method, o.test) else o.place


def spread_of(
    o: TaskOutcome,
    method: str,
    level: Level,
    values: Mapping[str, Floats],
    kind: stats.Kind = "share",
    smallest: int = 1,
) -> dict[str, stats.ByGroup]:
    """`spread` of values that a method's answers have a part in, e.g. of another's minus its own:
    over places, and where many places share its prompts, the wider of that and over prompts."""
    found = spread(level, values, o.place, kind, smallest)
    if not image_free(method, o.test):
        return found
    by_prompt = spread(level, values, prompts(o.items), kind, smallest)
    return {name: stats.wider(found[name], by_prompt[name]) for name in found}


@dataclass(frozen=True)
class Level:
    """A grouping of rows. code (n,): each row's group, -1 for none. columns: the columns of the
    study row of each group."""

    code: Ints
    columns: tuple[Mapping[str, str], ...]


def levels(items: pd.DataFrame) -> list[Level]:
    """Groupings: all rows, by pillar, and by indicator within its pillar."""
    code, names = pd.factorize(items["pillar"], sort=True)
    pillars = tuple({"pillar": str(p), "indicator": "all"} for p in names)
    each, names = pd.factorize(items["pillar"] + "\t" + items["indicator"], sort=True)
    pairs = [str(name).split("\t") for name in names]
    return [
        Level(np.zeros(len(items), dtype=np.int64), ({"pillar": "all", "indicator": "all"},)),
        Level(code.astype(np.int64), pillars),
        Level(each.astype(np.int64), tuple({"pillar": p, "indicator": i} for p, i in pairs)),
    ]


def spread(
    level: Level,
    values: Mapping[str, Floats],
    place: Ints,
    kind: stats.Kind = "share",
    smallest: int = 1,
) -> dict[str, stats.ByGroup]:
    """A table by group for each named (n,) column; rows without a group are left out."""
    if not values:
        return {}
    code, columns = level.code, list(values.values())
    if (code < 0).any():
        there = np.flatnonzero(code >= 0)
        code, place, columns = code[there], place[there], [v[there] for v in columns]
    found = stats.grouped(columns, code, len(level.columns), place, kind=kind, smallest=smallest)
    return dict(zip(values, found, strict=True))


def rows_of(
    study: str,
    level: Level,
    found: Mapping[str, stats.ByGroup],
    common: Mapping[str, object] | None = None,
    /,
    *,
    tested: bool = False,
    **columns: object,
) -> list[dict[str, object]]:
    """Study rows from tables by group, keyed by metric; empty groups are left out.

    common, columns: column values shared by all rows. tested: fill p, the test of the value against
    0. A group below the smallest size gets no value, and its note explains why.
    """
    columns = {**(common or {}), **columns}
    made = []
    for metric, table in found.items():
        p = table.p if tested else np.full(len(table.n), np.nan)
        for i in np.flatnonzero(table.n > 0):
            more = {"p": float(p[i])} if tested else {}
            if table.small[i]:
                more["note"] = "too few rows for a value"  # type: ignore[assignment]
            made.append(
                row(
                    study, metric, table.estimate(int(i)), **{**columns, **level.columns[i], **more}
                )
            )
    return made


def distinct(
    study: str, level: Level, prompt: Ints, /, **columns: object
) -> list[dict[str, object]]:
    """Number of distinct prompts of each group, the effective n where many items share a prompt.
    prompt: (n,) codes."""
    many = int(prompt.max(initial=0)) + 1
    seen = np.bincount(level.code * many + prompt, minlength=len(level.columns) * many)
    count = (seen.reshape(-1, many) > 0).sum(axis=1)
    n = np.bincount(level.code, minlength=len(level.columns))
    return [
        row(study, "distinct_prompts", stats.Estimate(float(k), int(rows)), **{**columns, **named})
        for named, k, rows in zip(level.columns, count, n, strict=True)
    ]


def adjust(rows: Sequence[dict[str, object]]) -> None:
    """Replace the p of one family's rows by Holm's, in place; the note keeps the unadjusted p and
    the size of the family."""
    raw = [float(r["p"]) for r in rows]  # type: ignore[arg-type]
    many = sum(not np.isnan(p) for p in raw)
    for r, p, fixed in zip(rows, raw, stats.holm(raw), strict=True):
        if not np.isnan(p):
            said = f"{r['note']}; " if r["note"] else ""
            r["p"], r["note"] = float(fixed), f"{said}p: Holm over {many} tests, alone {p:.3g}"


def _coded(tables: Mapping[int, pd.DataFrame], column: str) -> dict[int, Ints]:
    code, _ = pd.factorize(
        pd.concat([t[column] for t in tables.values()], ignore_index=True), sort=True
    )
    ends = np.cumsum([len(t) for t in tables.values()])[:-1]
    return dict(zip(tables, np.split(code.astype(np.int64), ends), strict=True))


def _outcome(cell: TaskCell, items: pd.DataFrame, place: Ints, country: Ints) -> TaskOutcome:
    mask = cell.test_rows
    choice = {v.value: argmax_view(cell.logits[v], cell.present) for v in View if v in cell.logits}
    number: dict[str, Floats] = {v.value: cell.free[v] for v in cell.free}
    cade = decision(cell)
    if cade is not None:
        choice[CADE] = np.where(cade[2], cade[1].choice, -1)
        if cell.task is Task.REGRESSION:
            number[CADE] = chosen_number(cell, choice[CADE])
    if cell.task is Task.MCQ:
        hit, error = {m: hits(cell, c)[mask] for m, c in choice.items()}, {}
    else:
        gold = cell.items["gold_value"].to_numpy(dtype=float)
        hit = {m: hits(cell, choice[m], number[m])[mask] for m in number}
        error = {m: metrics.absolute_error(gold, number[m])[mask] for m in number}
    said = [m for m in hit if m == View.FULL.value or not np.isnan(hit[m]).all()]
    return TaskOutcome(
        cell.task,
        cell.test.value,
        items,
        place,
        country,
        items["polarity"]
        .map({"higher": 1, "lower": -1})
        .fillna(0)
        .to_numpy(dtype=float)
        .astype(np.int64),
        {m: choice[m][mask] for m in said},
        {m: hit[m] for m in said},
        {m: error[m] for m in said if m in error},
    )
