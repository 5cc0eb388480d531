"""Tables as terminal text, Markdown, CSV and JSON. Every number keeps its n, interval and status in
all four."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.analysis.paper.numbers import described
from sdgbias.analysis.paper.results import NOT_RUN, Run
from sdgbias.analysis.paper.tables import MADE, Cell, Column, Kind, Row, Table
from sdgbias.files import write_atomically

#: Columns of a terminal, and of the label of a row.
WIDTH, WIDEST_LABEL = 120, 70
CSV_COLUMNS = (
    *("item", "row", "column", "value", "n", "ci_low", "ci_high"),
    *("paper", "paper_printed", "status"),
)
VALUE_DIGITS = {"share": ".3f", "percent": ".1f", "count": ",.0f"}
BOUND_DIGITS = {"share": ".2f", "percent": ".1f"}


def written(value: float | str | None, kind: Kind) -> str:
    """A number in its column's format; '' if missing."""
    if value is None or isinstance(value, str):
        return value or ""
    return "n/a" if math.isnan(value) else _number(value, VALUE_DIGITS.get(kind, ".4g"), kind)


def interval(c: Cell, kind: Kind) -> str:
    """'0.38..0.44', '' if missing."""
    ends = (c.low, c.high) if c.has_interval else ()
    return "..".join(_number(end, BOUND_DIGITS.get(kind, ".3g"), kind) for end in ends)


def _number(value: float, digits: str, kind: Kind) -> str:
    """The number of a percent's share; a zero without a sign."""
    words = format(100 * value if kind == "percent" else value, digits)
    return words if words.strip("-0.,") else words.removeprefix("-")


def counts(tables: Sequence[Table]) -> dict[str, int]:
    """Number of cells per status; all 'not in store: ...' reasons count as 'not in store'. Blank
    cells don't count."""
    per_status = Counter(c.status.split(":")[0] for t in tables for c in t.cells if c.status)
    return {kind: per_status.pop(kind) for kind in (*MADE, NOT_RUN) if kind in per_status} | dict(
        sorted(per_status.items())
    )


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
    return "\n\n".join(["\n".join(head), *map(_text, tables)]) + "\n"


def _text(t: Table) -> str:
    reasons: dict[str, int] = {}
    prose = all(c.kind == "text" for c in t.columns)
    body = f"({t.empty})" if not t.rows else _prose(t) if prose else _grid(t, reasons)
    notes = [f"[{mark}] {why}" for why, mark in reasons.items()]
    notes += [f"* {note}" for note in t.footnotes]
    lines = [t.title, "-" * len(t.title), *textwrap.wrap(t.definition, WIDTH), "", body, ""]
    lines += [textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes]
    return "\n".join(line.rstrip() for line in "\n".join(lines).rstrip().split("\n"))


def _prose(t: Table) -> str:
    """Texts below each other: ours, then the paper's where it is another."""
    lines = []
    for r in t.rows:
        lines.append(_label(r))
        for c in r.cells:
            same = c.paper is not None and c.paper.text == c.value
            lines.append(f"  {'ours = paper' if same else 'ours'}: {c.value or c.status}")
            lines += [f"  paper: {c.paper.text}"] if c.paper and not same else []
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines)


def _grid(t: Table, reasons: dict[str, int]) -> str:
    """Of each row a line of our values, of their intervals, of n and of what the paper prints;
    those that are empty, and empty columns, are left out. Of what was not run the paper's line is
    enough."""
    lines: list[tuple[str, str, list[str]]] = []
    for r in t.rows:
        pairs = list(zip(r.cells, t.columns, strict=True))
        texts = {
            "ours": [_short(c, column, reasons) for c, column in pairs],
            "CI": [interval(c, column.kind) for c, column in pairs],
            "n": [f"{c.n:,}" if c.made and c.n is not None else "" for c in r.cells],
            "paper": [c.paper.text if c.paper else "" for c in r.cells],
        }
        if any(texts["paper"]) and {c.status for c in r.cells} <= {"", NOT_RUN}:
            texts["ours"] = []
        label = textwrap.shorten(_label(r), WIDEST_LABEL, placeholder="…")
        lines += [(label, name, each) for name, each in texts.items() if any(each)]
    index = pd.MultiIndex.from_tuples(
        [line[:2] for line in lines], names=[" | ".join(t.labels), ""]
    )
    frame = pd.DataFrame([line[2] for line in lines], index, [c.name for c in t.columns])
    return str(frame.loc[:, (frame != "").any()].to_string(line_width=WIDTH))


def _short(c: Cell, column: Column, reasons: dict[str, int]) -> str:
    """The value, 'not run', or a marker that refers to a reason below the table."""
    if c.made:
        return written(c.value, column.kind)
    plain = ("", NOT_RUN)
    return c.status if c.status in plain else f"[{reasons.setdefault(c.status, len(reasons) + 1)}]"


def _label(r: Row) -> str:
    return " | ".join(filter(None, r.labels))


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
    records = []
    for t in tables:
        cells = [(r, *pair) for r in t.rows for pair in zip(r.cells, t.columns, strict=True)]
        for r, c, column in cells:
            if c.status or c.paper:
                bounds = (c.low, c.high) if c.has_interval else (None, None)
                paper = (c.paper.value, c.paper.text) if c.paper else (None, None)
                values = (t.item, _label(r), column.name, c.value, c.n, *bounds, *paper)
                records.append(dict(zip(CSV_COLUMNS, (*values, c.status or "paper"), strict=True)))
    return records


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
    """Write `<item>.md` and `<item>.csv` of every table; returns the paths. Raises StoreError."""
    files = {
        folder / f"{'table_' if len(t.item) == 1 else ''}{t.item}.{ending}": content
        for t in tables
        for ending, content in (("md", markdown(t)), ("csv", as_csv([t])))
    }
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)
