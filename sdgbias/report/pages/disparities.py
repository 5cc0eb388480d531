"""The page of the second suite, fairness.html: disparities, classes, prompts, debiasing, unparsed
answers, examples, and the data measured.

Pictures of people are blurred until a reader reveals them, and stay blurred in print. Groups are
perceived and annotated.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store
from sdgbias.benchmark.people_items import CHOICE
from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import REASONS
from sdgbias.report import labels
from sdgbias.report.charts import Figure, disparities
from sdgbias.report.data import NOT_ANALYSED
from sdgbias.report.layout import terms_in
from sdgbias.report.pages.studies import drawn
from sdgbias.types import FACET
from sdgbias.vocabulary import WORDS

EXAMPLES = 60
#: Pictures on the page at a time.
PAGE_OF = 6
RATES = {
    "no_rate": "No",
    "unknown_rate": "Unknown",
    "false_yes_rate": "Yes about a wrong class",
    "unparsed_rate": "Not understood",
    "refusal_rate": "Declined",
}
UNREAD = ("refusal", "unparsed", "empty", "several")
#: Display names of the datasets, in display order.
DATASETS = {
    "facet": "FACET",
    "synthetic": "drawn people",
}

#: The chosen runs with label and data: datasets in the order of DATASETS, the newest benchmark of
#: each first; planted models after measured ones.
_RUNS = """
    WITH kinds AS (SELECT benchmark_id, max(dataset) AS kind FROM people GROUP BY ALL),
    chosen AS (
        SELECT runs.*, coalesce(kind, '') AS kind, list_position($kinds, kind) AS place,
        coalesce(provenance = 'planted', false) AS made,
        max(finished_at) OVER (PARTITION BY benchmark_id) AS newest
        FROM runs LEFT JOIN kinds USING (benchmark_id) WHERE list_contains($runs, run_id)
    )
    SELECT * EXCLUDE (kind, place, made, newest), model || if(made, ' (planted)', '') AS label,
    coalesce($titles[place], nullif(kind, ''), 'people') || if(count(DISTINCT benchmark_id) OVER
    (PARTITION BY kind) > 1, ' ' || benchmark_id[:8], '') AS data
    FROM chosen ORDER BY place NULLS LAST, newest DESC, benchmark_id, made, model"""
#: Every answer to one question of each picture; the picture's id selects it (turn).
_ASKED = """
    SELECT i.benchmark_id, i.image_id, i.prompt, i.asked, i.gold, i.gender, i.skin, i.age, v.png,
    s.run_id, s.text, s.label, s.how, ('0x' || sha256(i.image_id)[:8])::BIGINT AS turn
    FROM spoken s JOIN runs r USING (run_id)
    JOIN people i ON i.benchmark_id = r.benchmark_id AND i.item_id = s.item_id
    JOIN previews v ON v.benchmark_id = i.benchmark_id AND v.image_id = i.image_id
    WHERE list_contains($runs, run_id)
    QUALIFY dense_rank() OVER (PARTITION BY i.benchmark_id, i.image_id ORDER BY i.prompt,
    i.negative, i.item_id) - 1 = turn % count(DISTINCT i.item_id) OVER
    (PARTITION BY i.benchmark_id, i.image_id)
    ORDER BY i.benchmark_id, i.image_id, s.task, s.test"""


@dataclass(frozen=True)
class Fairness:
    """runs: newest finished run of each model on each benchmark of the suite, with label, and data
    (a description of its people); metrics, studies: their rows, with label as model, and data;
    people: benchmark_id, attribute, group, n (persons); quarantine: benchmark_id, rule, n;
    questions: benchmark_id, prompt, n; silent: see _silent; examples: see _examples."""

    runs: pd.DataFrame
    metrics: pd.DataFrame
    studies: pd.DataFrame
    people: pd.DataFrame
    quarantine: pd.DataFrame
    questions: pd.DataFrame
    silent: list[dict[str, Any]]
    examples: list[dict[str, Any]]

    @property
    def several(self) -> bool:
        """Whether the runs cover different sets of people."""
        return self.runs["benchmark_id"].nunique() > 1


def load(results: Path, among: Sequence[str] | None = None) -> Fairness | None:
    """Read all data of the page from the results file; None if the suite has no finished run (among
    ``among``, if given)."""
    chosen = store.latest_runs(results, FACET, per_benchmark=True, among=among)
    if not chosen:
        return None

    def ask(sql: str) -> pd.DataFrame:
        return store.query(results, sql, {"runs": chosen}, runs=chosen)

    datasets = {"kinds": list(DATASETS), "titles": list(DATASETS.values())}
    runs = store.query(results, _RUNS, {"runs": chosen, **datasets})
    named = runs[["run_id", "label", "data"]].rename(columns={"label": "model"})

    def of_runs(sql: str) -> pd.DataFrame:
        """Rows in the order of the runs, with their label as model, and data."""
        return named.merge(ask(sql).drop(columns="model", errors="ignore"), on="run_id")

    mine = "WHERE list_contains($runs, run_id)"
    of = f"(SELECT DISTINCT benchmark_id FROM runs {mine})"
    groups = " UNION ALL ".join(
        f"SELECT benchmark_id, '{a}' AS attribute, {a} AS \"group\", count(DISTINCT"
        f" person_id) AS n FROM people WHERE benchmark_id IN {of} GROUP BY ALL"
        for a in ("gender", "skin", "age")
    )
    return Fairness(
        runs=runs,
        metrics=of_runs(
            f"FROM {store.NUMBERS} {mine} AND study = 'headline' AND NOT ends_with(method,"
            " ':paper') ORDER BY task, test, method, pillar, indicator, metric"
        ),
        studies=of_runs(
            f"FROM {store.NUMBERS} {mine} AND study = 'fairness' ORDER BY test, method, pillar,"
            " metric"
        ),
        people=ask(f"{groups} ORDER BY ALL"),
        quarantine=ask(
            f"SELECT benchmark_id, rule, count(*) AS n FROM quarantine WHERE benchmark_id IN {of}"
            " GROUP BY ALL ORDER BY ALL"
        ),
        questions=ask(
            f"""SELECT benchmark_id, prompt, negative, count(*) AS n, count(DISTINCT person_id) AS
                people FROM people
                          WHERE benchmark_id IN {of} GROUP BY ALL ORDER BY ALL"""
        ),
        silent=_silent(
            of_runs(
                f"""SELECT run_id, test, how, text, count(*) AS n FROM spoken {mine} GROUP BY
                    ALL ORDER BY test, n DESC, text"""
            )
        ),
        examples=_examples(of_runs(_ASKED)),
    )


def _silent(said: pd.DataFrame) -> list[dict[str, Any]]:
    """Prompts for which none of a model's answers could be parsed: recall is 0 there because
    nothing was answered, not because every answer was wrong."""
    made: dict[Any, dict[str, Any]] = {}
    for (data, model, test), part in said.groupby(["data", "model", "test"], sort=False):
        if part["how"].isin(UNREAD).all():
            one = made.setdefault(
                (data, model), {"data": data, "model": model, "prompts": [], "n": 0, "texts": []}
            )
            text = str(part["text"].iloc[0])
            one["prompts"].append(test)
            one["n"] += int(part["n"].sum())
            one["texts"].append(text if len(text) <= 40 else f"{text[:40]}…")
    return [one | {"n": f"{one['n']:,}"} for one in made.values()]


def _examples(asked: pd.DataFrame) -> list[dict[str, Any]]:
    """Up to 60 pictures of the store, each with one of its questions and the answers of every
    model: prompt, about, gold, picture (a data URI), groups, answers (model, text, label, how,
    right). ``asked``: the rows of _ASKED."""
    made = []
    for _, part in asked.groupby(["benchmark_id", "image_id"], sort=True):
        r = part.iloc[0]
        answers = [
            {
                "model": a["model"],
                "text": str(a["text"] or ""),
                "label": str(a["label"] or ""),
                "how": WORDS.parsed.get(a["how"], a["how"]),
                "right": a["label"] == a["gold"],
                "read": a["how"] not in UNREAD,
            }
            for a in part.to_dict("records")
        ]
        outcome = (
            "unread"
            if not all(a["read"] for a in answers)
            else "right"
            if all(a["right"] for a in answers)
            else "wrong"
        )
        made.append(
            {
                "data": r["data"],
                "prompt": r["prompt"],
                "about": r["asked"] or "any of the listed classes",
                "gold": r["gold"],
                "outcome": outcome,
                "answers": answers,
                "groups": ", ".join(f"{a} {r[a]}" for a in ("gender", "skin", "age")),
                "key": int(r["turn"]),
                "picture": "data:image/jpeg;base64," + base64.b64encode(bytes(r["png"])).decode(),
            }
        )
    made = sorted(made, key=lambda e: (e["key"], e["picture"]))[:EXAMPLES]
    order = list(dict.fromkeys(asked["data"]))
    return sorted(made, key=lambda e: (order.index(e["data"]), e["prompt"], e["key"]))


# ----------------------------------------------------------------------
# page


def context(d: Fairness, checks: str = "") -> dict[str, Any]:
    """Data of fairness.html.j2. ``checks`` links to the quality page of the benchmark."""
    analysed = set(zip(d.studies["data"], d.studies["model"], strict=True))
    choices = set(d.metrics.loc[d.metrics["task"] == CHOICE, "run_id"])
    return {
        **drawn(figures(d)),
        "checks": checks,
        "runs": [{**r, "unanswerable": f"{unanswerable(r):,}"} for r in d.runs.to_dict("records")],
        "several": d.several,
        "planted": list(d.runs.loc[d.runs["provenance"] == "planted", "label"].unique()),
        "synthetic": [
            r for r in dict.fromkeys(d.runs["data"]) if r.startswith(DATASETS["synthetic"])
        ],
        "missing": [
            f"{r['label']}{' on ' + r['data'] if d.several else ''}: {NOT_ANALYSED}"
            for r in d.runs.to_dict("records")
            if (r["data"], r["label"]) not in analysed and r["run_id"] in choices
        ],
        "silent": d.silent,
        "lacking": _lacking(d.studies),
        "rate_heads": list(RATES.values()),
        "rates": rates(d.metrics),
        "examples": d.examples,
        "page_of": PAGE_OF,
        "words": terms_in(
            "Disparity Recall Planted CADE Full Holm",
            *d.metrics["test"].unique(),
            *d.studies["method"].str.removesuffix("@recall").unique(),
        ),
        "unread": sum(e["outcome"] == "unread" for e in d.examples),
        "benchmarks": cards(d),
    }


def figures(d: Fairness) -> list[Figure]:
    """The page's figures, in order."""
    return disparities.figures(d.metrics, d.studies)


