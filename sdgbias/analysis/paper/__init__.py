"""The paper's tables and figures by name, each built from one results file: our values beside the
printed ones where the same model was scored."""

from __future__ import annotations

from collections.abc import Sequence

from sdgbias.analysis.paper import join
from sdgbias.analysis.paper.cells import Table
from sdgbias.analysis.paper.formats import HEAD
from sdgbias.analysis.paper.printed import described
from sdgbias.analysis.paper.results import PaperResults, load
from sdgbias.types import SDG

__all__ = ["HEAD", "ITEMS", "PLAIN", "build", "chosen", "load"]

#: `--table` names: the paper's items in its order, then companion tables, then raw study rows.
ITEMS = tuple(described(SDG)["tables"])
#: Studies without a table in the paper, by their stored names.
PLAIN = tuple(i for i in ITEMS if described(SDG)["tables"][i].get("rows") == "plain")


def chosen(names: Sequence[str]) -> list[str]:
    """Items of these names (case-insensitive), in the given order. Table H also brings its
    controls. Default: everything except the long tables of raw study rows; 'all' includes these."""
    default = [name for name in ITEMS if name not in PLAIN]
    return join.chosen(SDG, names, {"H": ("H", "controls"), "all": ITEMS}) if names else default


def build(e: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with footnotes: the paper's contradictions and the limits of
    our values."""
    return [join.table(e, name) for name in chosen(names)]
