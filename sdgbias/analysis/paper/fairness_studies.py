"""Companion tables of the fairness suite: rates, encoders, debiasing."""

from __future__ import annotations

from collections.abc import Iterator

from sdgbias.analysis.paper.cells import ROWS, Cell, Row
from sdgbias.analysis.paper.fairness_cells import (
    DIFFERENCE,
    RATES,
    TOO_FEW,
    _asked,
    _cell,
    _lines,
    measured,
    subjects,
)
from sdgbias.analysis.paper.results import PaperResults
from sdgbias.benchmark.people_items import CHOICE
from sdgbias.raw.facet import GROUPS


def rates(e: PaperResults) -> Iterator[Row]:
    """Rates of other answers, by group: recall means little for a model that says yes to
    everything."""
    groups = ["all", *(f"{a}={g}" for a in GROUPS for g in GROUPS[a]), *DIFFERENCE.values()]
    for s, test, task in _lines(e, ""):
        asked = RATES if task == CHOICE else ("recall", "unparsed_rate", "refusal_rate")
        for group in groups:
            cells, at = [], {"task": task, "pillar": group, "indicator": "all-52"}
            for metric in RATES:
                of = "disparity" if metric == "recall" and ":" in group else metric
                cells.append(measured(s, of, test, at) if metric in asked else Cell())
            blind = measured(s, "false_yes_rate", test, {**at, "method": "q_only"})
            cells.append(blind if task == CHOICE else Cell())
            yield Row((s.label, test, group), tuple(cells))


def encoders(e: PaperResults) -> Iterator[Row]:
    """The same answers read in other ways: the packaged encoder, the paper's two encoders if
    available, and the first token."""
    for s, test, task in _lines(e, ""):
        have = _asked(e, s.run) if s.run else set()
        for method, named in ROWS["readings"].items():
            if (test, method) not in have:
                continue
            where = {"task": task, "method": method}
            cells = [measured(s, "recall", test, where)]
            for pillar in DIFFERENCE.values():
                cells.append(measured(s, "disparity", test, {**where, "pillar": pillar}))
            for rate in ("unparsed_rate", "refusal_rate"):
                said = measured(s, rate, test, {**where, "indicator": "all-52"})
                cells.append(said if method != "full_argmax" else Cell())
            yield Row((s.label, test, named), tuple(cells))


def debiasing(e: PaperResults) -> Iterator[Row]:
    """The study 'fairness' of analysed runs (studies/fairness.py)."""
    study = e.study("fairness")
    whole = ("recall", "recall_change", "false_yes_rate", "accuracy_balanced")
    asked = [("all", metric) for metric in whole]
    for pillar in DIFFERENCE.values():
        asked += [(pillar, "disparity"), (pillar, "disparity_change")]
    for s in subjects(e, ""):
        part = study[study["run_id"] == (s.run.run_id if s.run else "")]
        if part.empty:
            why = e.why(s.run, "fairness", "the run has no single-choice questions")
            yield Row((s.label, "", ""), (Cell(status=why),) * len(asked))
        lines = set(zip(part["test"], part["method"], strict=True))
        for test, method in sorted(lines, key=lambda k: (k[0], k[1] != "full_argmax", k[1])):
            mine = part[(part["test"] == test) & (part["method"] == method)]
            lacking = mine.loc[mine["metric"] == "not_run", "note"]
            cells = []
            for pillar, metric in asked:
                at = {"task": CHOICE, "test": test, "method": method, "pillar": pillar}
                if len(lacking):
                    cells.append(Cell(status=f"not in store: {lacking.iloc[0]}"))
                elif method == "full_argmax" and "change" in metric:
                    cells.append(Cell())
                else:
                    found = e.found(s.run, "fairness", metric, **at)
                    small = found is None and metric.startswith("disparity")
                    cells.append(Cell(status=TOO_FEW) if small else _cell(found, s, test))
            yield Row((s.label, test, method), tuple(cells))