def unanswerable(run: dict[Any, Any]) -> int:
    """Number of prompts of a run that its type of model can't answer (CLIP: whether a class is
    present)."""
    return int(json.loads(run["config"] or "{}").get("unanswerable", 0))


def rates(metrics: pd.DataFrame) -> list[dict[str, Any]]:
    """data, model, prompt, cells (value, ci, n; None if the rate isn't defined) of the generated
    answers over all classes."""
    own = metrics[
        (metrics["method"] == "full")
        & (metrics["pillar"] == "all")
        & metrics["metric"].isin(list(RATES))
    ]
    made = []
    by_run = ["data", "model", "test"]
    first = own.groupby(by_run[:2], sort=False).ngroup()
    for (_, data, model, test), part in own.groupby([first, *by_run]):
        found = {r["metric"]: Estimate.of_row(r) for r in part.to_dict("records")}
        cells = [
            (
                {"value": labels.percent(e), "ci": labels.interval(e), "n": f"{e.n:,}"}
                if (e := found.get(name)) is not None
                else None
            )
            for name in RATES
        ]
        made.append({"data": data, "model": model, "prompt": test, "cells": cells})
    return made


def _lacking(studies: pd.DataFrame) -> list[dict[str, str]]:
    frame = studies[studies["metric"] == "not_run"]
    return [
        {
            "what": ", ".join(sorted(set(part["method"]))),
            "why": str(note),
            "test": str(test),
            "models": ", ".join(dict.fromkeys(part["model"])),
        }
        for (test, note), part in frame.groupby(["test", "note"], sort=True)
    ]


def cards(d: Fairness) -> list[dict[str, Any]]:
    """Cards of the data measured: per benchmark its dataset, licence, persons by group (including
    unknown, and why), questions, and exclusions."""
    made = []
    for benchmark, runs in d.runs.groupby("benchmark_id", sort=False):
        groups, left, asked = (
            frame[frame["benchmark_id"] == benchmark].to_dict("records")
            for frame in (d.people, d.quarantine, d.questions)
        )
        unknown = json.loads(runs["config"].iloc[0] or "{}").get("unknown_because") or {}
        made.append(
            {
                "id": benchmark,
                "dataset": runs["data"].iloc[0],
                "groups": groups,
                "why": {
                    attribute: {REASONS.get(r, r): n for r, n in sorted((counts or {}).items())}
                    for attribute, counts in unknown.items()
                },
                "licence": (
                    ", ".join(sorted(set(runs["licence"].fillna("").astype(str)) - {""}))
                    or "not stated"
                ),
                "people": sum(r["n"] for r in groups if r["attribute"] == groups[0]["attribute"]),
                "questions": asked,
                "left": left,
            }
        )
    return made
