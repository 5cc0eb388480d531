"""The paper's Figures 3, 4, 5 and 7 as small inline SVG panels, one panel per model or per pillar,
drawn as ``data/paper_figures.yaml`` says.

Text and axes are `currentColor`, grid lines `var(--grid)`: they follow the page's light or dark
scheme. Colours are Okabe and Ito's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import vl_convert as vlc
from markupsafe import escape

from sdgbias.methods.stats import Estimate
from sdgbias.report.charts import CONFIG, TEXT, inline, marks
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
#: Title of a panel -> its parts: what is said of each, and its rows.
_Groups = dict[str, list[tuple[str, list[dict[str, Any]]]]]


@dataclass(frozen=True)
class Panel:
    """One chart: ``title`` and ``alt`` are for the page, ``svg`` has no external references."""

    title: str
    alt: str
    svg: str


def _panel(
    name: str, title: str, words: str, rows: Sequence[dict[str, Any]], **given: object
) -> Panel:
    """A panel of a figure (``name``: figureN-MORE, which begins its ids, so that panels don't share
    clip paths). ``given``: what its form asks for; with ``width``, names of models stand at its
    left, which get room because the reader's font may be wider than the one measured here."""
    config = CONFIG | {
        "axis": CONFIG["axis"] | {"labelLimit": 130},
        "padding": {"left": 14 if "width" in given else 4, "right": 6, "top": 4, "bottom": 4},
    }
    spec = marks.form(name.split("-")[0], text=TEXT, **given)
    drawn = vlc.vegalite_to_svg(spec | {"data": {"values": rows}, "config": config})
    svg = inline(drawn, name.replace("figure", "f"))
    sized = re.sub(r' (?:width|height|class)="[^"]*"', "", svg[: svg.index(">")])
    return Panel(
        title, words, f'{sized} role="img" aria-label="{escape(words)}"{svg[svg.index(">") :]}'
    )


def _panels(
    name: str,
    lead: str,
    groups: _Groups,
    **given: object,
) -> list[Panel]:
    """A panel per title of ``groups`` with anything to draw. ``lead``: how its description begins,
    with {} for the title."""
    return [
        _panel(
            f"{name}-{i}",
            title,
            f"{lead.format(title)}: {'; '.join(said for said, _ in parts)}.",
            [row for _, rows in parts for row in rows],
            **given,
        )
        for i, (title, parts) in enumerate(groups.items())
        if parts
    ]


def png(panel: Panel, scale: float = 2.0) -> bytes:
    """The panel as a PNG on white, for viewers that don't support SVG."""
    svg = panel.svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    svg = svg.replace("var(--grid)", "#e6e8ea").replace("currentColor", "#1d2126")
    found: bytes = vlc.svg_to_png(
        svg.replace("><", '><rect width="100%" height="100%" fill="#ffffff"/><', 1), scale=scale
    )
    return found


def _numbers(e: Estimate, scale: float = 1.0) -> dict[str, float | None]:
    low, high = e.low, e.high
    bounded = low == low and high == high
    return {
        "value": scale * e.value if e.value == e.value else None,
        "low": scale * low if bounded else None,
        "high": scale * high if bounded else None,
    }


def _said(e: Estimate) -> str:
    return f"{percent(e)} ({_ci(e)})"


def _amount(e: Estimate) -> str:
    """A number in its own unit, as words."""
    if e.low != e.low:
        return f"{e.value:.3g} (no interval, n {e.n:,})"
    return f"{e.value:.3g} (95{NBSP}% CI [{e.low:.3g}, {e.high:.3g}], n {e.n:,})"


def _ci(e: Estimate, signed: bool = False) -> str:
    return f"95{NBSP}% CI {interval(e, signed=signed)}, n {e.n:,}"


def _reach(estimates: Iterable[Estimate]) -> float:
    """The largest value or upper end."""
    return max((x for e in estimates for x in (e.value, e.high) if x == x), default=1.0)


