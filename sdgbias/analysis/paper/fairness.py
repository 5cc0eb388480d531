"""The fairness paper's tables from a results file: our values beside the printed ones where the
same model was scored.

The suite reports on every annotated person, so there is no split here. Gaps and errors
in the paper are the footnotes of data/tables_people.yaml; tests/analysis/test_printed_fairness.py
recomputes them from the printed numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from sdgbias.analysis.paper import described, results
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Column, Row, Table, text
from sdgbias.analysis.paper.described import Rows
from sdgbias.analysis.paper.fairness_cells import (
    AS_PRINTED,
    DIFFERENCE,
    measured,
    names,
    read_lines,
    reading,
)
from sdgbias.analysis.paper.fairness_studies import debiasing, encoders, rates
from sdgbias.analysis.paper.results import PaperResults
from sdgbias.benchmark.people_items import CHOICES, P1
from sdgbias.raw.facet import GROUPS, SELECTED, UNKNOWN
from sdgbias.types import FACET

HEAD = (
    "Ours: the newest finished run of each model on each benchmark, over all annotated people. n:"
    " pictures (of a difference: those of the smaller group); CI: 95 %, clustered by picture. A"
    " line 'paper' without one of ours: not run here. The paper's number stands only beside the"
    " same model's."
)
NO_PEOPLE = Cell(status=NOT_RUN)
TITLES = {"gender": "gender presentation", "skin": "skin tone", "age": "age group"}


# -- runs
# ----------------------------------------------------------------------


def load(path: Path, models: Sequence[str] = ()) -> PaperResults:
    """The newest finished run of each model on each benchmark of this suite. Raises UsageError,
    StoreError."""
    return results.load(path, models, suite=FACET, known=names())


# -- the paper's tables
# ----------------------------------------------------------------------


def overall(e: PaperResults, attribute: str) -> Iterator[Row]:
    """One attribute of Table 2."""
    pillars = [*(f"{attribute}={g}" for g in GROUPS[attribute]), DIFFERENCE[attribute]]
    own = [(DIFFERENCE[attribute], "macro")]
    if len(GROUPS[attribute]) > 2:
        own.append((f"{attribute}:max-min", "all"))
    for s, test, task, method in read_lines(e, "table_2"):
        made = []
        as_printed = method in AS_PRINTED
        for pillar, indicator in [*((p, "all") for p in pillars), *own]:
            printable = indicator == "all" and pillar in pillars
            known = as_printed and s.model and printable
            table = "fairness/table_2"
            printed = paper.find(table, model=s.model, task=task, pillar=pillar) if known else None
            where = {"task": task, "method": method, "pillar": pillar, "indicator": indicator}
            metric = "disparity" if ":" in pillar else "recall"
            shown = known or (s.run and (printable or not as_printed))
            made.append(measured(s, metric, test, where, printed) if shown else Cell())
        yield Row((s.label, test, reading(method)), tuple(made))


def classes(e: PaperResults, attribute: str) -> Iterator[Row]:
    """The two class tables of one attribute (App. A.4)."""
    pillar = DIFFERENCE[attribute]
    for s, test, task, method in read_lines(e, "classes"):
        made = []
        for name in SELECTED:
            where = {"task": task, "pillar": pillar, "indicator": name}
            known = s.model and method in AS_PRINTED
            printed = paper.find("fairness/classes", model=s.model, **where) if known else None
            made.append(measured(s, "disparity", test, {**where, "method": method}, printed))
        yield Row((s.label, test, reading(method)), tuple(made))


def _people(e: PaperResults) -> dict[str, tuple[str, pd.DataFrame]]:
    """benchmark_id -> its dataset, and its people by attributes; the FACET benchmark first, '' in
    its place where no run was scored on one."""
    sql = """SELECT benchmark_id, dataset, gender, skin, age, count(DISTINCT person_id) AS n FROM
             people
             WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL ORDER BY ALL"""
    counted = e.ask(sql)
    found = {
        str(b): (str(part["dataset"].iloc[0]), part)
        for b, part in counted.groupby("benchmark_id", sort=True)
    }
    first = next((b for b, (kind, _) in found.items() if kind == "facet"), "")
    return {first: found.get(first, ("facet", counted.iloc[:0])), **found}


def data(e: PaperResults) -> Iterator[Row]:
    """Table 1, and the same counts for every benchmark that the runs were scored on."""
    benchmarks = _people(e)
    all_groups = {"": ("all",), **{a: (*g, UNKNOWN) for a, g in GROUPS.items()}}
    for attribute, groups in all_groups.items():
        for group in groups:
            pillar = f"{attribute}={group}" if attribute else group
            printed = paper.find("fairness/table_1", pillar=pillar, metric="people")
            cells = []
            for at, (kind, part) in enumerate(benchmarks.values()):
                mine = part[part[attribute] == group] if attribute else part
                status = "synthetic" if kind == "synthetic" else "counted"
                cell = Cell(int(mine["n"].sum()), status=status) if len(part) else NO_PEOPLE
                cells.append(replace(cell, paper=printed if at == 0 else None))
            yield Row((TITLES.get(attribute, "people"), group), tuple(cells))


def prompts(e: PaperResults) -> Iterator[Row]:
    """Table 3. Needs no run."""
    ours = {"p1": P1.format(list="[FACET Classes]").replace("[[", "[").replace("]]", "]")}
    ours |= {test: sentence.format(name="[FACET class]") for test, sentence in CHOICES.items()}
    for test, sentence in ours.items():
        yield Row((test,), (text(sentence, printed=paper.find("fairness/table_3", test=test)),))


# -- companion tables
# ----------------------------------------------------------------------


ITEMS: Mapping[str, Rows] = {
    "data": data,
    **{attribute: partial(overall, attribute=attribute) for attribute in GROUPS},
    "prompts": prompts,
    **{f"classes-{attribute}": partial(classes, attribute=attribute) for attribute in GROUPS},
    "rates": rates,
    "encoders": encoders,
    "debiasing": debiasing,
}
#: Aliases: the paper's numbering, and names that stand for several items.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "1": ("data",),
    "2": tuple(GROUPS),
    "3": ("prompts",),
    "classes": tuple(f"classes-{attribute}" for attribute in GROUPS),
    "all": tuple(ITEMS),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Items of these names (case-insensitive), in the given order; default: all. Raises
    UsageError."""
    return described.chosen(names, ITEMS, ALIASES, tuple(ITEMS))


def build(e: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with its footnotes."""
    return [
        described.table(FACET, name, ITEMS[name](e), e, _columns(e, name)) for name in chosen(names)
    ]


def _columns(e: PaperResults, item: str) -> tuple[Column, ...]:
    """The columns that depend on the runs: Table 1 has one for each of their benchmarks."""
    if item != "data":
        return ()
    people = _people(e)
    return tuple(Column(f"{kind} {b[:8]}".strip(), "count") for b, (kind, _) in people.items())
