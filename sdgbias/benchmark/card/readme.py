"""README.md of a benchmark: the figures of its card as a Markdown data card with YAML front matter.
Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from sdgbias.benchmark.card.distance import SPANS, spans
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.raw.indicators import load_indicators
from sdgbias.types import TESTS, Task

Card = Mapping[str, Any]
_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
_IMAGES = {
    "none": "no pictures (built from tables only)",
    "composite": (
        "one picture per cluster: street photo above where there is one, satellite tile and night"
        " lights below"
    ),
    "several": (
        "several pictures per cluster: street photos where there are any, satellite tile, night"
        " lights"
    ),
}

_SYNTHETIC_TERMS = (
    "This benchmark is synthetic and holds none of these data: the terms are those of one that is"
    " built from them."
)


def _by_default(card: Card) -> str:
    """Which questions a build draws that isn't told how many."""
    drawn = card["notes"].get("asked", {}).get("by_default", {})
    lines = (f"{task}: {what}" for task, what in sorted(drawn.items()))
    return f" By default ({'; '.join(lines)}), because no number was given." if drawn else ""


def readme(card: Card) -> str:
    """The whole page. Every number comes from `card` (figures.py)."""
    counts = card["counts"]
    mcq_tests, regression_tests = len(TESTS[Task.MCQ]), len(TESTS[Task.REGRESSION])
    parts = [
        _front_matter(card),
        f"# Benchmark {card['benchmark_id']}",
        f"{counts['items_mcq']:,} multiple-choice questions x T1-T5 ="
        f" {counts['items_mcq'] * mcq_tests:,}, and {counts['items_regression']:,} regression"
        f" questions (x T2 and T5 = {counts['items_regression'] * regression_tests:,} prompts),"
        f" over {counts['clusters_used']:,} of {counts['clusters']:,} clusters in"
        f" {counts['countries_used']} countries; {_IMAGES[card['images']]}."
        + (" **Synthetic: nothing in it is real.**" if card["synthetic"] else ""),
        (
            "Columns named *paper* hold figures of the SDGBiasBench paper (Tables A and B). All"
            " other numbers are ours: measured on this benchmark. A dash means that it isn't known"
            " or wasn't requested."
        ),
        "## Known limits\n\n" + "\n".join(f"- {_cell(line)}" for line in card["known_limits"]),
        "## Questions per pillar, beside Table A\n\nThe paper counts a multiple-choice question"
        " once per context test, hence five times. Requested: the quota of this build."
        + _by_default(card)
        + "\n\n"
        + _table(
            card["table_a"],
            {
                "task": "task",
                "pillar": "pillar",
                "paper": "paper",
                "paper_questions": "paper, distinct",
                "asked": "requested, distinct",
                "ours_questions": "ours, distinct",
                "ours": "ours",
                "missing": "missing",
            },
        ),
        _list(
            "Quotas that the data couldn't fill (within a pillar other indicators take over)",
            card["short"],
        ),
        "## Answers per pillar, beside Table B\n\nPercent of the answers of a pillar. Brackets: 95"
        " % Wilson interval, questions of one cluster counted as dependent. Table B is no target:"
        " where an indicator is cut at terciles of this benchmark's clusters"
        f" ({_terciles()}), about a third of them lies in each bin, whatever the paper's bins"
        " gave.\n\n"
        + _table(
            [{**row, "ours": _interval(row)} for row in card["table_b"]],
            {
                "pillar": "pillar",
                "answer": "answer",
                "paper": "paper %",
                "ours": "ours %",
                "count": "count",
                "n": "n",
            },
        ),
        "## Indicators\n\n"
        + _table(
            card["levels"],
            {
                "indicator": "indicator",
                "n": "questions",
                "subnational": "regional %",
                "urban-rural": "urban or rural %",
                "national": "national %",
                "distinct_values": "distinct values",
                "value_years": "years of the values",
                "largest_gap": "largest distance, years",
            },
        ),
        _regions(card["notes"].get("survey_regions")),
        "Gold values by the years between value and survey (before or after), questions:\n\n"
        + _table(
            [spans(row) for row in card["gold_distance"]],
            {
                "indicator": "indicator",
                "n": "questions",
                **{name: name for name, _, _ in SPANS},
                "unknown": "year unknown",
            },
        ),
        "Regression questions, whose answer is the cluster's own label:\n\n"
        + _table(
            [{"indicator": k, "n": v} for k, v in counts["regression_by_task"].items()],
            {"indicator": "task", "n": "questions"},
        ),
        "Templates: the evidence that a question can't do without (a cluster that lacks it has no"
        " such question), what else bears on it, and the reasoning intended:\n\n"
        + _table(
            card["templates"],
            {
                "indicator": "indicator or task",
                "required": "required",
                "used": "used where there is one",
                "reasoning": "reasoning target",
                "left_out": "clusters left out",
            },
        ),
        _prompts(card),
        "## Countries\n\n"
        + _table(
            card["by_country"],
            {
                "cname": "DHS code",
                "country": "country",
                "clusters": "clusters",
                "clusters_with_image": "with picture",
                "clusters_with_photo": "with street photo",
                "photo_percent": "of those with a picture, %",
                "clusters_used": "with a question",
                "mcq": "multiple choice",
                "regression": "regression",
            },
        ),
        "## What the pictures show\n\nColumn `modalities` of `images.parquet` and of the questions;"
        " a dash: not stated by the release.\n\n"
        + _table(
            card["by_modalities"],
            {
                "modalities": "shown",
                "clusters": "clusters",
                "percent": "%",
                "mcq": "multiple choice",
                "regression": "regression",
            },
        ),
        "## Survey years\n\n"
        + _table(
            card["by_years"],
            {
                "years": "years",
                "clusters": "clusters",
                "countries": "countries",
                "mcq": "multiple choice",
                "regression": "regression",
            },
        ),
        _splits(card),
        "## What is missing\n\nLabels of the clusters (context of the questions, answers of the"
        " regression):\n\n"
        + _table(
            card["missing_labels"],
            {"label": "label", "missing": "clusters without it", "n": "of", "percent": "%"},
        ),
        "Per indicator, clusters that could be asked about and aren't, because no value is known;"
        " and the other reasons:\n\n"
        + _table(
            [
                {**row, "other": ", ".join(f"{k} {v:,}" for k, v in row["other_rules"].items())}
                for row in card["missing_values"]
            ],
            {
                "task": "task",
                "indicator": "indicator",
                "missing": "clusters without a value",
                "clusters": "of",
                "percent": "%",
                "usable": "usable",
                "questions": "questions",
                "other": "left for another rule",
            },
        ),
        _list("Series that weren't found", [_absent(row) for row in card["series_not_found"]]),
        "## What was left out\n\nEvery row with its reason is in `quarantine.parquet`.\n\n"
        + _table(card["quarantined_by_table"], {"table": "table", "rule": "rule", "n": "rows"}),
        _review(card["review"]),
        intended_use().markdown() + ("\n\n" + _SYNTHETIC_TERMS if card["synthetic"] else ""),
        _sources(card),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _terciles() -> str:
    known = load_indicators()
    return f"{sum(not one.thresholds for one in known)} of {len(known)} indicators"


def _front_matter(card: Card) -> str:
    narrow = not card["synthetic"] and any(
        not row["redistributable"] for row in card["sources_used"]
    )
    counts = card["counts"]
    told: dict[str, Any] = (
        {"license": "other", "license_name": "cc-by-sa-4.0-and-narrower-sources"}
        if narrow
        else {"license": "cc-by-sa-4.0"}
    )
    told |= {
        "pretty_name": (
            "SDGBiasBench, rebuilt" + (" (synthetic sample)" if card["synthetic"] else "")
        ),
        "language": ["en"],
        "task_categories": ["visual-question-answering", "multiple-choice"],
        "tags": [
            "sustainable-development-goals",
            "bias",
            "satellite-imagery",
            "street-level-imagery",
            *(["synthetic"] if card["synthetic"] else []),
        ],
        "size_categories": [
            next((name for limit, name in _SIZES if counts["prompts"] < limit), "10M<n<100M")
        ],
        "configs": [
            {"config_name": name, "data_files": f"{name}.parquet"}
            for name in ("items_mcq", "items_regression", "prompts", "clusters", "images")
        ],
    }
    return "---\n" + yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=1000) + "---"