def figure3(data: ReportData) -> list[Panel]:
    """Accuracy of the four views at T1, one panel per model, bars with 95 % intervals on a common
    axis from 0."""
    cells = {
        (model, v): e
        for model in data.models
        for v in list(METHODS)[:4]
        if (e := data.cell(model=model, task="mcq", test="T1", method=v, metric="accuracy"))
    }
    top = min(1.0, math.ceil(10 * _reach(cells.values()) + 0.5) / 10)
    groups: _Groups = {model: [] for model in data.models}
    for (model, v), e in cells.items():
        drawn = _numbers(e)
        at = drawn["value"] if drawn["high"] is None else drawn["high"]
        named = {"view": METHODS[v], "colour": COLOURS[v], "label": number(100 * e.value)}
        groups[model].append((f"{METHODS[v]} {_said(e)}", [named | drawn | {"at": at}]))
    return _panels("figure3", "Accuracy of {} at T1", groups, top=top)


def figure4(data: ReportData) -> list[Panel]:
    """Share of pessimistic, conservative and optimistic Q-only answers to three-option questions,
    one panel per pillar."""
    groups: _Groups = {pillar: [] for pillar in PILLARS}
    for pillar, model in product(PILLARS, data.models):
        start, parts, rows = 0.0, [], []
        for d in DIRECTIONS:
            where = {"model": model, "pillar": pillar, "metric": f"share_{d}"}
            e = data.cell(task="mcq", test="T1", method="q_only", **where)
            if e is None or e.value != e.value:
                continue
            end = start + e.value
            label = f"{100 * e.value:.0f}" if e.value >= 0.08 else ""
            place = {"from": start, "to": end, "middle": (start + end) / 2}
            rows.append({"model": model, "colour": COLOURS[d], "label": label, **place})
            start = end
            parts.append(f"{d} {_said(e)}")
        if parts:
            groups[pillar].append((f"{model}: {', '.join(parts)}", rows))
    return _panels("figure4", "Q-only answers on {}", groups, width=_plot_width(data.models))


def figure5(data: ReportData) -> list[Panel]:
    """Acc(Full) - Acc(CTX+Q) at T1 in points with 95 % intervals, one panel per pillar on a common
    axis around zero."""
    table = data.image_use[data.image_use["pillar"].isin(PILLARS)]
    if table.empty:
        return []
    reach = max(0.05, float(table[["value", "low", "high"]].abs().max().max()))
    limit = 5 * math.ceil(20 * reach)
    groups: _Groups = {pillar: [] for pillar in PILLARS}
    for r in table.to_dict("records"):
        e, model = Estimate.of_row(r, "low", "high"), r["model"]
        said = f"{model} {number(100 * e.value, signed=True)} ({_ci(e, signed=True)})"
        groups[r["pillar"]].append((said, [{"model": model, **_numbers(e, 100)}]))
    lead = "Accuracy of Full minus CTX+Q at T1 on {}, in points"
    ends = [-limit, limit]
    return _panels("figure5", lead, groups, width=_plot_width(data.models), ends=ends)


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
    reach = _reach(found.values())
    top = min(1.0, math.ceil(10 * reach) / 10) if share else 1.05 * reach or 1.0
    axis = {"top": top, "format": ".0%" if share else "~r"}
    groups: _Groups = {model: [] for model in data.models}
    for (model, t, m), e in found.items():
        row = {"test": t, "method": METHODS[m], "colour": COLOURS[m], **_numbers(e)}
        groups[model].append((f"{t} {METHODS[m]} {_said(e) if share else _amount(e)}", [row]))
    lead = f"{'Accuracy' if share else 'MAE'} of {{}} before and after CADE"
    return _panels(f"figure7-{task.value}", lead, groups, **axis)


def _plot_width(models: list[str]) -> int:
    """Plot width that leaves room for the longest model name (about 7 px per letter, at most
    130)."""
    return WIDTH - 40 - min(130, math.ceil(7 * max(map(len, models))))
