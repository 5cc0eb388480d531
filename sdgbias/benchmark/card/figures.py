"""The figures of the dataset card: plain JSON computed from a benchmark's tables, most of them by
the queries of data/card.sql.

`paper` keys are the SDGBiasBench paper's figures (Tables A and B), `share_low` and `share_high` a
95 % Wilson interval (stats.share: questions of one cluster count as dependent); everything else is
counted on the benchmark at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sdgbias.benchmark.card.readme import known_limits
from sdgbias.benchmark.draw import PILLAR_WEIGHTS, TABLE_B
from sdgbias.files import packaged_sql
from sdgbias.methods import stats
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.raw.sources import source_of_series, sources
from sdgbias.types import LETTERS, PILLARS, TESTS, Task

SYNTHETIC = [
    "Synthetic sample of `sdgbias sample` in SustainBench's layout (Yeh et al. 2021); nothing in it"
    " is real; CC0 1.0"
]
RELEASE = [
    "An imported release in the layout of SDGBiasBench's data files; its own terms hold (published"
    " as CC BY-SA 4.0)"
]
_QUERIES = "card.sql"
Row = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """The input read by build_card: ``con`` holds the tables that data/card.sql reads."""

    con: duckdb.DuckDBPyConnection
    notes: Mapping[str, Any]
    origin: Mapping[str, Any]
    reviews: Mapping[str, Any]

    def frame(self, sql: str) -> pd.DataFrame:
        return self.con.execute(packaged_sql(_QUERIES).get(sql, sql)).df()

    def rows(self, name: str) -> list[Row]:
        """The result of a query as records in plain Python types; percentages, which are all
        numbers with a fraction, with two decimals."""
        result = self.con.execute(packaged_sql(_QUERIES)[name])
        columns = [column for column, *_ in result.description or ()]
        return [dict(zip(columns, map(_plain, row), strict=True)) for row in result.fetchall()]

    def counts(self, task: Task, column: str) -> dict[str, int]:
        """Value -> number of questions, by value."""
        sql = f"SELECT {column}, count(*) FROM items_{task} GROUP BY ALL ORDER BY ALL"
        return dict(self.con.execute(sql).fetchall())


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 2) if np.isfinite(value) else None


def figures(facts: Facts) -> dict[str, Any]:
    """Everything in benchmark.json except its id and licence."""
    [pictures], [counts] = facts.rows("images_kind"), facts.rows("counts")
    kind = pictures.pop("kind")
    used = sources_used(facts, kind)
    card: dict[str, Any] = {
        "synthetic": bool(facts.origin.get("synthetic", False)),
        **{name: facts.origin[name] for name in ("hub", "text_view") if name in facts.origin},
        "images": kind,
        "counts": {
            **counts,
            **(dict.fromkeys(pictures, 0) if kind == "none" else pictures),
            "mcq_by_pillar": facts.counts(Task.MCQ, "pillar"),
            "mcq_by_indicator": facts.counts(Task.MCQ, "indicator"),
            "regression_by_task": facts.counts(Task.REGRESSION, "indicator"),
        },
        "table_a": table_a(facts),
        "short": [line for task in Task for line in _quota(facts, task).get("short", [])],
        "label_shares_percent": label_shares(facts),
        "table_b": table_b(facts.frame("SELECT pillar, answer, cluster_id FROM items_mcq")),
        "by_country": facts.rows("by_country"),
        "by_modalities": facts.rows("by_modalities") if kind != "none" else [],
        "by_years": facts.rows("by_years"),
        "splits": splits(facts),
        "missing_labels": facts.rows("missing_labels"),
        "missing_values": missing_values(facts),
        "levels": facts.rows("levels"),
        "templates": templates(facts),
        "gold_distance": facts.rows("gold_distance"),
        "distinct_q_only_prompts": {
            **{task.value: 0 for task in Task},
            **{row["task"]: row["texts"] for row in facts.rows("distinct_prompts")},
        },
        "quarantined": {row["rule"]: row["n"] for row in facts.rows("quarantined")},
        "quarantined_by_table": facts.rows("quarantined_by_table"),
        "series_not_found": series_not_found(facts.notes),
        "sources": source_lines(facts, used),
        "sources_used": used,
        "review": review(facts),
        "notes": dict(facts.notes),
    }
    return {**card, "known_limits": known_limits(card)}


def counts(values: pd.Series) -> dict[str, int]:
    """Value -> number of rows, by value."""
    return {str(k): int(v) for k, v in values.value_counts().sort_index().items()}


def _quota(facts: Facts, task: Task) -> Mapping[str, Any]:
    """The notes of the draw; {} when there are none."""
    quota = facts.notes.get(task.value)
    return quota if isinstance(quota, Mapping) else {}


def _pillars(names: Iterable[str]) -> list[str]:
    return [*PILLARS, *sorted({*names} - {*PILLARS})]


def table_a(facts: Facts) -> list[Row]:
    """Per task and pillar: the paper's count (multiple choice: of distinct questions x 5 tests),
    the requested count, the actual count."""
    rows: list[Row] = []
    for task in Task:
        have = facts.counts(task, "pillar")
        quota = _quota(facts, task).get("pillar_quotas") or {}
        # the paper counts a regression question once
        tests = len(TESTS[Task.MCQ]) if task is Task.MCQ else 1
        for pillar in _pillars(have):
            paper, wanted = PILLAR_WEIGHTS[task].get(pillar), quota.get(pillar)
            ours = have.get(pillar, 0)
            row = {
                "task": task.value,
                "pillar": pillar,
                "paper": paper,
                "paper_questions": paper // tests if paper else None,
                "asked": wanted,
                "ours_questions": ours,
                "ours": ours * tests,
                "missing": max(0, wanted - ours) if wanted is not None else None,
            }
            rows.append(row)
    return rows


def label_shares(facts: Facts) -> dict[str, dict[str, float]]:
    """Percent of the answers per pillar."""
    shares: dict[str, dict[str, float]] = {}
    for row in facts.rows("label_shares"):
        shares.setdefault(row["pillar"], {})[row["answer"]] = row["percent"]
    return shares


def table_b(mcq: pd.DataFrame) -> list[Row]:
    """Per pillar and letter: the paper's percent, ours with n and a 95 % Wilson interval, and the
    gap between the two in percentage points."""
    places, rows = pd.factorize(mcq["cluster_id"])[0], []
    for pillar in _pillars(mcq["pillar"]):
        of_pillar = (mcq["pillar"] == pillar).to_numpy()
        for at, letter in enumerate(LETTERS):
            hits = (mcq["answer"].to_numpy() == letter)[of_pillar]
            e = stats.share(hits, places[of_pillar])
            printed = TABLE_B[pillar][at] if pillar in TABLE_B else None
            row = {
                "pillar": pillar,
                "answer": letter,
                "paper": printed,
                "share": _plain(100 * e.value),
                "gap": None if printed is None else _plain(100 * e.value - printed),
                "share_low": _plain(100 * e.low),
                "share_high": _plain(100 * e.high),
                "count": int(hits.sum()),
                "n": e.n,
            }
            rows.append(row)
    return rows


def splits(facts: Facts) -> dict[str, Any]:
    """Both split columns: questions, clusters and countries per side, and those on more than one
    side."""
    sides = {row.pop("name"): {**row, "sides": []} for row in facts.rows("on_both")}
    for row in facts.rows("sides"):
        sides[row.pop("name")]["sides"].append(row)
    return sides


def missing_values(facts: Facts) -> list[Row]:
    """Per indicator or regression task: clusters without a question because the value is unknown,
    and other reasons by rule."""
    n = facts.notes.get("clusters_with_image")
    return [
        {**row, "clusters": n, "percent": round(100 * row["missing"] / n, 2) if n else None}
        for row in facts.rows("missing_values")
    ]


def templates(facts: Facts) -> list[Row]:
    """Per indicator and regression task of ours that the benchmark asks: required evidence, further
    evidence, the reasoning intended, and the clusters left out for lack of evidence."""
    lost = {
        (row["task"], row["indicator"]): row["other_rules"].get("missing-evidence", 0)
        for row in facts.rows("missing_values")
    }
    entries = {Task.MCQ: load_indicators(), Task.REGRESSION: load_regression_tasks()}
    return [
        {
            "task": task.value,
            "indicator": entry.slug,
            "required": ", ".join(entry.template.required),
            "used": ", ".join(entry.template.used),
            "reasoning": entry.template.reasoning,
            "left_out": lost.get((task.value, entry.slug), 0),
        }
        for task in Task
        for slugs in [facts.counts(task, "indicator")]
        for entry in entries[task]
        if entry.slug in slugs
    ]


def series_not_found(notes: Mapping[str, Any]) -> list[Row]:
    """Every series missing from the indicator folder, and the indicators that would use it."""
    users: dict[str, list[str]] = {}
    for entry in load_indicators():
        for ref in entry.series:
            users.setdefault(ref.name, []).append(entry.slug)
    return [
        {"series": name, "indicators": users.get(name, [])}
        for name in sorted(notes.get("series_not_found") or [])
    ]


def source_ids(texts: pd.Series, series: pd.DataFrame) -> pd.Series:
    """The source's id of every gold value. Its text begins with it; where it doesn't (a user's tidy
    CSV), its series (columns series, source) determines the source; else it is the text."""
    ids = {entry.id for entry in sources()}
    by_text = {
        text: entry.id
        for name, text in series[["series", "source"]].drop_duplicates().itertuples(index=False)
        if (entry := source_of_series(name))
    }

    def of(text: str) -> str:
        head = re.split(r"[\s,;:(]", text, maxsplit=1)[0]
        return head if head in ids else by_text.get(text, text)

    return texts.astype(str).map({text: of(text) for text in texts.astype(str).unique()})


def sources_used(facts: Facts, images: str) -> list[Row]:
    """Raw sources behind this benchmark's questions: licence, citation, and the number of
    multiple-choice questions based on each."""
    table = {entry.id: entry for entry in sources()}
    texts = facts.frame("sources")
    sums = texts["n"].groupby(source_ids(texts["source"], facts.frame("series"))).sum()
    counts = {str(key): int(n) for key, n in sums.items()}
    release = bool(facts.origin.get("release"))
    ours = [] if release else ["sustainbench_labels"]
    if ours and images != "none":
        ours += ["sustainbench_tiles", "mapillary_metadata", "mapillary_imagery"]
    rows = [
        {name: value for name, value in entry.provenance().items() if name != "get"}
        for entry in table.values()
        if entry.id in counts or entry.id in ours
    ]
    licence = "that of the release" if release else "unknown"
    rows += [
        {
            **{"id": key, "title": key or "no source named", "licence": licence},
            **dict.fromkeys(("origin", "citation", "url"), ""),
            "redistributable": release,
        }
        for key in sorted(counts.keys() - table.keys())
    ]
    # null for labels and images, which every question uses
    return [{**row, "mcq": counts.get(row["id"])} for row in rows]


def source_lines(facts: Facts, used: list[Row]) -> list[str]:
    """The sources in words."""
    if facts.origin.get("synthetic"):
        return SYNTHETIC
    return (RELEASE if facts.origin.get("release") else []) + [
        f"{row['title']}, {row['origin'] or 'origin unknown'}, {row['licence']}"
        for row in used
        if row["id"]
    ]


def review(facts: Facts) -> dict[str, Any]:
    """Human review: verdicts on the included questions, the number of questions removed by it, and
    the figures of reviews.json."""
    verdicts = {task.value: facts.counts(task, "review") for task in Task}
    words = {"accepted": "accepted", "rejected": "rejected", "not_reviewed": ""}
    left = {row["rule"]: row["n"] for row in facts.rows("quarantined")}
    return {
        "questions": [
            {"task": task, **{name: n.get(word, 0) for name, word in words.items()}}
            for task, n in verdicts.items()
        ],
        "left_out": left.get("rejected-in-review", 0),
        "figures": dict(facts.reviews),
    }