def _prompts(card: Card) -> str:
    counts, distinct = card["counts"], card["distinct_q_only_prompts"]
    rows = [
        {
            "task": task.value,
            "n": counts[f"items_{task.value}"],
            "distinct": distinct.get(task.value, 0),
        }
        for task in Task
    ]
    return (
        "## Distinct Q-only prompts\n\nTexts that differ when neither context nor picture is"
        " shown.\n\n"
        + _table(rows, {"task": "task", "n": "questions", "distinct": "distinct Q-only prompts"})
    )


def _splits(card: Card) -> str:
    text = "## Splits\n\nval is for choosing a method's settings, test for reporting."
    for column, what in (
        ("split", "the split that evaluations use"),
        ("split_place", "whole countries on one side"),
    ):
        found = card["splits"][column]
        text += (
            f"\n\nColumn `{column}`, {what}: {found['clusters_on_both']:,} clusters and"
            f" {found['countries_on_both']} countries on both sides.\n\n"
        )
        text += _table(
            found["sides"],
            {
                "side": "side",
                "mcq": "multiple choice",
                "regression": "regression",
                "clusters": "clusters",
                "countries": "countries",
            },
        )
    return text


def _regions(found: Mapping[str, int] | None) -> str:
    """How clusters got their region; '' for a release, whose regions aren't known."""
    if not found:
        return ""
    return (
        "Survey regions, by which a cluster gets a regional value; every name that didn't match is"
        " in `regions_review.csv`:\n\n"
        + _table(
            [{"status": name, "clusters": n} for name, n in found.items()],
            {"status": "region of the series found", "clusters": "clusters"},
        )
    )


