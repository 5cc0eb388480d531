"""The figures of the dataset card: plain JSON computed from a benchmark's tables. No file I/O.

`paper` keys are the SDGBiasBench paper's figures (Tables A and B), `share_low` and `share_high` a
95 % Wilson interval (stats.share: questions of one cluster count as dependent); everything else is
counted on the benchmark at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.card.distance import gold_distance
from sdgbias.benchmark.card.readme import known_limits
from sdgbias.benchmark.card.shown import by_modalities, templates
from sdgbias.benchmark.draw import PILLAR_WEIGHTS
from sdgbias.methods import stats
from sdgbias.raw.clusters import LABELS
from sdgbias.raw.indicators import LEVELS, load_indicators
from sdgbias.raw.sources import Source, source_of_series, sources
from sdgbias.types import LETTERS, PILLARS, TESTS, Task

#: Table B: percent of the paper's multiple-choice answers that are A, B, C.
TABLE_B = dict(
    zip(PILLARS, ((27.75, 42.80, 29.45), (40.11, 39.11, 20.78), (32.03, 33.87, 34.11)), strict=True)
)
SPAN = 5
SYNTHETIC = [
    "Synthetic sample of `sdgbias sample` in SustainBench's layout (Yeh et al. 2021); nothing in it"
    " is real; CC0 1.0"
]
RELEASE = [
    "An imported release in the layout of SDGBiasBench's data files; its own terms hold (published"
    " as CC BY-SA 4.0)"
]
Row = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """The input read by build_card. Unknown text is '', unknown numbers are NaN.

    quarantine: table, rule, what (indicator or ''), n. distinct_prompts: task -> texts without
    context. series: series, source.
    """

    clusters: pd.DataFrame
    images: pd.DataFrame
    items_mcq: pd.DataFrame
    items_regression: pd.DataFrame
    quarantine: pd.DataFrame
    distinct_prompts: Mapping[str, int]
    series: pd.DataFrame
    notes: Mapping[str, Any]
    origin: Mapping[str, Any]
    reviews: Mapping[str, Any]

    @property
    def items(self) -> dict[Task, pd.DataFrame]:
        return {Task.MCQ: self.items_mcq, Task.REGRESSION: self.items_regression}


def figures(facts: Facts, prompts: int) -> dict[str, Any]:
    """Everything in benchmark.json except its id and licence; `prompts`: rows of
    prompts.parquet."""
    mcq, regression = facts.items_mcq, facts.items_regression
    both = pd.concat(
        [
            mcq[list(_SHARED)].assign(task="mcq"),
            regression[list(_SHARED)].assign(task="regression"),
        ],
        ignore_index=True,
    )
    kind = images_kind(facts.images)
    used = sources_used(facts, kind)
    card: dict[str, Any] = {
        "synthetic": bool(facts.origin.get("synthetic", False)),
        "images": kind,
        "counts": {
            "clusters": len(facts.clusters),
            "images": 0 if kind == "none" else len(facts.images),
            "image_groups": (
                0
                if kind == "none"
                else int(facts.images["image_group"].replace("", np.nan).nunique())
            ),
            "items_mcq": len(mcq),
            "items_regression": len(regression),
            "prompts": prompts,
            "clusters_used": int(both["cluster_id"].nunique()),
            "countries_used": int(both["cname"][both["cname"] != ""].nunique()),
            "mcq_by_pillar": counts(mcq["pillar"]),
            "mcq_by_indicator": counts(mcq["indicator"]),
            "regression_by_task": counts(regression["indicator"]),
        },
        "table_a": table_a(facts),
        "short": [line for task in Task for line in _quota(facts, task).get("short", [])],
        "label_shares_percent": label_shares(mcq),
        "table_b": table_b(mcq),
        "by_country": by_country(facts, both),
        "by_modalities": by_modalities(facts.images, both) if kind != "none" else [],
        "by_years": by_years(both),
        "splits": splits(both),
        "missing_labels": missing_labels(facts.clusters),
        "missing_values": missing_values(facts),
        "levels": levels(mcq),
        "templates": templates(facts.items, facts.quarantine),
        "gold_distance": gold_distance(mcq),
        "distinct_q_only_prompts": dict(facts.distinct_prompts),
        "quarantined": {
            str(k): int(v) for k, v in facts.quarantine.groupby("rule")["n"].sum().items()
        },
        "quarantined_by_table": _rows(
            facts.quarantine.groupby(["table", "rule"])["n"].sum().reset_index()
        ),
        "series_not_found": series_not_found(facts.notes),
        "sources": source_lines(facts, used),
        "sources_used": used,
        "review": review(facts, both),
        "notes": dict(facts.notes),
    }
    return {**card, "known_limits": known_limits(card)}


_SHARED = (
    *("cluster_id", "cname", "country", "year", "split", "split_place", "review"),
    "modalities",
)


def counts(values: pd.Series) -> dict[str, int]:
    """Value -> number of rows, by value."""
    return {str(k): int(v) for k, v in values.value_counts().sort_index().items()}


def _rows(frame: pd.DataFrame) -> list[Row]:
    """Records in plain Python types; NaN becomes null."""
    return [{str(k): _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 2) if whole else None


def images_kind(images: pd.DataFrame) -> str:
    """'none' (built without images), 'composite' (one image per cluster) or 'several'."""
    if not len(images) or images["image_id"].str.startswith("pending:").all():
        return "none"
    return "several" if (images["n_parts"] > 1).any() else "composite"


def _quota(facts: Facts, task: Task) -> Mapping[str, Any]:
    """The notes of the draw; {} when there are none."""
    found = facts.notes.get(task.value)
    return found if isinstance(found, Mapping) else {}


def _pillars(items: pd.DataFrame) -> list[str]:
    return [*PILLARS, *sorted(set(items["pillar"]) - set(PILLARS))]


def table_a(facts: Facts) -> list[Row]:
    """Per task and pillar: the paper's count (multiple choice: of distinct questions x 5 tests),
    the requested count, the actual count."""
    found: list[Row] = []
    for task, items in facts.items.items():
        have, quota = items["pillar"].value_counts(), _quota(facts, task).get("pillar_quotas") or {}
        tests = (
            len(TESTS[Task.MCQ]) if task is Task.MCQ else 1
        )  # the paper counts a regression question once
        for pillar in _pillars(items):
            paper, ours, asked = (
                PILLAR_WEIGHTS[task].get(pillar),
                int(have.get(pillar, 0)),
                quota.get(pillar),
            )
            row = {
                "task": task.value,
                "pillar": pillar,
                "paper": paper,
                "paper_questions": paper // tests if paper else None,
            }
            short = max(0, asked - ours) if asked is not None else None
            found.append(
                {
                    **row,
                    "asked": asked,
                    "ours_questions": ours,
                    "ours": ours * tests,
                    "missing": short,
                }
            )
    return found


def label_shares(mcq: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Percent of the answers per pillar."""
    return {
        str(pillar): {
            str(k): round(100 * float(v), 2)
            for k, v in part["answer"].value_counts(normalize=True).sort_index().items()
        }
        for pillar, part in mcq.groupby("pillar", sort=True)
    }


