"""The paper's tables and figures by name, each built from one results file: our values beside the
printed ones where the same model was scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sdgbias.analysis.paper import (
    accuracy,
    benchmark,
    described,
    figures,
    numbered,
    runtime,
    studies,
)
from sdgbias.analysis.paper.accuracy import NO_VAL
from sdgbias.analysis.paper.cells import Cell, Table
from sdgbias.analysis.paper.described import Rows
from sdgbias.analysis.paper.formats import HEAD
from sdgbias.analysis.paper.results import PaperResults, load
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, SDG

__all__ = ["HEAD", "ITEMS", "build", "chosen", "load"]

#: `--table` name -> function: the paper's items in its order, then companion tables, then raw
#: study rows.
ITEMS: Mapping[str, Rows] = {
    "A": benchmark.table_a,
    "B": benchmark.table_b,
    "C": benchmark.table_c,
    "D": benchmark.table_d,
    "E": benchmark.table_e,
    "F": benchmark.table_f,
    "G": benchmark.table_g,
    "H": accuracy.table_h,
    "controls": studies.controls,
    "I": accuracy.table_i,
    "intervals": accuracy.intervals,
    "1": numbered.table_1,
    "2": numbered.table_2,
    "3": numbered.table_3,
    "fig3": figures.figure_3,
    "fig4": figures.figure_4,
    "fig5": figures.figure_5,
    "fig7": accuracy.figure_7,
    "fig8": figures.figure_8,
    "J": numbered.table_j,
    "K": runtime.table_k,
    "L": runtime.table_l,
    "claims": figures.claims,
    "quality": benchmark.quality,
    "parameters": benchmark.parameters,
    "indicators": accuracy.indicators,
    "changes": accuracy.changes,
    "letters": accuracy.letters,
    "methods": studies.methods,
    "methods-regression": studies.methods_regression,
    **{name: partial(studies.plain, study=name) for name in studies.PLAIN},
}


def chosen(names: Sequence[str]) -> list[str]:
    """Items of these names (case-insensitive), in the given order. Table H also brings its
    controls. Default: everything except the long tables of raw study rows; 'all' includes these."""
    shown = [name for name in ITEMS if name not in studies.PLAIN]
    return described.chosen(names, ITEMS, {"H": ("H", "controls"), "all": tuple(ITEMS)}, shown)


def build(e: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with footnotes: the paper's contradictions and the limits of
    our values."""
    made = (described.table(SDG, name, ITEMS[name](e), e) for name in chosen(names))
    return [_unpictured(table, e) for table in made]


def _unpictured(table: Table, e: PaperResults) -> Table:
    """The table with the reason of the missing cells of a language model (views with pictures and
    what rests on them) or of a model that gives text only."""
    why = {r.label: NEEDS_SCORES for r in e.runs if not r.scored}
    why |= {r.label: NEEDS_PICTURES for r in e.runs if r.language}

    def told(c: Cell, reason: str) -> Cell:
        # not "no question with three options", which is a reason of its own
        lacks = c.status == NO_VAL or (
            c.status.startswith("not in store: no ") and "question" not in c.status
        )
        return replace(c, status=f"not in store: {reason}") if lacks else c

    rows = []
    for row in table.rows:
        reason = next((why[label] for label in row.labels if label in why), "")
        cells = tuple(told(c, reason) for c in row.cells)
        rows.append(replace(row, cells=cells) if reason else row)
    return replace(table, rows=tuple(rows))
