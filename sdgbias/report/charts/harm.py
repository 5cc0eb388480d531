"""Figures of the page Harm and calibration: answers that CADE breaks and the reasons, and whether
confidence matches accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from sdgbias.report.charts import Figure, NoRows, columns, drawn, figure, like_first, shaped
from sdgbias.report.charts.marks import (
    Hue,
    Rows,
    SweptAxis,
    ValueAxis,
    barred,
    colours,
    dotted,
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
    return drawn(s, _fixed, _implausible, _cut, _flips, _net_of_flips, _reliability, _risk, _scores)


def _fixed(s: Studies) -> Figure:
    own = s.of("harm", "fixed", "broken", "net")
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
    first = like_first(frame, "model", "test", "pillar", "task")
    said = {r["change"]: r for r in first.to_dict("records")}
    counts = ""
    if {"fixed", "broken"} <= set(said):
        counts = (
            f"; {frame['model'].iloc[0]}: {said['fixed']['said']} % fixed, {said['broken']['said']}"
            f" % broken (n {said['fixed']['n']:,})"
        )
    return figure("harm-fixed", frame, _both_ways(columns("harm-fixed")), CHANGES, counts=counts)


def _both_ways(shown: Mapping[str, str]) -> Any:
    y = alt.Y("test:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    title = "broken and fixed answers, % of questions"
    axis = alt.Axis(tickCount=7, domain=False, ticks=False, labelExpr="abs(datum.value)")
    base = alt.Chart().encode(y=y, color=colours("change", CHANGES), tooltip=tips(shown))
    bar = (
        base.transform_filter("datum.change != 'net'")
        .mark_bar(size=15, opacity=0.85)
        .encode(x=alt.X("value:Q", title=title, axis=axis))
    )
    ends = alt.Chart().transform_filter("datum.low != null").mark_rule(strokeWidth=1.5)
    rule = ends.encode(
        y=y, x=alt.X("low:Q", title=title, axis=axis), x2=alt.X2("high:Q"), tooltip=tips(shown)
    )
    dot = (
        base.transform_filter("datum.change == 'net'")
        .mark_point(filled=True, opacity=1, size=70, stroke="#16191d", strokeWidth=1)
        .encode(x=alt.X("value:Q", title=title, axis=axis))
    )
    return alt.layer(zero_rule("x"), bar, rule, dot).properties(height=alt.Step(30))


def _implausible(s: Studies) -> Figure:
    own = s.of("harm", "implausible")
    frame = shaped(own, digits=2).assign(task=own["task"].map(TASKS))
    axis = ValueAxis("implausible answers, %")
    return dotted("harm-implausible", frame, "test", axis, rows=Rows(order=_tests(frame)))


def _tests(frame: pd.DataFrame) -> list[str]:
    return sorted(set(frame["test"]), key=lambda t: (t.startswith("T"), t))


def _cut(s: Studies) -> Figure:
    own = s.of("harm", "accuracy_over_cade", "interval_accuracy_over_cade")
    frame = shaped(own, digits=2, signed=True).assign(task=own["task"].map(TASKS))
    axis = ValueAxis("gain by the cut, points", zero=True)
    return dotted("harm-cut", frame, "test", axis, rows=Rows(order=_tests(frame)))


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


def _flips(s: Studies) -> Figure:
    frame = _term_rows(s, "share_of_flips")
    frame = stacked(
        frame, ["model", "task", "test", "pillar", "term"], "origin", [n for n, _ in TERMS]
    )
    title, order = "share of turned answers, %", _tests(frame)
    return barred("harm-flips", frame, "test", title, Hue("origin", TERMS), order)


def _net_of_flips(s: Studies) -> Figure:
    frame = _term_rows(s, "net_of_flips", signed=True)
    return dotted(
        "harm-net",
        frame,
        "test",
        ValueAxis("fixed minus broken, % of turned answers", zero=True),
        Hue("origin", TERMS),
        Rows(order=_tests(frame), apart=True, step=42),
    )


def _reliability(s: Studies) -> Figure:
    own = s.of("calibration", *_BINS)
    frame = shaped(own).assign(
        method=lambda f: f["method"].map(method_name),
        bins=lambda f: f["metric"].map(_BINS),
        x=lambda f: (100 * f["x"]).round(3),
        confidence=lambda f: f["x"].map(lambda x: f"{x:.1f} %"),
    )
    shown = columns("calibration-reliability")
    ends = alt.Chart(alt.InlineData(values=[{"x": 0, "y": 0}, {"x": 100, "y": 100}]))
    diagonal = ends.mark_line(strokeDash=[5, 4], strokeWidth=1, color="#8a8a8a").encode(
        x=alt.X("x:Q"), y=alt.Y("y:Q")
    )
    scale, axis = alt.Scale(domain=[0, 100]), alt.Axis(tickCount=5)
    x = alt.X("x:Q", title="confidence, %", scale=scale, axis=axis)
    base = alt.Chart().encode(x=x, color=colours("method", METHODS))
    rule = (
        base.transform_filter("datum.low != null")
        .mark_rule(strokeWidth=1.5, opacity=0.6)
        .encode(y=alt.Y("low:Q", title="accuracy, %", scale=scale, axis=axis), y2=alt.Y2("high:Q"))
    )
    y = alt.Y("value:Q", title="accuracy, %", scale=scale, axis=axis)
    line = base.mark_line(strokeWidth=1.5).encode(y=y)
    dot = base.mark_point(filled=True, opacity=1, size=56).encode(
        y=y, shape=shapes("method", METHODS), tooltip=tips(shown)
    )
    chart = alt.layer(diagonal, rule, line, dot).properties(height=340)
    return figure("calibration-reliability", frame, chart, METHODS)


def _risk(s: Studies) -> Figure:
    own = s.of("selective", "risk", by="coverage")
    frame = shaped(own).assign(
        method=lambda f: f["method"].map(method_name), x=lambda f: (100 * f["x"]).round(3)
    )
    frame["coverage"] = frame["x"].map(lambda x: f"{x:.0f} %")
    axis, shown = SweptAxis("answers given, %"), columns("calibration-risk")
    chart = lines(axis, "error rate, %", shown, Hue("method", METHODS), height=300)
    return figure("calibration-risk", frame, chart, METHODS)


def _scores(s: Studies) -> Figure:
    own = pd.concat([s.of("calibration", *SCORES), s.of("selective", "aurc")])
    parts = [
        shaped(own[own["metric"] == m], scale=scale, digits=digits).assign(score=name)
        for m, (name, scale, digits) in SCORES.items()
        if (own["metric"] == m).any()
    ]
    if not parts:
        raise NoRows
    frame = s.ordered(pd.concat(parts, ignore_index=True)).assign(
        method=lambda f: f["method"].map(method_name)
    )
    return dotted(
        "calibration-scores",
        frame,
        "test",
        ValueAxis("score (lower is better, but for accuracy)"),
        Hue("method", METHODS),
        Rows(order=_tests(frame), apart=True, step=36),
    )