def _absent(row: Mapping[str, Any]) -> str:
    return f"`{row['series']}`" + (
        f", which {', '.join(row['indicators'])} would use"
        if row["indicators"]
        else ", which no indicator needs"
    )


def _review(found: Card) -> str:
    """Verdicts, and the agreement of the two reviewers if reviews.json contains it."""
    figures, rows = found["figures"], found["questions"]
    reviewed = sum(row["accepted"] + row["rejected"] for row in rows)
    if not (figures or found["left_out"] or reviewed):
        return "## Human review\n\nNone so far."
    text = "## Human review\n\n" + _table(
        rows,
        {
            "task": "task",
            "accepted": "accepted",
            "rejected": "rejected",
            "not_reviewed": "not reviewed",
        },
    )
    text += f"\n\n{found['left_out']:,} rejected questions were left out and replaced."
    for row in (figures.get("agreement") or [])[:1]:
        kappa = "undefined" if row.get("kappa") is None else f"{row['kappa']:.3f}"
        if row.get("kappa_low") is not None and row.get("kappa_high") is not None:
            kappa += f" [{row['kappa_low']:.3f}, {row['kappa_high']:.3f}]"
        text += f"\n\nTwo reviewers, n = {row['n']:,}: Cohen's kappa {kappa} (95 % interval)."
    return text


def _sources(card: Card) -> str:
    text = (
        f"## Licence and sources\n\nLicence of the benchmark: {card['licence']}. Questions:"
        " multiple-choice questions whose answer rests on the source."
    )
    text += (
        "\n\n" + "\n".join(f"- {_cell(line)}" for line in card["sources"])
        if card["synthetic"]
        else ""
    )
    if card["synthetic"]:
        return (
            text
            + "\n\nThe series imitate the files of "
            + ", ".join(_cell(row["title"]) for row in card["sources_used"] if row["mcq"])
            + "."
        )
    text += "\n\n" + _table(
        [
            {**row, "passed": "yes" if row["redistributable"] else "no"}
            for row in card["sources_used"]
        ],
        {
            "title": "source",
            "origin": "publisher",
            "licence": "licence",
            "passed": "may be passed on",
            "mcq": "questions",
            "url": "page",
        },
    )
    return (
        text
        + "\n\nCite:\n\n"
        + "\n".join(
            dict.fromkeys(
                f"- {_cell(row['citation'])}" for row in card["sources_used"] if row["citation"]
            )
        )
    )


def _interval(row: Mapping[str, Any]) -> str:
    if row["share"] is None:
        return ""
    return f"{row['share']:.2f}" + (
        f" [{row['share_low']:.2f}, {row['share_high']:.2f}]"
        if row["share_low"] is not None
        else ""
    )


def _list(title: str, lines: Sequence[str]) -> str:
    return f"{title}:\n\n" + "\n".join(f"- {_cell(line)}" for line in lines) if lines else ""


def _table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """A Markdown table of `columns` (key -> heading); numbers right-aligned."""
    rows = list(rows)
    if not rows:
        return "None."
    numeric = [
        all(row[key] is None or isinstance(row[key], (int, float)) for row in rows)
        for key in columns
    ]
    lines = [
        "| " + " | ".join(columns.values()) + " |",
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
    ]
    lines += ["| " + " | ".join(_cell(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Text that can't break out of its line, table cell or into HTML."""
    if value is None or value == "":
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(str(value).split()))
    for character, safe in (("\\", "\\\\"), ("<", "&lt;"), ("|", "\\|")):
        text = text.replace(character, safe)
    return text
