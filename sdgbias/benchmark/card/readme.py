"""README.md of a benchmark, a Markdown data card with YAML front matter, and its known limits: the
figures of its card in two templates. Pure text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdgbias import templates
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.raw.indicators import load_indicators
from sdgbias.types import TESTS

Card = Mapping[str, Any]
_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
#: Columns of the distances in years between gold values and surveys: (heading, first, last).
SPANS = (("same year", 0, 0), ("1-2", 1, 2), ("3-5", 3, 5), ("6-10", 6, 10), ("over 10", 11, None))
_DISTANCES = {
    "indicator": "indicator",
    "n": "questions",
    **{name: name for name, _, _ in SPANS},
    "unknown": "year unknown",
}


def readme(card: Card) -> str:
    """The whole page. Every number comes from `card` (figures.py)."""
    indicators, prompts = load_indicators(), card["counts"]["prompts"]
    page = {
        **card,
        "tests": {task.value: len(tests) for task, tests in TESTS.items()},
        "size": next((name for limit, name in _SIZES if prompts < limit), "10M<n<100M"),
        "terciles": f"{sum(not i.thresholds for i in indicators)} of {len(indicators)} indicators",
        "cuts": (card["notes"].get("asked") or {}).get("cuts", ""),
        "largest_gap": max(
            (abs(r["gap"]) for r in card["table_b"] if r["gap"] is not None), default=None
        ),
        "table_b": [{**row, "ours": _interval(row)} for row in card["table_b"]],
        "gold_distance": [spans(row) for row in card["gold_distance"]],
        "distances": _DISTANCES,
        "missing_values": [
            {**row, "other": ", ".join(f"{k} {v:,}" for k, v in row["other_rules"].items())}
            for row in card["missing_values"]
        ],
        "sources_used": [
            {**row, "passed": "yes" if row["redistributable"] else "no"}
            for row in card["sources_used"]
        ],
        "intended_use": intended_use(),
    }
    return templates.render("benchmark/card/readme.md.j2", **page)


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


def known_limits(card: Card) -> list[str]:
    """The known limits for users of the benchmark, as sentences with its numbers."""
    values, placed = card["levels"], card["notes"].get("survey_regions") or {}
    n = sum(row["n"] for row in values)
    context = {
        **card,
        "alone": [row for row in card["by_modalities"] if row["modalities"].startswith("tile")],
        "national": sum(row["n"] * row["national"] for row in values) / n if n else None,
        "shared": [row["indicator"] for row in values if row["national"] == 100],
        "unplaced": sum(n for name, n in placed.items() if not name.startswith("by ")),
    }
    return templates.render("benchmark/card/limits.txt.j2", **context).splitlines()


def _interval(row: Mapping[str, Any]) -> str:
    if row["share"] is None:
        return ""
    return f"{row['share']:.2f}" + (
        f" [{row['share_low']:.2f}, {row['share_high']:.2f}]"
        if row["share_low"] is not None
        else ""
    )
