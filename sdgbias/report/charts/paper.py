"""The paper's Figures 3, 4, 5 and 7 as small inline SVG panels (altair -> vl-convert), one panel
per model or per pillar.

Panels are 320 px wide, so that a page can place them side by side or, on a phone, below each other
at full size. Text and axes are `currentColor`, grid lines `var(--grid)`: they follow the page's
light or dark scheme. Colours are Okabe and Ito's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import vl_convert as vlc
from markupsafe import escape

from sdgbias.methods.stats import Estimate
from sdgbias.report.charts import CONFIG, TEXT, inline
from sdgbias.report.data import DIRECTIONS, METHODS, ReportData
from sdgbias.report.labels import NBSP, interval, number, percent
from sdgbias.types import PILLARS, TESTS, Task

COLOURS = {
    "q_only": "#8a8a8a",
    "ctx_q": "#e69f00",
    "img_q": "#56b4e9",
    "full": "#0072b2",
    "cade": "#d55e00",
    "pessimistic": "#d55e00",
    "conservative": "#767676",
    "optimistic": "#0072b2",
}
WIDTH = 320
#: Axis labels -50, 0, +50 with a real minus.
_SIGNED = "datum.value > 0 ? '+' + datum.value : datum.value < 0 ? '\u2212' + -datum.value : '0'"


@dataclass(frozen=True)
class Panel:
    """One chart: ``title`` and ``alt`` are for the page, ``svg`` has no external references."""

    title: str
    alt: str
    svg: str


def _svg(chart: Any, name: str, alt_text: str, left: int = 4) -> str:
    """Inline SVG of a chart; ids are prefixed by ``name``, so that panels don't share clip paths.

    ``left``: extra pixels for row labels, because the reader's font may be wider than the one
    measured here.
    """
    config = CONFIG | {
        "axis": CONFIG["axis"] | {"labelLimit": 130},
        "padding": {"left": left, "right": 6, "top": 4, "bottom": 4},
    }
    svg = inline(vlc.vegalite_to_svg(chart.to_dict(validate=False) | {"config": config}), name)
    sized = re.sub(r' (?:width|height|class)="[^"]*"', "", svg[: svg.index(">")])
    return f'{sized} role="img" aria-label="{escape(alt_text)}"{svg[svg.index(">") :]}'


def png(panel: Panel, scale: float = 2.0) -> bytes:
    """The panel as a PNG on white, for viewers that don't support SVG."""
    svg = panel.svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    svg = svg.replace("var(--grid)", "#e6e8ea").replace("currentColor", "#1d2126")
    found: bytes = vlc.svg_to_png(
        svg.replace("><", '><rect width="100%" height="100%" fill="#ffffff"/><', 1), scale=scale
    )
    return found


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).astype({c: object for c in ("low", "high") if rows and c in rows[0]})


def _numbers(e: Estimate) -> dict[str, Any]:
    bounded = e.low == e.low and e.high == e.high
    return {
        "value": e.value,
        "low": e.low if bounded else None,
        "high": e.high if bounded else None,
        "n": e.n,
    }


def _whiskers(base: Any, channel: str, **mark: Any) -> Any:
    """The interval of each row along a channel, x or y."""
    low, high = {"x": (alt.X, alt.X2), "y": (alt.Y, alt.Y2)}[channel]
    rules = base.transform_filter("datum.high != null").mark_rule(**mark)
    return rules.encode(low("low:Q"), high("high:Q"))


def _said(e: Estimate) -> str:
    return f"{percent(e)} ({_ci(e)})"


def _amount(e: Estimate) -> str:
    """A number in its own unit, as words."""
    if e.low != e.low:
        return f"{e.value:.3g} (no interval, n {e.n:,})"
    return f"{e.value:.3g} (95{NBSP}% CI [{e.low:.3g}, {e.high:.3g}], n {e.n:,})"


def _ci(e: Estimate, signed: bool = False) -> str:
    return f"95{NBSP}% CI {interval(e, signed=signed)}, n {e.n:,}"


