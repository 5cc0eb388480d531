"""Shared parts of the report's figures: rows with their text, building blocks, and output formats.

A figure is a long table and a Vega-Lite chart without data. On a page it is an interactive
chart whose selects filter the table; before scripts run, and without them, a static SVG of the
first choice of every select. As a file it is an SVG and a PNG.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, cast

import pandas as pd
import vl_convert as vlc
import yaml

from sdgbias.files import packaged
from sdgbias.report.charts import marks
from sdgbias.vocabulary import METHODS, WORDS
from sdgbias.wording import labelled

#: The last columns of every table and tooltip.
NUMBERS = {"said": "Value", "ci": "95 % CI", "n": "n"}
WIDTH = 480
#: Of one width, so that labels take the room that they were given when a still was drawn.
_FONTS = "Liberation Sans, Arial, Helvetica, sans-serif"


@dataclass(frozen=True)
class Figure:
    """``frame``: filters, keys, value, low, high (None without interval), said, ci, n; its first
    row's filters are the first choice.
    ``columns``: keys shown in tooltips and the table, column -> head. ``legend``: (name, colour).
    ``spec``: the chart as Vega-Lite without its data; a test validates all figures.
    ``panel``: a column with one chart per value. ``reads``: one sentence on the content; ``axes``:
    a description of the axes."""

    name: str
    title: str
    reads: str
    axes: str
    frame: pd.DataFrame
    spec: Mapping[str, Any]
    filters: tuple[str, ...]
    columns: Mapping[str, str]
    legend: tuple[tuple[str, str], ...] = ()
    panel: str = ""

    @property
    def heads(self) -> dict[str, str]:
        return {**self.columns, **NUMBERS}

    def options(self, column: str) -> list[str]:
        return list(dict.fromkeys(self.frame[column]))

    def chosen(self, **choice: str) -> pd.DataFrame:
        """The rows of a choice; each filter that isn't named takes its first option that has
        rows."""
        frame = self.frame
        for column in self.filters:
            wanted = choice.get(column)
            offered = wanted is not None and (frame[column] == wanted).any()
            frame = frame[frame[column] == (wanted if offered else frame[column].iloc[0])]
        return frame

    @property
    def panels(self) -> list[str]:
        return self.options(self.panel) if self.panel else [""]


@cache
def texts() -> Mapping[str, Mapping[str, Any]]:
    """The figures of ``data/figures.yaml``, by name."""
    of_file: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        packaged("data", "figures.yaml").read_text(encoding="utf-8")
    )
    return of_file


def names_in(name: str, column: str) -> Mapping[str, str]:
    """Of a named column of a figure: value in the store -> its name, in their order; those of the
    vocabulary where the figure names a section of it."""
    names: Any = texts()[name].get("named", {}).get(column, {}).get("names", {})
    if isinstance(names, str):
        return {key: word.name for key, word in getattr(WORDS, names).items()}
    return cast("Mapping[str, str]", names)


def figure(name: str, frame: pd.DataFrame, **given: Any) -> Figure:
    """A figure with its texts, filters, columns and chart from ``data/figures.yaml``; ``given``:
    what only the rows tell, for the placeholders of its texts and of the chart's form."""
    about = texts()[name]
    title, reads, axes = (about[k].format(**given) for k in ("title", "reads", "axes"))
    columns, legend = about["columns"], about.get("legend", {})
    optional = about.get("optional", ())
    shown = {
        "tips": marks.tips({**columns, **NUMBERS}),
        **marks.coloured(legend),
        **_order(name, frame),
        **about["chart"],
        **given,
    }
    return Figure(
        name,
        title,
        reads,
        axes,
        frame,
        marks.form(shown.pop("form"), **shown),
        # a choice of one is none
        tuple(c for c in about["filters"] if c not in optional or frame[c].nunique() > 1),
        columns,
        tuple(legend.items()) if len(legend) > 1 else (),
        about.get("panel", ""),
    )


