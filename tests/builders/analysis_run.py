"""Cells made by hand for the tests of the laboratory: a few letters and numbers whose results a
reader can work out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.types import CadeParams, ContextTest, Task, View

#: No gate and no penalty: CADE is the argmax of the mean of Full and IMG+Q.
OPEN = CadeParams(alpha=0.0, lambda_kl=0.0, beta=0.0, tau=1.1)


def mcq_cell(
    logits: Mapping[str, Sequence[Sequence[float]]],
    gold: str,
    *,
    test: str = "T1",
    params: CadeParams | None = None,
    top_token: Mapping[str, Sequence[str]] | None = None,
    **columns: Sequence[object],
) -> TaskCell:
    """logits: per view (N, 3), NaN where the item lacks the option; views left out are those of
    'full'. gold: one letter per item. columns override those of the items; by default all are test
    rows of one indicator, each in a place of its own."""
    n = len(gold)
    z = {v: np.array(logits.get(v.value, logits["full"]), dtype=float).reshape(n, 3) for v in View}
    present = ~np.isnan(z[View.FULL])
    count = present.sum(axis=1)
    options = [json.dumps(["low", "middle", "high"][: int(k)]) for k in count]
    index = np.array(["ABC".index(g) for g in gold])
    return _cell(
        Task.MCQ,
        test,
        _items(n, columns, gold=list(gold), options=options, n_options=count),
        logits=z,
        present=present,
        payoff=(np.arange(3) == index[:, None]).astype(float),
        gold=index,
        top_token={v: (top_token or {}).get(v.value, [""] * n) for v in View},
        params=params,
    )


def number_cell(
    free: Mapping[str, Sequence[float]],
    gold: Sequence[float],
    by_digit: Sequence[Sequence[float]],
    logits: Mapping[str, Sequence[Sequence[float]]],
    *,
    test: str = "T2",
    params: CadeParams | None = None,
    **columns: Sequence[object],
) -> TaskCell:
    """free: numbers per view (those left out are those of 'full'); by_digit (N, 10); logits per
    view (N, 10) as in `mcq_cell`."""
    n = len(gold)
    z = {v: np.array(logits.get(v.value, logits["full"]), dtype=float) for v in View}
    numbers = {v: np.array(free.get(v.value, free["full"]), dtype=float) for v in View}
    digits = np.array(by_digit, dtype=float)
    columns = {"target": ["women_bmi"] * n, "tolerance": [1.0] * n, **columns}
    return _cell(
        Task.REGRESSION,
        test,
        _items(n, columns, gold_value=gold, n_options=[10] * n),
        logits=z,
        present=np.ones((n, 10), dtype=bool),
        payoff=-np.abs(digits - np.array(gold)[:, None]),
        gold=np.full(n, -1),
        by_digit=digits,
        free=numbers,
        top_token={v: [""] * n for v in View},
        params=params,
    )


def run_of(*cells: TaskCell, model: str = "hand-made", run_id: str = "run-1") -> RunData:
    return RunData(
        {"model": model, "run_id": run_id},
        {(cell.task, cell.test): cell for cell in cells},
    )


def one(rows: pd.DataFrame, **where: object) -> pd.Series:
    """The only row with these values; test, group, indicator and parameter as they are for the
    whole when not named."""
    whole = {"test": "all", "group": "", "other": "", "indicator": "all", "parameter": ""}
    for name, value in (whole | where).items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1, rows
    return rows.iloc[0]


def _items(
    n: int, columns: Mapping[str, Sequence[object]], **more: Sequence[object]
) -> pd.DataFrame:
    same = {"country": "Peru", "urban": "U", "wealth": "middle", "photo": "with photo"}
    same |= {"pillar": "Health & Nutrition", "indicator": "wasting", "polarity": "higher"}
    same |= {"split": "test", "question": "How much?", "options": "[]"}
    same |= dict.fromkeys(("target", "gold", "groups", "context"), "")
    base = pd.DataFrame({"item_id": range(n), "cluster_id": [f"place-{i}" for i in range(n)]})
    base = base.assign(**same, n_options=3, tolerance=np.nan, gold_value=np.nan)
    return base.assign(**{**more, **columns})


def _cell(task: Task, test: str, items: pd.DataFrame, **known: Any) -> TaskCell:
    """No bounds, no extra prompts; ``known``: the other fields."""
    shape = known["present"].shape
    known["gold"] = known["gold"].astype(np.int64)
    known["top_token"] = {v: np.array(t, dtype=object) for v, t in known["top_token"].items()}
    upper = {v: np.full(shape, np.nan) for v in View}
    fields = {"extra": {}, "by_digit": None, "free": {}, "upper": upper} | known
    return TaskCell(task=task, test=ContextTest(test), items=items, **fields)
