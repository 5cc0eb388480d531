"""Cells made by hand for the tests of the laboratory: a few letters and numbers whose results a
reader can work out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

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
    options = [["low", "middle", "high"][: int(k)] for k in present.sum(axis=1)]
    index = np.array(["ABC".index(g) for g in gold])
    items = _items(
        n,
        columns,
        gold=list(gold),
        options=[json.dumps(o) for o in options],
        n_options=present.sum(axis=1),
        groups="",
        evidence="",
    )
    tokens = {v: np.array((top_token or {}).get(v.value, [""] * n), dtype=object) for v in View}
    return _cell(
        Task.MCQ,
        test,
        items,
        z,
        present,
        (np.arange(3) == index[:, None]).astype(float),
        index,
        None,
        {},
        {},
        tokens,
        params,
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
    items = _items(
        n,
        {"target": ["women_bmi"] * n, "tolerance": [1.0] * n, **columns},
        gold_value=gold,
        n_options=[10] * n,
        groups="",
        evidence="",
    )
    return _cell(
        Task.REGRESSION,
        test,
        items,
        z,
        np.ones((n, 10), dtype=bool),
        -np.abs(digits - np.array(gold)[:, None]),
        np.full(n, -1),
        digits,
        numbers,
        {v: np.ones(n, dtype=bool) for v in View},
        {v: np.array([""] * n, dtype=object) for v in View},
        params,
    )


def run_of(*cells: TaskCell, model: str = "hand-made", run_id: str = "run-1") -> RunData:
    return RunData(
        {"model": model, "run_id": run_id},
        {(cell.task, cell.test): cell for cell in cells},
        "continue",
    )


def one(rows: pd.DataFrame, **where: object) -> pd.Series:
    """The only row with these values; test, group, indicator and parameter as they are for the
    whole when not named."""
    for name, value in {
        "test": "all",
        "group": "",
        "other": "",
        "indicator": "all",
        "parameter": "",
        **where,
    }.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1, rows
    return rows.iloc[0]


def _items(
    n: int, columns: Mapping[str, Sequence[object]], **more: Sequence[object]
) -> pd.DataFrame:
    base: dict[str, Sequence[object]] = {
        "item_id": list(range(n)),
        "cluster_id": [f"place-{i}" for i in range(n)],
        "country": ["Peru"] * n,
        "urban": ["U"] * n,
        "wealth": ["middle"] * n,
        "photo": ["with photo"] * n,
        "pillar": ["Health & Nutrition"] * n,
        "indicator": ["wasting"] * n,
        "polarity": ["higher"] * n,
        "split": ["test"] * n,
        "target": [""] * n,
        "tolerance": [float("nan")] * n,
        "gold": [""] * n,
        "gold_value": [float("nan")] * n,
        "question": ["How much?"] * n,
        "options": ["[]"] * n,
        "n_options": [3] * n,
        "groups": [""] * n,
        "evidence": [""] * n,
    }
    return pd.DataFrame({**base, **more, **columns})


def _cell(
    task, test, items, logits, present, payoff, gold, by_digit, free, parsed, tokens, params
) -> TaskCell:  # type: ignore[no-untyped-def]
    nothing = {v: np.full(present.shape, np.nan) for v in View}
    mass = {v: np.ones(len(items)) for v in View}
    return TaskCell(
        task,
        ContextTest(test),
        items,
        logits,
        nothing,
        {},
        present,
        payoff,
        gold.astype(np.int64),
        by_digit,
        free,
        parsed,
        tokens,
        mass,
        params,
    )
