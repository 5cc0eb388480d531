"""The answers of a run on the test split, as arrays shared by all studies, and study rows by pillar
and indicator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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

    items: n rows. place, country (n,): codes. choice (n,) by method: candidate index, -1 without an
    answer. hit (n,) by method: 1 right, 0 wrong, NaN without an answer; for numbers, right means
    within the tolerance. error (n,) by method; {} for multiple choice. Methods: always 'full'; the
    other views and 'cade' if they answered anything.
    """

    task: Task
    test: str
    items: pd.DataFrame
    place: Ints
    country: Ints
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
    tables = [cell.items.loc[cell.test_rows].reset_index(drop=True) for cell in cells]
    codes = (_coded(tables, name) for name in ("cluster_id", "country"))
    return [_outcome(*of_one) for of_one in zip(cells, tables, *codes, strict=True)]


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


def answered(
    o: TaskOutcome, cell: TaskCell, method: str, choice: Ints, number: Floats | None = None
) -> TaskOutcome:
    """The outcome of a cell with one more method. choice (N,): candidate index, -1 without an
    answer. number (N,): its number, by default the one that the chosen first digit leads to."""
    rows, error = cell.test_rows, dict(o.error)
    if cell.task is Task.REGRESSION:
        number = chosen_number(cell, choice) if number is None else number
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

    items = pd.concat([o.items for o in found], ignore_index=True)
    place, country = (np.concatenate([getattr(o, n) for o in found]) for n in ("place", "country"))
    answers = (join(name) for name in ("choice", "hit", "error"))
    return TaskOutcome(found[0].task, "all", items, place, country, *answers)


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


def units(o: TaskOutcome, method: str) -> list[Ints]:
    """What values that a method's answers have a part in are clustered by, e.g. another's minus its
    own: places, and where many places share its prompts, prompts too."""
    return [o.place, *([prompts(o.items)] if image_free(method, o.test) else [])]


@dataclass(frozen=True)
class Level:
    """A grouping of rows. code (n,): each row's group, -1 for none. columns: the columns of the
    study row of each group. smallest: a group of fewer rows gets no value."""

    code: Ints
    columns: tuple[Mapping[str, str], ...]
    smallest: int = 1


def grouping(
    keys: pd.Series, named: Callable[[str], Mapping[str, str]], smallest: int = 1
) -> Level:
    """Rows with the same key are a group, rows without one (NaN) have none; groups stand in the
    order of their keys. named: a key -> the columns of its study rows."""
    code, names = pd.factorize(keys, sort=True)
    return Level(code.astype(np.int64), tuple(named(str(name)) for name in names), smallest)


def levels(items: pd.DataFrame) -> list[Level]:
    """Groupings: all rows, by pillar, and by indicator within its pillar."""
    whole = Level(np.zeros(len(items), dtype=np.int64), ({"pillar": "all", "indicator": "all"},))
    both = items["pillar"] + "\t" + items["indicator"]
    return [
        whole,
        grouping(items["pillar"], lambda pillar: {"pillar": pillar, "indicator": "all"}),
        grouping(both, lambda k: dict(zip(("pillar", "indicator"), k.split("\t"), strict=True))),
    ]


def rows_of(
    study: str,
    level: Level,
    values: Mapping[str, Floats],
    clusters: Sequence[Ints],
    columns: Mapping[str, object],
    *,
    kind: stats.Kind = "share",
    tested: bool = False,
) -> list[dict[str, object]]:
    """Study rows of (n,) values by metric in each group; empty groups are left out.

    clusters: what rows are sampled by; of several, the one that claims less. columns: values
    shared by all rows. tested: fill p, the test of the value against 0. A group of
    fewer rows than the level's smallest gets no value, and its note explains why.
    """
    tables = stats.measure(
        (stats.ValueColumn(metric, column, kind) for metric, column in values.items()),
        level.code,
        len(level.columns),
        clusters,
        smallest=level.smallest,
        tested=tested,
    )
    made = []
    for table in tables:
        for i in np.flatnonzero(table.n > 0):
            more: dict[str, object] = {"p": float(table.p[i])} if tested else {}
            if table.small[i]:
                more["note"] = "too few rows for a value"
            more = {**columns, **level.columns[i], **more}
            made.append(row(study, table.metric, table.estimate(int(i)), **more))
    return made


def distinct(
    study: str,
    level: Level,
    unit: Ints,
    columns: Mapping[str, object],
    metric: str = "distinct_prompts",
) -> list[dict[str, object]]:
    """Number of distinct units of each group, the effective n where many rows share one. unit: (n,)
    codes. columns: values shared by all rows."""
    many = int(unit.max(initial=0)) + 1
    seen = np.bincount(level.code * many + unit, minlength=len(level.columns) * many)
    count = (seen.reshape(-1, many) > 0).sum(axis=1)
    n = np.bincount(level.code, minlength=len(level.columns))
    return [
        row(study, metric, stats.Estimate(float(k), int(rows)), **{**columns, **named})
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


def _coded(tables: Sequence[pd.DataFrame], column: str) -> list[Ints]:
    """The codes of a column, (n,) of each table."""
    code, _ = pd.factorize(pd.concat([t[column] for t in tables], ignore_index=True), sort=True)
    return np.split(code.astype(np.int64), np.cumsum([len(t) for t in tables])[:-1])


def _outcome(cell: TaskCell, items: pd.DataFrame, place: Ints, country: Ints) -> TaskOutcome:
    o = TaskOutcome(cell.task, cell.test.value, items, place, country, {}, {}, {})
    for view in View:
        choice = argmax_view(cell.logits[view], cell.present)
        number = cell.free[view] if cell.task is Task.REGRESSION else None
        said = choice >= 0 if number is None else ~np.isnan(number)
        if view is View.FULL or said[cell.test_rows].any():
            o = answered(o, cell, view.value, choice, number)
    cade = decision(cell)
    if cade is not None:
        choice = np.where(cade[2], cade[1].choice, -1)
        if (choice[cell.test_rows] >= 0).any():
            o = answered(o, cell, CADE, choice)
    return o
