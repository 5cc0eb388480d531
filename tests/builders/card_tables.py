"""Tables of a small benchmark whose card can be counted by hand: seven places in two countries."""

from __future__ import annotations

import pandas as pd

from sdgbias.benchmark.card.figures import LABELS
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
