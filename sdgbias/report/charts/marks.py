"""Marks of the figures: dots, bars, lines and heat maps, with their scales and tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from sdgbias.report.charts import NUMBERS


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
    columns: Mapping[str, str],
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
        "tooltip": tips(columns),
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
        x=alt.X("low:Q", title=x.title, scale=scale), x2="high:Q"
    )
    rules = rules.transform_filter("datum.low != null")
    mark = base.mark_point(size=64, filled=True, opacity=1, **plain)
    points = mark.encode(x=at, **({"shape": shapes(hue.column, hue.legend)} if hue else {}))
    layers = [rules, points]
    return alt.layer(*([zero_rule("x")] if x.zero else []), *layers).properties(
        height=alt.Step(rows.step, **{"for": "position"})
    )


def bars(
    y: str,
    x_title: str,
    columns: Mapping[str, str],
    colour: str,
    legend: Sequence[tuple[str, str]],
    *,
    order: Sequence[str],
    step: int = 28,
) -> Any:
    """Shares that sum to the whole, one bar per ``y``."""
    base = alt.Chart().encode(
        y=alt.Y(f"{y}:N", sort=list(order), title=None, axis=alt.Axis(ticks=False, domain=False)),
        x=alt.X(
            "start:Q",
            title=x_title,
            axis=alt.Axis(tickCount=5, ticks=False, grid=False),
            scale=alt.Scale(domain=[0, 100]),
        ),
        x2="end:Q",
        color=colours(colour, legend),
        order=alt.Order("rank:Q"),
        tooltip=tips(columns),
    )
    text = (
        alt.Chart()
        .transform_filter("datum.value >= 9")
        .mark_text(fill="#ffffff", fontSize=11)
        .encode(
            y=alt.Y(f"{y}:N", sort=list(order), title=None),
            x=alt.X("middle:Q", title=x_title),
            text=alt.Text("value:Q", format=".0f"),
            tooltip=tips(columns),
        )
    )
    return alt.layer(base.mark_bar(size=step - 9), text).properties(height=alt.Step(step))


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
    layers = [ends.encode(y=alt.Y("low:Q", title=y_title, scale=scale), y2="high:Q")]
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


def heat(
    columns: Mapping[str, str],
    x_title: str,
    y_title: str,
    orders: tuple[Sequence[str], Sequence[str]],
    colour_title: str,
) -> Any:
    """source (across) and target (down), coloured by value around zero: blue below, orange
    above."""
    angle = 0 if max(map(len, orders[0]), default=0) < 5 else -30
    base = alt.Chart().encode(
        x=alt.X(
            "source:N",
            sort=list(orders[0]),
            title=x_title,
            axis=alt.Axis(
                orient="top", labelAngle=angle, ticks=False, domain=False, labelLimit=110
            ),
        ),
        y=alt.Y(
            "target:N",
            sort=list(orders[1]),
            title=y_title,
            axis=alt.Axis(ticks=False, domain=False),
        ),
        tooltip=tips(columns),
    )
    scale = alt.Scale(domainMid=0, range=["#6fb1e0", "#eceff1", "#f2a766"], interpolate="rgb")
    legend = alt.Legend(title=colour_title, orient="bottom", gradientLength=160, tickCount=3)
    cells = base.mark_rect(stroke="#ffffff", strokeWidth=1.5).encode(
        color=alt.Color("value:Q", scale=scale, legend=legend)
    )
    room = {"padding": {"left": 4, "right": 56 if angle else 10, "top": 4, "bottom": 4}}
    return alt.layer(
        cells, base.mark_text(fill="#16191d", fontSize=12).encode(text="said:N")
    ).properties(height=alt.Step(42), **room)
