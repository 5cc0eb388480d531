"""Distance in years between the gold values of a benchmark and their surveys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Columns of the card's text: (heading, first and last distance in years that it counts).
SPANS = (("same year", 0, 0), ("1-2", 1, 2), ("3-5", 3, 5), ("6-10", 6, 10), ("over 10", 11, None))


def spans(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `gold_distance` (data/card.sql) as one row of the card's table: its counts summed
    over SPANS."""
    counts = {int(years): n for years, n in row["years_apart"].items()}
    return {
        "indicator": row["indicator"],
        "n": row["n"],
        **{
            name: sum(
                n for years, n in counts.items() if low <= years and (high is None or years <= high)
            )
            for name, low, high in SPANS
        },
        "unknown": row["unknown"],
    }
