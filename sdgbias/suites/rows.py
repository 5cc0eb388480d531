"""Rows of results: the columns of metrics."""

from __future__ import annotations

from sdgbias.methods.stats import SMALLEST

#: Columns of a table of metrics.
METRIC_ROW = [
    *("task", "test", "method", "pillar", "indicator", "metric"),
    *("value", "n", "ci_low", "ci_high", "clusters", "note"),
]
#: Why a number of some group has no value.
FEWER = f"fewer than {SMALLEST}"