def figure3(data: ReportData) -> list[Panel]:
    """Accuracy of the four views at T1, one panel per model, bars with 95 % intervals on a common
    axis from 0."""
    cells = {
        model: {
            v: e
            for v in list(METHODS)[:4]
            if (e := data.cell(model=model, task="mcq", test="T1", method=v, metric="accuracy"))
        }
        for model in data.models
    }
    tops = [
        max(e.value, e.high if e.high == e.high else 0)
        for views in cells.values()
        for e in views.values()
    ]
    top = min(1.0, math.ceil(10 * max(tops, default=1.0) + 0.5) / 10)
    panels = []
    for i, (model, views) in enumerate(cells.items()):
        if not views:
            continue
        rows = [{"view": METHODS[v], "colour": COLOURS[v], **_numbers(e)} for v, e in views.items()]
        frame = _frame(rows).assign(label=[number(100 * e.value) for e in views.values()])
        frame["at"] = [
            h if h is not None else v for h, v in zip(frame["high"], frame["value"], strict=True)
        ]
        y = alt.Y(
            "value:Q",
            scale=alt.Scale(domain=[0, top]),
            axis=alt.Axis(format=".0%", tickCount=5, ticks=False, domain=False),
            title=None,
        )
        x = alt.X("view:N", sort=None, axis=alt.Axis(labelAngle=0, ticks=False), title=None)
        base = alt.Chart(frame).encode(x=x)
        bars = base.mark_bar(size=38).encode(y=y, color=alt.Color("colour:N", scale=None))
        rules = _whiskers(base, "y", color=TEXT, strokeWidth=1.5)
        text = base.mark_text(dy=-8, fontSize=12, fill=TEXT).encode(
            y=alt.Y("at:Q"), text=alt.Text("label:N")
        )
        words = (
            f"Accuracy of {model} at T1: "
            + "; ".join(f"{METHODS[v]} {_said(e)}" for v, e in views.items())
            + "."
        )
        chart = (bars + rules + text).properties(width=WIDTH - 54, height=190)
        panels.append(Panel(model, words, _svg(chart, f"f3-{i}", words)))
    return panels


