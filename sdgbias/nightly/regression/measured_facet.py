"""Suite people: metrics of a run per question about a person. Rows are clustered by picture.

As on the fairness page, recall is that of the 13 reported classes, on non-negative questions; data
without classes counts as a whole.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import store
from sdgbias.analysis.run import row_of
from sdgbias.errors import StoreError
from sdgbias.files import packaged_sql
from sdgbias.nightly.regression.measured import Measured, RunMetrics, hashed
from sdgbias.raw.facet import GROUPS, SELECTED
from sdgbias.types import View

SAME = ["item_id", "image_id", "prompt", "asked", "negative", "gold"]
_UNREAD = ("unparsed", "empty", "several")


def load(results: Path, run_id: str) -> RunMetrics:
    """Raises StoreError for a run that doesn't exist or has no answers."""
    run = row_of(results, run_id)
    asked = {"run": run_id, "benchmark": run["benchmark_id"]}
    frame = store.query(results, packaged_sql("nights.sql")["people"], asked)
    if frame.empty:
        raise StoreError(
            f"{results}: run {run_id} holds no answers; evaluate the model again: sdgbias evaluate"
            f" {run['model']}"
        )
    parts = {
        (str(a), str(b), str(c)): part.reset_index(drop=True)
        for (a, b, c), part in frame.groupby(["task", "test", "method"], sort=True)
    }
    keys = cache(lambda *name: hashed(parts[name][SAME].fillna("").astype(str)))

    def of(task: str, test: str, metric: str, method: str) -> Measured | None:
        part = parts.get((task, test, method))
        value = None if part is None else _value(part, metric)
        if part is None or value is None or np.isnan(value).all():
            return None
        groups = {name: part[name].fillna("").astype(str).to_numpy(dtype=str) for name in GROUPS}
        unit = "asked" if method == View.Q_ONLY.value else "image_id"  # one prompt for all pictures
        return Measured(keys(task, test, method), value, hashed(part[[unit]].astype(str)), groups)

    tests: dict[str, dict[str, None]] = {}
    for task, test, _ in parts:  # sorted
        tests.setdefault(task, {})[test] = None
    return RunMetrics(run, {task: list(names) for task, names in tests.items()}, of)


def _value(part: pd.DataFrame, metric: str) -> np.ndarray | None:
    if metric in ("recall", "disparity"):
        about = part["class1"].isin(SELECTED) | (part["class1"].fillna("") == "")
        counted = about & ~part["negative"].fillna(False).astype(bool)
        return np.where(counted, part["correct"].to_numpy(dtype=float), np.nan)
    if metric == "candidate_mass":
        return part["mass"].to_numpy(dtype=float)
    if part["how"].isna().all():
        return None
    flag = part["how"].isin(_UNREAD) if metric == "parse_failures" else part["how"] == "refusal"
    return np.where(part["how"].isna(), np.nan, flag.to_numpy(dtype=float))
