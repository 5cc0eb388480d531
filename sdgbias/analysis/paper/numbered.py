"""Tables 1 to 3, J, K, L and Figures 3, 4, 5, 8: what the studies of `sdgbias analyse` found,
beside the paper."""

from __future__ import annotations

import math
from dataclasses import replace

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.accuracy import MCQ_TESTS, NO_VAL, test_mean
from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Column, Row, Table, cell, number
from sdgbias.analysis.paper.results import Evidence, Run, Subject
from sdgbias.methods.stats import Estimate
from sdgbias.types import PILLARS, TESTS, Task

VIEWS = (("q_only", "Q-only"), ("ctx_q", "CTX+Q"), ("img_q", "IMG+Q"), ("full", "Full"))
UNTIMED = "not in store: passes are not timed one by one"
DIRECTIONS = ("optimistic", "conservative", "pessimistic")


def method_accuracy(e: Evidence, run: Run | None, method: str, test: str) -> Estimate | None:
    """Accuracy of a view, of CADE, or of a debiasing method or control of the study 'methods'."""
    if method in {v for v, _ in VIEWS} | {"cade"}:
        return e.metric(run, "accuracy", test=test, method=method)
    return e.found(run, "methods", "accuracy", test=test, method=method)


def table_1(e: Evidence) -> Table:
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


def table_2(e: Evidence) -> Table:
    rows = []
    for s in e.subjects("table_2"):
        for step, label in STEPS:
            cells = []
            for mode in ("retuned", "zeroed"):
                found = e.found(
                    s.run, "ablation", "accuracy", test="T1", method=step, by="mode", level=mode
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
                    s.run, "ablation", "step_gain", test="T1", method=step, by="mode", level=mode
                )
                cells.append(
                    cell(gain, s.status, why, s.printed("table_2", method=step, metric="step_gain"))
                )
            rows.append(Row((s.label, label), tuple(cells)))
    columns = (Column("retuned"), Column("step"), Column("zeroed"), Column("step, zeroed"))
    return Table(
        "2",
        "Table 2: CADE part by part, T1",
        "Accuracy on the test split. Retuned: each step is searched anew with the parts it has;"
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


def table_3(e: Evidence) -> Table:
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
        " Eq. 7, parameters tuned anew for each. T1-T5: mean of the tests, without an interval.",
        ("model", "tests"),
        columns,
        tuple(rows),
    )


def _stream(
    e: Evidence, run: Run | None, test: str, stream: str, divergence: str
) -> Estimate | None:
    """Accuracy of one variant (of the Full view without a stream) under one test, or the mean over
    T1 to T5."""
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
        run, "streams", "accuracy", test=test, method=stream, by="divergence", level=divergence
    )


PERTURBATIONS = (
    ("original", "Original A/B/C"),
    ("reversed", "Reverse order C/B/A"),
    ("random", "Random order"),
    ("abc", "Lowercase a/b/c"),
    ("123", "Numeric 1/2/3"),
)


def table_j(e: Evidence) -> Table:
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
                    test="T1",
                    method="q_only",
                    by="order",
                    level=level,
                )
                why = e.why(s.run, "perturbation", "this pass was not asked")
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


