"""A metric over nights as the geometry of a small SVG: lines that break at missing nights, bands
for the intervals. The template draws it with classes, so that colours follow the page; this module
produces no markup.

Also the figure of the morning page: the value of a metric before and now, the interval of the
change, and the allowed limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdgbias.analysis import night_text as words
from sdgbias.analysis.nights import ModelNight
from sdgbias.report.charts import Figure, figure

#: Maximum number of series in one plot; beyond it, each series gets its own plot.
TOGETHER = 5
#: Series whose common range is this many times the widest one's own are drawn apart as well: on one
#: axis the moves of each would be flat.
FAR = 2.5
#: Number of nights above which single ones are no longer marked.
DOTTED = 60
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 26.0


class Series(NamedTuple):
    """One series over N nights, of which it has P. at: (P,) place of its nights among all, rising;
    numbers: (3, P) value, low, high, without an interval NaN; said: P texts, or none where single
    nights are not marked; fresh: (P,) whether the model was scored that night rather than found
    unchanged."""

    at: np.ndarray
    numbers: np.ndarray
    said: list[str]
    fresh: np.ndarray

    @property
    def low(self) -> float:
        """The lowest end of an interval, or value."""
        return float(np.fmin(*self.numbers[:2]).min())

    @property
    def high(self) -> float:
        """The highest end of an interval, or value."""
        return float(np.fmax(*self.numbers[::2]).max())


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
    series: Mapping[str, Series],
    label: Callable[[float], str],
    *,
    gaps: bool = True,
) -> list[Plot]:
    """Plots of ``series``, by name, over ``times`` (night -> start, in order): a single plot, or
    one per series beyond TOGETHER.

    ``label`` formats a tick of the vertical axis. Plots of single series have axes of their own, of
    about the same span, so that a move of two points is seen and looks alike in each.
    ``gaps``: a line breaks where a series has no point.
    """
    if not series or not times:
        return []
    ranges = {name: (one.low, one.high) for name, one in series.items()}
    groups = [list(series)] if _together(list(ranges.values())) else [[name] for name in series]
    colours = {name: i for i, name in enumerate(series)}
    width, height = (344, 170) if len(groups) > 1 else (760, 300)
    spans = sorted(high - low for low, high in ranges.values())
    usual = spans[len(spans) // 2]
    x = _axis(times, width)
    days = _days(times, x, 3 if width < 400 else 6)
    made = []
    for names in groups:
        shown = [ranges[name] for name in names]
        low, high = _range(shown, usual if len(groups) > 1 else 0.0)
        ticks = np.array(steps(low, high, 4 if width < 400 else 5))

        def y(
            values: np.ndarray, ticks: np.ndarray = ticks, room: float = height - TOP - BOTTOM
        ) -> np.ndarray:
            return TOP + room * (1 - (values - ticks[0]) / (ticks[-1] - ticks[0]))

        lines = tuple(
            _line(name, 0 if len(groups) > 1 else colours[name], series[name], x, y, gaps)
            for name in names
        )
        y_ticks = tuple(zip(y(ticks).tolist(), map(label, ticks.tolist()), strict=True))
        title = names[0] if len(groups) > 1 else ""
        made.append(Plot(title, width, height, days, y_ticks, lines))
    return made


def _together(ranges: Sequence[tuple[float, float]]) -> bool:
    """Whether series of these lowest and highest ends share a plot: there are few, and the moves of
    each can be seen there."""
    if len(ranges) > TOGETHER:
        return False
    own = max(high - low for low, high in ranges)
    whole = max(high for _, high in ranges) - min(low for low, _ in ranges)
    return len(ranges) < 2 or whole <= FAR * own


def _range(shown: Sequence[tuple[float, float]], span: float) -> tuple[float, float]:
    """From the lowest to the highest end of an interval, widened to ``span`` about its middle, not
    below zero where no value is."""
    low, high = min(low for low, _ in shown), max(high for _, high in shown)
    pad = max(0.0, span - (high - low)) / 2
    start = max(low - pad, 0.0) if low >= 0 else low - pad
    return start, max(high + pad, start + span)


def _axis(times: Mapping[str, datetime], width: int) -> np.ndarray:
    """(N,) horizontal places of the nights, by their time."""
    first = min(times.values())
    seconds = np.array([(at - first).total_seconds() for at in times.values()])
    room = width - LEFT - RIGHT
    return LEFT + (room * seconds / seconds.max() if seconds.max() else 0 * seconds + room / 2)


def _line(
    name: str,
    colour: int,
    drawn: Series,
    x: np.ndarray,
    y: Callable[[np.ndarray], np.ndarray],
    gaps: bool,
) -> Line:
    across, down = x[drawn.at], y(drawn.numbers)
    breaks = np.flatnonzero((np.diff(drawn.at) > 1) & gaps) + 1
    lines, bands, alone = [], [], set()
    for run in np.split(np.arange(len(drawn.at)), breaks):
        if not len(run):
            continue
        lines.append(_points(across[run], down[0, run]))
        ranged = run[~np.isnan(down[1:, run]).any(axis=0)]
        there_and_back = np.concatenate([across[ranged], across[ranged][::-1]])
        bands.append(
            _points(there_and_back, np.concatenate([down[2, ranged], down[1, ranged][::-1]]))
        )
        if len(run) == 1:
            alone.add(int(run[0]))
    marked = alone.union(np.flatnonzero(drawn.fresh).tolist() if len(x) <= DOTTED else ())
    dots = tuple(
        (float(across[k]), float(down[0, k]), drawn.said[k] if drawn.said else "")
        for k in sorted(marked)
    )
    return Line(name, colour, tuple(lines), tuple(filter(None, bands)), dots)


def _points(across: np.ndarray, down: np.ndarray) -> str:
    pairs = np.column_stack([across, down]).ravel().tolist()
    return (len(across) * "%.1f,%.1f ")[:-1] % tuple(pairs)


def _days(times: Mapping[str, datetime], x: np.ndarray, most: int) -> tuple[tuple[float, str], ...]:
    """At most ``most`` nights as labels of the horizontal axis, evenly spaced, including the first
    and last."""
    found = list(times.values())
    picks = sorted(
        {round(i * (len(found) - 1) / max(1, most - 1)) for i in range(min(most, len(found)))}
    )
    return tuple((float(x[i]), f"{found[i].day} {found[i]:%b}") for i in picks)


#: Metrics that are no shares and don't fit on one axis with them.
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
    room = 7 * max(map(len, order))
    made = figure("moves", frame, model=m.model, order=order, room=room)
    return replace(made, name=f"moves-{m.model}-{m.suite}".replace(".", "-"))


def _point(r: Mapping[str, Any]) -> dict[str, Any]:
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
