"""Every study as rows: debiasing methods, controls, and the studies without a counterpart in the
paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from sdgbias.analysis.paper.accuracy import MCQ_TESTS, NO_VAL, REGRESSION_TESTS
from sdgbias.analysis.paper.cells import ROWS, Cell, Row, cell, number
from sdgbias.analysis.paper.numbered import lacks, method_accuracy
from sdgbias.analysis.paper.results import PaperResults, Run, Subject
from sdgbias.methods.stats import Estimate


def _accuracies(e: PaperResults, s: Subject, method: str, label: str) -> Row:
    """A method's accuracy by test and over all tests."""
    why = lacks(e, s.run, method)
    found = (method_accuracy(e, s.run, method, t) for t in (*MCQ_TESTS, "all"))
    return Row((s.label, label), tuple(cell(one, s.status, why) for one in found))


def controls(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects():
        for method, label in ROWS["controls"].items():
            yield _accuracies(e, s, method, label)


def _methods(e: PaperResults, run: Run | None, task: str) -> list[str]:
    """Every method of the study except controls, including those that could not run."""
    frame = e.study("methods")
    mine = frame[(frame["run_id"] == (run.run_id if run else "")) & (frame["task"] == task)]
    return [m for m in sorted(set(mine["method"])) if m not in ROWS["controls"]]


def methods(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects():
        found = _methods(e, s.run, "mcq")
        for method in ["full", *found, "cade"]:
            yield _accuracies(e, s, method, method)
        if not found:
            yield Row(
                (s.label, "every other method"),
                (Cell(status=e.why(s.run, "methods", "nothing to answer")),) * (len(MCQ_TESTS) + 1),
            )


def methods_regression(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects():
        known = _methods(e, s.run, "regression")
        for method in ["full", *known, "cade"]:
            own = method in ("full", "cade")
            cells = []
            for test, metric in product(REGRESSION_TESTS, ("mae", "interval_accuracy")):
                at = {"task": "regression", "test": test, "method": method}
                found = (
                    e.metric(s.run, metric, **at)
                    if own
                    else e.found(s.run, "methods", metric, **at)
                )
                lacks = f"no {metric} of {method}"
                why = e.why(s.run, "methods", lacks, method=method, task="regression")
                cells.append(cell(found, s.status, NO_VAL if method == "cade" else why))
            yield Row((s.label, method), tuple(cells))
        if not known:
            why = e.why(s.run, "methods", "nothing decoded", task="regression")
            cells = [Cell(status=why)] * (2 * len(REGRESSION_TESTS))
            yield Row((s.label, "every other method"), tuple(cells))


#: Studies without a table in the paper, by their stored names.
PLAIN: Sequence[str] = ROWS["studies"]
_LABELS = ("test", "method", "pillar", "by", "level", "x")


def plain(e: PaperResults, study: str) -> Iterator[Row]:
    """Every row of a study except those of single indicators, one line per number."""
    frame = e.study(study)
    names = {r.run_id: r for r in e.runs}
    for r in frame[frame["indicator"] == "all"].to_dict("records"):
        run = names[r["run_id"]]
        known = (r[name] for name in _LABELS if r[name] not in ("all", "") and r[name] == r[name])
        where = " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in known)
        p = number(float(r["p"]), run.kind) if r["p"] == r["p"] else Cell()
        value = cell(Estimate.of_row(r), run.kind, f"not in store: {r['note'] or 'no value'}")
        yield Row((run.label, str(r["task"]), str(r["metric"]), where), (value, p))
