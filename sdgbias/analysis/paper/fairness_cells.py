"""Shared by the tables of the fairness suite: rows, cells, and the labels of comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_RUN, ROWS, Cell
from sdgbias.analysis.paper.printed import Printed
from sdgbias.analysis.paper.results import PaperResults, Run, Subject
from sdgbias.benchmark.people_items import CHOICE, DIRECT
from sdgbias.methods.stats import SMALLEST, Estimate
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.suites.rows import FEWER

TASKS = {"p1": DIRECT, "p2": CHOICE, "p3": CHOICE}


EITHER = "p2 or p3"


DIFFERENCE = {attribute: f"{attribute}:{one}-{other}" for attribute, (one, other) in PAIRS.items()}


TOO_FEW = f"not in store: a group of fewer than {SMALLEST} pictures has no value"


#: Methods that read the answers as the paper did, and how a table names the reading.
AS_PRINTED: Mapping[str, str] = ROWS["as_printed"]


RATES = ("recall", "no_rate", "unknown_rate", "unparsed_rate", "refusal_rate", "false_yes_rate")


def names() -> dict[str, str]:
    """Key of each of the paper's models (its registry name if it has one) -> its name, in the
    paper's order."""
    return {r["model"]: r["name"] for r in paper.rows("fairness/models")}


def datasets(e: PaperResults) -> dict[str, str]:
    """benchmark_id -> dataset, for the benchmarks that the runs were scored on."""
    frame = e.ask(
        "SELECT DISTINCT benchmark_id, dataset FROM people WHERE list_contains($benchmarks,"
        " benchmark_id) ORDER BY ALL"
    )
    return {str(b): str(d) for b, d in frame.itertuples(index=False, name=None)}


def subjects(e: PaperResults, item: str) -> list[Subject]:
    """The paper's models of an item in its order, then every other run. A run stands for a model of
    the paper only if it is measured: on FACET if there is such a run, else on drawn people (a
    footnote reports this). If runs cover several benchmarks, each line names its benchmark."""
    data = datasets(e)
    ranked = sorted(e.runs, key=lambda r: data.get(r.benchmark_id) == "facet")
    measured = {r.model: r for r in ranked if r.kind == "measured"}
    models = paper.models(f"fairness/{item}") if item else ()
    shown = [m for m in models if not e.chosen or m in e.chosen]
    kinds = [data.get(b, "") for b in {r.benchmark_id for r in e.runs}]

    def on(run: Run) -> str:
        kind = data.get(run.benchmark_id, "")
        which = f" {run.benchmark_id[:8]}" if kinds.count(kind) > 1 else ""
        return f" on {kind or 'people'}{which}" if len(kinds) > 1 else ""

    found = []
    for m in shown:
        run = measured.get(m)
        label = f"{names()[m]}{on(run)} (measured)" if run else f"{names()[m]} ({NOT_RUN})"
        found.append(Subject(e, label, run, m))
    taken = {s.run.run_id for s in found if s.run}
    for r in e.runs:
        if r.run_id not in taken:
            name = names().get(r.model, r.model) if r.kind == "measured" else r.model
            found.append(Subject(e, f"{name}{on(r)} ({r.kind})", r))
    return found


def _asked(e: PaperResults, run: Run) -> set[tuple[str, str]]:
    """(test, method) pairs that the run has."""
    frame = e.ask(
        "SELECT DISTINCT test, method FROM metric_rows WHERE run_id = $run", run=run.run_id
    )
    return set(frame.itertuples(index=False, name=None))


def reading(method: str) -> str:
    """How a table names the reading of a line."""
    return AS_PRINTED.get(method, "ours")


def _cell(found: Estimate | None, s: Subject, test: str, printed: Printed | None = None) -> Cell:
    if s.run is None:
        return Cell(paper=printed, status=NOT_RUN)
    if found is None:
        return Cell(paper=printed, status=f"not in store: this run has no such number of {test}")
    if math.isnan(found.value):
        return Cell(n=found.n, paper=printed, status=TOO_FEW)
    return Cell(found.value, found.n, found.low, found.high, printed, s.status)


def measured(
    s: Subject, metric: str, test: str, part: Mapping[str, str], printed: Printed | None = None
) -> Cell:
    """A cell of the headline metrics (`PaperResults.metric`) of a prompt."""
    found = s.of.metric(s.run, metric, test=test, **part)
    why = "" if s.run is None else s.of.missing_reason(s.run, metric, test=test, **part)
    if found is not None and why not in ("", FEWER):
        return Cell(n=found.n, paper=printed, status=f"not in store: {why}")
    return _cell(found, s, test, printed)


def _lines(e: PaperResults, item: str) -> list[tuple[Subject, str, str]]:
    """(subject, prompt, task) of each table line. A model that was not run has one line per
    single-choice prompt; prompts that neither the run nor the paper has are left out."""
    found = []
    for s in subjects(e, item):
        printed = {
            r["task"]
            for r in (paper.rows(f"fairness/{item}") if s.model else ())
            if r["model"] == s.model and r["value"]
        }
        have = {test for test, _ in _asked(e, s.run)} if s.run else set()
        tasks = TASKS if s.run else {"p1": DIRECT, EITHER: CHOICE}
        there = [test for test, task in tasks.items() if test in have or task in printed]
        found += [(s, test, tasks[test]) for test in there]
    return found


def read_lines(e: PaperResults, item: str) -> list[tuple[Subject, str, str, str]]:
    """(subject, prompt, task, method) of each line of a printed table: our reading of a model's
    answers, then the paper's, which the printed numbers stand beside."""
    found: list[tuple[Subject, str, str, str]] = []
    for s, test, task in _lines(e, item):
        asked = set() if s.run is None else _asked(e, s.run)
        ours = [] if s.run is None else ["full"]
        read = [m for m in AS_PRINTED if (test, m) in asked] or ["full:paper"]
        found += [(s, test, task, method) for method in (*ours, *read)]
    return found