def table_b(mcq: pd.DataFrame) -> list[Row]:
    """Per pillar and letter: the paper's percent, ours with n and a 95 % Wilson interval."""
    places, found = pd.factorize(mcq["cluster_id"])[0], []
    for pillar in _pillars(mcq):
        own = (mcq["pillar"] == pillar).to_numpy()
        for at, letter in enumerate(LETTERS):
            paper = TABLE_B[pillar][at] if pillar in TABLE_B else None
            hits = (mcq["answer"].to_numpy() == letter)[own]
            e = stats.share(hits, places[own])
            ours = {
                name: _plain(round(100 * v, 2))
                for name, v in (("share", e.value), ("share_low", e.low), ("share_high", e.high))
            }
            found.append(
                {
                    "pillar": pillar,
                    "answer": letter,
                    "paper": paper,
                    **ours,
                    "count": int(hits.sum()),
                    "n": e.n,
                }
            )
    return found


def by_country(facts: Facts, both: pd.DataFrame) -> list[Row]:
    """Clusters, images and questions per country, unknown ones ('') included."""
    clusters = facts.clusters[["cluster_id", "cname", "country"]]
    images = facts.images[~facts.images["image_id"].str.startswith("pending:")]
    pictured = images["cluster_id"]
    with_photo = pictured[images["modalities"].str.startswith("photo")]
    names = (
        pd.concat([clusters[["cname", "country"]], both[["cname", "country"]]])
        .groupby("cname")["country"]
        .max()
    )
    table = pd.DataFrame(
        {
            "country": names,
            "clusters": clusters.groupby("cname").size(),
            "clusters_with_image": (
                clusters[clusters["cluster_id"].isin(pictured)].groupby("cname").size()
            ),
            "clusters_with_photo": (
                clusters[clusters["cluster_id"].isin(with_photo)].groupby("cname").size()
            ),
            "clusters_used": both.groupby("cname")["cluster_id"].nunique(),
            **{
                task.value: both[both["task"] == task.value].groupby("cname").size()
                for task in Task
            },
        }
    )
    table = table.rename_axis("cname").sort_index()
    numbers = table.columns[1:]
    table[numbers] = table[numbers].fillna(0).astype("int64")
    share = 100 * table["clusters_with_photo"] / table["clusters_with_image"].replace(0, np.nan)
    known = (images["modalities"] != "").any()
    table.insert(
        list(table.columns).index("clusters_used"),
        "photo_percent",
        share.round(2) if known else np.nan,
    )
    return _rows(table.reset_index())


