"""The pages beside index.html, and every figure as a file for print. A page without rows is not
written.

The tables of `sdgbias reproduce` for the page Paper's tables are passed in; the report doesn't
build them.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sdgbias.files import cached_text
from sdgbias.report.charts import Figure, described, live, still
from sdgbias.report.layout import TEMPLATES, Page, terms_in
from sdgbias.report.reader import SQL, Reader, Row
from sdgbias.vocabulary import METHODS, WORDS
from sdgbias.wording import DASH, NOT_ANALYSED, many, number

if TYPE_CHECKING:
    from sdgbias.analysis.paper.tables import Cell, Table

#: Inputs of a figure beyond the scores of the four views: study -> text shown if it is absent.
_LACKS = {
    "wordings": "Which way answers lean over the wordings of a question",
    "perturbation": "Answers when options are reordered or renamed (Table J)",
    "methods": "Methods",
}


def context(
    reader: Reader,
    page: Page,
    runs: Sequence[Row],
    figures: Sequence[Figure],
    lacking: Sequence[Mapping[str, Any]] | None = None,
    tables: Sequence[Table] | None = None,
) -> dict[str, Any]:
    """Data of page.html.j2: one page of figures and tables. ``lacking``: what could not be
    measured, by default of the page's studies."""
    given = {"runs": [run["run_id"] for run in runs], "studies": list(page.studies)}
    analysed = {r["run_id"] for r in reader.ask(SQL["analysed"], given)}
    absent = [run["label"] for run in runs if page.studies and run["run_id"] not in analysed]
    return {
        **drawn(figures),
        "runs": runs,
        "planted": [run["label"] for run in runs if run["label"].endswith("(planted)")],
        "missing": [f"{label}: {NOT_ANALYSED}" for label in absent],
        "lacking": _lacking(reader, given) if lacking is None else lacking,
        "tables": tables or [],
        "cell": _cell,
        "inside": inside,
        "words": words(figures),
    }


def words(figures: Sequence[Figure]) -> Mapping[str, str]:
    """The terms of the glossary that a page's figures use, methods included."""
    columns = ("method", "test", "setting")
    used = [str(v) for f in figures for c in columns if c in f.frame for v in f.frame[c].unique()]
    return terms_in(*(f.reads for f in figures), *(f.axes for f in figures), *used)


def drawn(figures: Collection[Figure]) -> dict[str, Any]:
    """The figures of a page for its template. The scripts stand only on pages with a figure that
    offers a choice; every other one is an SVG."""
    parts = [shown_figure(f) for f in figures]
    lively = [p["live"] for p in parts if p["live"]]
    return {
        "figures": figures,
        "shown": parts,
        "script": (TEMPLATES / "figures.js").read_text(encoding="utf-8") if lively else "",
        "library": library() if lively else "",
        "packed": packed(lively) if lively else "",
    }


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that is safe inside a script element. Bundling
    takes 1.5 s of CPU, so the script is kept in the user's cache folder, where one can be had."""
    import vl_convert as vlc

    def bundle() -> str:
        script: str = vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        return script.replace("</script", "<\\/script")

    return cached_text(f"vega-{version('vl-convert-python')}.js", bundle)


def shown_figure(f: Figure) -> dict[str, Any]:
    """Template data of a figure: the table of its first choice, static and interactive
    pictures."""
    frame = f.chosen()
    filters = [{"name": c, "options": f.options(c)} for c in f.filters]
    return {
        "figure": f,
        "alt": described(f),
        "cells": [[_said(r[c]) for c in f.heads] for r in frame.to_dict("records")],
        "panels": list(zip(f.panels, still(f), strict=True)),
        "choice": ", ".join(str(frame[c].iloc[0]) for c in f.filters),
        "live": {
            "name": f.name,
            "title": f.title,
            "columns": list(f.heads),
            "filters": filters,
            "specs": live(f),
        }
        if f.panel or any(len(f.options(c)) > 1 for c in f.filters)
        else None,
    }


def _said(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None or value != value else str(value)


def packed(parts: list[dict[str, Any]]) -> str:
    """The specifications, gzip and base64: they are repetitive, and a page for many models would be
    large otherwise."""
    text = json.dumps(
        parts, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True
    )
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _lacking(reader: Reader, given: Mapping[str, Any]) -> list[Row]:
    """Parts of a page's studies that could not be run, with the reason: one entry per reason and
    model."""
    return [
        {
            "what": ", ".join(sorted(METHODS.get(method, method) for method in r["methods"]))
            if r["study"] == "methods"
            else _LACKS.get(r["study"], r["study"]),
            "task": WORDS.tasks[r["task"]].short,
            **{column: r[column] for column in ("why", "models")},
        }
        for r in reader.ask(SQL["lacking"], given)
    ]


def inside(t: Table) -> str:
    """What a folded table holds: '48 rows by model, task and test: 180 numbers of ours, 62 printed
    in the paper'; 'no rows' of an empty one."""
    if not t.rows:
        return "no rows"
    ours, printed = sum(c.made for c in t.cells), sum(c.paper is not None for c in t.cells)
    labels = [", ".join(t.labels[:-1]), *t.labels[-1:]]
    by = f" by {' and '.join(filter(None, labels))}" if t.labels else ""
    numbers = many(ours, "number") if ours else "no number"
    paper = f", {printed:,} printed in the paper" if printed else ""
    return f"{many(len(t.rows), 'row')}{by}: {numbers} of ours{paper}"


def _cell(c: Cell, kind: str) -> dict[str, str]:
    """value, facts (interval and n), paper; why there is no reproduced number in their place."""
    paper = c.paper.text if c.paper else ""
    if not c.made:
        return {"value": "", "why": c.status, "facts": "", "paper": paper}
    low, high = (_written(end, kind) for end in (c.low, c.high))
    facts = [f"{low}{' to ' if c.low < 0 else DASH}{high}"] if c.has_interval else []
    facts += [f"n {c.n:,}"] if c.n is not None else []
    return {"value": _written(c.value, kind), "why": "", "facts": ", ".join(facts), "paper": paper}


def _written(value: float | str | None, kind: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if kind == "percent":
        return number(100 * value)
    if kind == "number" and value == 0:
        return "0"
    if kind == "number":
        return number(value, 0 if abs(value) >= 1000 else 2 if abs(value) >= 0.1 else 4)
    return number(value, {"share": 3, "count": 0}.get(kind, 2))
