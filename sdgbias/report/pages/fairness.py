"""The page of the second suite, fairness.html: disparities, classes, prompts, debiasing, unparsed
answers, examples, and the data measured.

Pictures of people are blurred until a reader reveals them, and stay blurred in print. Groups are
perceived and annotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sdgbias import store
from sdgbias.benchmark.people_items import CHOICE
from sdgbias.raw.facet import REASONS
from sdgbias.report.charts import draw
from sdgbias.report.layout import terms_in
from sdgbias.report.pages.studies import drawn
from sdgbias.report.reader import SQL, Reader, Row, parsed
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET
from sdgbias.vocabulary import WORDS
from sdgbias.wording import NOT_ANALYSED

FIGURES = (
    *(f"fairness/{attribute}" for attribute in PAIRS),
    *("fairness-classes", "fairness-prompts", "fairness-debiased", "fairness-cost"),
)
EXAMPLES = 60
#: Pictures on the page at a time.
PAGE_OF = 3
RATES = {
    "no_rate": "No",
    "unknown_rate": "Unknown",
    "false_yes_rate": "Yes about a wrong class",
    "unparsed_rate": "Not understood",
    "refusal_rate": "Declined",
}
UNREAD = ("refusal", "unparsed", "empty", "several")
SYNTHETIC = "drawn people"


def runs_of(reader: Reader, among: Sequence[str] | None = None) -> list[Row]:
    """The newest finished run of each model on each set of people (among ``among``, if given), with
    label, and data, which says what people they are."""
    chosen = store.latest_runs(reader.results.path, FACET, per_benchmark=True, among=among)
    return reader.ask(SQL["people-runs"], {"runs": chosen})


def context(reader: Reader, runs: Sequence[Row], checks: str = "") -> dict[str, Any]:
    """Data of fairness.html.j2. ``runs``: as `runs_of` gives them; ``checks`` links to the quality
    page of the benchmark."""
    ids = [run["run_id"] for run in runs]
    run_of = {run["run_id"]: run for run in runs}

    def ask(name: str, **given: object) -> list[Row]:
        return reader.ask(SQL[name], {"runs": ids, **given}, runs=ids)

    examples = ask("people-examples", unread=list(UNREAD), limit=EXAMPLES)
    terms = ask("people-terms")[0]
    several = len({run["benchmark_id"] for run in runs}) > 1
    return {
        **drawn(draw.draw(reader, ids, FIGURES, [run["data"] for run in runs]).values()),
        "checks": checks,
        "runs": runs,
        "unanswerable": {i: parsed(run_of[i]["config"]).get("unanswerable", 0) for i in ids},
        "several": several,
        "planted": list(dict.fromkeys(r["label"] for r in runs if r["provenance"] == "planted")),
        "synthetic": list(
            dict.fromkeys(r["data"] for r in runs if r["data"].startswith(SYNTHETIC))
        ),
        "missing": [
            f"{run_of[r['run_id']]['label']}"
            f"{' on ' + run_of[r['run_id']]['data'] if several else ''}: {NOT_ANALYSED}"
            for r in ask("people-unanalysed", task=CHOICE)
        ],
        "silent": [run_of[r["run_id"]] | r for r in ask("people-silent", unread=list(UNREAD))],
        "lacking": ask("people-lacking"),
        "rate_heads": RATES,
        "rates": [
            {"run": run_of[run], "prompt": test, "cells": {r["metric"]: r for r in rows}}
            for (run, test), rows in groupby(
                ask("people-rates", rates=list(RATES)), lambda r: (r["run_id"], r["test"])
            )
        ],
        "examples": examples,
        "parsed": {key: word.name for key, word in WORDS.parsed.items()},
        "run_of": run_of,
        "page_of": PAGE_OF,
        "words": terms_in(
            "Disparity Recall Planted CADE Full Holm", *terms["tests"], *terms["methods"]
        ),
        "unread": sum(e["outcome"] == "unread" for e in examples),
        "benchmarks": cards(reader, runs),
    }


def cards(reader: Reader, runs: Sequence[Row]) -> list[dict[str, Any]]:
    """Cards of the data measured: per benchmark its dataset, licence, persons by group (including
    unknown, and why), questions, and exclusions."""
    given = {"runs": [run["run_id"] for run in runs]}
    parts = [reader.ask(SQL[f"{part}"], given) for part in _CARD]
    sections = []
    for benchmark in dict.fromkeys(run["benchmark_id"] for run in runs):
        first, *_ = of_benchmark = [run for run in runs if run["benchmark_id"] == benchmark]
        groups, left, questions = (
            [row for row in rows if row["benchmark_id"] == benchmark] for rows in parts
        )
        unknown = parsed(first["config"]).get("unknown_because") or {}
        sections.append(
            {
                "id": benchmark,
                "dataset": first["data"],
                "groups": groups,
                "why": {
                    attribute: {REASONS.get(r, r): n for r, n in sorted((counts or {}).items())}
                    for attribute, counts in unknown.items()
                },
                "licence": ", ".join(sorted({r["licence"] for r in of_benchmark if r["licence"]}))
                or "not stated",
                "people": sum(r["n"] for r in groups if r["attribute"] == groups[0]["attribute"]),
                "questions": questions,
                "left": left,
            }
        )
    return sections


_CARD = ("people-groups", "people-quarantine", "people-questions")
