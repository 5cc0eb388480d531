"""One run as arrays, read from the results file alone; the input of every study."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias import store
from sdgbias.benchmark.own_spec import UNKNOWN
from sdgbias.errors import StoreError
from sdgbias.methods.bounds import between, fill
from sdgbias.methods.cade import Form, Streams, streams
from sdgbias.types import (
    DIGITS,
    LETTERS,
    OPTION_LETTERS,
    TESTS,
    CadeParams,
    ContextTest,
    Task,
    View,
)

T = TypeVar("T")
_VIEWS = tuple(v.value for v in View)
_SCORES = """SELECT item_id, test, "view", logits, upper, top_token FROM scores
             WHERE run_id = $run AND task = $task"""
_DECODED = """SELECT item_id, test, "view", free, by_digit FROM decoded
              WHERE run_id = $run AND $task = 'regression'"""


@dataclass(frozen=True)
class TaskCell:
    """One task under one context test of one run: N items sorted by item_id, K candidates (3
    letters, up to 10 for user-supplied questions, or 10 digits).

    items: N rows with item_id, cluster_id, country, urban, wealth, photo ('with photo', 'without
        photo' or '', by what its picture shows), pillar, indicator, polarity,
        split, target, tolerance, gold, gold_value, question, options (JSON text), context (JSON
        text of the context line by test, '' if none), n_options,
        groups (JSON text), '' outside suites of custom questions.
    logits (N, K) per view: NaN where the item lacks the candidate or has no score, -inf where
        censored.
    upper (N, K) per view: the bound of a censored score, or of a reported score for which another
        spelling may have been withheld; else NaN.
    extra (N, K) per kind of extra prompt.
    present (N, K): candidates the item has.
    payoff (N, K): 1 for the gold letter, else 0; regression: minus the absolute error of the number
        that each first digit leads to, NaN if unknown.
    gold (N,): index of the gold letter, -1 for regression.
    by_digit (N, 10): the number that each first digit leads to (None for multiple choice).
    free (N,) per view: the freely generated number (0.0 if the answer contains none, NaN if nothing
        was decoded).
    top_token (N,) per view.
    params: CADE as the run tuned it.
    """

    task: Task
    test: ContextTest
    items: pd.DataFrame
    logits: Mapping[View, np.ndarray]
    upper: Mapping[View, np.ndarray]
    extra: Mapping[str, np.ndarray]
    present: np.ndarray
    payoff: np.ndarray
    gold: np.ndarray
    by_digit: np.ndarray | None
    free: Mapping[View, np.ndarray]
    top_token: Mapping[View, np.ndarray]
    params: CadeParams | None

    @property
    def letters(self) -> str:
        """The letters of the K candidates of multiple choice."""
        return OPTION_LETTERS[: self.present.shape[1]]

    @property
    def val(self) -> np.ndarray:
        """(N,) bool: rows for tuning."""
        return (self.items["split"] == "val").to_numpy()

    @property
    def test_rows(self) -> np.ndarray:
        """(N,) bool: rows for reporting."""
        return (self.items["split"] == "test").to_numpy()

    def filled(self, view: View) -> np.ndarray:
        """(N, K) logits with censored scores at their upper bound, the input of CADE (see
        bounds.fill)."""
        return fill(between(self.logits[view], self.upper[view]))

    def streams(self, form: Form = Form()) -> Streams:
        """CADE's streams of all N rows."""
        full, ctx, img, q = (
            self.filled(v) for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY)
        )
        return streams(full, ctx, img, q, self.present, form)


@dataclass(frozen=True)
class RunData:
    """run: its row of ``runs``. cells: (task, test) -> Cell, scored cells only. results: the file
    that it was read from."""

    run: Mapping[str, Any]
    cells: Mapping[tuple[Task, ContextTest], TaskCell]
    results: Path | None = None

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])

    @property
    def model(self) -> str:
        return str(self.run["model"])

    def of(self, task: Task) -> list[TaskCell]:
        """The cells of a task, in the order of the tests."""
        return [self.cells[(task, test)] for test in TESTS[task] if (task, test) in self.cells]

    @property
    def mcq(self) -> list[TaskCell]:
        return self.of(Task.MCQ)

    @property
    def regression(self) -> list[TaskCell]:
        return self.of(Task.REGRESSION)


