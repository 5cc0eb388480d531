"""Tables of a small benchmark whose card can be counted by hand: seven places in two countries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.raw.clusters import LABELS
from sdgbias.types import PILLARS

HEALTH, SERVICES, HUMAN = PILLARS
#: code, name, survey year, clusters
COUNTRIES = (("KE", "Kenya", 2014, 4), ("NM", "Namibia", 2006, 3))


def clusters() -> pd.DataFrame:
    rows = [
        (f"{code}-{at}", code, name, year) for code, name, year, n in COUNTRIES for at in range(n)
    ]
    frame = pd.DataFrame(rows, columns=["cluster_id", "cname", "country", "year"]).astype(
        {"year": "int32"}
    )
    frame = frame.assign(**dict.fromkeys(LABELS, 1.5))
    frame.loc[[0, 1], "women_bmi"] = None
    return frame


def images() -> pd.DataFrame:
    """Five of the seven clusters; KE-0 and KE-1 show nearly the same."""
    used = ["KE-0", "KE-1", "KE-2", "NM-0", "NM-1"]
    ids = [f"{name:0>64}" for name in ("a", "b", "c", "d", "e")]
    return pd.DataFrame(
        {
            "cluster_id": used,
            "image_id": ids,
            "image_group": [ids[0], *ids[:1], *ids[2:]],
            "n_parts": 1,
            "modalities": ["photo, tile, nightlights"] * 4 + ["tile, nightlights"],
            "shard": "KE-000",
        }
    )


def mcq() -> pd.DataFrame:
    """Four health questions (A B B C), two on services (A A), none on human capital."""
    rows = [
        ("KE-0", HEALTH, "stunting", "A", 10.0, 2014, "unsd_sdg SH_STA_STUNT", "national", "val"),
        ("KE-1", HEALTH, "stunting", "B", 25.0, 2014, "gdl_area stunting", "subnational", "test"),
        ("KE-2", HEALTH, "stunting", "B", 25.0, 2012, "gdl_area stunting", "subnational", "test"),
        ("NM-0", HEALTH, "stunting", "C", 35.0, 2006, "unsd_sdg SH_STA_STUNT", "national", "test"),
        ("KE-0", SERVICES, "electricity", "A", 20.0, 2014, "my own table", "urban-rural", "test"),
        ("NM-1", SERVICES, "electricity", "A", 30.0, 2005, "my own table", "urban-rural", "val"),
    ]
    columns = [
        "cluster_id",
        "pillar",
        "indicator",
        "answer",
        "value",
        "value_year",
        "source",
        "level",
        "split",
    ]
    return placed(pd.DataFrame(rows, columns=columns))


def regression() -> pd.DataFrame:
    rows = [
        ("KE-2", HEALTH, "maternal_capital", 55.0, "val"),
        ("NM-1", HUMAN, "education_access", 7.0, "test"),
    ]
    return placed(
        pd.DataFrame(rows, columns=["cluster_id", "pillar", "indicator", "answer", "split"])
    ).assign(target="x")


def placed(items: pd.DataFrame) -> pd.DataFrame:
    place = clusters()[["cluster_id", "cname", "country", "year"]]
    items = items.merge(place, on="cluster_id").assign(review="", item_id=range(len(items)))
    shown = images().set_index("cluster_id")["modalities"]
    items["modalities"] = items["cluster_id"].map(shown)
    return items.assign(split_place=items["cname"].map({"KE": "test", "NM": "val"}))


def prompts() -> pd.DataFrame:
    """T1 texts all differ; T5 texts are one per indicator or regression task."""
    parts = []
    for task, items in (("mcq", mcq()), ("regression", regression())):
        for test in ("T1", "T5") if task == "mcq" else ("T2", "T5"):
            text = items["indicator"] + ("" if test == "T5" else items["cluster_id"])
            parts.append(
                pd.DataFrame(
                    {
                        "task": task,
                        "item_id": items["item_id"],
                        "test": test,
                        "text": text,
                        "image_id": "",
                        "candidates": "ABC",
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


NOTES: dict[str, Any] = {
    "clusters": 7,
    "clusters_with_image": 5,
    "mcq": {
        "pillar_quotas": {HEALTH: 4, SERVICES: 3, HUMAN: 2},
        "short": ["Human Capital & Development: wanted 2, the data gives 0"],
    },
    "regression": {"pillar_quotas": None, "short": []},
    "coverage": {"stunting": {"subnational": 2, "urban-rural": 0, "national": 2}},
    "series_not_found": ["haq"],
}


def put(path: Path, frame: pd.DataFrame, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, **options)


def card_folder(path: Path) -> Path:
    """The tables, what was left out and the notes, as the stages of a build leave them."""
    for name, frame in {
        "clusters": clusters(),
        "images": images(),
        "items_mcq": mcq(),
        "items_regression": regression(),
        "prompts": prompts(),
        "series": pd.DataFrame(
            {"series": ["eg_elc_accs", "eg_elc_accs"], "source": ["my own table", "my own table"]}
        ),
    }.items():
        put(path / f"{name}.parquet", frame)
    left = [
        ("images", "KE-3", "missing-photo", "none"),
        ("images", "NM-2", "missing-photo", "none"),
    ]
    put(
        path / "quarantine" / "images.parquet",
        pd.DataFrame(left, columns=["table", "key", "rule", "detail"]),
    )
    left = [
        ("items_mcq", "NM-1|stunting", "no-indicator-value", "none"),
        ("items_mcq", "KE-1|electricity", "near-duplicate-item", "as KE-0"),
        ("items_mcq", "KE-2|electricity", "rejected-in-review", "item 9"),
    ]
    put(
        path / "quarantine" / "items.parquet",
        pd.DataFrame(left, columns=["table", "key", "rule", "detail"]),
    )
    (path / "items_notes.json").write_text(json.dumps(NOTES))
    (path / "origin.json").write_text('{"synthetic": false}')
    return path