def table_k(e: Evidence) -> Table:
    rows = [
        Row(
            ("not stated", r["row"]),
            tuple(
                Cell(paper=paper.find("table_k", method=r["method"], metric=m), status=NOT_RUN)
                for m in ("seconds_per_question", "relative_cost")
            ),
        )
        for r in paper.rows("table_k")
        if r["metric"] == "relative_cost"
    ]
    asked = e.ask(
        """SELECT run_id, count(*) AS n FROM (SELECT DISTINCT run_id, task, item_id, test FROM
           scores
                     WHERE list_contains($runs, run_id)) GROUP BY run_id"""
    ).set_index("run_id")["n"]
    for s in e.subjects():
        if s.run is None:
            continue
        untimed = Cell(status=UNTIMED)
        rows.append(Row((s.label, "Full inference"), (untimed, untimed)))
        seconds = (s.run.config.get("engine") or {}).get("seconds")
        cached, planned = (
            int(s.run.record["n_cached"] or 0),
            int(s.run.record["n_prompts_planned"] or 0),
        )
        n = int(asked.get(s.run.run_id, 0))
        if cached:
            four = Cell(
                status=f"not in store: {cached:,} of {planned:,} prompts came from the cache"
            )
        elif not seconds or not n:
            four = Cell(status="not in store: the engine's seconds are missing")
        else:
            four = number(float(seconds) / n, s.status, n=n)
        rows.append(Row((s.label, "CADE (four views)"), (four, untimed)))
    return Table(
        "K",
        "Table K: seconds per question",
        "Ours: seconds of the engine over the questions asked (items x tests), all four views,"
        " prompts that several questions share scored once, numbers of regression decoded. The"
        " paper: A100, every pass of a question.",
        ("model", "method"),
        (Column("s / question", "number"), Column("relative", "number")),
        tuple(rows),
    )


def table_l(e: Evidence) -> Table:
    rows = [
        Row(
            ("not stated", r["row"]),
            (Cell(paper=paper.find("table_l", method=r["method"]), status=NOT_RUN), Cell()),
        )
        for r in paper.rows("table_l")
    ]
    found = e.ask(
        """SELECT run_id, "view", sum(n_tokens) AS tokens, count(*) AS n FROM scores WHERE
           list_contains($runs, run_id)
                     AND "view" IN ('q_only', 'ctx_q', 'img_q', 'full') AND n_tokens IS NOT NULL
                     GROUP BY ALL"""
    )
    tokens = {
        (str(r["run_id"]), str(r["view"])): (float(r["tokens"]), int(r["n"]))
        for r in found.to_dict("records")
    }
    for s in e.subjects():
        if s.run is None:
            continue
        total = sum(tokens.get((s.run.run_id, view), (0.0, 0))[0] for view, _ in VIEWS)
        for view, label in reversed(VIEWS):
            mine, n = tokens.get((s.run.run_id, view), (math.nan, 0))
            share = number(
                mine / total if total else None,
                s.status,
                n=n,
                why="not in store: prompt lengths are missing",
            )
            rows.append(Row((s.label, label), (Cell(status=UNTIMED), share)))
    return Table(
        "L",
        "Table L: runtime by view",
        "Share of the runtime of CADE's four passes. Ours: not timed; beside it the share of prompt"
        " tokens, image tokens included, every cell asked on its own. Tokens are no seconds.",
        ("model", "view"),
        (Column("runtime", "percent"), Column("prompt tokens", "percent")),
        tuple(rows),
    )


def figure_3(e: Evidence) -> Table:
    rows = []
    for s in e.subjects("figure_3"):
        for test in ("T1", "T5") if s.run else ("T1",):
            rows.append(
                Row(
                    (s.label, test),
                    tuple(
                        cell(e.metric(s.run, "accuracy", test=test, method=v), s.status)
                        for v, _ in VIEWS
                    ),
                )
            )
    return Table(
        "fig3",
        "Figure 3: accuracy by view",
        "Multiple-choice accuracy on the test split. At T5 IMG+Q and Full are one prompt, and so"
        " are Q-only and CTX+Q.",
        ("model", "test"),
        tuple(Column(name) for _, name in VIEWS),
        tuple(rows),
    )


def figure_4(e: Evidence) -> Table:
    rows = []
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
            rows.append(Row((s.label, pillar), tuple(cells)))
    columns = (
        *(Column(d, "percent") for d in reversed(DIRECTIONS)),
        Column("2 options: optim.", "percent"),
        Column("invalid", "percent"),
        Column("prompts", "count"),
        Column("the text says", "text"),
    )
    return Table(
        "fig4",
        "Figure 4: which way Q-only answers go (%)",
        "Best candidate of the Q-only view on test questions with three options; with two options"
        " there is no middle. Invalid: the most likely first token was no letter of the question."
        " Prompts: how many different ones the shares rest on, which is what the intervals count;"
        " below five there is none.",
        ("model", "pillar"),
        columns,
        tuple(rows),
    )


