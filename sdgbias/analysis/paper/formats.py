"""Tables as terminal text, Markdown, CSV and JSON. Every number keeps its n, interval and status in
all four."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Column, Kind, Row, Table, counts
from sdgbias.analysis.paper.printed import described
from sdgbias.analysis.paper.results import Run

WIDTH = 120
_HANGING: Any = {"subsequent_indent": "    "}
CSV_COLUMNS = (
    "item",
    "row",
    "column",
    "value",
    "n",
    "ci_low",
    "ci_high",
    "paper",
    "paper_printed",
    "status",
)


def written(value: float | str | None, kind: Kind) -> str:
    """A number in its column's format; '' if missing."""
    if value is None or isinstance(value, str):
        return value or ""
    if math.isnan(value):
        return "n/a"
    words = {
        "share": f"{value:.3f}",
        "percent": f"{100 * value:.1f}",
        "count": f"{value:,.0f}",
    }.get(kind, f"{value:.4g}")
    return _unsigned(words)


def interval(c: Cell, kind: Kind) -> str:
    """'0.38..0.44', '' if missing."""
    if not c.has_interval:
        return ""
    low, high = (
        {"share": f"{v:.2f}", "percent": f"{100 * v:.1f}"}.get(kind, f"{v:.3g}")
        for v in (c.low, c.high)
    )
    return f"{_unsigned(low)}..{_unsigned(high)}"


def _unsigned(words: str) -> str:
    """Drop the minus sign of a zero."""
    return words if words.strip("-0.,") else words.removeprefix("-")


def summary(tables: Sequence[Table]) -> str:
    """'2 tables, 412 cells: 120 measured, 292 not run': how many of our numbers there are, and why
    the others are missing."""
    found = counts(tables)
    listed = ", ".join(f"{n:,} {kind}" for kind, n in found.items()) or "none"
    return (
        f"{len(tables)} table{'' if len(tables) == 1 else 's'}, {sum(found.values()):,} cells:"
        f" {listed}"
    )


# -- text
# ----------------------------------------------------------------------


def text(tables: Sequence[Table], runs: Sequence[Run]) -> str:
    """All tables for a terminal of 120 columns, preceded by reading instructions and the runs
    used."""
    head = ["No finished run of these models in the results file: the paper's numbers stand alone."]
    if runs:
        told = (textwrap.fill(f"  {r.says}", WIDTH, subsequent_indent="    ") for r in runs)
        head = [*textwrap.wrap(described(runs[0].suite)["head"], WIDTH), *told]
    return "\n\n".join(["\n".join(head), *(_text(t) for t in tables)]) + "\n"


def _text(t: Table) -> str:
    reasons: dict[str, int] = {}
    if not t.rows:
        body = [f"({t.empty})"]
    elif all(c.kind == "text" for c in t.columns):
        body = _prose(t)
    else:
        body = _blocks(t, reasons)
    lines = [t.title, "-" * len(t.title), *textwrap.wrap(t.definition, WIDTH), "", *body]
    notes = [f"[{mark}] {why}" for why, mark in reasons.items()]
    notes += [f"* {note}" for note in t.footnotes]
    lines += [part for note in notes for part in textwrap.wrap(note, WIDTH, subsequent_indent="  ")]
    return "\n".join(line.rstrip() for line in lines)


def _prose(t: Table) -> list[str]:
    """Texts below each other: ours, then the paper's where it is another."""
    out = []
    for r in t.rows:
        out.append(" / ".join(r.labels))
        for column, c in zip(t.columns, r.cells, strict=True):
            name = "" if len(t.columns) == 1 else f"{column.name}, "
            same = c.paper is not None and c.paper.text == c.value
            texts = {"ours = paper" if same else "ours": str(c.value or c.status)}
            if c.paper is not None and not same:
                texts["paper"] = c.paper.text
            for who, words in texts.items():
                lines = f"{name}{who}: {words}".split("\n")
                for line in lines:
                    out += textwrap.wrap(line, WIDTH - 4, initial_indent="  ", **_HANGING)
    return [*out, ""]


def _short(c: Cell, column: Column, reasons: dict[str, int]) -> str:
    """The value, 'not run', or a marker that refers to a reason below the table."""
    if c.made:
        return written(c.value, column.kind)
    if c.status in ("", NOT_RUN):
        return c.status
    return f"[{reasons.setdefault(c.status, len(reasons) + 1)}]"


def _lines(t: Table, r: Row, reasons: dict[str, int]) -> list[tuple[str, list[str]]]:
    """(label, n and one text per column) for each line of a row: our value, its interval, its n if
    columns differ, the paper's value. A row that was not run has only the paper's line, or a line
    stating that it was not run."""
    printed = ["", *(c.paper.text if c.paper else "" for c in r.cells)]
    if {c.status for c in r.cells} <= {"", NOT_RUN} and any(c.status for c in r.cells):
        return [("paper", printed)] if any(printed) else [("", ["", *(c.status for c in r.cells)])]
    each = [f"{c.n:,}" if c.made and c.n is not None else "" for c in r.cells]
    alike = len({*each} - {""}) == 1
    pairs = list(zip(r.cells, t.columns, strict=True))
    lines = [("ours", [max(each) if alike else "", *(_short(c, k, reasons) for c, k in pairs)])]
    if any(c.has_interval for c in r.cells):
        lines.append(("CI", ["", *(interval(c, k.kind) for c, k in pairs)]))
    if any(each) and not alike:
        lines.append(("n", ["", *each]))
    return lines + ([("paper", printed)] if any(printed) else [])


