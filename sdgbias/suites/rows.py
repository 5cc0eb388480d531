"""Rows of results: the columns of metrics, and groups of rows, read column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdgbias.methods.stats import SMALLEST

#: Columns of a table of metrics.
METRIC_ROW = [
    *("task", "test", "method", "pillar", "indicator", "metric"),
    *("value", "n", "ci_low", "ci_high", "clusters", "note"),
]
#: Why a number of some group has no value.
FEWER = f"fewer than {SMALLEST}"


@dataclass(frozen=True)
class RowGroup:
    """Some rows of a table: (R,) columns and (N,) positions ``at``. A run has thousands of groups
    of few rows, and a frame of each takes ten times as long as its numbers."""

    columns: Mapping[str, NDArray[Any]]
    at: NDArray[np.int64]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> RowGroup:
        """All rows of a frame."""
        columns = {str(name): frame[name].to_numpy() for name in frame}
        return cls(columns, np.arange(len(frame)))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name][self.at]

    def __len__(self) -> int:
        return len(self.at)

    def where(self, keep: NDArray[Any]) -> RowGroup:
        """The rows for which (N,) ``keep`` holds; this group itself where it holds for all."""
        keep = keep.astype(bool)
        return self if keep.all() else RowGroup(self.columns, self.at[keep])

    def split(self, *codes: NDArray[np.int64]) -> Iterator[RowGroup]:
        """The rows of each combination of (R,) codes, in their order; rows with a code below 0 are
        left out."""
        chosen = self.at[np.all([code[self.at] >= 0 for code in codes], axis=0)]
        order = chosen[np.lexsort([code[chosen] for code in reversed(codes)])]
        new = np.any([np.diff(code[order]) != 0 for code in codes], axis=0)
        for at in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
            yield RowGroup(self.columns, at)
