"""The papers' tables and figures by name, each built from one results file: our values beside the
printed ones where the same model was scored. ``data/tables_<suite>.yaml`` describes them.

* results, printed, numbers: what a results file holds, what the papers print, numbers that follow
* join, lines, own_rows: a table from its description; its lines; tables whose lines are no models
* cells, formats: a table, and its files
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdgbias.analysis.paper import join
from sdgbias.analysis.paper.cells import Table
from sdgbias.analysis.paper.printed import described
from sdgbias.analysis.paper.results import PaperResults, load
from sdgbias.errors import UsageError, one_of
from sdgbias.types import SDG

__all__ = ["build", "chosen", "items", "load"]


def items(suite: str = SDG, *, studies: bool = True) -> list[str]:
    """`--table` names: the paper's items in its order, then companion tables, then raw study rows,
    which have no table in the paper (``studies``)."""
    tables = described(suite)["tables"]
    return [name for name, about in tables.items() if studies or about.get("rows") != "plain"]


def chosen(names: Sequence[str], suite: str = SDG) -> list[str]:
    """Items of these names (case-insensitive), in the given order; some names stand for several,
    'all' for every one. Default: everything except the long tables of raw study rows. Raises
    UsageError."""
    aliases: Mapping[str, Sequence[str]] = described(suite)["aliases"]
    every = {**{name: [name] for name in items(suite)}, **aliases, "all": items(suite)}
    valid = {name.lower(): several for name, several in every.items()}
    for name in names:
        if name.lower() not in valid:
            raise UsageError("--table: " + one_of("table", name, every))
    if not names:
        return items(suite, studies=False)
    return list(dict.fromkeys(item for name in names for item in valid[name.lower()]))


def build(e: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with footnotes: the paper's contradictions and the limits of
    our values."""
    return [join.table(e, name) for name in chosen(names, e.suite)]
