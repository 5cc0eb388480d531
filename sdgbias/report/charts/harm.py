"""Figures of the page Harm and calibration: answers that CADE breaks and the reasons, and whether
confidence matches accuracy."""

from __future__ import annotations

import pandas as pd

from sdgbias.report.charts import (
    Figure,
    NoRows,
    drawn,
    figure,
    like_first,
    named,
    of_study,
    shaped,
)
from sdgbias.report.charts.marks import stacked
from sdgbias.report.data import Studies
from sdgbias.vocabulary import WORDS

ORIGINS = ("image", "context", "prior")
#: Scores of the table below the calibration figures.
SCORES = ("ece_width", "ece_mass", "brier", "nll", "confidence", "accuracy", "aurc")


def figures(s: Studies) -> list[Figure]:
    return drawn(
        s,
        _fixed,
        of_study("harm-implausible"),
        of_study("harm-cut"),
        _flips,
        of_study("harm-net"),
        *(_reliability, _risk, _scores),
    )


def _fixed(s: Studies) -> Figure:
    own = s.of("harm", "fixed", "broken", "net")
    frame = named(shaped(own), "harm-fixed").assign(note=own["note"].str.split(";").str[0])
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
    return figure("harm-fixed", frame, counts=counts)


def _flips(s: Studies) -> Figure:
    frame = named(
        shaped(s.of("harm", *(f"share_of_flips_by_{term}_term" for term in ("first", "largest")))),
        "harm-flips",
    )
    bars = ["model", "task", "test", "pillar", "term"]
    return figure("harm-flips", stacked(frame, bars, "origin", ORIGINS))


def _reliability(s: Studies) -> Figure:
    own = s.of("calibration", "reliability_width", "reliability_mass")
    frame = named(shaped(own), "calibration-reliability").assign(
        x=lambda f: (100 * f["x"]).round(3),
        confidence=lambda f: f["x"].map(lambda x: f"{x:.1f} %"),
    )
    return figure("calibration-reliability", frame)


def _risk(s: Studies) -> Figure:
    own = s.of("selective", "risk")
    frame = named(shaped(own), "calibration-risk").assign(
        x=lambda f: (100 * f["x"]).round(3),
        coverage=lambda f: f["x"].map(lambda x: f"{x:.0f} %"),
    )
    return figure("calibration-risk", frame)


def _scores(s: Studies) -> Figure:
    own = pd.concat([s.of("calibration", *SCORES), s.of("selective", "aurc")])
    parts = []
    for metric in SCORES:
        word, rows = WORDS.metrics[metric], own[own["metric"] == metric]
        share = word.unit == "%"
        if len(rows):
            shown = shaped(rows, scale=100 if share else 1, digits=1 if share else word.digits)
            parts.append(shown.assign(score=f"{word.name}, %" if share else word.name))
    if not parts:
        raise NoRows
    frame = s.ordered(pd.concat(parts, ignore_index=True))
    return figure("calibration-scores", named(frame, "calibration-scores"))
