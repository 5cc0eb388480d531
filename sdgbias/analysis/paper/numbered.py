"""Tables 1 to 3 and J: results of the studies of `sdgbias analyse` beside the paper."""

from __future__ import annotations

from collections.abc import Iterator

from sdgbias.analysis.paper.accuracy import MCQ_TESTS, NO_VAL, test_mean
from sdgbias.analysis.paper.cells import ROWS, Cell, Row, cell
from sdgbias.analysis.paper.results import PaperResults, Run
from sdgbias.methods.stats import Estimate
from sdgbias.types import GENERATED

VIEWS: dict[str, str] = ROWS["views"]
DIRECTIONS = ("optimistic", "conservative", "pessimistic")


def method_accuracy(e: PaperResults, run: Run | None, method: str, test: str) -> Estimate | None:
    """Accuracy of a view, of CADE, or of a debiasing method or control of the study 'methods'."""
    if method in {*VIEWS, "cade"} or method.endswith(GENERATED):
        return e.metric(run, "accuracy", test=test, method=method)
    return e.found(run, "methods", "accuracy", test=test, method=method)


def lacks(e: PaperResults, run: Run | None, method: str) -> str:
    """Why a run has no accuracy of a method."""
    if method.endswith(GENERATED):
        return "not in store: nothing was generated at this test (sdgbias evaluate --generated all)"
    return NO_VAL if method == "cade" else e.why(run, "methods", f"no {method}", method=method)


def table_1(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("table_1"):
        for test, label in (("all", "T1-T5"), ("T1", "T1")) if s.run else (("all", "T1-T5"),):
            cells = []
            for method in ("full", "post_hoc", "vdd", "cade"):
                why = lacks(e, s.run, method)
                printed = s.printed("table_1", method=method) if test == "all" else None
                cells.append(cell(method_accuracy(e, s.run, method, test), s.status, why, printed))
            yield Row((s.label, label), tuple(cells))


def table_2(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("table_2"):
        for step, label in ROWS["steps"].items():
            accuracy, gain = (
                s.printed("table_2", method=step, metric=m) for m in ("accuracy", "step_gain")
            )
            cells = []
            for mode in ("retuned", "zeroed"):
                at = {"test": "T1", "method": step, "by": "mode", "level": mode}
                lacks = f"no {step} {mode}"
                found = s.study("ablation", "accuracy", lacks, accuracy, **at)
                if step == "full":
                    plain = s.metric("accuracy", found.status, accuracy, test="T1")
                    cells += [found if found.made else plain, Cell()]
                else:
                    cells += [found, s.study("ablation", "step_gain", lacks, gain, **at)]
            yield Row((s.label, label), tuple(cells))


STREAMS = tuple(
    (stream, divergence) for divergence in ("js", "kl") for stream in ("img", "full", "full+img")
)


def table_3(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("table_3"):
        for test in ("T1-T5", "T1") if s.run else ("T1-T5",):
            cells = []
            for stream, divergence, method in (
                ("", "", "full"),
                *((x, d, f"{x}/{d}") for x, d in STREAMS),
            ):
                printed = s.printed("table_3", method=method) if test == "T1-T5" else None
                why = e.why(s.run, "streams", f"no {method}") if stream else ""
                cells.append(
                    cell(_stream(e, s.run, test, stream, divergence), s.status, why, printed)
                )
            yield Row((s.label, test), tuple(cells))


def _stream(
    e: PaperResults, run: Run | None, test: str, stream: str, divergence: str
) -> Estimate | None:
    """Accuracy of one variant (the Full view if there is no stream) under one test, or the mean
    over T1 to T5."""
    if test == "T1-T5" and not stream:
        return test_mean(e, run, "accuracy", "full")
    if test == "T1-T5":
        each = [_stream(e, run, t, stream, divergence) for t in MCQ_TESTS]
        known = [at for at in each if at is not None]
        if len(known) < len(each):
            return None
        return Estimate(sum(at.value for at in known) / len(known), sum(at.n for at in known))
    if not stream:
        return e.metric(run, "accuracy", test=test)
    return e.found(
        run, "streams", "accuracy", test=test, method=stream, by="divergence", level=divergence
    )


def table_j(e: PaperResults) -> Iterator[Row]:
    for s in e.subjects("table_j"):
        for level, label in ROWS["orders"].items():
            at = {"test": "T1", "method": "q_only", "by": "order", "level": level}
            cells = []
            for metric in (f"share_{direction}" for direction in DIRECTIONS):
                printed = s.printed("table_j", method=level, metric=metric)
                cells.append(
                    s.study("perturbation", metric, "this pass was not scored", printed, **at)
                )
            yield Row((s.label, label), tuple(cells))
