"""Distance in years between the gold values of a benchmark and their surveys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sdgbias.types import PILLARS

#: Columns of the card's text: (heading, first and last distance in years that it counts).
SPANS = (("same year", 0, 0), ("1-2", 1, 2), ("3-5", 3, 5), ("6-10", 6, 10), ("over 10", 11, None))


def gold_distance(mcq: pd.DataFrame) -> list[dict[str, Any]]:
    """Per indicator, in pillar order: n questions, and the counts of gold values by years before or
    after the survey; `unknown` counts those without a year. mcq: pillar, indicator, year,
    value_year (NaN unknown)."""
    found = []
    gap = (mcq["value_year"] - mcq["year"]).abs()
    order = {pillar: at for at, pillar in enumerate(PILLARS)}
    for (_, slug), part in mcq.groupby(
        [mcq["pillar"].map(order).fillna(len(order)), "indicator"], sort=True
    ):
        own = gap[part.index].dropna().astype(int)
        counts = own.value_counts().sort_index()
        found.append(
            {
                "indicator": str(slug),
                "n": len(part),
                "years_apart": {str(years): int(n) for years, n in counts.items()},
                "unknown": len(part) - len(own),
            }
        )
    return found


def spans(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of gold_distance as one row of the card's table: its counts summed over SPANS."""
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
