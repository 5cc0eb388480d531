"""Charts of numbers over nights, and numbers as the pages say them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import pandas as pd
import pytest

from sdgbias import wording
from sdgbias.report import layout
from sdgbias.report.charts import over_nights

TIMES = {f"n{i}": datetime(2026, 1, 1) + timedelta(days=i) for i in range(5)}


def numbers(model: str, values: list[float | None], half: float = 0.03) -> pd.DataFrame:
    """A model that was scored on each night with a value."""
    found = [(f"n{i}", value) for i, value in enumerate(values) if value is not None]
    frame = pd.DataFrame(found, columns=["night", "value"])
    return frame.assign(
        began=frame["night"].map(TIMES),
        model=model,
        provenance="measured",
        ci_low=frame["value"] - half,
        ci_high=frame["value"] + half,
        fresh=True,
        breach=False,
    )


def paths(svg: str, kind: str) -> list[str]:
    """What the marks of a kind (line, area) draw, a subpath for each unbroken stretch."""
    return re.findall(rf'mark-{kind}[^>]*>.*?d="([^"]+)"', svg, re.DOTALL)


def test_a_line_breaks_where_a_night_is_missing() -> None:
    rows = numbers("a", [0.1, 0.2, None, 0.3, 0.4])
    [broken] = over_nights.trends(rows, TIMES, "accuracy", ["a"])
    [whole] = over_nights.trends(rows, {}, "accuracy", ["a"])
    assert [paths(one.svg, "line")[0].count("M") for one in (broken, whole)] == [2, 1]
    assert broken.said == "a: 4 nights, from 10.0\u00a0% to 40.0\u00a0%"
    assert over_nights.trends(rows[:0], TIMES, "accuracy", ["a"]) == []


def test_one_move_looks_alike_whatever_the_level() -> None:
    rows = pd.concat([numbers("low", [0.1, 0.12]), numbers("high", [0.8, 0.82])])
    low, high = over_nights.trends(rows, TIMES, "accuracy", ["low", "high"])

    def height(svg: str) -> float:
        downs = [float(y) for y in re.findall(r",(-?[\d.]+)", paths(svg, "line")[0])]
        return max(downs) - min(downs)

    assert height(low.svg) == pytest.approx(height(high.svg), abs=3) and height(low.svg) > 12


def test_bounds_of_shares_end_at_a_hundred_and_breaches_are_marked() -> None:
    rows = numbers("a", [0.5, 0.98], half=0.2).assign(breach=[False, True])
    [one] = over_nights.trends(rows, TIMES, "share_optimistic", ["a"])
    assert "#c2182b" in one.svg and "110" not in re.findall(r">([^<]+) %<", one.svg)
    [calm] = over_nights.trends(rows.assign(breach=False), TIMES, "share_optimistic", ["a"])
    assert "#c2182b" not in calm.svg


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (wording.amount(0.1234, "accuracy"), "12.3\u00a0%"),
        (wording.amount(-0.012, "accuracy_gain"), "−1.2\u00a0points"),
        (wording.amount(14.2, "mae"), "14.20"),
        (wording.amount(None, "mae"), "none"),
        (wording.amount(float("nan"), "recall"), "none"),
        (wording.number(-1234.56), "−1,234.6"),
        (wording.number(-0.01, signed=True), "0.0"),
        (wording.number(float("nan")), "n/a"),
        (wording.lasted(7500), "2\u00a0h 05\u00a0min"),
        (wording.lasted(None), "unknown"),
        (layout.url("/x", a="b&c", d=""), "/x?a=b%26c"),
    ],
)
def test_numbers_are_said_with_their_unit(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"ci_low": 0.4, "ci_high": 0.6}, "40.0–60.0"),
        ({"clusters": 3}, "no interval: 3 clusters"),
        ({"clusters": None}, "no interval"),
    ],
)
def test_a_row_without_an_interval_gives_its_number_of_clusters(
    row: dict[str, float | None], text: str
) -> None:
    nothing = {"value": 0.5, "n": 40, "ci_low": float("nan"), "ci_high": float("nan")}
    assert wording.interval_of(nothing | row, "accuracy") == text


def test_an_interval_of_a_difference_has_signs() -> None:
    row = {"value": 0.1, "n": 9, "ci_low": -0.01, "ci_high": 0.2}
    assert wording.interval_of(row, "disparity") == "−1.0 to +20.0"


@pytest.mark.parametrize(
    ("hours", "days"),
    [
        ((0, 1, 2), ["1 Jan"]),
        ((1, 25), ["1 Jan", "2 Jan"]),
        (range(0, 24 * 12, 24), ["1 Jan", "5 Jan", "8 Jan", "12 Jan"]),
    ],
)
def test_the_axis_names_each_day_once(hours: Sequence[int], days: list[str]) -> None:
    nights = {f"n{i}": datetime(2026, 1, 1) + timedelta(hours=h) for i, h in enumerate(hours)}
    rows = numbers("a", [0.5, 0.6])
    [one] = over_nights.trends(rows, nights, "accuracy", ["a"])
    assert re.findall(r">(\d+ Jan)<", one.svg) == days
