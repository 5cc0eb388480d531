"""Gold values: the nearest year first, levels, regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.items import lookup_values
from tests.builders.item_tables import build_items, indicator, make_clusters, make_images, row

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def lookup(rows: list[dict[str, object]], **cluster: object) -> tuple[float, int, str] | None:
    """(value, year, level) that one Kenyan cluster of 2015 gets for stunting."""
    one = make_clusters(("KE",), 1).assign(year=np.int32(2015), **cluster)
    own = lookup_values(one, pd.DataFrame(rows), indicator("stunting"), max_gap=10)
    return (
        None
        if own["value"].isna().all()
        else (own["value"].item(), own["value_year"].item(), own["level"].item())
    )


def test_nearest_year_ties_to_the_earlier_and_the_largest_gap() -> None:
    assert lookup([row("sh_sta_stunt", "KEN", y, y - 2000) for y in (2012, 2014, 2016)]) == (
        14.0,
        2014,
        "national",
    )
    assert lookup([row("sh_sta_stunt", "KEN", 2005, 5)]) == (5.0, 2005, "national")
    assert lookup([row("sh_sta_stunt", "KEN", 2004, 4)]) is None
    assert lookup([row("sh_sta_stunt", "NER", 2015, 4)]) is None


def test_the_nearest_year_wins_over_the_order_of_the_series() -> None:
    """Mali 2018: the Global Data Lab's national 38.2 is of 2013, the UNSD's 26.9 of 2018."""
    first, second = row("gdl_area_stunting", "KEN", 2013, 38.2), row("sh_sta_stunt", "KEN", 2015, 9)
    for rows in ([first, second], [second, first]):
        assert lookup(rows) == (9.0, 2015, "national")
    # equally near: the series that the indicator names first, even if its year is the later one
    later, earlier = row("gdl_area_stunting", "KEN", 2016, 1), row("sh_sta_stunt", "KEN", 2014, 2)
    for rows in ([later, earlier], [earlier, later]):
        assert lookup(rows) == (1.0, 2016, "national")
    # both tied: the earlier year, in whatever order the rows come
    pair = [row("sh_sta_stunt", "KEN", 2016, 6), row("sh_sta_stunt", "KEN", 2014, 4)]
    for rows in (pair, pair[::-1]):
        assert lookup(rows) == (4.0, 2014, "national")


@pytest.mark.skipif(
    not (SHARED / "indicators" / "gdl_area").is_dir(),
    reason="the Global Data Lab's area table (../shared/data/indicators) is absent",
)
def test_mali_2018_gets_the_stunting_of_2018() -> None:
    from sdgbias.raw.series import read_series

    series, _ = read_series(SHARED / "indicators")
    one = make_clusters(("ML",), 1).assign(year=np.int32(2018), urban="")
    own = lookup_values(one, series, indicator("stunting"), max_gap=10)
    assert (own["value"].round(1).item(), own["value_year"].item()) == (26.9, 2018)
    built = build_items(one, make_images(one), series, mcq=None, regression=None, seed=0)
    items = built.items_mcq.set_index("indicator")
    assert items.loc["stunting", "answer"] == "B"


def test_levels_local_first() -> None:
    national, urban = (
        row("sh_sta_stunt", "KEN", 2015, 10),
        row("gdl_area_stunting", "KEN", 2014, 20, stratum="urban"),
    )
    region = row("gdl_area_stunting", "KEN", 2011, 30, region="kenr101")
    rows = [national, urban, region]
    assert lookup(rows, gdl_region="kenr101", urban="U") == (30.0, 2011, "subnational")
    assert lookup(rows, gdl_region="kenr102", urban="U") == (20.0, 2014, "urban-rural")
    assert lookup(rows, gdl_region="", urban="") == (10.0, 2015, "national")
    old = {**region, "year": 2009}  # a regional survey may be 5 years old at most
    assert lookup([national, old], gdl_region="kenr101") == (10.0, 2015, "national")