def _share(e: Evidence, s: Subject, pillar: str, direction: str) -> Cell:
    """Share of a direction; its interval counts distinct prompts."""
    metric = f"share_{direction}"
    found = e.metric(s.run, metric, test="T1", method="q_only", pillar=pillar)
    return cell(found, s.status, "not in store: no question with three options")


def figure_5(e: Evidence) -> Table:
    frame = e.study("directions")
    frame = frame[(frame["metric"] == "full_minus_ctx_q") & (frame["indicator"] != "all")]
    indicators = sorted(set(zip(frame["pillar"], frame["indicator"], strict=True)))
    rows = []
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
                rows.append(
                    Row((s.label, pillar if indicator == "all" else indicator), tuple(cells))
                )
    return Table(
        "fig5",
        "Figure 5: what the image adds to the context",
        "Acc(Full) - Acc(CTX+Q), paired by question, test split. The figure shows T1; at T5 "
        "there is no context.",
        ("model", "pillar or indicator"),
        tuple(Column(t) for t in MCQ_TESTS),
        tuple(rows),
    )


def figure_8(e: Evidence) -> Table:
    rows = []
    for s in e.subjects("figure_8"):
        points = _sweeps(e, s.run)
        shown = (
            [r["test"] for r in paper.rows("figure_8") if r["model"] == s.model][:1]
            if s.model
            else []
        )
        for test in shown or sorted({test for test, _ in points}) or ["T1"]:
            for parameter in ("alpha", "lambda_kl", "beta", "tau"):
                said = s.printed("figure_8", column=parameter)
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
                    rows.append(
                        Row(
                            (s.label, test, parameter),
                            (empty, replace(empty, paper=said), empty, empty, empty),
                        )
                    )
                    continue
                best = min(val, key=lambda x: (-val[x].value, x))
                ends = sorted(there.values(), key=lambda at: at.value)
                tuned = e.found(s.run, "sweep", "optimum", test=test, by=parameter)
                cells = (
                    cell(tuned, s.status),
                    number(best, s.status, said),
                    *(cell(at, s.status) for at in (there.get(best), ends[0], ends[-1])),
                )
                rows.append(Row((s.label, test, parameter), cells))
    columns = (
        Column("tuned", "number"),
        Column("best on val", "number"),
        Column("test there"),
        Column("lowest"),
        Column("highest"),
    )
    return Table(
        "fig8",
        "Figure 8: one parameter at a time",
        "Each parameter moves over its range while the others keep the tuned values. Best on val:"
        " its value with the highest val accuracy; beside it the test accuracy there, and the"
        " lowest and highest test accuracy of the sweep. All points: `sweep`.",
        ("model", "test", "parameter"),
        columns,
        tuple(rows),
    )


def _sweeps(
    e: Evidence, run: Run | None
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


def claims(e: Evidence) -> Table:
    rows = []
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
            rows.append(
                Row(
                    (printed["row"], s.label),
                    (cell(ours, s.status, NO_VAL, said), _extreme(e, s, regression)),
                )
            )
    columns = (Column("mean over tests", "number"), Column("largest of one test", "number"))
    return Table(
        "claims",
        "What the abstract claims",
        "Accuracy: gain of CADE, mean of T1 to T5. MAE: change by CADE, T2 and T5 pooled.",
        ("claim", "model"),
        columns,
        tuple(rows),
    )


def _extreme(e: Evidence, s: Subject, regression: bool) -> Cell:
    """The best single test; beside it the best that Table H prints for the model."""
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
