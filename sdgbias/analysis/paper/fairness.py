"""The fairness paper's tables from a results file: our values beside the printed ones where the
same model was scored.

The suite reports on every annotated person, so there is no split here. NOTES lists gaps and errors
in the paper; tests/analysis/test_printed_fairness.py recomputes them from the printed numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper import results
from sdgbias.analysis.paper.cells import MADE, NOT_RUN, Cell, Column, Row, Table, text
from sdgbias.analysis.paper.fairness_cells import (
    AS_PRINTED,
    DIFFERENCE,
    _cell,
    names,
    read_lines,
    reading,
)
from sdgbias.analysis.paper.fairness_studies import attributes, debiasing, encoders, rates
from sdgbias.analysis.paper.footnotes import OWN
from sdgbias.analysis.paper.results import PaperResults, Subject
from sdgbias.benchmark.people_items import CHOICES, P1
from sdgbias.errors import UsageError, one_of
from sdgbias.methods.stats import SMALLEST
from sdgbias.raw.facet import GROUPS, SELECTED, UNKNOWN
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET

HEAD = (
    "Ours: the newest finished run of each model on each benchmark, over all annotated people. n:"
    " pictures (of a difference: those of the smaller group); CI: 95 %, clustered by picture. A"
    " line 'paper' without one of ours: not run here. The paper's number stands only beside the"
    " same model's."
)
TITLES = {"gender": "gender presentation", "skin": "skin tone", "age": "age group"}

NOTES: Mapping[str, tuple[str, ...]] = {
    "data": (
        (
            "The paper keeps pictures with one annotated person. Who is scored in Table 2 is fewer:"
            " the 13 classes, gender known (5,481): reading 'paper'."
        ),
    ),
    "prompts": (
        (
            "The paper's p3 has a space before the question mark; ours, as the authors' code, has"
            " none."
        ),
    ),
    "2": (
        (
            "The classes are pooled (micro): every printed value is k/n for one n per group, the"
            " same for all models and both kinds of prompt: male 3,821, female 1,660; light 2,402,"
            " medium 1,641, dark 325; young 1,286, middle 3,145, old 468. macro: mean of the class"
            " differences."
        ),
        (
            "Whether the single-choice numbers are p2's or p3's isn't stated (a mean would lie on a"
            " grid twice as fine): they stand beside both of ours."
        ),
        (
            "'Single-choice consistently yields lower disparity' holds for skin tone and age, not"
            " for gender: there it is larger for 6 of the 8 models, e.g. GPT-4o 0.1086 against"
            " -0.0262."
        ),
        (
            "Single choice only ever asks about the right class, so a model that always says yes"
            " has recall 1 and disparity 0: see `rates`."
        ),
        "Which CLIP and which ViT isn't stated, nor which of the two text encoders read the"
        " answers: 'paper' uses the packaged one, `sdgbias people read` adds lines with CLIP's and"
        " T5's.",
        (
            "Our ViT names things, not people's work, and can answer for 5 of the 13 classes"
            " (gardener, prayer, guitarist, gymnast, horseman); people of the other eight are left"
            " out, so its numbers are of another population than the printed ones."
        ),
    ),
    "skin": (
        (
            "The paper's 'clear preference for lighter skin tones' in p1 is 0.12 to 0.23 with the"
            " classes pooled, but 0.00 to 0.06 in the mean of its class tables: groups differ in"
            " which classes they hold."
        ),
        (
            "The paper's group sizes are those of people whose gender is known (reading 'paper');"
            " ours needs skin tone alone."
        ),
    ),
    "age": (
        (
            "The paper's group sizes are those of people whose gender is known (reading 'paper');"
            " ours needs the age group alone."
        ),
    ),
    "classes": (
        (
            "The paper applied no minimum group size: the grids that its values lie on fit groups"
            " of 2 (old gymnasts) and 4 (old dancers) pictures. Reading 'ours' has no value below"
            f" {SMALLEST} pictures in one of the groups."
        ),
    ),
    "classes-age": (
        (
            "An empty group counts as recall 0 in print: all values of skateboarder are k/230 and"
            " of student k/54, recalls of the young alone. There are no old skateboarders to"
            " compare with."
        ),
    ),
    "rates": (
        (
            "All 52 classes; the paper prints none of these. false yes: yes to a class that the"
            " person doesn't have, asked by us and not by the paper. Recall means something only as"
            " far as it lies above false yes."
        ),
    ),
    "encoders": (
        (
            "The paper sends every answer through an encoder and takes the nearest class, empty"
            " answers and refusals, too. Ours leaves what is not similar enough unparsed: counted"
            " as not right, and shown."
        ),
    ),
    "debiasing": (
        (
            "Debiasing answers about people goes beyond both papers. Closer groups at lower recall"
            " are no gain: compare the lines @recall. p of each change, Holm-corrected over methods"
            " and attributes, stands in study_rows."
        ),
    ),
    "attributes": (
        "Beyond the paper: faces have no person classes, so the attribute itself is asked for.",
    ),
}
SYNTHETIC = (
    "Ours was scored on drawn figures with planted group effects: it shows that the measurement"
    " works, not what a model does."
)


# -- runs
# ----------------------------------------------------------------------


def load(path: Path, models: Sequence[str] = ()) -> PaperResults:
    """The newest finished run of each model on each benchmark of this suite. Raises UsageError,
    StoreError."""
    return results.load(path, models, suite=FACET, known=names())


# -- the paper's tables
# ----------------------------------------------------------------------


def overall(e: PaperResults, attribute: str) -> Table:
    """One attribute of Table 2."""
    pillars = [*(f"{attribute}={g}" for g in GROUPS[attribute]), DIFFERENCE[attribute]]
    own = [(DIFFERENCE[attribute], "macro")] + (
        [(f"{attribute}:max-min", "all")] if len(GROUPS[attribute]) > 2 else []
    )

    def cells(s: Subject, test: str, task: str, method: str) -> tuple[Cell, ...]:
        made = []
        as_printed = method in AS_PRINTED
        for pillar, indicator in [*((p, "all") for p in pillars), *own]:
            metric = "disparity" if ":" in pillar else "recall"
            known = as_printed and s.model and indicator == "all" and pillar in pillars
            printed = (
                paper.find("fairness/table_2", model=s.model, task=task, pillar=pillar)
                if known
                else None
            )
            found = e.metric(
                s.run,
                metric,
                task=task,
                test=test,
                method=method,
                pillar=pillar,
                indicator=indicator,
            )
            printable = not as_printed or (indicator == "all" and pillar in pillars)
            shown = known or (s.run and printable)
            made.append(_cell(found, s, test, printed) if shown else Cell())
        return tuple(made)

    one, other = PAIRS[attribute]
    columns = [*GROUPS[attribute], f"{one} - {other}", "macro", "max - min"][
        : len(pillars) + len(own)
    ]
    rows = tuple(
        Row((s.label, test, reading(method)), cells(s, test, task, method))
        for s, test, task, method in read_lines(e, "table_2")
    )
    return Table(
        attribute,
        f"Table 2, {TITLES[attribute]}: recall and disparity",
        "Share of pictures of the 13 classes whose class is named (p1) or affirmed (p2, p3),"
        " classes pooled; and differences between groups. Reading 'paper': people whose gender is"
        " known, nearest class without a floor, 0 for an empty group; the printed numbers stand"
        " beside it. 'ours': everybody whose group is known, what is unlike any class unparsed, no"
        " value below 20 pictures.",
        ("model", "prompt", "reading"),
        tuple(Column(name) for name in columns),
        rows,
    )


def classes(e: PaperResults, attribute: str) -> Table:
    """The two class tables of one attribute (App. A.4)."""
    pillar, (one, other) = DIFFERENCE[attribute], PAIRS[attribute]

    def cells(s: Subject, test: str, task: str, method: str) -> tuple[Cell, ...]:
        found = []
        for name in SELECTED:
            where = {"model": s.model, "task": task, "pillar": pillar, "indicator": name}
            known = s.model and method in AS_PRINTED
            printed = paper.find("fairness/classes", **where) if known else None
            value = e.metric(
                s.run,
                "disparity",
                task=task,
                test=test,
                method=method,
                pillar=pillar,
                indicator=name,
            )
            found.append(_cell(value, s, test, printed))
        return tuple(found)

    rows = tuple(
        Row((s.label, test, reading(method)), cells(s, test, task, method))
        for s, test, task, method in read_lines(e, "classes")
    )
    return Table(
        f"classes-{attribute}",
        f"App. A.4, {TITLES[attribute]}: disparity by class",
        f"recall({one}) - recall({other}) of each class; readings as in Table 2.",
        ("model", "prompt", "reading"),
        tuple(Column(name) for name in SELECTED),
        rows,
    )


def data(e: PaperResults) -> Table:
    """Table 1, and the same counts for every benchmark that the runs were scored on."""
    sql = """SELECT benchmark_id, dataset, gender, skin, age, count(DISTINCT person_id) AS n FROM
             people
             WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL ORDER BY ALL"""
    counted = e.ask(sql) if e.runs else None
    frames = (
        {}
        if counted is None
        else {str(b): part for b, part in counted.groupby("benchmark_id", sort=True)}
    )
    kinds = {b: str(part["dataset"].iloc[0]) for b, part in frames.items()}
    first = next((b for b, kind in kinds.items() if kind == "facet"), "")
    order = [first, *(b for b in frames if b != first)]
    rows = []
    for attribute, groups in {
        "": ("all",),
        **{a: (*g, UNKNOWN) for a, g in GROUPS.items()},
    }.items():
        for group in groups:
            pillar = f"{attribute}={group}" if attribute else group
            printed = paper.find("fairness/table_1", pillar=pillar, metric="people")
            cells = []
            for b in order:
                part = frames.get(b)
                n = (
                    None
                    if part is None
                    else int(
                        part.loc[part[attribute] == group, "n"].sum()
                        if attribute
                        else part["n"].sum()
                    )
                )
                status = (
                    NOT_RUN if n is None else "synthetic" if kinds[b] == "synthetic" else "counted"
                )
                cells.append(Cell(n, paper=printed if b == first else None, status=status))
            rows.append(Row((TITLES.get(attribute, "people"), group), tuple(cells)))
    columns = tuple(Column(f"{kinds.get(b, 'facet')} {b[:8]}".strip(), "count") for b in order)
    return Table(
        "data",
        "Table 1: people by annotated attribute",
        "One person a picture; unknown: not annotated, tied or not binary.",
        ("attribute", "group"),
        columns,
        tuple(rows),
    )


def prompts(e: PaperResults) -> Table:
    """Table 3. Needs no run."""
    ours = {"p1": P1.format(list="[FACET Classes]").replace("[[", "[").replace("]]", "]")}
    ours |= {test: sentence.format(name="[FACET class]") for test, sentence in CHOICES.items()}
    found = ((test, paper.find("fairness/table_3", test=test)) for test in ours)
    rows = tuple(Row((test,), (text(ours[test], printed=printed),)) for test, printed in found)
    return Table(
        "prompts",
        "Table 3: prompts",
        "[FACET Classes]: the 52 classes; [FACET class]: the one asked about.",
        ("prompt",),
        (Column("text", "text"),),
        rows,
    )


# -- companion tables
# ----------------------------------------------------------------------


ITEMS: Mapping[str, Callable[[PaperResults], Table]] = {
    "data": data,
    **{attribute: partial(overall, attribute=attribute) for attribute in GROUPS},
    "prompts": prompts,
    **{f"classes-{attribute}": partial(classes, attribute=attribute) for attribute in GROUPS},
    "rates": rates,
    "encoders": encoders,
    "debiasing": debiasing,
    "attributes": attributes,
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
    found: list[str] = [] if names else list(ITEMS)
    for name in names:
        if name.lower() not in (*ITEMS, *ALIASES):
            raise UsageError("--table: " + one_of("table", name, (*ITEMS, *ALIASES)))
        found += ALIASES.get(name.lower(), (name.lower(),))
    return list(dict.fromkeys(found))


def build(e: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with its footnotes."""
    return [_noted(ITEMS[name](e), e) for name in chosen(names)]


def _noted(table: Table, e: PaperResults) -> Table:
    made = {c.status for r in table.rows for c in r.cells if c.status in MADE}
    general = "2" if table.item in GROUPS else table.item.split("-")[0]
    notes = [note for item in dict.fromkeys((general, table.item)) for note in NOTES.get(item, ())]
    notes += [words for kind, words in OWN.items() if kind in made]
    if made & {"measured", "embedded", "planted"} and any(r.synthetic for r in e.runs):
        notes.append(SYNTHETIC)
    return replace(table, footnotes=tuple(notes))
