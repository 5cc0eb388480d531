"""The fairness paper's tables from a results file: our values beside the printed ones where the
same model was scored.

The suite reports on every annotated person, so there is no split here. Gaps and errors
in the paper are the footnotes of data/tables_people.yaml; tests/analysis/test_printed_fairness.py
recomputes them from the printed numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sdgbias.analysis.paper import join, results
from sdgbias.analysis.paper.cells import Table
from sdgbias.analysis.paper.printed import described
from sdgbias.analysis.paper.results import PaperResults
from sdgbias.raw.facet import GROUPS
from sdgbias.types import FACET

HEAD = (
    "Ours: the newest finished run of each model on each benchmark, over all annotated people. n:"
    " pictures (of a difference: those of the smaller group); CI: 95 %, clustered by picture. A"
    " line 'paper' without one of ours: not run here. The paper's number stands only beside the"
    " same model's."
)
ITEMS = tuple(described(FACET)["tables"])
#: Aliases: the paper's numbering, and names that stand for several items.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "1": ("data",),
    "2": tuple(GROUPS),
    "3": ("prompts",),
    "classes": tuple(f"classes-{attribute}" for attribute in GROUPS),
    "all": ITEMS,
}


def load(path: Path, models: Sequence[str] = ()) -> PaperResults:
    """The newest finished run of each model on each benchmark of this suite. Raises UsageError,
    StoreError."""
    return results.load(path, models, suite=FACET)


def chosen(names: Sequence[str]) -> list[str]:
    """Items of these names (case-insensitive), in the given order; default: all. Raises
    UsageError."""
    return join.chosen(FACET, names or ["all"], ALIASES)


def build(e: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with its footnotes."""
    return [join.table(e, name) for name in chosen(names)]
