"""Places, pictures and indicator series that questions are built from."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from sdgbias.benchmark.item_columns import LABELS
from sdgbias.raw.clusters import countries
from sdgbias.raw.indicators import load_indicators

CODES = ("AL", "KE", "NM", "NI", "BF")


def make_clusters(codes: tuple[str, ...] = CODES, each: int = 6) -> pd.DataFrame:
    table = countries().set_index("cname")
    rows = []
    for code in codes:
        for number in range(each):
            year = 2008 + 7 * (number % 2)
            rng = np.random.default_rng([number, *code.encode()])
            labels = dict(zip(LABELS, rng.uniform(1, 5, len(LABELS)), strict=True))
            place = {
                "cname": code,
                "iso3": table.iso3[code],
                "country": table.name[code],
                "year": np.int32(year),
            }
            extra = {
                "urban": "UR"[number % 2],
                "adm1dhs": number,
                "official_split": table.official_split[code],
            }
            rows.append(
                {
                    "cluster_id": f"{code}-{year}-6#-{number:08d}",
                    **place,
                    **extra,
                    "gdl_region": "",
                    **labels,
                }
            )
    return pd.DataFrame(rows)


def make_images(clusters: pd.DataFrame) -> pd.DataFrame:
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in clusters["cluster_id"]]
    return pd.DataFrame({"cluster_id": clusters["cluster_id"], "image_id": digests})


def row(
    series: str, iso3: str, year: int, value: float, region: str = "", stratum: str = "all"
) -> dict[str, object]:
    names = {"series": series, "iso3": iso3, "region": region, "stratum": stratum}
    return {**names, "year": year, "value": value, "source": f"test {series}"}


def make_series(codes: tuple[str, ...] = CODES) -> pd.DataFrame:
    """A national value of every indicator for every country; all but SHDI spread over 10-90."""
    rows = []
    for entry in load_indicators():
        top = entry.limits[1]
        for code, iso3 in countries().set_index("cname")["iso3"].items():
            share = int(hashlib.md5(f"{entry.slug}{iso3}".encode()).hexdigest()[:4], 16) / 16**4
            if code in codes:
                rows.append(
                    row(
                        entry.series[-1].name,
                        iso3,
                        2012,
                        round(min(top, 100) * (0.1 + 0.8 * share), 3),
                    )
                )
    return pd.DataFrame(rows)
