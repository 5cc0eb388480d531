"""Marks of the figures: dots, bars, lines and heat maps, with their scales and tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from sdgbias.report.charts import NUMBERS, Figure, columns, figure


def tips(columns: Mapping[str, str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{c}:N", title=head) for c, head in {**columns, **NUMBERS}.items()]


def colours(column: str, legend: Sequence[tuple[str, str]]) -> alt.Color:
    """Colour by name, the same in every figure that uses these names."""
    names, values = [n for n, _ in legend], [c for _, c in legend]
    one = {"legend": None} if len(names) == 1 else {}
    return alt.Color(f"{column}:N", scale=alt.Scale(domain=names, range=values), **one)


def shapes(column: str, legend: Sequence[tuple[str, str]]) -> alt.Shape:
    names = [n for n, _ in legend]
    kinds = ["circle", "diamond", "square", "triangle-up", "cross", "triangle-down"][: len(names)]
    one = {"legend": None} if len(names) == 1 else {}
    return alt.Shape(f"{column}:N", scale=alt.Scale(domain=names, range=kinds), **one)


def zero_rule(channel: str) -> alt.Chart:
    return (
        alt.Chart(alt.InlineData(values=[{"zero": 0}]))
        .mark_rule(strokeWidth=1, opacity=0.7)
        .encode(**{channel: "zero:Q"})
    )


@dataclass(frozen=True)
class Hue:
    """A column that is shown by colour and shape, and (value, colour) of each of its values."""

    column: str
    legend: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ValueAxis:
    """The axis of the values. zero: with a rule there. domain: its ends; default: the range of the
    values."""

    title: str
    zero: bool = False
    domain: tuple[float, float] | None = None


@dataclass(frozen=True)
class SweptAxis:
    """The axis of a quantity that is swept. marked: a column whose mean is marked on it."""

    title: str
    log: bool = False
    marked: str = ""


@dataclass(frozen=True)
class Rows:
    """The rows of a chart. order: of their names; by_value: by the largest value instead. apart:
    colours are drawn below each other, not on one line. step: height of a row in pixels."""

    order: Sequence[str] = ()
    by_value: bool = False
    apart: bool = False
    step: int = 24


def dots(
    y: str,
    x: ValueAxis,
    shown: Mapping[str, str],
    *,
    hue: Hue | None = None,
    rows: Rows = Rows(),
) -> Any:
    """A dot and its interval per row: ``y`` on the vertical axis, value on the horizontal."""
    sort: Any = (
        alt.EncodingSortField("value", op="max", order="descending")
        if rows.by_value
        else list(rows.order) or None
    )
    axis = alt.Axis(
        ticks=False,
        domain=False,
        labelExpr="split(replace(datum.label, ' (planted)', '\\n(planted)'), '\\n')",
    )
    how: dict[str, Any] = {
        "y": alt.Y(f"{y}:N", sort=sort, title=None, axis=axis),
        "tooltip": tips(shown),
    }
    plain = {} if hue else {"color": "#0072b2"}
    if hue:
        how["color"] = colours(hue.column, hue.legend)
    if hue and rows.apart:
        names = [n for n, _ in hue.legend]
        how["yOffset"] = alt.YOffset(
            f"{hue.column}:N", sort=names, scale=alt.Scale(domain=names, paddingOuter=0.6)
        )
    scale = (
        alt.Scale(domain=list(x.domain), nice=False)
        if x.domain
        else alt.Scale(zero=False, nice=True)
    )
    at = alt.X(
        "value:Q", title=x.title, scale=scale, axis=alt.Axis(tickCount=6, domain=False, ticks=False)
    )
    base = alt.Chart().encode(**how)
    rules = base.mark_rule(strokeWidth=2, **plain).encode(
        x=alt.X("low:Q", title=x.title, scale=scale), x2=alt.X2("high:Q")
    )
    rules = rules.transform_filter("datum.low != null")
    mark = base.mark_point(size=64, filled=True, opacity=1, **plain)
    points = mark.encode(x=at, **({"shape": shapes(hue.column, hue.legend)} if hue else {}))
    layers = [rules, points]
    return alt.layer(*([zero_rule("x")] if x.zero else []), *layers).properties(
        height=alt.Step(rows.step, **{"for": "position"})
    )


def dotted(
    name: str,
    frame: pd.DataFrame,
    y: str,
    x: ValueAxis,
    hue: Hue | None = None,
    rows: Rows = Rows(),
    **said: object,
) -> Figure:
    """The figure of ``name`` (as in `figure`) as dots with intervals."""
    chart = dots(y, x, columns(name), hue=hue, rows=rows)
    return figure(name, frame, chart, tuple(hue.legend) if hue else (), **said)


def barred(
    name: str,
    frame: pd.DataFrame,
    y: str,
    x_title: str,
    colour: Hue,
    order: Sequence[str],
    step: int = 28,
) -> Figure:
    """The figure of ``name`` (as in `figure`) as bars of shares that sum to the whole, one per
    ``y``."""
    at = alt.Y(f"{y}:N", sort=list(order), title=None, axis=alt.Axis(ticks=False, domain=False))
    base = alt.Chart().encode(
        y=at,
        x=alt.X(
            "start:Q",
            title=x_title,
            axis=alt.Axis(tickCount=5, ticks=False, grid=False),
            scale=alt.Scale(domain=[0, 100]),
        ),
        x2=alt.X2("end:Q"),
        color=colours(colour.column, colour.legend),
        order=alt.Order("rank:Q"),
        tooltip=tips(columns(name)),
    )
    text = (
        alt.Chart()
        .transform_filter("datum.value >= 9")
        .mark_text(fill="#ffffff", fontSize=11)
        .encode(
            y=alt.Y(f"{y}:N", sort=list(order), title=None),
            x=alt.X("middle:Q", title=x_title),
            text=alt.Text("value:Q", format=".0f"),
            tooltip=tips(columns(name)),
        )
    )
    chart = alt.layer(base.mark_bar(size=step - 9), text).properties(height=alt.Step(step))
    return figure(name, frame, chart, tuple(colour.legend))


def stacked(
    frame: pd.DataFrame, keys: Sequence[str], part: str, order: Sequence[str]
) -> pd.DataFrame:
    """Add start, end and middle of each part of a bar, in the order of ``order``."""
    frame = frame.assign(
        rank=frame[part].map({name: i for i, name in enumerate(order)})
    ).sort_values("rank", kind="stable")
    end = frame["value"].astype(float).groupby([frame[k] for k in keys]).cumsum()
    start = end - frame["value"].astype(float)
    return frame.assign(
        start=start.round(5), end=end.round(5), middle=((start + end) / 2).round(5)
    ).sort_index()


def lines(
    swept: SweptAxis,
    y_title: str,
    columns: Mapping[str, str],
    hue: Hue,
    *,
    whiskers: bool = False,
    points: bool = True,
    height: int = 260,
) -> Any:
    """Value against x, one line per colour, with its interval as a band or as whiskers."""
    x = alt.X(
        "x:Q",
        title=swept.title,
        scale=alt.Scale(type="log", nice=False) if swept.log else alt.Scale(zero=False),
        axis=alt.Axis(tickCount=4 if swept.marked else 6, grid=False, labelOverlap=True),
    )
    scale = alt.Scale(zero=False)
    y = alt.Y(
        "value:Q", title=y_title, scale=scale, axis=alt.Axis(tickCount=6, domain=False, ticks=False)
    )
    base = alt.Chart().encode(x=x, color=colours(hue.column, hue.legend))
    bounded = base.transform_filter("datum.low != null")
    ends = bounded.mark_rule(strokeWidth=2) if whiskers else bounded.mark_area(opacity=0.15)
    layers = [ends.encode(y=alt.Y("low:Q", title=y_title, scale=scale), y2=alt.Y2("high:Q"))]
    if swept.marked:
        layers.append(
            alt.Chart()
            .mark_rule(strokeDash=[4, 3], opacity=0.7)
            .encode(x=alt.X(f"mean({swept.marked}):Q", title=swept.title))
        )
    layers.append(base.mark_line(strokeWidth=2).encode(y=y))
    dot = base.mark_point(filled=True, opacity=1 if points else 0, size=46 if points else 90)
    layers.append(dot.encode(y=y, shape=shapes(hue.column, hue.legend), tooltip=tips(columns)))
    return alt.layer(*layers).properties(height=height)


@dataclass(frozen=True)
class Grid:
    """The cells of a heat map: names across (source) and down (target), in order, and a title for
    each. shade: the column of the colour, around zero: blue below, orange above. legend: title of
    the colours. dashed: the frame of cells without a shade. step: height of a row in pixels."""

    across: Sequence[str]
    down: Sequence[str]
    titles: tuple[str | None, str | None] = (None, None)
    shade: str = "value"
    legend: alt.Legend | None = None
    dashed: bool = False
    angle: int = 0
    step: int = 30


def heat(shown: Mapping[str, str], grid: Grid) -> Any:
    """A cell for each source and target with its number; cells without a shade have a frame, and
    their number in the page's colour."""
    across, down = grid.titles
    limit = 150 if grid.angle < -30 else 110
    top = alt.Axis(orient="top", labelAngle=grid.angle, ticks=False, domain=False, labelLimit=limit)
    left = alt.Axis(ticks=False, domain=False)
    base = alt.Chart().encode(
        x=alt.X("source:N", sort=list(grid.across), title=across, axis=top),
        y=alt.Y("target:N", sort=list(grid.down), title=down, axis=left),
        tooltip=tips(shown),
    )
    known = base.transform_filter(f"datum.{grid.shade} != null")
    void = base.transform_filter(f"datum.{grid.shade} == null")
    scale = alt.Scale(domainMid=0, range=["#6fb1e0", "#eceff1", "#f2a766"], interpolate="rgb")
    frame = {"strokeDash": [3, 3]} if grid.dashed else {"strokeOpacity": 0.35}
    room = 10 if not grid.angle else 56 if grid.angle >= -30 else 90  # for slanted labels
    return alt.layer(
        known.mark_rect(stroke="#ffffff", strokeWidth=1.5).encode(
            color=alt.Color(f"{grid.shade}:Q", scale=scale, legend=grid.legend)
        ),
        void.mark_rect(fillOpacity=0, stroke="#8a9299", strokeWidth=1, **frame),
        known.mark_text(fill="#16191d", fontSize=12).encode(text=alt.Text("said:N")),
        void.mark_text(fontSize=11, opacity=0.75).encode(text=alt.Text("said:N")),
    ).properties(
        height=alt.Step(grid.step), padding={"left": 4, "right": room, "top": 4, "bottom": 4}
    )


def lost(
    name: str, frame: pd.DataFrame, names: Sequence[str], more: str = "", **said: str
) -> Figure:
    """The figure of settings tuned on one of ``names`` (or on ``more``) and used on another."""
    across = [*names, more] if more else names
    grid = Grid(
        across,
        names,
        ("tuned on", "used on"),
        legend=alt.Legend(title="points lost", orient="bottom", gradientLength=160, tickCount=3),
        angle=0 if max(map(len, across), default=0) < 5 else -30,
        step=42,
    )
    return figure(name, frame, heat(columns(name), grid), (), **said)
