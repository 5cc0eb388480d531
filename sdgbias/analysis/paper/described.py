"""What each table is called and what its numbers mean, with its columns and footnotes: read from
``data/tables_sdg.yaml`` and ``data/tables_people.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from sdgbias.analysis.paper.cells import MADE, Column, Row, Table
from sdgbias.analysis.paper.results import PaperResults
from sdgbias.errors import UsageError, one_of
from sdgbias.files import packaged

#: What makes the rows of a table.
Rows = Callable[[PaperResults], Iterable[Row]]
_SCORED = {"measured", "embedded", "planted"}


@cache
def words(suite: str) -> Mapping[str, Any]:
    """The texts of a suite's tables: ``tables`` by item, ``ours`` by the kind of our values."""
    found: Mapping[str, Any] = yaml.safe_load(
        packaged("data", f"tables_{suite}.yaml").read_text(encoding="utf-8")
    )
    return found


def chosen(
    names: Sequence[str],
    items: Iterable[str],
    aliases: Mapping[str, Sequence[str]],
    default: Sequence[str],
) -> list[str]:
    """Items of these names (case-insensitive), in the given order; ``aliases`` stand for several.
    Raises UsageError."""
    every: dict[str, Sequence[str]] = {**{name: (name,) for name in items}, **aliases}
    valid = {name.lower(): found for name, found in every.items()}
    found = [] if names else list(default)
    for name in names:
        if name.lower() not in valid:
            raise UsageError("--table: " + one_of("table", name, every))
        found += valid[name.lower()]
    return list(dict.fromkeys(found))


def table(
    suite: str, item: str, rows: Iterable[Row], e: PaperResults, columns: tuple[Column, ...] = ()
) -> Table:
    """The table of an item with its footnotes: what the paper leaves open, and the limits of our
    values. ``columns``: in place of those in the texts."""
    about, ours = words(suite)["tables"][item], words(suite)["ours"]
    found = tuple(rows)
    kinds = {c.status for r in found for c in r.cells if c.status in MADE}
    if kinds & _SCORED and any(r.synthetic for r in e.runs):
        kinds.add("synthetic")
    if any(c.paper and c.status == "measured" for r in found for c in r.cells):
        kinds |= {f"{'' if r.authors_questions else 'not '}authors" for r in e.runs}
    named: Any = about["columns"]
    kept: Any = named.items() if isinstance(named, dict) else [(name, "share") for name in named]
    limits = (text for kind, text in ours.items() if kind in kinds)
    return Table(
        item,
        about["title"],
        about["definition"],
        tuple(about["labels"]),
        columns or tuple(Column(name, kind) for name, kind in kept),
        found,
        (*about.get("shared", ()), *about.get("notes", ()), *limits),
        about.get("empty", ""),
    )
