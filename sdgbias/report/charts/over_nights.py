"""A metric over nights as the geometry of a small SVG: lines that break at missing nights, bands
for the intervals. The template draws it with classes, so that colours follow the page; this module
produces no markup.

Also the figure of the morning page: the value of a metric before and now, the interval of the
change, and the allowed limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import altair as alt
import pandas as pd

from sdgbias.analysis import night_text as words
from sdgbias.analysis.nights import ModelNight
from sdgbias.report.charts import Figure

#: Maximum number of series in one plot; beyond it, each series gets its own plot.
TOGETHER = 5
#: Series whose common range is this many times the widest one's own are drawn apart as well: on one
#: axis the moves of each would be flat.
FAR = 2.5
#: Number of nights above which single ones are no longer marked.
DOTTED = 60
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 26.0


@dataclass(frozen=True)
class Point:
    """One night of one series. ``fresh``: the model was scored that night rather than found
    unchanged."""

    value: float
    low: float
    high: float
    said: str
    fresh: bool


@dataclass(frozen=True)
class Line:
    """Geometry of one series: polylines and polygons as SVG points, and dots (x, y, said)."""

    name: str
    colour: int
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Plot:
    """One SVG of width x height. ticks: (position, label)."""

    title: str
    width: int
    height: int
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]


def steps(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``, about ``most`` of them."""
    if not high > low:
        pad = abs(low) * 0.05 or 0.05
        low, high = low - pad, high + pad
    raw = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def plots(
    times: Mapping[str, datetime],
    series: Mapping[str, Mapping[str, Point]],
    label: Callable[[float], str],
    *,
    narrow: bool = False,
    gaps: bool = True,
) -> list[Plot]:
    """Plots of ``series`` (name -> night -> point) over ``times`` (night -> start, in order): a
    single plot, or one per series beyond TOGETHER.

    ``label`` formats a tick of the vertical axis. ``narrow``: for a phone, so that text keeps its
    size. Plots of single series have axes of their own, of about the same span, so that a move
    of two points is seen and looks alike in each.
    ``gaps``: a line breaks where a series has no point.
    """
    known = [p for points in series.values() for p in points.values()]
    if not known or not times:
        return []
    groups = [list(series)] if _together(series) else [[name] for name in series]
    colours = {name: i for i, name in enumerate(series)}
    width, height = (344, 220) if narrow or len(groups) > 1 else (760, 300)
    if len(groups) > 1:
        height = 170
    spans = sorted(_high_end(points) - _low_end(points) for points in series.values() if points)
    usual = spans[len(spans) // 2]
    made = []
    for names in groups:
        shown = [p for name in names for p in series[name].values()]
        if not shown:
            continue
        low, high = _range(shown, usual if len(groups) > 1 else 0.0)
        ticks = steps(low, high, 4 if width < 400 else 5)
        x, y = _axes(times, ticks, width, height)
        lines = tuple(
            _line(name, 0 if len(groups) > 1 else colours[name], times, series[name], x, y, gaps)
            for name in names
        )
        y_ticks = tuple((y(t), label(t)) for t in ticks)
        made.append(
            Plot(
                names[0] if len(groups) > 1 else "",
                width,
                height,
                _days(times, x, 3 if width < 400 else 6),
                y_ticks,
                lines,
            )
        )
    return made


def _together(series: Mapping[str, Mapping[str, Point]]) -> bool:
    """Whether the series share a plot: there are few, and the moves of each can be seen there."""
    if len(series) > TOGETHER:
        return False
    shown = [points for points in series.values() if points]
    own = max(_high_end(points) - _low_end(points) for points in shown)
    whole = max(map(_high_end, shown)) - min(map(_low_end, shown))
    return len(shown) < 2 or whole <= FAR * own


def _low_end(points: Mapping[str, Point]) -> float:
    return min(map(_low, points.values()))


def _high_end(points: Mapping[str, Point]) -> float:
    return max(map(_high, points.values()))


def _range(shown: Sequence[Point], span: float) -> tuple[float, float]:
    """From the lowest to the highest end of an interval, widened to ``span`` about its middle, not
    below zero where no value is."""
    low, high = min(map(_low, shown)), max(map(_high, shown))
    pad = max(0.0, span - (high - low)) / 2
    start = max(low - pad, 0.0) if low >= 0 else low - pad
    return start, max(high + pad, start + span)


def _low(p: Point) -> float:
    return p.value if math.isnan(p.low) else min(p.low, p.value)


def _high(p: Point) -> float:
    return p.value if math.isnan(p.high) else max(p.high, p.value)


def _axes(
    times: Mapping[str, datetime], ticks: Sequence[float], width: int, height: int
) -> tuple[Callable[[datetime], float], Callable[[float], float]]:
    first, last = min(times.values()), max(times.values())
    span = (last - first).total_seconds()
    room, tall = width - LEFT - RIGHT, height - TOP - BOTTOM

    def x(at: datetime) -> float:
        return LEFT + (room * (at - first).total_seconds() / span if span else room / 2)

    def y(value: float) -> float:
        return TOP + tall * (1 - (value - ticks[0]) / (ticks[-1] - ticks[0]))

    return x, y


def _line(
    name: str,
    colour: int,
    times: Mapping[str, datetime],
    points: Mapping[str, Point],
    x: Callable[[datetime], float],
    y: Callable[[float], float],
    gaps: bool,
) -> Line:
    runs: list[list[tuple[float, Point]]] = [[]]
    for night, at in times.items():
        if night in points:
            runs[-1].append((x(at), points[night]))
        elif gaps and runs[-1]:
            runs.append([])
    lines, bands = [], []
    for run in filter(None, runs):
        lines.append(_points((at, y(p.value)) for at, p in run))
        ranged = [(at, p) for at, p in run if not math.isnan(p.low + p.high)]
        bands.append(
            _points(
                [
                    *((at, y(p.high)) for at, p in ranged),
                    *((at, y(p.low)) for at, p in reversed(ranged)),
                ]
            )
        )
    alone = {id(run[0][1]) for run in runs if len(run) == 1}
    shown = len(times) <= DOTTED
    dots = tuple(
        (at, y(p.value), p.said)
        for run in runs
        for at, p in run
        if (p.fresh and shown) or id(p) in alone
    )
    return Line(name, colour, tuple(lines), tuple(filter(None, bands)), dots)


def _points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)


