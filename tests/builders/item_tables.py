"""Places, pictures and indicator series that questions are built from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark import items
from sdgbias.benchmark.item_columns import LABELS
from sdgbias.raw.clusters import countries
from sdgbias.raw.indicators import Indicator, load_indicators
from sdgbias.types import QUARANTINE_COLUMNS, Task

CODES = ("AL", "KE", "NM", "NI", "BF")


def indicator(slug: str) -> Indicator:
    """An MCQ indicator of the package's table."""
    return next(entry for entry in load_indicators() if entry.slug == slug)


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
    return {**names, "year": year, "value": value, "source": f"<i>test</i> {series}"}


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


@dataclass(frozen=True)
class Drawn:
    """What choose_items gives, as whole tables."""

    built: items.Built

    @cached_property
    def items_mcq(self) -> pd.DataFrame:
        return pd.concat(self.built.blocks(Task.MCQ), ignore_index=True)

    @cached_property
    def items_regression(self) -> pd.DataFrame:
        return pd.concat(self.built.blocks(Task.REGRESSION), ignore_index=True)

    @cached_property
    def quarantine(self) -> pd.DataFrame:
        columns = QUARANTINE_COLUMNS
        lost = pd.concat(self.built.lost, ignore_index=True)[columns]
        return lost.sort_values(columns, kind="stable", ignore_index=True)

    @property
    def notes(self) -> dict[str, Any]:
        return self.built.notes


def choose_items(candidates: items.Candidates, **asked: Any) -> Drawn:
    return Drawn(items.choose_items(candidates, **asked))


def build_items(
    *tables: Any, only: Sequence[str] = (), seed: int = 0, **asked: int | None
) -> Drawn:
    """find_candidates, of these indicators or of all, which takes a second; then choose_items, of
    all that is possible where no numbers are asked."""
    indicators = [indicator(slug) for slug in only] or None
    candidates = items.find_candidates(*tables, seed=seed, indicators=indicators)
    return choose_items(candidates, **{"mcq": None, "regression": None, **asked})
