"""A small benchmark for the tests of human review: real items and a real image store over made-up
clusters."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from sdgbias.benchmark.item_columns import LABELS
from sdgbias.raw.clusters import countries
from sdgbias.raw.images.image_store import pending_index, store_images
from sdgbias.raw.indicators import load_indicators
from tests.builders.item_tables import build_items

CODES = ("AL", "BF", "KE", "NI", "NM")


def make_clusters(codes: tuple[str, ...] = CODES, each: int = 12) -> pd.DataFrame:
    """`each` clusters per country; a cluster's values depend on its own name only."""
    table = countries().set_index("cname")
    rows = []
    for code in codes:
        for number in range(each):
            labels = np.random.default_rng([number, *code.encode()]).uniform(1, 5, len(LABELS))
            place = {
                "cname": code,
                "iso3": table.iso3[code],
                "country": table.name[code],
                "year": np.int32(2008 + 7 * (number % 2)),
            }
            more = {
                "urban": "UR"[number % 2],
                "adm1dhs": number,
                "official_split": table.official_split[code],
                "gdl_region": "",
            }
            rows.append(
                {
                    "cluster_id": f"{code}-{place['year']}-6#-{number:08d}",
                    **place,
                    **more,
                    **dict(zip(LABELS, labels, strict=True)),
                }
            )
    return pd.DataFrame(rows)


def make_series(codes: tuple[str, ...]) -> pd.DataFrame:
    """A national value of every indicator per country, spread over the indicator's range."""
    iso3 = countries().set_index("cname")["iso3"]
    rows = [
        (
            entry.series[-1].name,
            iso3[code],
            "",
            "all",
            2012,
            round(min(entry.limits[1], 100) * (0.1 + 0.8 * at / len(codes)), 3),
            "<i>made up</i>",
        )
        for entry in load_indicators()
        for at, code in enumerate(sorted(codes))
    ]
    return pd.DataFrame(
        rows, columns=["series", "iso3", "region", "stratum", "year", "value", "source"]
    )


def picture(name: str, size: tuple[int, int] = (32, 32)) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(list(name.encode())).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


def write_benchmark(
    folder: Path,
    codes: tuple[str, ...] = CODES,
    each: int = 12,
    images: bool = True,
    parts: int = 1,
) -> Path:
    """items_mcq, items_regression, images and its shards, as `sdgbias build` leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    clusters = make_clusters(codes, each)
    index = pending_index(clusters)
    if images:
        names = sorted(clusters["cluster_id"])
        index = store_images(
            folder, ((name, "42", [picture(f"{name}|{k}") for k in range(parts)]) for name in names)
        )
        index["image_group"] = index["image_id"]
    made = build_items(clusters, index, make_series(codes), mcq=None, regression=None, seed=0)
    made.items_mcq.to_parquet(folder / "items_mcq.parquet")
    made.items_regression.to_parquet(folder / "items_regression.parquet")
    index.to_parquet(folder / "images.parquet")
    (folder / "benchmark.json").write_text('{"benchmark_id": "0123456789abcdef"}\n')
    return folder
