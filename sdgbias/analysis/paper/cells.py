"""The structure of a reproduced table: cells with a status, rows, columns, footnotes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sdgbias.analysis.paper.printed import Printed
from sdgbias.methods.stats import Estimate

#: Number format of a column. share: 0.412; percent: 41.2 (of a share); number: 12.34;
#: count: 1,234; text: as it is.
Kind = Literal["share", "percent", "number", "count", "text"]

#: Status of a cell that has a value. 'synthetic': counted in a benchmark built from synthetic raw
#: data; 'code': a constant of this program.
MADE = ("measured", "embedded", "planted", "counted", "synthetic", "code")
NOT_RUN, NOT_ANALYSED, BLANK = "not run", "not analysed: sdgbias analyse", ""


@dataclass(frozen=True)
class Cell:
    """value: ours, None if missing. n, low, high: its rows and 95 % interval (None, NaN if
    missing). paper: the printed value of the same quantity. status: one of ``MADE``, 'not run',
    'not analysed: ...', 'not in store: why', '' (intentionally blank)."""

    value: float | str | None = None
    n: int | None = None
    low: float = math.nan
    high: float = math.nan
    paper: Printed | None = None
    status: str = BLANK

    @property
    def made(self) -> bool:
        return self.status in MADE

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))


@dataclass(frozen=True)
class Column:
    """key: what its numbers are, and how it differs from its table (join.py)."""

    name: str
    kind: Kind = "share"
    key: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """labels: one per label column of the table; cells: one per column."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """item: its `--table` name. definition: the meaning of the numbers, in a sentence or two.
    empty: why there are no rows at all."""

    item: str
    title: str
    definition: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    empty: str = ""

    @property
    def cells(self) -> list[Cell]:
        return [c for row in self.rows for c in row.cells]


def cell(
    found: Estimate | float | str | None, status: str, why: str = "", paper: Printed | None = None
) -> Cell:
    """A cell from an estimate, a number without n or a text. If there is none (NaN, ''), its status
    is ``why``, or 'not run' if there is no run."""
    if status == NOT_RUN:
        return Cell(paper=paper, status=NOT_RUN)
    if isinstance(found, str) or found is None:
        return Cell(found or None, paper=paper, status=status if found else why)
    e = found if isinstance(found, Estimate) else Estimate(found, 0)
    if math.isnan(e.value):
        return Cell(paper=paper, status=why)
    return Cell(e.value, e.n or None, e.low, e.high, paper, status)


def counts(tables: Sequence[Table]) -> dict[str, int]:
    """Number of cells per status; all 'not in store: ...' reasons count as 'not in store'. Blank
    cells don't count."""
    found = Counter(c.status.split(":")[0] for t in tables for c in t.cells if c.status)
    first = (*MADE, NOT_RUN)
    order = sorted(found, key=lambda kind: (first.index(kind) if kind in first else 99, kind))
    return {kind: found[kind] for kind in order}
