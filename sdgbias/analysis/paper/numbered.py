"""Tables 1 to 3 and J: results of the studies of `sdgbias analyse` beside the paper."""

from __future__ import annotations

import math

from sdgbias.analysis.paper.accuracy import MCQ_TESTS, NO_VAL, test_mean
from sdgbias.analysis.paper.cells import Cell, Column, Row, Table, cell
from sdgbias.analysis.paper.results import PaperResults, Run, Slice
from sdgbias.methods.stats import Estimate

VIEWS = (("q_only", "Q-only"), ("ctx_q", "CTX+Q"), ("img_q", "IMG+Q"), ("full", "Full"))
DIRECTIONS = ("optimistic", "conservative", "pessimistic")


def method_accuracy(e: PaperResults, run: Run | None, method: str, test: str) -> Estimate | None:
    """Accuracy of a view, of CADE, or of a debiasing method or control of the study 'methods'."""
    if method in {v for v, _ in VIEWS} | {"cade"}:
        return e.metric(run, "accuracy", test=test, method=method)
    return e.found(run, "methods", "accuracy", Slice(test=test, method=method))


def table_1(e: PaperResults) -> Table:
    columns = {"full": "Original", "post_hoc": "Post-Hoc", "vdd": "VDD", "cade": "Ours"}
    rows = []
    for s in e.subjects("table_1"):
        for test, label in (("all", "T1-T5"), ("T1", "T1")) if s.run else (("all", "T1-T5"),):
            cells = []
            for method in columns:
                why = (
                    NO_VAL
                    if method == "cade"
                    else e.why(s.run, "methods", f"no {method}", method=method)
                )
                printed = s.printed("table_1", method=method) if test == "all" else None
                cells.append(cell(method_accuracy(e, s.run, method, test), s.status, why, printed))
            rows.append(Row((s.label, label), tuple(cells)))
    return Table(
        "1",
        "Table 1: CADE and other debiasing methods",
        "Multiple-choice accuracy on the test split. Post-Hoc and VDD with the settings of "
        "their own code, contrast CTX+Q; all other methods: `methods`.",
        ("model", "tests"),
        tuple(Column(c) for c in columns.values()),
        tuple(rows),
    )


STEPS = (
    ("full", "Baseline"),
    ("+alpha", "+ context penalty"),
    ("+lambda", "+ adaptive disagreement"),
    ("+beta", "+ prior penalty"),
    ("+tau", "+ confidence gate (Ours)"),
)


def table_2(e: PaperResults) -> Table:
    rows = []
    for s in e.subjects("table_2"):
        for step, label in STEPS:
            cells = []
            for mode in ("retuned", "zeroed"):
                found = e.found(
                    s.run,
                    "ablation",
                    "accuracy",
                    Slice(test="T1", method=step, by="mode", level=mode),
                )
                if found is None and step == "full":
                    found = e.metric(s.run, "accuracy", test="T1")
                why = e.why(s.run, "ablation", f"no {step} {mode}")
                cells.append(
                    cell(found, s.status, why, s.printed("table_2", method=step, metric="accuracy"))
                )
                if step == "full":
                    cells.append(Cell())
                    continue
                gain = e.found(
                    s.run,
                    "ablation",
                    "step_gain",
                    Slice(test="T1", method=step, by="mode", level=mode),
                )
                cells.append(
                    cell(gain, s.status, why, s.printed("table_2", method=step, metric="step_gain"))
                )
            rows.append(Row((s.label, label), tuple(cells)))
    columns = (Column("retuned"), Column("step"), Column("zeroed"), Column("step, zeroed"))
    return Table(
        "2",
        "Table 2: CADE part by part, T1",
        "Accuracy on the test split. Retuned: each step is searched again with the parts it has;"
        " zeroed: the final parameters with the parts still missing set to zero. Step: what the"
        " part adds, paired by question. Every step but the first uses the Full + IMG+Q stream.",
        ("model", "variant"),
        columns,
        tuple(rows),
    )


STREAMS = (
    ("img", "js", "JS Img."),
    ("full", "js", "JS Full"),
    ("full+img", "js", "JS both"),
    ("img", "kl", "KL Img."),
    ("full", "kl", "KL Full"),
    ("full+img", "kl", "KL both"),
)


def table_3(e: PaperResults) -> Table:
    rows = []
    for s in e.subjects("table_3"):
        for test in ("T1-T5", "T1") if s.run else ("T1-T5",):
            cells = []
            for stream, divergence, method in (
                ("", "", "full"),
                *((x, d, f"{x}/{d}") for x, d, _ in STREAMS),
            ):
                printed = s.printed("table_3", method=method) if test == "T1-T5" else None
                why = e.why(s.run, "streams", f"no {method}") if stream else ""
                cells.append(
                    cell(_stream(e, s.run, test, stream, divergence), s.status, why, printed)
                )
            rows.append(Row((s.label, test), tuple(cells)))
    columns = (Column("Original"), *(Column(name) for _, _, name in STREAMS))
    return Table(
        "3",
        "Table 3: image stream and divergence",
        "Accuracy of CADE with the image stream made of IMG+Q (Img.), Full or both, and KL or JS in"
        " Eq. 7, parameters tuned again for each. T1-T5: mean of the tests, without an interval.",
        ("model", "tests"),
        columns,
        tuple(rows),
    )


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
        return Estimate(
            sum(at.value for at in known) / len(known),
            sum(at.n for at in known),
            math.nan,
            math.nan,
        )
    if not stream:
        return e.metric(run, "accuracy", test=test)
    return e.found(
        run,
        "streams",
        "accuracy",
        Slice(test=test, method=stream, by="divergence", level=divergence),
    )


PERTURBATIONS = (
    ("original", "Original A/B/C"),
    ("reversed", "Reverse order C/B/A"),
    ("random", "Random order"),
    ("abc", "Lowercase a/b/c"),
    ("123", "Numeric 1/2/3"),
)


def table_j(e: PaperResults) -> Table:
    rows = []
    for s in e.subjects("table_j"):
        for level, label in PERTURBATIONS:
            cells = []
            for direction in DIRECTIONS:
                metric = f"share_{direction}"
                found = e.found(
                    s.run,
                    "perturbation",
                    metric,
                    Slice(test="T1", method="q_only", by="order", level=level),
                )
                why = e.why(s.run, "perturbation", "this pass was not scored")
                cells.append(
                    cell(found, s.status, why, s.printed("table_j", method=level, metric=metric))
                )
            rows.append(Row((s.label, label), tuple(cells)))
    return Table(
        "J",
        "Table J: other orders and letters, Q-only (%)",
        "Direction of Q-only answers to test questions with three options, mapped back to what the"
        " options say, all pillars pooled. Q-only prompts hold nothing of the place: see `fig4` for"
        " how few they are.",
        ("model", "options"),
        tuple(Column(d, "percent") for d in DIRECTIONS),
        tuple(rows),
    )
