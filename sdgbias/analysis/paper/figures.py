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
            yield Row(
                (s.label, test),
                tuple(
                    cell(e.metric(s.run, "accuracy", test=test, method=v), s.status)
                    for v, _ in VIEWS
                ),
            )


def figure_4(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("figure_4"):
        for pillar in (*PILLARS, *(("all",) if s.run else ())):
            cells = [_share(e, s, pillar, d) for d in reversed(DIRECTIONS)]
            two = e.metric(
                s.run, "share_optimistic_two_option", test="T1", method="q_only", pillar=pillar
            )
            cells.append(cell(two, s.status, "not in store: no question with two options"))
            invalid = e.found(
                s.run, "directions", "answered_invalid", test="T1", method="q_only", pillar=pillar
            )
            cells.append(
                cell(
                    invalid, s.status, e.why(s.run, "directions", "no question with three options")
                )
            )
            prompts = e.metric(s.run, "distinct_prompts", test="T1", method="q_only", pillar=pillar)
            cells.append(number(prompts.value if prompts else None, s.status))
            said = s.printed("figure_4", pillar=pillar)
            cells.append(Cell(paper=said) if said else Cell())
            yield Row((s.label, pillar), tuple(cells))


def _share(e: PaperResults, s: Subject, pillar: str, direction: str) -> Cell:
    """Share of a direction; its interval counts distinct prompts."""
    metric = f"share_{direction}"
    found = e.metric(s.run, metric, test="T1", method="q_only", pillar=pillar)
    return cell(found, s.status, "not in store: no question with three options")


def figure_5(e: PaperResults) -> Iterator[Row]:
    frame = e.study("directions")
    frame = frame[(frame["metric"] == "full_minus_ctx_q") & (frame["indicator"] != "all")]
    indicators = sorted(set(zip(frame["pillar"], frame["indicator"], strict=True)))
    for s in e.subjects("figure_5"):
        for pillar, indicator in [
            ("all", "all"),
            *((p, "all") for p in PILLARS),
            *(indicators if s.run else ()),
        ]:
            cells = []
            for test in MCQ_TESTS:
                found = e.found(
                    s.run,
                    "directions",
                    "full_minus_ctx_q",
                    test=test,
                    method="full",
                    pillar=pillar,
                    indicator=indicator,
                )
                cells.append(cell(found, s.status, e.why(s.run, "directions", f"no {test}")))
            if s.run is None or indicator == "all" or any(c.made for c in cells):
                yield Row((s.label, pillar if indicator == "all" else indicator), tuple(cells))


#: How far below the best value of a curve its plateau may lie.
PLATEAU = 0.005


def _plateau(curve: Mapping[float, Estimate]) -> float:
    """The smallest x from which a curve never falls more than PLATEAU below its best value; the
    largest x of a curve that ends lower."""
    floor = max(at.value for at in curve.values()) - PLATEAU
    low = [x for x, at in curve.items() if at.value < floor]
    return min((x for x in curve if not low or x > max(low)), default=max(curve))


def figure_8(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("figure_8"):
        points = _sweeps(e, s.run)
        shown = (
            [r["test"] for r in paper.rows("figure_8") if r["model"] == s.model][:1]
            if s.model
            else []
        )
        for test in shown or sorted({test for test, _ in points}) or ["T1"]:
            for parameter in ("alpha", "lambda_kl", "beta", "tau"):
                printed = s.printed("figure_8", column=parameter)
                # of tau the text names where a plateau begins, of the others the best value
                said, flat = (None, printed) if parameter == "tau" else (printed, None)
                val, there = (
                    points.get((test, parameter), {}).get(split, {}) for split in ("val", "test")
                )
                if not val or not there:
                    empty = Cell(
                        status=(
                            NOT_RUN
                            if s.run is None
                            else e.why(s.run, "sweep", f"no sweep of {parameter} at {test}")
                        )
                    )
                    yield Row(
                        (s.label, test, parameter),
                        (
                            empty,
                            replace(empty, paper=said),
                            replace(empty, paper=flat),
                            *(empty, empty, empty),
                        ),
                    )
                    continue
                best = min(val, key=lambda x: (-val[x].value, x))
                ends = sorted(there.values(), key=lambda at: at.value)
                tuned = e.found(s.run, "sweep", "optimum", test=test, by=parameter)
                cells = (
                    cell(tuned, s.status),
                    number(best, s.status, said),
                    number(_plateau(val), s.status, flat),
                    *(cell(at, s.status) for at in (there.get(best), ends[0], ends[-1])),
                )
                yield Row((s.label, test, parameter), cells)


def _sweeps(
    e: PaperResults, run: Run | None
) -> dict[tuple[str, str], dict[str, dict[float, Estimate]]]:
    """(test, parameter) -> 'val' or 'test' -> value of the parameter -> accuracy."""
    frame = e.study("sweep")
    found: dict[tuple[str, str], dict[str, dict[float, Estimate]]] = {}
    for r in frame[
        (frame["run_id"] == (run.run_id if run else "")) & (frame["metric"] == "accuracy")
    ].to_dict("records"):
        at = Estimate(float(r["value"]), int(r["n"]), float(r["ci_low"]), float(r["ci_high"]))
        found.setdefault((str(r["test"]), str(r["by"])), {}).setdefault(str(r["method"]), {})[
            float(r["x"])
        ] = at
    return found


def claims(e: PaperResults) -> Iterator[Row]:
    for printed in paper.rows("claims"):
        regression = printed["task"] == "regression"
        for s in e.subjects("claims"):
            if s.model and s.model != printed["model"]:
                continue
            ours = (
                e.metric(s.run, "mae_change", task="regression", method="cade")
                if regression
                else test_mean(e, s.run, "accuracy_gain", "cade")
            )
            said = s.printed("claims", row=printed["row"])
            yield Row(
                (printed["row"], s.label),
                (cell(ours, s.status, NO_VAL, said), _extreme(e, s, regression)),
            )


def _extreme(e: PaperResults, s: Subject, regression: bool) -> Cell:
    """The best single test, beside the best that Table H prints for the model."""
    task, metric = ("regression", "mae_change") if regression else ("mcq", "accuracy_gain")
    found = [
        e.metric(s.run, metric, task=task, test=t.value, method="cade") for t in TESTS[Task(task)]
    ]
    known = [f for f in found if f is not None and not math.isnan(f.value)]
    best = (min if regression else max)(known, key=lambda f: f.value) if known else None
    said = [
        r
        for r in paper.rows("table_h")
        if s.model and r["model"] == s.model and r["metric"] == metric and r["test"] != "mean"
    ]
    top = max(said, key=lambda r: float(r["value"])) if said and not regression else None
    return cell(
        best,
        s.status,
        NO_VAL,
        paper.Printed(float(top["value"]), f"{top['printed']} ({top['test']})") if top else None,
    )
