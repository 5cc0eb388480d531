"""Suite sdg: metrics of generated answers per question of the test split, from a run's stored
predictions.

They need no scores: this is all that a run of an endpoint that gives text only can be judged by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import store
from sdgbias.analysis import outcomes
from sdgbias.analysis import run as data
from sdgbias.files import packaged_sql
from sdgbias.methods.cade import Floats
from sdgbias.nightly.regression.measured import Measured, RunMetrics, columns
from sdgbias.types import GENERATED, TESTS, Task


def load(results: Path, run: Mapping[str, Any]) -> RunMetrics:
    """``run``: its row of ``runs``. Methods: full_generated and the like, and the views of
    regression."""
    run_id = str(run["run_id"])
    answers = store.query(
        results,
        packaged_sql("nights.sql")["generated"],
        {"run": run_id, "suffix": GENERATED},
        runs=[run_id],
    )
    tables = {
        task.value: data.items_of(
            results, str(run["benchmark_id"]), run_id, task, "predictions"
        ).set_index("item_id", drop=False)
        for task in Task
    }
    parts = {
        (str(a), str(b), str(c)): part
        for (a, b, c), part in answers.groupby(["task", "test", "method"], sort=True)
    }

    @cache
    def of(task: str, test: str, metric: str, method: str) -> Measured | None:
        part = parts.get((task, test, method))
        if part is None:
            return None
        items = tables[task].loc[part["item_id"]]
        value = _value(part, items, task, metric)
        if value is None or np.isnan(value).all():
            return None
        image_free = outcomes.image_free(method.removesuffix(GENERATED), test)
        key, cluster, groups = columns(items, image_free)
        return Measured(key, value, cluster, groups)

    asked = {(task, test) for task, test, _ in parts}
    tests = {
        task.value: [t.value for t in TESTS[task] if (task.value, t.value) in asked]
        for task in Task
    }
    return RunMetrics(run, tests, of)


def _value(part: pd.DataFrame, items: pd.DataFrame, task: str, metric: str) -> Floats | None:
    """(n,) values of the answers ``part`` to ``items``; None for a metric that they don't have."""
    if metric in ("accuracy", "interval_accuracy", "disparity"):
        return part["correct"].to_numpy(dtype=float)
    if metric == "mae":
        return part["error"].to_numpy(dtype=float) / items["tolerance"].to_numpy(dtype=float)
    if metric == "parse_failures" and task == Task.MCQ.value:
        return np.asarray(part["pred"].fillna("") == "", dtype=np.float64)
    if metric == "parse_failures":
        parsed = part["parsed"].astype("boolean").to_numpy(dtype=float, na_value=np.nan)
        return np.asarray(1.0 - parsed, dtype=np.float64)
    return None
