"""Companion tables of the fairness suite: rates, encoders, debiasing, attributes."""

from __future__ import annotations

from sdgbias.analysis.paper.cells import Cell, Column, Row, Table
from sdgbias.analysis.paper.fairness_cells import (
    DIFFERENCE,
    NO_RUN,
    RATES,
    READINGS,
    _asked,
    _cell,
    _lines,
    subjects,
)
from sdgbias.analysis.paper.results import PaperResults, Slice
from sdgbias.benchmark.people_items import ATTRIBUTES, CHOICE
from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import GROUPS
from sdgbias.suites.facet_groups import PAIRS


def rates(e: PaperResults) -> Table:
    """Rates of other answers, by group: recall means little for a model that says yes to
    everything."""
    groups = ["all", *(f"{a}={g}" for a in GROUPS for g in GROUPS[a]), *DIFFERENCE.values()]
    rows = []
    for s, test, task in _lines(e, ""):
        asked = RATES if task == CHOICE else ("recall", "unparsed_rate", "refusal_rate")
        for group in groups:
            cells = []
            for metric in RATES:
                of = "disparity" if metric == "recall" and ":" in group else metric
                found = e.metric(s.run, of, task=task, test=test, pillar=group, indicator="all-52")
                cells.append(_cell(found, s, test) if metric in asked else Cell())
            blind = e.metric(
                s.run,
                "false_yes_rate",
                task=task,
                test=test,
                method="q_only",
                pillar=group,
                indicator="all-52",
            )
            cells.append(_cell(blind, s, test) if task == CHOICE else Cell())
            rows.append(Row((s.label, test, group), tuple(cells)))
    columns = (
        "recall",
        "no",
        "unknown",
        "unparsed",
        "refusal",
        "false yes",
        "false yes, no picture",
    )
    return Table(
        "rates",
        "What else was said, by group",
        "Shares of free answers; no and unknown: about the right class. Last column: the best "
        "first token without the picture.",
        ("model", "prompt", "group"),
        tuple(Column(c) for c in columns),
        tuple(rows),
        empty=NO_RUN,
    )


def encoders(e: PaperResults) -> Table:
    """The same answers read in other ways: the packaged encoder, the paper's two encoders if
    available, and the first token."""
    rows = []
    for s, test, task in _lines(e, ""):
        have = (
            [method for t, method in _asked(e, s.run) if t == test and method.startswith("full")]
            if s.run
            else []
        )
        for method in (m for m in READINGS if m in have):
            where = {"task": task, "test": test, "method": method}
            found = [e.metric(s.run, "recall", pillar="all", indicator="all", **where)]
            found += [
                e.metric(s.run, "disparity", pillar=pillar, indicator="all", **where)
                for pillar in DIFFERENCE.values()
            ]
            said = [
                e.metric(s.run, m, pillar="all", indicator="all-52", **where)
                for m in ("unparsed_rate", "refusal_rate")
            ]
            rates = (_cell(x, s, test) if method != "full_argmax" else Cell() for x in said)
            rows.append(
                Row(
                    (s.label, test, READINGS[method]), (*(_cell(x, s, test) for x in found), *rates)
                )
            )
    columns = (
        "recall",
        *(f"{one} - {other}" for one, other in PAIRS.values()),
        "unparsed",
        "refusal",
    )
    return Table(
        "encoders",
        "The same answers read in other ways",
        "13 classes pooled; rates over all 52. How an answer becomes a label.",
        ("model", "prompt", "answer"),
        tuple(Column(c) for c in columns),
        tuple(rows),
        empty=NO_RUN,
    )


def debiasing(e: PaperResults) -> Table:
    """The study 'fairness' of analysed runs (studies/fairness.py)."""
    study, rows = e.study("fairness"), []
    whole = ("recall", "recall_change", "false_yes_rate", "accuracy_balanced")
    for s in subjects(e, ""):
        part = study[study["run_id"] == (s.run.run_id if s.run else "")]
        if part.empty:
            why = e.why(s.run, "fairness", "the run has no single-choice questions")
            rows.append(
                Row(
                    (s.label, "", ""),
                    tuple(Cell(status=why) for _ in range(len(whole) + 2 * len(DIFFERENCE))),
                )
            )
        for test, method in sorted(
            set(zip(part["test"], part["method"], strict=True)),
            key=lambda k: (k[0], k[1] != "full_argmax", k[1]),
        ):
            lacking = part[
                (part["test"] == test) & (part["method"] == method) & (part["metric"] == "not_run")
            ]
            asked = [("all", metric) for metric in whole]
            asked += [
                (pillar, metric)
                for pillar in DIFFERENCE.values()
                for metric in ("disparity", "disparity_change")
            ]
            cells = []
            for pillar, metric in asked:
                found = e.found(
                    s.run,
                    "fairness",
                    metric,
                    Slice(task=CHOICE, test=test, method=method, pillar=pillar),
                )
                if len(lacking):
                    cells.append(Cell(status=f"not in store: {lacking['note'].iloc[0]}"))
                else:
                    cells.append(
                        _cell(found, s, test)
                        if method != "full_argmax" or "change" not in metric
                        else Cell()
                    )
            rows.append(Row((s.label, test, method), tuple(cells)))
    columns = ["recall", "change", "false yes", "balanced acc."]
    for one, other in PAIRS.values():
        columns += [f"{one} - {other}", "its change"]
    return Table(
        "debiasing",
        "Debiased answers about people",
        "First token, test pictures of the 13 classes. A change of a disparity is of its size:"
        " below 0 the groups lie closer. @recall: the same method with as many yes as without"
        " debiasing.",
        ("model", "prompt", "method"),
        tuple(Column(c) for c in columns),
        tuple(rows),
        empty=NO_RUN,
    )


def attributes(e: PaperResults) -> Table:
    """FairFace, UTKFace: recall of the prompted attribute, and the gap between groups."""
    rows = []
    for s in subjects(e, ""):
        sql = """SELECT test, pillar, indicator, value, n, ci_low, ci_high FROM metric_rows WHERE
                 run_id = $run AND method = 'full'
                 AND metric IN ('recall', 'disparity') AND list_contains($tests, test)
                 ORDER BY test, indicator <> 'all', metric <> 'recall', pillar <> 'all', pillar,
                 indicator"""
        found = e.ask(sql, run=s.run.run_id if s.run else "", tests=list(ATTRIBUTES))
        for test, pillar, name, value, n, low, high in found.itertuples(index=False, name=None):
            group = f"of those who are {name}" if name != "all" else pillar
            rows.append(
                Row((s.label, test, group), (_cell(Estimate(value, int(n), low, high), s, test),))
            )
    return Table(
        "attributes",
        "Faces: recall of the attribute asked for",
        "Share of pictures whose annotated attribute is named; with a colon: differences.",
        ("model", "asked", "group"),
        (Column("recall"),),
        tuple(rows),
        empty="No run on pictures of faces in the results file.",
    )