def once(of: object, key: Hashable, make: Callable[[], T]) -> T:
    """What ``make`` gives for a run, a cell or something made of them: computed when the first
    study asks for it, and kept with it for the others."""
    kept: dict[Hashable, Any] = of.__dict__.setdefault("kept", {})
    if key not in kept:
        kept[key] = make()
    value: T = kept[key]
    return value


def missing(results: Path, run_id: str) -> dict[tuple[str, str], str]:
    """(task, method) -> the stored reason why the run has no numbers of it: what its model lacks,
    pictures or scores of candidates."""
    reasons = store.query(
        results,
        """SELECT DISTINCT task, method, missing_reason FROM numbers WHERE run_id = ?
           AND study = 'headline' AND starts_with(missing_reason, 'needs ') ORDER BY ALL""",
        [run_id],
    )
    return {(task, method): reason for task, method, reason in reasons.itertuples(index=False)}


def load(results: Path, run_id: str) -> RunData:
    """All scores and items of one finished run; without cells if its scores are of questions about
    people. Raises StoreError if the run doesn't exist or has no scores."""
    run = store.run_of(results, run_id)
    tuned = "SELECT task, test, alpha, lambda_kl, beta, tau FROM cade_params WHERE run_id = ?"
    rows = store.query(results, tuned, [run_id]).itertuples(index=False)
    params = {(task, test): CadeParams(*values) for task, test, *values in rows}
    cells: dict[tuple[Task, ContextTest], TaskCell] = {}
    for task in Task:
        items = _items(results, str(run["benchmark_id"]), run_id, task)
        if items.empty:
            continue
        scores, decoded = (
            _Stored(results, run_id, sql, items, task) for sql in (_SCORES, _DECODED)
        )
        for test in TESTS[task]:
            if any((test.value, view) in scores.rows for view in _VIEWS):
                of_test = params.get((task.value, test.value))
                cells[(task, test)] = _cell(task, test, items, scores, decoded, of_test)
    if not cells:
        if gone := store.dropped(results, [run_id]).get(run_id):
            raise StoreError(
                f"{results}: the scores of run {run_id} were removed by `sdgbias store keep` on"
                f" {gone:%Y-%m-%d}, its metrics remain; to analyse it, bring them back from a copy"
                " or evaluate the model again"
            )
        places = "SELECT 1 FROM items WHERE benchmark_id = ? LIMIT 1"
        if not store.query(results, places, [run["benchmark_id"]]).empty:
            raise StoreError(
                f"{results}: run {run_id} holds no scores; evaluate the model again: sdgbias"
                f" evaluate {run['model']}"
            )
    return RunData(run, cells, results)


def _items(results: Path, benchmark_id: str, run_id: str, task: Task) -> pd.DataFrame:
    """The run's scored items of a task, sorted by item_id; text columns without NULLs."""
    frame = store.query(
        results,
        """SELECT item_id, cluster_id, country, urban, wealth, pillar, indicator, polarity, split,
           CASE WHEN coalesce(modalities, '') = '' THEN '' WHEN starts_with(modalities, 'photo')
           THEN 'with photo' ELSE 'without photo' END AS photo, target, tolerance, gold, gold_value,
           question, options::VARCHAR AS options, groups::VARCHAR AS groups,
           context::VARCHAR AS context FROM items
           WHERE benchmark_id = $b AND task = $t
           AND item_id IN (SELECT item_id FROM scores WHERE run_id = $r AND task = $t)
           ORDER BY item_id""",
        {"b": benchmark_id, "t": task.value, "r": run_id},
        runs=[run_id],
    )
    text = frame.columns.difference(["item_id", "tolerance", "gold_value", "options"])
    frame[text] = frame[text].fillna("").astype(str)
    count = {text: len(json.loads(text)) for text in set(frame["options"])}
    options = frame["options"].map(count).astype(int)
    return frame.assign(n_options=options if task is Task.MCQ else len(DIGITS))


