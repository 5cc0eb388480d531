"""Geometry of the pages' charts, and numbers as the pages say them."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest

from sdgbias.report import labels
from sdgbias.report.charts import over_nights


def one(at: list[int], values: list[float], half: float) -> over_nights.Series:
    """A series, scored on each of its nights, with intervals of ``half`` to either side."""
    ends = np.array([np.array(values) + moved for moved in (0.0, -half, half)])
    said = [str(value) for value in values]
    return over_nights.Series(np.array(at), ends, said, np.ones(len(at), dtype=bool))


def test_a_chart_breaks_where_a_night_is_missing_and_numbers_stay_inside() -> None:
    times = {f"n{i}": datetime(2026, 1, 1) + timedelta(days=i) for i in range(5)}

    series = {"a": one([0, 1, 3, 4], [0.0, 0.1, 0.3, 0.4], 0.1), "b": one([2], [0.5], 0.1)}
    [plot] = over_nights.plots(times, series, str)
    assert [len(line.lines) for line in plot.lines] == [2, 1] and len(plot.lines[0].dots) == 4
    for line in plot.lines:
        for points in (*line.lines, *line.bands):
            for x, y in (map(float, p.split(",")) for p in points.split()):
                assert 0 <= x <= plot.width and 0 <= y <= plot.height
    assert (
        len(over_nights.plots(times, {str(i): series["a"] for i in range(6)}, str)) == 6
    )  # too many for one plot: one each
    assert over_nights.plots(times, {}, str) == [] and over_nights.plots({}, series, str) == []
    assert (
        over_nights.steps(0.31, 0.42) == pytest.approx([0.3, 0.35, 0.4, 0.45])
        and over_nights.steps(0.5, 0.5)[0] < 0.5 < over_nights.steps(0.5, 0.5)[-1]
    )


def test_a_move_of_two_points_is_seen_however_far_apart_models_are() -> None:
    times = {f"n{i}": datetime(2026, 1, 1) + timedelta(days=i) for i in range(3)}

    def series(value: float, half: float) -> over_nights.Series:
        return one([0, 1, 2], [value, value, value + 0.02], half)

    for models in (2, 12):
        far = {f"m{i}": series(0.2 + 0.6 * i / models, 0.03) for i in range(models)}
        far["m0"] = series(0.02, 0.02)
        made = over_nights.plots(times, far, str)
        assert [p.title for p in made] == list(far), "each has an axis of its own"
        for plot in made:
            ys = [y for _, y, _ in plot.lines[0].dots]
            assert ys[0] - ys[-1] >= 12, "a move of two points is at least 12 px"
            [band] = plot.lines[0].bands
            ends = [float(xy.split(",")[1]) for xy in band.split()]
            assert max(ends) - min(ends) > 30, "and its interval is seen"
        assert float(made[0].y_ticks[0][1]) == 0, "no axis of shares begins below zero"
    near = {f"m{i}": series(0.5 + 0.01 * i, 0.03) for i in range(3)}
    assert len(over_nights.plots(times, near, str)) == 1


def test_numbers_are_said_with_their_unit() -> None:
    assert (
        labels.amount(0.1234, "accuracy") == "12.3\u00a0%"
        and labels.amount(-0.012, "accuracy_gain") == "−1.2\u00a0points"
    )
    assert (
        labels.amount(14.2, "mae") == "14.20"
        and labels.amount(None, "mae") == labels.amount(float("nan"), "recall") == "none"
    )
    assert labels.interval_of({"ci_low": -0.01, "ci_high": 0.2}, "disparity") == "−1.0 to +20.0"
    assert labels.lasted(7500) == "2\u00a0h 05\u00a0min" and labels.lasted(None) == "unknown"
    assert labels.url("/x", a="b&c", d="") == "/x?a=b%26c"
