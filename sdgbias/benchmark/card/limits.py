"""The known limits of a benchmark, as sentences of its dataset card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def known_limits(card: Mapping[str, Any]) -> list[str]:
    """The known limits for users of the benchmark, as sentences with its numbers."""
    counts, values, by_id = card["counts"], card["levels"], card["splits"]["split"]
    n = sum(row["n"] for row in values)
    national = sum(row["n"] * row["national"] for row in values) / n if n else 0.0
    shared = [row["indicator"] for row in values if row["national"] == 100]
    said = []
    if card["synthetic"]:
        said.append(
            "Everything here is synthetic: places, pictures, labels and series are made up. No"
            " figure says anything about the world."
        )
    if card["images"] == "none":
        said.append("Built without pictures: it can be checked, not evaluated.")
    alone = [row for row in card["by_modalities"] if row["modalities"].startswith("tile")]
    if alone:
        clusters, asked = (sum(row[name] for row in alone) for name in ("clusters", "mcq"))
        said.append(
            f"{clusters:,} of {counts['images']:,} clusters with a picture have no street photo and"
            f" are shown by their satellite tile alone ({asked:,} multiple-choice questions):"
            " compare models also within the groups with and without a photo."
        )
    if n:
        said.append(
            f"{national:.1f} % of the multiple-choice answers come from national series: all"
            " clusters of a country and year share them"
            + (f" (wholly so: {', '.join(shared)})." if shared else ".")
        )
    placed = card["notes"].get("survey_regions") or {}
    unplaced = sum(n for name, n in placed.items() if not name.startswith("by "))
    if unplaced:
        said.append(
            f"{unplaced:,} of {counts['clusters']:,} clusters have no region of the series: their"
            " regional values (development index, alignment) are those of the nation."
        )
    said.append(
        "Coordinates are jittered by the survey, up to 2 km in towns and 10 km elsewhere: a picture"
        " shows the surroundings."
    )
    distinct = card["distinct_q_only_prompts"]
    said.append(
        f"Without context and picture, {counts['items_mcq']:,} multiple-choice questions read as"
        f" {distinct.get('mcq', 0):,} distinct prompts and {counts['items_regression']:,}"
        f" regression questions as {distinct.get('regression', 0):,}: Q-only measures a prior per"
        " indicator."
    )
    if by_id["clusters_on_both"] or by_id["countries_on_both"]:
        said.append(
            f"The column split isn't disjoint by place: {by_id['clusters_on_both']:,} of"
            f" {counts['clusters_used']:,} clusters and {by_id['countries_on_both']} of"
            f" {counts['countries_used']} countries have questions in both val and test. By"
            f" split_place it is {card['splits']['split_place']['clusters_on_both']:,} clusters and"
            f" {card['splits']['split_place']['countries_on_both']} countries."
        )
    gaps = [row["largest_gap"] for row in values if row["largest_gap"] is not None]
    if gaps:
        said.append(
            "A gold value may be of another year than the survey: the largest distance is"
            f" {max(gaps)} years."
        )
    for row in card["table_a"]:
        if row["missing"]:
            said.append(
                f"{row['pillar']}, {row['task']}: {row['missing']:,} of the {row['asked']:,}"
                " requested questions couldn't be built."
            )
    narrow = [row for row in card["sources_used"] if not row["redistributable"]]
    if narrow and not card["synthetic"]:
        names = "; ".join(
            f"{row['title']} ({row['licence']}): {row['mcq'] or 0:,} questions" for row in narrow
        )
        said.append(
            "Values from sources whose terms are narrower than the benchmark's licence, don't pass"
            f" them on: {names}."
        )
    return said
