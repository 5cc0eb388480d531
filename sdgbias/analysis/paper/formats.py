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
CSV_COLUMNS = (
    *("item", "row", "column", "value", "n", "ci_low", "ci_high"),
    *("paper", "paper_printed", "status"),
)


def written(value: float | str | None, kind: Kind) -> str:
    """A number in its column's format; '' if missing."""
    if value is None or isinstance(value, str):
        return value or ""
    if math.isnan(value):
        return "n/a"
    digits = {"share": ".3f", "percent": ".1f", "count": ",.0f"}.get(kind, ".4g")
    return _number(value, digits, kind)


def interval(c: Cell, kind: Kind) -> str:
    """'0.38..0.44', '' if missing."""
    if not c.has_interval:
        return ""
    digits = {"share": ".2f", "percent": ".1f"}.get(kind, ".3g")
    return "..".join(_number(bound, digits, kind) for bound in (c.low, c.high))


def _number(value: float, digits: str, kind: Kind) -> str:
    """The number of a percent's share; a zero without a sign."""
    words = format(100 * value if kind == "percent" else value, digits)
    return words if words.strip("-0.,") else words.removeprefix("-")


def summary(tables: Sequence[Table]) -> str:
    """'2 tables, 412 cells: 120 measured, 292 not run': how many of our numbers there are, and why
    the others are missing."""
    cells = counts(tables)
    listed = ", ".join(f"{n:,} {kind}" for kind, n in cells.items()) or "none"
    many = "table" if len(tables) == 1 else "tables"
    return f"{len(tables)} {many}, {sum(cells.values()):,} cells: {listed}"


# -- text
# ----------------------------------------------------------------------


def text(tables: Sequence[Table], runs: Sequence[Run]) -> str:
    """All tables for a terminal of 120 columns, preceded by reading instructions and the runs
    used."""
    head = ["No finished run of these models in the results file: the paper's numbers stand alone."]
    if runs:
        head = textwrap.wrap(described(runs[0].suite)["head"], WIDTH)
        head += [textwrap.fill(f"  {r.says}", WIDTH, subsequent_indent="    ") for r in runs]
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
            texts = [("ours = paper" if same else "ours", str(c.value or c.status))]
            texts += [("paper", c.paper.text)] if c.paper and not same else []
            lines = [line for who, words in texts for line in f"{name}{who}: {words}".split("\n")]
            for line in lines:
                out += textwrap.wrap(line, WIDTH - 4, initial_indent="  ", subsequent_indent="    ")
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
    beside = [("paper", printed)] if any(printed) else []
    if {c.status for c in r.cells} <= {"", NOT_RUN} and any(c.status for c in r.cells):
        return beside or [("", ["", *(c.status for c in r.cells)])]
    each = [f"{c.n:,}" if c.made and c.n is not None else "" for c in r.cells]
    alike = len({*each} - {""}) == 1
    pairs = list(zip(r.cells, t.columns, strict=True))
    values = [max(each) if alike else "", *(_short(c, column, reasons) for c, column in pairs)]
    intervals = ["", *(interval(c, column.kind) for c, column in pairs)]
    counted = ["", *each] if not alike else []
    lines = [("CI", intervals), ("n", counted)]
    return [("ours", values), *(line for line in lines if any(line[1])), *beside]


def _blocks(t: Table, reasons: dict[str, int]) -> list[str]:
    """The table in blocks of columns that fit the width, each with its labels. Empty columns are
    left out; long labels are cut, the files have them in full."""
    lines = [((*r.labels, kind), texts) for r in t.rows for kind, texts in _lines(t, r, reasons)]
    longest = [max(map(len, labels)) for labels in zip(*(r.labels for r in t.rows), strict=True)]
    while sum(longest) > WIDTH - 45:
        longest[longest.index(max(longest))] -= 1
    widths = [*longest, WIDTH]
    keys = [
        tuple(textwrap.shorten(k, w, placeholder="…") for k, w in zip(key, widths, strict=True))
        for key, _ in lines
    ]
    index = pd.MultiIndex.from_tuples(keys, names=[*t.labels, ""])
    frame = pd.DataFrame([texts for _, texts in lines], index, ["n", *(c.name for c in t.columns)])
    frame = frame.loc[:, (frame != "").any()]
    return [*frame.to_string(line_width=WIDTH).splitlines(), ""] if frame.shape[1] else []


# -- files
# ----------------------------------------------------------------------


def markdown(t: Table) -> str:
    """One table as Markdown; a cell reads `0.412 (0.38..0.44, n 956); paper 0.30`."""
    names = [*t.labels, *(c.name for c in t.columns)]
    rows = [
        [*r.labels, *(_one_line(c, k.kind) for c, k in zip(r.cells, t.columns, strict=True))]
        for r in t.rows
    ]
    table = [_pipes(words) for words in (names, ["---"] * len(names), *rows)] if rows else [t.empty]
    notes = (f"* {note}" for note in t.footnotes)
    return "\n".join([f"# {t.title}", "", t.definition, "", *table, "", *notes]).rstrip() + "\n"


def _pipes(words: Sequence[str]) -> str:
    return "| " + " | ".join(w.replace("|", "\\|").replace("\n", "<br>") for w in words) + " |"


def _one_line(c: Cell, kind: Kind) -> str:
    facts = ", ".join(filter(None, (interval(c, kind), "" if c.n is None else f"n {c.n:,}")))
    ours = (written(c.value, kind) + (f" ({facts})" if facts else "")) if c.made else c.status
    return "; ".join(filter(None, (ours, f"paper {c.paper.text}" if c.paper else "")))


def records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """One record per non-blank cell, with the columns of ``CSV_COLUMNS``; None for missing
    values."""
    found = []
    for t in tables:
        for r in t.rows:
            for column, c in zip(t.columns, r.cells, strict=True):
                if not c.status and c.paper is None:
                    continue
                where = (t.item, " | ".join(filter(None, r.labels)), column.name)
                bounds = (c.low, c.high) if c.has_interval else (None, None)
                paper = (c.paper.value, c.paper.text) if c.paper else (None, None)
                values = (*where, c.value, c.n, *bounds, *paper, c.status or "paper")
                found.append(dict(zip(CSV_COLUMNS, values, strict=True)))
    return found


def as_csv(tables: Sequence[Table]) -> str:
    table = pd.DataFrame(records(tables), columns=CSV_COLUMNS, dtype=object)
    return str(table.to_csv(index=False, lineterminator="\n"))


def as_json(tables: Sequence[Table], runs: Sequence[Run]) -> str:
    """runs, tables (title, definition, footnotes, cells) and the summary's counts as valid JSON;
    null for missing values."""
    about = ("run_id", "model", "kind", "benchmark_id", "synthetic", "authors_questions", "says")
    page = {
        "runs": [{name: getattr(r, name) for name in about} for r in runs],
        "tables": [
            {name: getattr(t, name) for name in ("item", "title", "definition", "footnotes")}
            | {"empty": "" if t.rows else t.empty}
            | {"cells": [{k: v for k, v in c.items() if k != "item"} for c in records([t])]}
            for t in tables
        ],
        "counts": counts(tables),
    }
    return json.dumps(page, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def write(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write `<item>.md` and `<item>.csv` of every table; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / f"{'table_' if len(t.item) == 1 else ''}{t.item}.{ending}": content
        for t in tables
        for ending, content in (("md", markdown(t)), ("csv", as_csv([t])))
    }
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
    return list(files)