def _order(name: str, frame: pd.DataFrame) -> dict[str, list[str]]:
    """The order of a chart's rows: tests after their pool, methods as in the vocabulary, names as
    in `figures.yaml`."""
    chart = texts()[name]["chart"]
    y = chart.get("y")
    if y == "test":
        return {"sort": sorted(set(frame["test"]), key=lambda t: (t.startswith("T"), t))}
    if y == "method" and chart["form"] == "bars":
        return {"sort": list(METHODS.values())}
    names = names_in(name, y)
    return {"sort": list(names.values())} if names else {}


#: Title of an axis that takes the words after the colon of the chosen task: each task has its own
#: quantity, and a title that offers both leaves the reader to guess which one is drawn.
OF_TASK = "quantity of the task"
_OF_PICK = {"signal": "split(pick_task, ': ')[1]"}


# ----------------------------------------------------------------------
# forms


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [
        {str(k): round(v, 6) if isinstance(v, float) else v for k, v in r.items()} for r in records
    ]


#: Colours that `inline` replaces by those of the page, and a chart's settings with them.
TEXT, _GRID = "#010203", "#040506"
_ON_PAGES = {"font": _FONTS, "hidden": True}
CONFIG = marks.form("style", text=TEXT, grid=_GRID, **_ON_PAGES)


def _panels(figure: Figure, frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [
        (panel, frame[frame[figure.panel] == panel] if figure.panel else frame)
        for panel in figure.panels
    ]


def _titled(spec: Any, title: object) -> Any:
    """A specification with ``title`` for every title `OF_TASK`."""
    if isinstance(spec, list):
        return [_titled(part, title) for part in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        k: title if k == "title" and v == OF_TASK else _titled(v, title) for k, v in spec.items()
    }


def _of_task(figure: Figure, frame: pd.DataFrame) -> dict[str, Any]:
    """The figure's specification for a choice of rows, its axis named by their task."""
    task = str(frame["task"].iloc[0]) if "task" in figure.filters else ""
    spec: dict[str, Any] = _titled(figure.spec, task.split(": ")[-1])
    return spec


def live(figure: Figure) -> list[dict[str, Any]]:
    """The rows and the interactive chart of each panel, compiled to Vega with its data 'rows'
    empty; only the first panel shows the selects."""
    first, panels = figure.chosen().iloc[0], []
    filters = [{"filter": f"datum.{column} == pick_{column}"} for column in figure.filters]
    for at, (_, frame) in enumerate(_panels(figure, figure.frame)):
        picks: list[dict[str, Any]] = [
            {"name": f"pick_{column}", "value": first[column]} for column in figure.filters
        ]
        for column, pick in zip(figure.filters, picks if at == 0 else [], strict=False):
            options, element = figure.options(column), f"#{figure.name}-controls"
            pick["bind"] = {
                "input": "select",
                "options": options,
                "name": WORDS.columns[column].name,
                "element": element,
            }
        spec = {
            **figure.spec,
            "data": {"name": "rows", "values": []},
            "width": "container",
            "params": picks,
            "transform": [*filters, *figure.spec.get("transform", [])],
        }
        spec["config"] = marks.form("style", text="currentColor", grid="var(--grid)", **_ON_PAGES)
        vega: dict[str, Any] = _titled(vlc.vegalite_to_vega(spec), _OF_PICK)
        vega.pop("$schema", None)
        panels.append({"rows": _records(frame[_needed(figure)]), "chart": vega})
    return panels


def _needed(figure: Figure) -> list[str]:
    """Columns used by the chart, its selects or its table."""
    used = set(re.findall(r"\w+", str(figure.spec))) | set(figure.filters) | set(figure.heads)
    return [c for c in figure.frame.columns if c in used]


def still(figure: Figure, width: int = 0) -> list[str]:
    """Inline SVG of each panel at its first choice, ``width`` pixels for the marks; ids are unique
    to the figure, colours follow the page."""
    panels, shown = [], figure.chosen()
    for at, (_, frame) in enumerate(_panels(figure, shown)):
        spec = {
            **_of_task(figure, shown),
            "data": {"values": _records(frame)},
            "width": _plot_width(figure, width or (300 if figure.panel else WIDTH + 120)),
        }
        panels.append(
            inline(_rendered(json.dumps({**spec, "config": CONFIG})), f"{figure.name}-{at}")
        )
    return panels


def still_figure(figure: Figure) -> dict[str, Any]:
    """What a page without scripts shows of a figure: itself, its panels (title, SVG), and the text
    that stands for them."""
    panels = list(zip(figure.panels, still(figure, 260 if figure.panel else 300), strict=True))
    return {"figure": figure, "panels": panels, "alt": described(figure)}


def inline(svg: str, name: str) -> str:
    """An SVG drawn with `CONFIG`, to stand in a page: its ids begin with ``name``, its colours
    follow the page, and it describes itself to nobody (the element around it does)."""
    svg = re.sub(
        r' xmlns(?::xlink)?="[^"]*"| version="[^"]*"| (?:aria-[a-z]+|role)="[^"]*"', "", svg
    )
    svg = svg.replace("<svg ", '<svg aria-hidden="true" ', 1)
    return _own_ids(svg, name).replace(TEXT, "currentColor").replace(_GRID, "var(--grid)")


def svg_of(name: str, prefix: str, rows: list[dict[str, Any]], **given: Any) -> str:
    """A form drawn with these rows, to stand in a page."""
    spec = {**marks.form(name, **given), "data": {"values": rows}, "config": CONFIG}
    return inline(_rendered(json.dumps(spec)), re.sub(r"[^\w-]+", "-", prefix))


@lru_cache(maxsize=256)
def _rendered(spec: str) -> str:
    """SVG of a Vega-Lite specification: the web application draws the same night again and again,
    at 0.2 s a chart."""
    svg: str = vlc.vegalite_to_svg(spec)
    return svg


def _own_ids(svg: str, prefix: str) -> str:
    """Renumber ids within the SVG: the renderer's counter continues from one picture to the
    next."""
    order = {
        name: f"{prefix}-{i}"
        for i, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)))
    }
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{order[m.group(1)]}"', svg)
    return re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{order[m.group(1)]})", svg)


