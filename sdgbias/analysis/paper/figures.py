"""The paper's figures as tables, one function per figure, and the claims of its text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.accuracy import MCQ_TESTS, NO_VAL, test_mean
from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Row, cell, number
from sdgbias.analysis.paper.numbered import DIRECTIONS, VIEWS
from sdgbias.analysis.paper.results import PaperResults, Run, Subject
from sdgbias.methods.stats import Estimate
from sdgbias.types import PILLARS, TESTS, Task


def figure_3(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("figure_3"):
        for test in ("T1", "T5") if s.run else ("T1",):
            cells = (s.metric("accuracy", test=test, method=s.read_as(v)) for v in VIEWS)
            yield Row((s.label, test), tuple(cells))


def figure_4(e: PaperResults) -> Iterator[Row]:
    """Shares of directions; their intervals count distinct prompts. Of a run that was asked its
    questions in several wordings, every wording counts (study 'wordings')."""
    lacks = "no question with three options"
    worded = {*e.study("wordings").query("metric != 'not_run'")["run_id"]}
    for s in e.subjects("figure_4"):
        for pillar in (*PILLARS, *(("all",) if s.run else ())):
            at = {"test": "T1", "method": "q_only", "pillar": pillar}
            reworded = s.run is not None and s.run.run_id in worded
            cells = [
                s.study("wordings", f"share_{d}", lacks, **at)
                if reworded
                else s.metric(f"share_{d}", f"not in store: {lacks}", **at)
                for d in reversed(DIRECTIONS)
            ]
            two = "not in store: no question with two options"
            cells.append(s.metric("share_optimistic_two_option", two, **at))
            cells.append(s.study("directions", "answered_invalid", lacks, **at))
            prompts = (
                e.found(s.run, "wordings", "distinct_prompts", **at)
                if reworded
                else e.metric(s.run, "distinct_prompts", **at)
            )
            cells.append(number(prompts.value if prompts else None, s.status))
            said = s.printed("figure_4", pillar=pillar)
            cells.append(Cell(paper=said) if said else Cell())
            yield Row((s.label, pillar), tuple(cells))


def figure_5(e: PaperResults) -> Iterator[Row]:
    frame = e.study("directions")
    frame = frame[(frame["metric"] == "full_minus_ctx_q") & (frame["indicator"] != "all")]
    indicators = sorted(set(zip(frame["pillar"], frame["indicator"], strict=True)))
    for s in e.subjects("figure_5"):
        whole = [("all", "all"), *((p, "all") for p in PILLARS)]
        for pillar, indicator in [*whole, *(indicators if s.run else ())]:
            at = {"method": "full", "pillar": pillar, "indicator": indicator}
            cells = tuple(
                s.study("directions", "full_minus_ctx_q", f"no {test}", test=test, **at)
                for test in MCQ_TESTS
            )
            if s.run is None or indicator == "all" or any(c.made for c in cells):
                yield Row((s.label, pillar if indicator == "all" else indicator), cells)


#: How far below the best value of a curve its plateau may lie.
PLATEAU = 0.005
NO_PLATEAU = "not in store: none: the curve falls again before the end of the range"


def _plateau(curve: Mapping[float, Estimate]) -> float | None:
    """The smallest x from which a curve never falls more than PLATEAU below its best value; None
    where fewer than two points do so."""
    floor = max(at.value for at in curve.values()) - PLATEAU
    low = [x for x, at in curve.items() if at.value < floor]
    flat = [x for x in curve if not low or x > max(low)]
    return min(flat) if len(flat) > 1 else None


def figure_8(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("figure_8"):
        points = _sweeps(e, s.run)
        drawn = paper.rows("figure_8") if s.model else ()
        shown = [r["test"] for r in drawn if r["model"] == s.model][:1]
        for test in shown or sorted({test for test, _ in points}) or ["T1"]:
            for parameter in ("alpha", "lambda_kl", "beta", "tau"):
                printed = s.printed("figure_8", column=parameter)
                # of tau the text names where a plateau begins, of the others the best value
                said, flat = (None, printed) if parameter == "tau" else (printed, None)
                curves = points.get((test, parameter), {})
                val, there = (curves.get(split, {}) for split in ("val", "test"))
                if not val or not there:
                    lacks = e.why(s.run, "sweep", f"no sweep of {parameter} at {test}")
                    empty = Cell(status=NOT_RUN if s.run is None else lacks)
                    told = (empty, replace(empty, paper=said), replace(empty, paper=flat))
                    yield Row((s.label, test, parameter), (*told, empty, empty, empty))
                    continue
                best = min(val, key=lambda x: (-val[x].value, x))
                ends = sorted(there.values(), key=lambda at: at.value)
                tuned = e.found(s.run, "sweep", "optimum", test=test, by=parameter)
                cells = (
                    cell(tuned, s.status),
                    number(best, s.status, said),
                    number(_plateau(val), s.status, flat, why=NO_PLATEAU),
                    *(cell(at, s.status) for at in (there.get(best), ends[0], ends[-1])),
                )
                yield Row((s.label, test, parameter), cells)


def _sweeps(
    e: PaperResults, run: Run | None
) -> dict[tuple[str, str], dict[str, dict[float, Estimate]]]:
    """(test, parameter) -> 'val' or 'test' -> value of the parameter -> accuracy."""
    frame = e.study("sweep")
    found: dict[tuple[str, str], dict[str, dict[float, Estimate]]] = {}
    mine = (frame["run_id"] == (run.run_id if run else "")) & (frame["metric"] == "accuracy")
    for r in frame[mine].to_dict("records"):
        curves = found.setdefault((str(r["test"]), str(r["by"])), {})
        curves.setdefault(str(r["method"]), {})[float(r["x"])] = Estimate.of_row(r)
    return found


def claims(e: PaperResults) -> Iterator[Row]:
    for printed in paper.rows("claims"):
        regression = printed["task"] == "regression"
        for s in e.subjects("claims"):
            if s.model and s.model != printed["model"]:
                continue
            if regression:
                ours = e.metric(s.run, "mae_change", task="regression", method="cade")
            else:
                ours = test_mean(e, s.run, "accuracy_gain", "cade")
            said = s.printed("claims", row=printed["row"])
            mean = cell(ours, s.status, NO_VAL, said)
            yield Row((printed["row"], s.label), (mean, _extreme(e, s, regression)))


def _extreme(e: PaperResults, s: Subject, regression: bool) -> Cell:
    """The best single test, beside the best that Table H prints for the model."""
    task, metric = ("regression", "mae_change") if regression else ("mcq", "accuracy_gain")
    at = {"task": task, "method": "cade"}
    found = [e.metric(s.run, metric, test=t.value, **at) for t in TESTS[Task(task)]]
    known = [f for f in found if f is not None and not math.isnan(f.value)]
    best = (min if regression else max)(known, key=lambda f: f.value) if known else None
    rows = [r for r in paper.rows("table_h") if s.model and r["model"] == s.model]
    said = [r for r in rows if r["metric"] == metric and r["test"] != "mean"]
    if regression or not said:
        return cell(best, s.status, NO_VAL)
    top = max(said, key=lambda r: float(r["value"]))
    printed = paper.Printed(float(top["value"]), f"{top['printed']} ({top['test']})")
    return cell(best, s.status, NO_VAL, printed)