def group_columns(items: pd.DataFrame) -> dict[str, np.ndarray]:
    """Group column of a suite of custom questions -> (N,) level of each item, '' where the author
    gave none; {} for items of other suites."""
    code, texts = pd.factorize(items["groups"])
    levels = [json.loads(text) if text else {} for text in texts]
    names = list(dict.fromkeys(name for level in levels for name in level))
    table = {name: [str(level.get(name, UNKNOWN)) for level in levels] for name in names}
    return {
        name: np.array(["" if v == UNKNOWN else v for v in column], dtype=object)[code].astype(str)
        for name, column in table.items()
    }


def _width(items: pd.DataFrame) -> int:
    """The largest number of candidates of a task's items, at least three."""
    return max(len(LETTERS), int(items["n_options"].max()))


class _Stored:
    """A run's stored rows of a task, read once and then sliced by test and view by array
    indexing."""

    def __init__(
        self, results: Path, run_id: str, sql: str, items: pd.DataFrame, task: Task
    ) -> None:
        table = store.arrow(results, sql, {"run": run_id, "task": task.value}, runs=[run_id])
        item_ids, names = items["item_id"].to_numpy(), table.column_names
        self.n = len(item_ids)
        self.at = np.searchsorted(item_ids, table["item_id"].to_numpy())
        self.values = {
            name: list_matrix(table[name], _width(items))
            if pa.types.is_list(table[name].type)
            else table[name].to_numpy()
            for name in names
        }
        keys = pd.DataFrame({name: self.values[name] for name in ("test", "view")})
        self.rows: dict[Any, Any] = dict(keys.groupby(["test", "view"]).indices)

    def spread(self, name: str, test: ContextTest, view: str, empty: Any) -> np.ndarray:
        """A column's values (N,) or (N, K) of one test and view at their items; ``empty``
        elsewhere."""
        values, rows = self.values[name], self.rows.get((test.value, view), slice(0))
        out = np.full((self.n, *values.shape[1:]), empty, dtype=values.dtype)
        out[self.at[rows]] = values[rows]
        return out


def list_matrix(column: pa.ChunkedArray, width: int) -> np.ndarray:
    """A column of short lists as (N, width) float64, NaN beyond each list's end."""
    lists = column.combine_chunks()
    starts = lists.offsets.to_numpy()[:-1]
    lengths = np.where(
        lists.is_null().to_numpy(zero_copy_only=False), 0, np.diff(lists.offsets.to_numpy())
    )
    flat = lists.values.to_numpy(zero_copy_only=False).astype(float)
    out = np.full((len(lists), width), np.nan)
    for j in range(width):
        has = lengths > j
        out[has, j] = flat[starts[has] + j]
    return out


def _cell(
    task: Task,
    test: ContextTest,
    items: pd.DataFrame,
    scores: _Stored,
    decoded: _Stored,
    params: CadeParams | None,
) -> TaskCell:
    n, width = len(items), _width(items)
    present = np.arange(width)[None, :] < items["n_options"].to_numpy()[:, None]
    if task is Task.MCQ:
        gold = items["gold"].map(OPTION_LETTERS.index).to_numpy(dtype=np.int64)
        payoff, by_digit = (np.arange(width)[None, :] == gold[:, None]).astype(float), None
    else:
        gold = np.full(n, -1, dtype=np.int64)
        by_digit = decoded.spread("by_digit", test, View.FULL.value, np.nan)
        payoff = -np.abs(by_digit - items["gold_value"].to_numpy(dtype=float)[:, None])
    spoken = View if task is Task.REGRESSION else ()
    passes = sorted(view for name, view in scores.rows if name == test.value and view not in _VIEWS)
    return TaskCell(
        task=task,
        test=test,
        items=items,
        logits={v: scores.spread("logits", test, v.value, np.nan) for v in View},
        upper={v: scores.spread("upper", test, v.value, np.nan) for v in View},
        extra={name: scores.spread("logits", test, name, np.nan) for name in passes},
        present=present,
        payoff=payoff,
        gold=gold,
        by_digit=by_digit,
        free={v: decoded.spread("free", test, v.value, np.nan) for v in spoken},
        top_token={v: scores.spread("top_token", test, v.value, "") for v in View},
        params=params,
    )
