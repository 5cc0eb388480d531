"""Figures of the page Harm and calibration: answers that CADE breaks and the reasons, and whether
confidence matches accuracy."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from sdgbias.report.charts import Figure, shaped
from sdgbias.report.charts.marks import (
    Hue,
    Rows,
    SweptAxis,
    ValueAxis,
    bars,
    colours,
    dots,
    lines,
    shapes,
    stacked,
    tips,
    zero_rule,
)
from sdgbias.report.data import Studies, method_name

METHODS = (("Full", "#0072b2"), ("CADE", "#d55e00"))
CHANGES = (("broken", "#d55e00"), ("fixed", "#0072b2"), ("net", "#f0c33c"))
TERMS = (("image", "#0072b2"), ("context", "#d55e00"), ("prior", "#767676"))
TASKS = {"mcq": "Choice", "regression": "Estimate"}
_BINS = {"reliability_width": "equal width", "reliability_mass": "equal mass"}
#: Scores of the table below the calibration figures: metric -> (name, scale, digits).
SCORES = {
    "ece_width": ("ECE, bins of equal width, points", 100.0, 1),
    "ece_mass": ("ECE, bins of equal mass, points", 100.0, 1),
    "brier": ("Brier score", 1.0, 3),
    "nll": ("Negative log-likelihood, nats", 1.0, 3),
    "confidence": ("Mean confidence, %", 100.0, 1),
    "accuracy": ("Accuracy, %", 100.0, 1),
    "aurc": ("Area under risk–coverage, points", 100.0, 1),
}


def figures(s: Studies) -> list[Figure]:
    made = [
        _fixed(s),
        _implausible(s),
        _cut(s),
        _flips(s),
        _net_of_flips(s),
        _reliability(s),
        _risk(s),
        _scores(s),
    ]
    return [f for f in made if f is not None]


def _fixed(s: Studies) -> Figure | None:
    own = s.of("harm", "fixed", "broken", "net")
    if own.empty:
        return None
    frame = shaped(own).assign(
        change=own["metric"],
        task=own["task"].map(TASKS),
        method="CADE",
        note=own["note"].str.split(";").str[0],
    )
    left = frame["metric"] == "broken"
    for column in ("value", "low", "high"):
        frame[column] = [
            -v if b and v is not None else v for v, b in zip(frame[column], left, strict=True)
        ]
    columns = {"test": "Test", "change": "Answers", "note": "Counts"}
    first = frame[
        (frame["model"] == frame["model"].iloc[0])
        & (frame["test"] == frame["test"].iloc[0])
        & (frame["pillar"] == frame["pillar"].iloc[0])
    ]
    said = {
        r["change"]: r for r in first[first["task"] == first["task"].iloc[0]].to_dict("records")
    }
    reads = (
        "Bars to the right are answers that CADE put right, to the left those it broke; the dot is"
        " the difference"
    )
    if {"fixed", "broken"} <= set(said):
        reads += (
            f"; {frame['model'].iloc[0]}: {said['fixed']['said']} % fixed, {said['broken']['said']}"
            f" % broken (n {said['fixed']['n']:,})"
        )
    return Figure(
        "harm-fixed",
        "Answers fixed and broken",
        reads + ".",
        "Per cent of test questions, with 95 % intervals. Fixed: wrong under Full, right under"
        " CADE.",
        frame,
        _both_ways(columns),
        ("model", "task", "pillar"),
        columns,
        CHANGES,
    )


def _both_ways(columns: dict[str, str]) -> Any:
    y = alt.Y("test:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    title = "broken and fixed answers, % of questions"
    axis = alt.Axis(tickCount=7, domain=False, ticks=False, labelExpr="abs(datum.value)")
    base = alt.Chart().encode(y=y, color=colours("change", CHANGES), tooltip=tips(columns))
    bar = (
        base.transform_filter("datum.change != 'net'")
        .mark_bar(size=15, opacity=0.85)
        .encode(x=alt.X("value:Q", title=title, axis=axis))
    )
    ends = alt.Chart().transform_filter("datum.low != null").mark_rule(strokeWidth=1.5)
    rule = ends.encode(
        y=y, x=alt.X("low:Q", title=title, axis=axis), x2="high:Q", tooltip=tips(columns)
    )
    dot = (
        base.transform_filter("datum.change == 'net'")
        .mark_point(filled=True, opacity=1, size=70, stroke="#16191d", strokeWidth=1)
        .encode(x=alt.X("value:Q", title=title, axis=axis))
    )
    return alt.layer(zero_rule("x"), bar, rule, dot).properties(height=alt.Step(30))


def _implausible(s: Studies) -> Figure | None:
    own = s.of("harm", "implausible")
    if own.empty:
        return None
    frame = shaped(own, digits=2).assign(task=own["task"].map(TASKS))
    columns = {"test": "Test"}
    return Figure(
        "harm-implausible",
        "Answers that the Full view finds implausible",
        "The further right, the more often CADE gives an answer that Full all but rules out.",
        "Per cent of CADE’s answers whose probability under Full is below a tenth of the largest,"
        " with 95 % intervals.",
        frame,
        dots("test", ValueAxis("implausible answers, %"), columns, rows=Rows(order=_tests(frame))),
        ("model", "task", "pillar"),
        columns,
    )


def _tests(frame: pd.DataFrame) -> list[str]:
    return sorted(set(frame["test"]), key=lambda t: (t.startswith("T"), t))


def _cut(s: Studies) -> Figure | None:
    own = s.of("harm", "accuracy_over_cade", "interval_accuracy_over_cade")
    if own.empty:
        return None
    frame = shaped(own, digits=2, signed=True).assign(task=own["task"].map(TASKS))
    columns = {"test": "Test"}
    return Figure(
        "harm-cut",
        "CADE with a plausibility cut",
        "Right of zero the cut helps: answers that Full all but rules out were mostly wrong.",
        "Accuracy (estimates: share within tolerance) of CADE with candidates below a tenth of"
        " Full’s largest probability masked, minus CADE without the cut, in percentage points with"
        " paired 95 % intervals. Parameters were tuned without the cut.",
        frame,
        dots(
            "test",
            ValueAxis("gain by the cut, points", zero=True),
            columns,
            rows=Rows(order=_tests(frame)),
        ),
        ("model", "task", "pillar"),
        columns,
    )


def _term_rows(s: Studies, metric: str, *, signed: bool = False) -> pd.DataFrame:
    own = s.of("harm", metric)
    return shaped(own, signed=signed).assign(
        task=lambda f: f["task"].map(TASKS),
        origin=lambda f: f["level"],
        term=lambda f: f["by"].map(
            {
                "first term": "first term that turns the answer",
                "largest term": "term that adds most",
            }
        ),
    )


def _flips(s: Studies) -> Figure | None:
    frame = _term_rows(s, "share_of_flips")
    if frame.empty:
        return None
    frame = stacked(
        frame, ["model", "task", "test", "pillar", "term"], "origin", [n for n, _ in TERMS]
    )
    columns = {"test": "Test", "origin": "Term"}
    return Figure(
        "harm-flips",
        "Which term of CADE turned the answer",
        "A bar of one colour says that a single term does nearly all the work.",
        "Share of the turned answers in per cent: the image stream (mixing in IMG+Q), the penalty"
        " on the context, the penalty on the prior. n: turned answers.",
        frame,
        bars("test", "share of turned answers, %", columns, "origin", TERMS, order=_tests(frame)),
        ("model", "task", "pillar", "term"),
        columns,
        TERMS,
    )


def _net_of_flips(s: Studies) -> Figure | None:
    frame = _term_rows(s, "net_of_flips", signed=True)
    if frame.empty:
        return None
    columns = {"test": "Test", "origin": "Term"}
    return Figure(
        "harm-net",
        "What each term’s turned answers won",
        "Right of zero the term fixed more answers than it broke.",
        "Answers fixed minus broken among those that the term turned, per cent of them, with 95 %"
        " intervals. n: answers that it turned.",
        frame,
        dots(
            "test",
            ValueAxis("fixed minus broken, % of turned answers", zero=True),
            columns,
            hue=Hue("origin", TERMS),
            rows=Rows(order=_tests(frame), apart=True, step=42),
        ),
        ("model", "task", "pillar", "term"),
        columns,
        TERMS,
    )


def _reliability(s: Studies) -> Figure | None:
    own = s.of("calibration", *_BINS)
    if own.empty:
        return None
    frame = shaped(own).assign(
        method=lambda f: f["method"].map(method_name),
        bins=lambda f: f["metric"].map(_BINS),
        x=lambda f: (100 * f["x"]).round(3),
        confidence=lambda f: f["x"].map(lambda x: f"{x:.1f} %"),
    )
    columns = {"confidence": "Mean confidence", "method": "Method"}
    ends = alt.Chart(alt.InlineData(values=[{"x": 0, "y": 0}, {"x": 100, "y": 100}]))
    diagonal = ends.mark_line(strokeDash=[5, 4], strokeWidth=1, color="#8a8a8a").encode(
        x="x:Q", y="y:Q"
    )
    scale, axis = alt.Scale(domain=[0, 100]), alt.Axis(tickCount=5)
    x = alt.X("x:Q", title="confidence, %", scale=scale, axis=axis)
    base = alt.Chart().encode(x=x, color=colours("method", METHODS))
    rule = (
        base.transform_filter("datum.low != null")
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(y=alt.Y("low:Q", title="accuracy, %", scale=scale, axis=axis), y2="high:Q")
    )
    y = alt.Y("value:Q", title="accuracy, %", scale=scale, axis=axis)
    line = base.mark_line(strokeWidth=1.5).encode(y=y)
    dot = base.mark_point(filled=True, opacity=1, size=56).encode(
        y=y, shape=shapes("method", METHODS), tooltip=tips(columns)
    )
    return Figure(
        "calibration-reliability",
        "Reliability before and after CADE",
        "Below the dashed line answers are right less often than their confidence says.",
        "Accuracy of answers by confidence, 15 bins, with 95 % intervals; confidence is the largest"
        " probability over the options. CADE’s scores are no probabilities.",
        frame,
        alt.layer(diagonal, rule, line, dot).properties(height=340),
        ("model", "test", "bins"),
        columns,
        METHODS,
    )


def _risk(s: Studies) -> Figure | None:
    own = s.of("selective", "risk", by="coverage")
    if own.empty:
        return None
    frame = shaped(own).assign(
        method=lambda f: f["method"].map(method_name), x=lambda f: (100 * f["x"]).round(3)
    )
    frame["coverage"] = frame["x"].map(lambda x: f"{x:.0f} %")
    columns = {"coverage": "Coverage", "method": "Method"}
    return Figure(
        "calibration-risk",
        "Error rate among the surest answers",
        "A curve that falls to the left says that confidence picks out right answers.",
        "Error rate when only the most confident answers are given, in steps of 5 % coverage; bands"
        " are 95 % intervals from resampled places.",
        frame,
        lines(
            SweptAxis("answers given, %"),
            "error rate, %",
            columns,
            Hue("method", METHODS),
            height=300,
        ),
        ("model", "test"),
        columns,
        METHODS,
    )


def _scores(s: Studies) -> Figure | None:
    own = pd.concat([s.of("calibration", *SCORES), s.of("selective", "aurc")])
    parts = [
        shaped(own[own["metric"] == m], scale=scale, digits=digits).assign(score=name)
        for m, (name, scale, digits) in SCORES.items()
        if (own["metric"] == m).any()
    ]
    if not parts:
        return None
    frame = s.ordered(pd.concat(parts, ignore_index=True)).assign(
        method=lambda f: f["method"].map(method_name)
    )
    columns = {"test": "Test", "method": "Method"}
    chart = dots(
        "test",
        ValueAxis("score (lower is better, but for accuracy)"),
        columns,
        hue=Hue("method", METHODS),
        rows=Rows(order=_tests(frame), apart=True, step=36),
    )
    return Figure(
        "calibration-scores",
        "Calibration scores",
        "Lower is better for all but accuracy; confidence should equal accuracy.",
        "Expected calibration error, Brier score, negative log-likelihood and the area under the"
        " curve above, with 95 % intervals.",
        frame,
        chart,
        ("model", "score"),
        columns,
        METHODS,
    )