def _plot_width(figure: Figure, width: int) -> Any:
    if "source" not in figure.columns:
        return width
    return {"step": max(50, min(86, 860 // max(1, figure.frame["source"].nunique())))}


def picture(figure: Figure, choice: Mapping[str, str]) -> tuple[str, bytes]:
    """SVG, and PNG at 300 dpi, on white, with title, choice and legend."""
    frame = figure.chosen(**choice)
    title = {
        "text": figure.title,
        "subtitle": ", ".join(str(frame[c].iloc[0]) for c in figure.filters),
    }
    width = _plot_width(figure, 230 if figure.panel else WIDTH)
    parts = [
        {**_of_task(figure, frame), "data": {"values": _records(part)}, "width": width}
        for _, part in _panels(figure, frame)
    ]
    if figure.panel:
        parts = [
            {**part, "title": panel, "height": 190}
            for part, panel in zip(parts, figure.panels, strict=True)
        ]
        spec: dict[str, Any] = {"concat": parts, "columns": 2, "spacing": 26, "title": title}
    else:
        spec = {**parts[0], "title": title}
    spec["config"] = {
        **marks.form("style", text="#16191d", grid="#dfe3e6", font=_FONTS, hidden=False),
        "background": "#ffffff",
        "padding": 14,
    }
    return _own_ids(vlc.vegalite_to_svg(spec), figure.name), vlc.vegalite_to_png(
        spec, ppi=300, scale=1.0
    )


def described(figure: Figure) -> str:
    """Alternative text: the title, the choice, and up to a dozen of the numbers."""
    frame = figure.chosen()
    keys = [c for c in figure.columns if c != "note"]
    rows = [
        f"{' '.join(str(r[k]) for k in keys)}: {r['said']} ({labelled(r['ci'])}, n {r['n']:,})"
        for r in frame.head(12).to_dict("records")
    ]
    rest = len(frame) - len(rows)
    selection = ", ".join(str(frame[c].iloc[0]) for c in figure.filters)
    return (
        f"{figure.title}{f'. {selection}' if selection else ''}:"
        f" {'; '.join(rows)}{f'; {rest} more in the table' if rest > 0 else ''}."
    )