def by_years(both: pd.DataFrame) -> list[Row]:
    """Questions per five survey years; 'unknown' last."""
    year = both["year"].where(both["year"] > 0)
    first = (year // SPAN * SPAN).astype("Int64")
    span = first.astype("str") + "-" + (first + SPAN - 1).astype("str")
    rows = both.assign(years=span.where(year.notna(), "unknown"))
    return _grouped(rows, "years")


def _grouped(rows: pd.DataFrame, by: str) -> list[Row]:
    grouped = rows.groupby(by, sort=True)
    table = pd.DataFrame(
        {task.value: rows["task"].eq(task.value).groupby(rows[by]).sum() for task in Task}
    ).astype("int64")
    table["clusters"] = grouped["cluster_id"].nunique()
    table["countries"] = grouped["cname"].nunique()
    return _rows(table.rename_axis(by).reset_index())


def splits(both: pd.DataFrame) -> dict[str, Any]:
    """Both split columns: questions, clusters and countries per side, and those on more than one
    side."""
    found: dict[str, Any] = {}
    for column in ("split", "split_place"):
        overlap = {
            f"{what}_on_both": int((both[both[key] != ""].groupby(key)[column].nunique() > 1).sum())
            for what, key in (("clusters", "cluster_id"), ("countries", "cname"))
        }
        found[column] = {
            "sides": _grouped(both.rename(columns={column: "side"}), "side"),
            **overlap,
        }
    return found


def missing_labels(clusters: pd.DataFrame) -> list[Row]:
    """Per DHS label: clusters that lack it."""
    gone, n = clusters[list(LABELS)].isna().sum(), len(clusters)
    return [
        {"label": name, "missing": int(gone[name]), "n": n, "percent": _percent(int(gone[name]), n)}
        for name in LABELS
    ]


def missing_values(facts: Facts) -> list[Row]:
    """Per indicator or regression task: clusters without a question because the value is unknown,
    and other reasons by rule."""
    lost = facts.quarantine[
        facts.quarantine["table"].str.startswith("items_") & (facts.quarantine["what"] != "")
    ]
    asked = facts.notes.get("clusters_with_image")
    coverage = facts.notes.get("coverage") or {}
    found: list[Row] = []
    for task, items in facts.items.items():
        own = lost[lost["table"] == f"items_{task}"]
        table = own.pivot_table(
            index="what", columns="rule", values="n", aggfunc="sum", fill_value=0
        )
        for slug in sorted(
            {*items["indicator"], *own["what"], *(coverage if task is Task.MCQ else ())} - {""}
        ):
            rules = (
                {str(k): int(v) for k, v in table.loc[slug].items() if v}
                if slug in table.index
                else {}
            )
            gone = rules.pop("no-indicator-value", 0)
            row: Row = {
                "task": task.value,
                "indicator": slug,
                "clusters": asked,
                "missing": gone,
                "percent": _percent(gone, asked or 0),
            }
            usable = sum(coverage[slug].values()) if task is Task.MCQ and slug in coverage else None
            found.append(
                {
                    **row,
                    "usable": usable,
                    "questions": int((items["indicator"] == slug).sum()),
                    "other_rules": rules,
                }
            )
    return found


def levels(mcq: pd.DataFrame) -> list[Row]:
    """Per indicator: percent of gold values at regional, urban/rural and national level; number of
    distinct values; age."""
    found: list[Row] = []
    gap = (mcq["value_year"] - mcq["year"]).abs()
    for slug, part in mcq.groupby("indicator", sort=True):
        share = part["level"].value_counts(normalize=True)
        known = part["value_year"].dropna()
        span = f"{int(known.min())}-{int(known.max())}" if len(known) else ""
        row: Row = {
            "indicator": str(slug),
            "n": len(part),
            **{level: round(100 * float(share.get(level, 0.0)), 2) for level in LEVELS},
        }
        row |= {
            "distinct_values": int(part["value"].nunique()),
            "value_years": span,
            "largest_gap": _whole(gap[part.index].max()),
        }
        found.append(row)
    return found


def _whole(value: float) -> int | None:
    return None if np.isnan(value) else int(value)


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
    known = {entry.id for entry in sources()}
    by_text = {
        text: entry.id
        for name, text in series[["series", "source"]].drop_duplicates().itertuples(index=False)
        if (entry := source_of_series(name))
    }

    def of(text: str) -> str:
        head = re.split(r"[\s,;:(]", text, maxsplit=1)[0]
        return head if head in known else by_text.get(text, text)

    return texts.astype(str).map({text: of(text) for text in texts.astype(str).unique()})


def sources_used(facts: Facts, images: str) -> list[Row]:
    """Raw sources behind this benchmark's questions: licence, citation, and the number of
    multiple-choice questions based on each."""
    table = {entry.id: entry for entry in sources()}
    found = source_ids(facts.items_mcq["source"], facts.series).value_counts()
    counts = {str(key): int(n) for key, n in found.items()}
    pictures = (
        ("sustainbench_tiles", "mapillary_metadata", "mapillary_imagery")
        if images != "none"
        else ()
    )
    ours = () if facts.origin.get("release") else ("sustainbench_labels", *pictures)
    known = [
        _source_row(entry, counts.get(entry.id))
        for entry in table.values()
        if entry.id in counts or entry.id in ours
    ]
    blank = {
        "origin": "",
        "citation": "",
        "url": "",
        "licence": "unknown",
        "redistributable": False,
    }
    if facts.origin.get("release"):
        blank |= {"licence": "that of the release", "redistributable": True}
    rest = sorted(key for key in counts if key not in table)
    return known + [
        {"id": key, "title": key or "no source named", **blank, "mcq": counts[key]} for key in rest
    ]


def _source_row(entry: Source, mcq: int | None) -> Row:
    """`mcq` is null for labels and images, which every question uses."""
    told = {name: value for name, value in entry.provenance().items() if name != "get"}
    return {**told, "mcq": mcq}


def source_lines(facts: Facts, used: list[Row]) -> list[str]:
    """The sources in words."""
    if facts.origin.get("synthetic"):
        return SYNTHETIC
    lines = [
        f"{row['title']}, {row['origin'] or 'origin unknown'}, {row['licence']}"
        for row in used
        if row["id"]
    ]
    return [*(RELEASE if facts.origin.get("release") else []), *lines]


def review(facts: Facts, both: pd.DataFrame) -> dict[str, Any]:
    """Human review: verdicts on the included questions, the number of questions removed by it, and
    the figures of reviews.json."""
    verdicts = [
        {"task": task.value, **{name: int((own == word).sum()) for name, word in _VERDICTS.items()}}
        for task in Task
        for own in [both["review"][both["task"] == task.value]]
    ]
    out = facts.quarantine[facts.quarantine["rule"] == "rejected-in-review"]["n"].sum()
    return {"questions": verdicts, "left_out": int(out), "figures": dict(facts.reviews)}


_VERDICTS = {"accepted": "accepted", "rejected": "rejected", "not_reviewed": ""}
