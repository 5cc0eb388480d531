"""Geometry of the pages' charts, and numbers as the pages say them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sdgbias.serve import chart, words


def test_a_chart_breaks_where_a_night_is_missing_and_numbers_stay_inside() -> None:
    times = {f"n{i}": datetime(2026, 1, 1) + timedelta(days=i) for i in range(5)}

    def at(value: float) -> chart.Point:
        return chart.Point(value, value - 0.1, value + 0.1, str(value), True)

    series = {"a": {f"n{i}": at(0.1 * i) for i in (0, 1, 3, 4)}, "b": {"n2": at(0.5)}}
    [plot] = chart.plots(times, series, str)
    assert [len(line.lines) for line in plot.lines] == [2, 1] and len(plot.lines[0].dots) == 4
    for line in plot.lines:
        for points in (*line.lines, *line.bands):
            for x, y in (map(float, p.split(",")) for p in points.split()):
                assert 0 <= x <= plot.width and 0 <= y <= plot.height
    assert len(chart.plots(times, {str(i): series["a"] for i in range(6)}, str)) == 6  # too many for one plot: one each
    assert chart.plots(times, {}, str) == [] and chart.plots({}, series, str) == []
    assert chart.steps(0.31, 0.42) == pytest.approx([0.3, 0.35, 0.4, 0.45]) and chart.steps(0.5, 0.5)[0] < 0.5 < chart.steps(0.5, 0.5)[-1]


def test_numbers_are_said_with_their_unit() -> None:
    assert words.amount(0.1234, "accuracy") == "12.3\u00a0%" and words.amount(-0.012, "accuracy_gain") == "−1.2\u00a0points"
    assert words.amount(14.2, "mae") == "14.20" and words.amount(None, "mae") == words.amount(float("nan"), "recall") == "none"
    assert words.interval({"ci_low": -0.01, "ci_high": 0.2}, "disparity") == "−1.0 to +20.0"
    assert words.lasted(7500) == "2\u00a0h 05\u00a0min" and words.lasted(None) == "unknown"
    assert words.url("/x", a="b&c", d="") == "/x?a=b%26c"