def _days(
    times: Mapping[str, datetime], x: Callable[[datetime], float], most: int
) -> tuple[tuple[float, str], ...]:
    """At most ``most`` nights as labels of the horizontal axis, evenly spaced, including the first
    and last."""
    found = list(times.values())
    picks = sorted(
        {round(i * (len(found) - 1) / max(1, most - 1)) for i in range(min(most, len(found)))}
    )
    return tuple((x(found[i]), f"{found[i].day} {found[i]:%b}") for i in picks)


BEFORE, NOW, LIMIT = "#0072b2", "#d55e00", "#7a828a"
LEGEND = (
    ("before", BEFORE),
    ("now, with the 95 % interval of the change", NOW),
    ("limit of the rule", LIMIT),
)
#: Metrics that are shares and fit on one axis.
_OTHER_UNITS = ("mae", "throughput", "cade_gain")


def moves(m: ModelNight) -> Figure | None:
    """The breaches of one model on one axis in per cent, each with the limit that it crossed; None
    if no breach is of a share."""
    frame = pd.DataFrame(
        [
            _point(r)
            for r in m.breaches
            if r["metric"] not in _OTHER_UNITS and r["value"] == r["value"]
        ]
    )
    if frame.empty:
        return None
    order = list(frame["what"])
    y = alt.Y(
        "what:N",
        sort=order,
        title=None,
        axis=alt.Axis(
            ticks=False, domain=False, labelLimit=400, minExtent=7 * max(map(len, order))
        ),
    )
    title = "per cent"
    x = alt.X(
        "now:Q",
        title=title,
        scale=alt.Scale(zero=False, nice=True),
        axis=alt.Axis(tickCount=6, grid=True),
    )
    base = alt.Chart().encode(y=y)
    chart = alt.layer(
        base.mark_rule(strokeWidth=1, color=LIMIT).encode(
            x=alt.X("before:Q", title=title), x2=alt.X2("now:Q")
        ),
        base.mark_rule(strokeWidth=3, color=NOW).encode(
            x=alt.X("low:Q", title=title), x2=alt.X2("high:Q")
        ),
        base.mark_tick(thickness=2.5, size=22, color=LIMIT).encode(x=alt.X("limit:Q", title=title)),
        base.mark_point(filled=False, size=80, strokeWidth=2, color=BEFORE, opacity=1).encode(
            x=alt.X("before:Q", title=title)
        ),
        base.mark_point(filled=True, size=80, shape="diamond", color=NOW, opacity=1).encode(x=x),
    ).properties(height=alt.Step(34))
    return Figure(
        name=f"moves-{m.model}-{m.suite}".replace(".", "-"),
        title=f"What moved in {m.model}",
        reads="",
        axes="",
        frame=frame,
        chart=chart,
        filters=(),
        columns={"what": "What"},
        legend=LEGEND,
    )


def _point(r: dict[str, Any]) -> dict[str, Any]:
    c, floor = words.cells(r), words.floor(r)
    now = 100 * float(r["value"])
    before = now if floor else 100 * float(r["before"])
    ends = [100 * float(r[k]) + (0.0 if floor else before) for k in ("ci_low", "ci_high")]
    allowed = 100 * float(r["allowed"])
    down = floor == "at least" if floor else float(r["change"]) < 0
    limit = allowed if floor else before - allowed if down else before + allowed
    return {
        "what": words.what(r).removesuffix(", all tests"),
        "before": None if floor else before,
        "now": now,
        "low": ends[0],
        "high": ends[1],
        "limit": limit,
        "said": f"{c['before']} to {c['value']}" if c["before"] else c["value"],
        "ci": c["ci"],
        "n": int(r["n"]),
    }
