"""One run as arrays, read from the results file alone; the input of every study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias import store
from sdgbias.benchmark.own_spec import UNKNOWN
from sdgbias.errors import StoreError, UsageError
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

_VIEWS = tuple(v.value for v in View)
_SCORES = """SELECT item_id, test, "view", logits, upper, top_token, mass FROM scores
             WHERE run_id = $run AND task = $task"""
_DECODED = """SELECT item_id, test, "view", free, parsed, by_digit FROM decoded
              WHERE run_id = $run AND $task = 'regression'"""
#: Columns of a question that are equal in two runs where both were asked the same.
SAME = ("item_id", "gold", "gold_value", "question", "options", "evidence")


@dataclass(frozen=True)
class TaskCell:
    """One task under one context test of one run: N items sorted by item_id, K candidates (3
    letters, up to 10 for user-supplied questions, or 10 digits).

    items: N rows with item_id, cluster_id, country, urban, wealth, photo ('with photo', 'without
        photo' or '', by what its picture shows), pillar, indicator, polarity,
        split, target, tolerance, gold, gold_value, question, options (JSON text), n_options,
        groups (JSON text) and evidence (its picture and context), '' outside suites of custom
        questions.
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
    free, parsed (N,) per view: the freely generated number (0.0 and not parsed if the answer
        contains none; NaN if nothing was decoded).
    top_token, mass (N,) per view.
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
    parsed: Mapping[View, np.ndarray]
    top_token: Mapping[View, np.ndarray]
    mass: Mapping[View, np.ndarray]
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

    @property
    def place(self) -> np.ndarray:
        """(N,) cluster_id, by which intervals are clustered."""
        return self.items["cluster_id"].to_numpy(dtype=str)

    def known(self, view: View) -> np.ndarray:
        """(N, K) logits with censored scores at their upper bound, the input of CADE (see
        bounds.fill)."""
        z, bound = self.logits[view], self.upper[view]
        return np.where(np.isfinite(z) | np.isnan(bound), z, bound)

    def streams(self, form: Form = Form()) -> Streams:
        """CADE's streams of all N rows."""
        full, ctx, img, q = (
            self.known(v) for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY)
        )
        return streams(full, ctx, img, q, self.present, form)


@dataclass(frozen=True)
class RunData:
    """run: its row of ``runs``. cells: (task, test) -> Cell, scored cells only. mode: how
    regression answers were generated. results: the file that it was read from."""

    run: Mapping[str, Any]
    cells: Mapping[tuple[Task, ContextTest], TaskCell]
    mode: str
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


def row_of(
    results: Path, run_id: str, error: type[StoreError | UsageError] = StoreError
) -> dict[str, Any]:
    """The row of ``runs`` of a run. Raises ``error`` where there is none."""
    rows = store.query(results, "FROM runs WHERE run_id = ?", [run_id])
    if rows.empty:
        raise error(
            f"{results}: no run {run_id!r}; sdgbias results --sql 'SELECT run_id, model FROM runs'"
            " lists them"
        )
    return {str(k): v for k, v in rows.iloc[0].to_dict().items()}


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
    run = row_of(results, run_id)
    params = {
        (str(r["task"]), str(r["test"])): CadeParams(
            r["alpha"], r["lambda_kl"], r["beta"], r["tau"]
        )
        for r in store.query(results, "FROM cade_params WHERE run_id = ?", [run_id]).to_dict(
            "records"
        )
    }
    cells: dict[tuple[Task, ContextTest], TaskCell] = {}
    for task in Task:
        items = items_of(results, str(run["benchmark_id"]), run_id, task)
        if items.empty:
            continue
        scores = _Stored(results, run_id, _SCORES, items, task)
        decoded = _Stored(results, run_id, _DECODED, items, task)
        for test in TESTS[task]:
            if any((test.value, view) in scores.rows for view in _VIEWS):
                cells[(task, test)] = _cell(
                    task, test, items, scores, decoded, params.get((task.value, test.value))
                )
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
    mode = str(json.loads(run["config"] or "{}").get("mode", "continue"))
    return RunData(run, cells, mode, results)


def items_of(
    results: Path, benchmark_id: str, run_id: str, task: Task, table: str = "scores"
) -> pd.DataFrame:
    """The run's items of a task that are in ``table``, sorted by item_id; text columns without
    NULLs."""
    frame = store.query(
        results,
        f"""SELECT item_id, cluster_id, country, urban, wealth,
           CASE WHEN coalesce(modalities, '') = '' THEN '' WHEN starts_with(modalities, 'photo')
           THEN 'with photo' ELSE 'without photo' END AS photo, pillar, indicator, polarity, split,
           target, tolerance, gold, gold_value,
           question, options::VARCHAR AS options, groups::VARCHAR AS groups,
           CASE WHEN source_id IS NULL THEN '' ELSE concat_ws(chr(31), image_id, context::VARCHAR)
           END AS evidence FROM items WHERE benchmark_id = $b AND task = $t
           AND item_id IN (SELECT item_id FROM {table} WHERE run_id = $r AND task = $t) ORDER BY
           item_id""",
        {"b": benchmark_id, "t": task.value, "r": run_id},
        runs=[run_id],
    )
    text = frame.columns.difference(["item_id", "tolerance", "gold_value", "options", "evidence"])
    frame[text] = frame[text].fillna("").astype(str)
    if task is Task.MCQ:
        count = {text: len(json.loads(text)) for text in set(frame["options"])}
        frame["n_options"] = frame["options"].map(count).astype(int)
    else:
        frame["n_options"] = len(DIGITS)
    return frame


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


def _width(task: Task, items: pd.DataFrame) -> int:
    """The largest number of candidates of a task's items."""
    if task is Task.REGRESSION:
        return len(DIGITS)
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
            name: list_matrix(table[name], _width(task, items))
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
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
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
    n, width = len(items), _width(task, items)
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
        parsed={v: decoded.spread("parsed", test, v.value, False) for v in spoken},
        top_token={v: scores.spread("top_token", test, v.value, "") for v in View},
        mass={v: scores.spread("mass", test, v.value, np.nan) for v in View},
        params=params,
    )