def _blocks(t: Table, reasons: dict[str, int]) -> list[str]:
    """The table in blocks of columns that fit the width, each with its labels. Empty columns are
    left out; long labels are cut, the files have them in full."""
    lines = [((*r.labels, kind), texts) for r in t.rows for kind, texts in _lines(t, r, reasons)]
    longest = [max(map(len, labels)) for labels in zip(*(r.labels for r in t.rows), strict=True)]
    while sum(longest) > WIDTH - 45:
        longest[longest.index(max(longest))] -= 1
    keys = [
        tuple(textwrap.shorten(k, w, placeholder="…") for k, w in zip(key, widths, strict=True))
        for key, _ in lines
        for widths in ([*longest, WIDTH],)
    ]
    index = pd.MultiIndex.from_tuples(keys, names=[*t.labels, ""])
    frame = pd.DataFrame([texts for _, texts in lines], index, ["n", *(c.name for c in t.columns)])
    frame = frame.loc[:, (frame != "").any()]
    return [*frame.to_string(line_width=WIDTH).splitlines(), ""] if frame.shape[1] else []


# -- files
# ----------------------------------------------------------------------


def markdown(t: Table) -> str:
    """One table as Markdown; a cell reads `0.412 (0.38..0.44, n 956); paper 0.30`."""
    lines = [f"# {t.title}", "", t.definition, ""]
    if t.rows:
        lines.append(_pipes([*t.labels, *(c.name for c in t.columns)]))
        lines.append(_pipes(["---"] * (len(t.labels) + len(t.columns))))
    for r in t.rows:
        cells = (_one_line(c, k.kind) for c, k in zip(r.cells, t.columns, strict=True))
        lines.append(_pipes([*r.labels, *cells]))
    if not t.rows:
        lines.append(t.empty)
    return "\n".join([*lines, "", *(f"* {note}" for note in t.footnotes)]).rstrip() + "\n"


def _pipes(words: Sequence[str]) -> str:
    return "| " + " | ".join(w.replace("|", "\\|").replace("\n", "<br>") for w in words) + " |"


def _one_line(c: Cell, kind: Kind) -> str:
    facts = ", ".join(f for f in (interval(c, kind), f"n {c.n:,}" if c.n is not None else "") if f)
    ours = (written(c.value, kind) + (f" ({facts})" if facts else "")) if c.made else c.status
    return "; ".join(part for part in (ours, f"paper {c.paper.text}" if c.paper else "") if part)


def records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """One record per non-blank cell, with the columns of ``CSV_COLUMNS``; None for missing
    values."""
    found = []
    for t in tables:
        for r in t.rows:
            for column, c in zip(t.columns, r.cells, strict=True):
                if not c.status and c.paper is None:
                    continue
                low, high = (c.low, c.high) if c.has_interval else (None, None)
                paper = (c.paper.value, c.paper.text) if c.paper else (None, None)
                row = " | ".join(label for label in r.labels if label)
                said = c.status or "paper"
                values = (t.item, row, column.name, c.value, c.n, low, high, *paper, said)
                found.append(dict(zip(CSV_COLUMNS, values, strict=True)))
    return found


def as_csv(tables: Sequence[Table]) -> str:
    table = pd.DataFrame(records(tables), columns=CSV_COLUMNS, dtype=object)
    return str(table.to_csv(index=False, lineterminator="\n"))


def as_json(tables: Sequence[Table], runs: Sequence[Run]) -> str:
    """runs, tables (title, definition, footnotes, cells) and the summary's counts as valid JSON;
    null for missing values."""
    of_benchmark = ("benchmark_id", "synthetic", "authors_questions")
    page = {
        "runs": [
            {name: getattr(r, name) for name in ("run_id", "model", "kind", *of_benchmark, "says")}
            for r in runs
        ],
        "tables": [
            {
                "item": t.item,
                "title": t.title,
                "definition": t.definition,
                "footnotes": list(t.footnotes),
                "empty": "" if t.rows else t.empty,
                "cells": [{k: v for k, v in cell.items() if k != "item"} for cell in records([t])],
            }
            for t in tables
        ],
        "counts": counts(tables),
    }
    return json.dumps(page, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def write(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write `<item>.md` and `<item>.csv` of every table; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for t in tables:
        name = f"table_{t.item}" if len(t.item) == 1 else t.item
        for path, content in (
            (folder / f"{name}.md", markdown(t)),
            (folder / f"{name}.csv", as_csv([t])),
        ):
            path.write_text(content, encoding="utf-8")
            paths.append(path)
    return paths
