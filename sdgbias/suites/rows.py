"""Rows of results."""

from __future__ import annotations

#: Columns of a table of metrics.
METRIC_ROW = [
    *("task", "test", "method", "pillar", "indicator", "metric"),
    *("value", "n", "ci_low", "ci_high", "clusters", "note"),
]
