"""Rows of the study table: one format for every analysis beyond the headline metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdgbias.methods.stats import Estimate

#: Columns of ``study_rows`` without run_id, with their defaults.
EMPTY: Mapping[str, object] = {
    "study": "",
    "task": "mcq",
    "test": "all",
    "method": "",
    "pillar": "all",
    "indicator": "all",
    "by": "",
    "level": "",
    "x": float("nan"),
    "metric": "",
    "value": float("nan"),
    "n": 0,
    "ci_low": float("nan"),
    "ci_high": float("nan"),
    "p": float("nan"),
    "note": "",
}
COLUMNS = tuple(EMPTY)
KEY = ("study", "task", "test", "method", "pillar", "indicator", "by", "level", "x", "metric")


@dataclass(frozen=True)
class AnalysisSettings:
    """draws and seed: of every search. bootstrap: draws of every resampled interval."""

    draws: int = 10_000
    seed: int = 0
    bootstrap: int = 2_000


def row(
    study: str, metric: str, estimate: Estimate | float, **columns: object
) -> dict[str, object]:
    """One row. An Estimate fills value, n, ci_low and ci_high, and where it has no interval the
    note, with the reason; a bare number only value. Raises ValueError for an unknown column."""
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such column of study_rows: {sorted(unknown)[0]}")
    if isinstance(estimate, Estimate):
        parts = (str(columns.get("note", "")), estimate.missing_interval())
        columns["note"] = "; ".join(part for part in parts if part)
        numbers = {
            "value": estimate.value,
            "n": estimate.n,
            "ci_low": estimate.low,
            "ci_high": estimate.high,
        }
    else:
        numbers = {"value": float(estimate)}
    return {**EMPTY, "study": study, "metric": metric, **numbers, **columns}


def table(rows: Iterable[Mapping[Any, Any]]) -> pd.DataFrame:
    """All columns in their order, sorted by key, so that the result doesn't depend on the order of
    creation."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS)).astype({"n": "int64"})
    return frame.sort_values(list(KEY), kind="stable", ignore_index=True)
