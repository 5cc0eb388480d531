"""A metric over nights as the geometry of a small SVG: lines that break where a night is missing, bands for the intervals.

The template draws it with classes, so that colours follow the page; nothing here is markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

#: Series that share one plot at most; more stand in a plot each.
TOGETHER = 5
#: Nights beyond which single ones are no longer marked.
DOTTED = 60
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 26.0


@dataclass(frozen=True)
class Point:
    """One night of one series. ``fresh``: the model was scored that night, and not found unchanged."""

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
    """Plots of ``series`` (name -> night -> point) over ``times`` (night -> start, in order): one together, or one each beyond TOGETHER.

    ``label`` says a tick of the vertical axis. ``narrow``: for a phone, so that words keep their size.
    ``gaps``: a line breaks where a series has no point.
    """
    known = [p for points in series.values() for p in points.values()]
    if not known or not times:
        return []
    ticks = steps(min(_low(p) for p in known), max(_high(p) for p in known), 4 if narrow or len(series) > TOGETHER else 5)
    groups = [list(series)] if len(series) <= TOGETHER else [[name] for name in series]
    colours = {name: i for i, name in enumerate(series)}
    width, height = (344, 220) if narrow or len(groups) > 1 else (760, 300)
    if len(groups) > 1:
        height = 170
    made = []
    for names in groups:
        x, y = _axes(times, ticks, width, height)
        lines = tuple(_line(name, 0 if len(groups) > 1 else colours[name], times, series[name], x, y, gaps) for name in names)
        y_ticks = tuple((y(t), label(t)) for t in ticks)
        made.append(Plot(names[0] if len(groups) > 1 else "", width, height, _days(times, x, 3 if width < 400 else 6), y_ticks, lines))
    return made


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
        bands.append(_points([*((at, y(p.high)) for at, p in ranged), *((at, y(p.low)) for at, p in reversed(ranged))]))
    alone = {id(run[0][1]) for run in runs if len(run) == 1}
    shown = len(times) <= DOTTED
    dots = tuple((at, y(p.value), p.said) for run in runs for at, p in run if (p.fresh and shown) or id(p) in alone)
    return Line(name, colour, tuple(lines), tuple(filter(None, bands)), dots)


def _points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)


def _days(times: Mapping[str, datetime], x: Callable[[datetime], float], most: int) -> tuple[tuple[float, str], ...]:
    """At most ``most`` nights as labels of the horizontal axis, evenly picked, first and last among them."""
    found = list(times.values())
    picks = sorted({round(i * (len(found) - 1) / max(1, most - 1)) for i in range(min(most, len(found)))})
    return tuple((x(found[i]), f"{found[i].day} {found[i]:%b}") for i in picks)
