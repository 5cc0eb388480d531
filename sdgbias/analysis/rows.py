"""Rows of studies: rows of ``numbers`` beyond the headline metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdgbias.methods.stats import Estimate
from sdgbias.suites.rows import KEY, NOT_SCORED, NUMBER, numbers


@dataclass(frozen=True)
class AnalysisSettings:
    """draws and seed: of every search. bootstrap: draws of every resampled interval."""

    draws: int = 10_000
    seed: int = 0
    bootstrap: int = 2_000


def row(
    study: str, metric: str, estimate: Estimate | float, **columns: object
) -> dict[str, object]:
    """One row. An Estimate fills value, n, clusters, low and high, and where it has no interval the
    note, with the reason; a bare number only value. Raises ValueError for an unknown column."""
    unknown = set(columns) - set(NUMBER)
    if unknown:
        raise ValueError(f"no such column of numbers: {sorted(unknown)[0]}")
    if not isinstance(estimate, Estimate):
        return {**NUMBER, "study": study, "metric": metric, "value": float(estimate), **columns}
    values = estimate.columns()
    notes = (str(columns.get("note", "")), str(values["note"]))
    columns["note"] = "; ".join(note for note in notes if note)
    return {**NUMBER, "study": study, "metric": metric, **values, **columns}


def not_run(study: str, why: str, **columns: object) -> dict[str, object]:
    """The row of a method or a study that could not be run."""
    return row(study, "not_run", float("nan"), missing_reason=NOT_SCORED, note=why, **columns)


def table(rows: Iterable[Mapping[Any, Any]]) -> pd.DataFrame:
    """The rows with all columns of ``numbers``, sorted by key, so that the result doesn't depend on
    the order of creation."""
    frame = numbers(pd.DataFrame(list(rows), columns=list(NUMBER)))
    return frame.sort_values(list(KEY), kind="stable", ignore_index=True)
