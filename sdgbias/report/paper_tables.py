"""Tables of `sdgbias reproduce` for the page Paper's tables. They are handed in: the report doesn't make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sdgbias.report.words import DASH, number


class Printed(Protocol):
    @property
    def text(self) -> str: ...


class Cell(Protocol):
    """One number of ours, its interval, what the paper prints for it, and what it is: 'measured', 'not run', ..."""

    @property
    def value(self) -> float | str | None: ...
    @property
    def n(self) -> int | None: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def paper(self) -> Printed | None: ...
    @property
    def status(self) -> str: ...
    @property
    def made(self) -> bool: ...


class Column(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


class Row(Protocol):
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def cells(self) -> Sequence[Cell]: ...


class Table(Protocol):
    """A table as `sdgbias.reproduce` builds it."""

    @property
    def item(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def definition(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def columns(self) -> Sequence[Column]: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def footnotes(self) -> tuple[str, ...]: ...
    @property
    def empty(self) -> str: ...


def shown(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """What the template needs: every number as text."""
    return [
        {
            "id": f"table-{t.item}", "title": t.title, "definition": t.definition, "labels": list(t.labels), "heads": [c.name for c in t.columns],
            "rows": [{"labels": list(r.labels), "cells": [_cell(c, k.kind) for c, k in zip(r.cells, t.columns, strict=True)]} for r in t.rows],
            "notes": list(t.footnotes), "empty": t.empty, "ours": sum(c.made for r in t.rows for c in r.cells),
        }
        for t in tables
    ]  # fmt: skip


def _cell(c: Cell, kind: str) -> dict[str, str]:
    """value, facts (interval and n), paper; a cell without a number of ours has its reason as value."""
    if not c.made:
        return {"value": "", "why": c.status, "facts": "", "paper": c.paper.text if c.paper else ""}
    bounded = c.low == c.low and c.high == c.high
    facts = [f"{_written(c.low, kind)}{' to ' if c.low < 0 else DASH}{_written(c.high, kind)}"] if bounded else []
    facts += [f"n {c.n:,}"] if c.n is not None else []
    return {"value": _written(c.value, kind), "why": "", "facts": ", ".join(facts), "paper": c.paper.text if c.paper else ""}


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