def figure4(data: ReportData) -> list[Panel]:
    """Share of pessimistic, conservative and optimistic Q-only answers to three-option questions,
    one panel per pillar."""
    panels = []
    for i, pillar in enumerate(PILLARS):
        rows, said = [], []
        for model in data.models:
            start, parts = 0.0, []
            for d in DIRECTIONS:
                where = {"model": model, "pillar": pillar, "metric": f"share_{d}"}
                e = data.cell(task="mcq", test="T1", method="q_only", **where)
                if e is None or e.value != e.value:
                    continue
                label = f"{100 * e.value:.0f}" if e.value >= 0.08 else ""
                ends = {"from": start, "to": start + e.value}
                rows.append({"model": model, "colour": COLOURS[d], **ends, "label": label})
                start += e.value
                parts.append(f"{d} {_said(e)}")
            if parts:
                said.append(f"{model}: {', '.join(parts)}")
        if not rows:
            continue
        frame = pd.DataFrame(rows)
        frame["middle"] = (frame["from"] + frame["to"]) / 2
        y = alt.Y("model:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
        x = alt.X(
            "from:Q",
            scale=alt.Scale(domain=[0, 1]),
            title=None,
            axis=alt.Axis(format=".0%", values=[0, 0.5, 1], grid=False),
        )
        base = alt.Chart(frame).encode(y=y)
        bars = base.mark_bar(size=20).encode(
            x=x, x2=alt.X2("to:Q"), color=alt.Color("colour:N", scale=None)
        )
        text = base.mark_text(color="#ffffff", fontSize=12).encode(
            x=alt.X("middle:Q"), text=alt.Text("label:N")
        )
        words = f"Q-only answers on {pillar}: " + "; ".join(said) + "."
        chart = (bars + text).properties(width=_plot_width(data.models), height=alt.Step(30))
        panels.append(Panel(pillar, words, _svg(chart, f"f4-{i}", words, left=14)))
    return panels


def figure5(data: ReportData) -> list[Panel]:
    """Acc(Full) - Acc(CTX+Q) at T1 in points with 95 % intervals, one panel per pillar on a common
    axis around zero."""
    table = data.image_use[data.image_use["pillar"] != "all"]
    if table.empty:
        return []
    reach = max(0.05, float(table[["value", "low", "high"]].abs().max().max()))
    limit = math.ceil(reach * 20) / 20
    panels = []
    for i, pillar in enumerate(PILLARS):
        mine = table[table["pillar"] == pillar]
        if mine.empty:
            continue
        columns = mine[["model", "value", "n", "low", "high"]].itertuples(index=False, name=None)
        estimates = {
            str(m): Estimate(float(v), int(n), float(a), float(b)) for m, v, n, a, b in columns
        }
        frame = _frame([{"model": m, **_numbers(e)} for m, e in estimates.items()])
        frame[["value", "low", "high"]] = frame[["value", "low", "high"]].apply(
            lambda c: [None if v is None else 100 * v for v in c]
        )
        x = alt.X(
            "value:Q",
            scale=alt.Scale(domain=[-100 * limit, 100 * limit]),
            title="percentage points",
            axis=alt.Axis(labelExpr=_SIGNED, tickCount=4, ticks=False, domain=False),
        )
        y = alt.Y("model:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
        base = alt.Chart(frame).encode(y=y)
        zero = (
            alt.Chart(pd.DataFrame({"zero": [0]}))
            .mark_rule(color=TEXT, opacity=0.6)
            .encode(x=alt.X("zero:Q"))
        )
        rules = _whiskers(base, "x", strokeWidth=2.5, color=COLOURS["full"])
        dots = base.mark_point(size=70, filled=True, opacity=1, color=COLOURS["full"]).encode(x=x)
        said = "; ".join(
            f"{m} {number(100 * e.value, signed=True)} ({_ci(e, signed=True)})"
            for m, e in estimates.items()
        )
        words = f"Accuracy of Full minus CTX+Q at T1 on {pillar}, in points: {said}."
        chart = (zero + rules + dots).properties(
            width=_plot_width(data.models), height=alt.Step(30)
        )
        panels.append(Panel(pillar, words, _svg(chart, f"f5-{i}", words, left=14)))
    return panels


def figure7(data: ReportData, task: Task = Task.MCQ) -> list[Panel]:
    """Full ('before') and CADE ('after') per context test with 95 % intervals, one panel per model.

    Accuracy for multiple choice, MAE for regression, as the paper's upper and lower panel.
    """
    share = task is Task.MCQ
    metric = "accuracy" if share else "mae"
    found = {
        (model, t.value, m): e
        for model in data.models
        for t in TESTS[task]
        for m in ("full", "cade")
        if (e := data.cell(model=model, task=task.value, test=t.value, method=m, metric=metric))
        and e.value == e.value
    }
    if not found:
        return []
    ends = [x for e in found.values() for x in (e.value, e.high) if x == x]
    top = min(1.0, math.ceil(10 * max(ends)) / 10) if share else 1.05 * max(ends) or 1.0
    panels = []
    for i, model in enumerate(data.models):
        mine = {(t, m): e for (who, t, m), e in found.items() if who == model}
        if not mine:
            continue
        frame = _frame(
            [
                {"test": t, "method": METHODS[m], "colour": COLOURS[m], **_numbers(e)}
                for (t, m), e in mine.items()
            ]
        )
        y = alt.Y(
            "value:Q",
            scale=alt.Scale(domain=[0, top]),
            title=None,
            axis=alt.Axis(format=".0%" if share else "~r", tickCount=5, ticks=False, domain=False),
        )
        order = [METHODS["full"], METHODS["cade"]]
        offset = alt.XOffset(
            "method:N", sort=order, scale=alt.Scale(domain=order, paddingOuter=0.9)
        )
        base = alt.Chart(frame).encode(
            x=alt.X("test:N", title=None, axis=alt.Axis(labelAngle=0, ticks=False)),
            xOffset=offset,
            color=alt.Color("colour:N", scale=None),
        )
        rules = _whiskers(base, "y", strokeWidth=2.5)
        shape = alt.Shape(
            "method:N", scale=alt.Scale(domain=order, range=["circle", "diamond"]), legend=None
        )
        dots = base.mark_point(size=80, filled=True, opacity=1).encode(y=y, shape=shape)
        said = "; ".join(
            f"{t} {METHODS[m]} {_said(e) if share else _amount(e)}" for (t, m), e in mine.items()
        )
        words = f"{'Accuracy' if share else 'MAE'} of {model} before and after CADE: {said}."
        chart = (rules + dots).properties(width=WIDTH - 54, height=190)
        panels.append(Panel(model, words, _svg(chart, f"f7-{task.value}-{i}", words)))
    return panels


def _plot_width(models: list[str]) -> int:
    """Plot width that leaves room for the longest model name (about 7 px per letter, at most
    130)."""
    return WIDTH - 40 - min(130, math.ceil(7 * max(map(len, models))))
