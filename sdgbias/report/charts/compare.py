"""Figures of the page Models compared: the leaderboard, a matrix of every pair, and settings
tuned on one model used on another."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from sdgbias.report.charts import Figure, holm, shaped
from sdgbias.report.charts.marks import Hue, Rows, ValueAxis, dots, heat, tips
from sdgbias.report.charts.parameters import LOSS, losses
from sdgbias.report.data import ALL_TESTS, Studies
from sdgbias.report.labels import number
from sdgbias.report.leaderboard import Board

METHODS = (("Full", "#0072b2"), ("CADE", "#d55e00"))
VERDICTS = (("differ (Holm, 5 %)", "#0072b2"), ("not told apart", "#8a8a8a"))


def figures(s: Studies, board: Board) -> list[Figure]:
    return [f for f in (_leaderboard(board), _pairs(board), _transfer(s)) if f is not None]


def _leaderboard(board: Board) -> Figure | None:
    if board.places.empty:
        return None
    frame = shaped(board.places)
    columns = {"model": "Model", "method": "Method", "letters": "Letters"}
    filters = ("test",)
    frame = (
        frame.assign(_at=frame["test"].map(_rank))
        .sort_values("_at", kind="stable", ignore_index=True)
        .drop(columns="_at")
    )
    order = list(
        dict.fromkeys(
            frame[frame["method"] == "Full"].sort_values("value", ascending=False, kind="stable")[
                "model"
            ]
        )
    )
    measured = [m for m in order if not m.endswith("(planted)")]
    order = [*measured, *(m for m in order if m not in measured)]
    return Figure(
        "compare-accuracy",
        "Accuracy of every model",
        "Models whose letters agree can’t be told apart; intervals that overlap don’t decide that,"
        " the paired test does.",
        "Share of right answers to multiple-choice questions in per cent, with 95 % intervals;"
        " planted models stand last.",
        frame,
        dots(
            "model",
            ValueAxis("accuracy, %"),
            columns,
            hue=Hue("method", METHODS),
            rows=Rows(order=order, apart=True, step=40),
        ),
        filters,
        columns,
        METHODS,
    )


def _rank(test: str) -> tuple[bool, str]:
    return test.startswith("T"), test


def _pairs(board: Board) -> Figure | None:
    """A matrix of all pairs, each twice: row minus column. Pairs that can't be told apart are
    without colour."""
    if board.pairs.empty:
        return None
    turned = board.pairs.assign(
        one=board.pairs["other"],
        other=board.pairs["one"],
        value=-board.pairs["value"],
        ci_low=-board.pairs["ci_high"],
        ci_high=-board.pairs["ci_low"],
    )
    frame = shaped(pd.concat([board.pairs, turned], ignore_index=True), signed=True)
    differ = frame["p"].astype(float) < 0.05
    frame = (
        frame.assign(
            source=frame["other"].map(_short),
            target=frame["one"].map(_short),
            verdict=[VERDICTS[0][0] if d else VERDICTS[1][0] for d in differ],
            shade=frame["value"].where(differ, None),
            mde=[number(100 * v) for v in frame["mde"]],
            p=frame["p"].map(holm),
            _at=frame["test"].map(_rank),
        )
        .sort_values("_at", kind="stable", ignore_index=True)
        .drop(columns="_at")
    )
    columns = {
        "target": "Model",
        "source": "minus",
        "kind": "Kind",
        "p": "p (Holm)",
        "mde": "Smallest detectable",
        "verdict": "Verdict",
    }
    return Figure(
        "compare-pairs",
        "Every pair of models",
        "Read along a row: orange, the model of the row answers more questions rightly than that"
        " of the column; blue, fewer. Pairs without colour can’t be told apart; the smallest"
        " detectable difference says how large a real one may still be.",
        "Accuracy of the row’s model minus that of the column’s on the same questions, in"
        " percentage points, with paired 95 % intervals (on hover and in the table); p-values are"
        " adjusted over all pairs (Holm). Smallest detectable: found with 80 % power at 5 %, before"
        " adjustment.",
        frame,
        _matrix(columns, _order(board)),
        ("method", "test"),
        columns,
    )


def _short(name: str) -> str:
    return name.removesuffix(" (planted)")


def _order(board: Board) -> list[str]:
    """Models in the order of the leaderboard: the most accurate first, planted ones last."""
    own = board.places[(board.places["method"] == "Full") & (board.places["test"] == ALL_TESTS)]
    own = (own if len(own) else board.places).assign(
        last=lambda f: f["model"].str.endswith("(planted)")
    )
    ranked = own.sort_values(["last", "value"], ascending=[True, False], kind="stable")
    return list(dict.fromkeys(_short(m) for m in ranked["model"]))


def _matrix(columns: dict[str, str], order: list[str]) -> Any:
    """Cells without a shade (not told apart) have a frame and their number in the page's colour."""
    base = alt.Chart().encode(
        x=alt.X(
            "source:N",
            sort=order,
            title="minus",
            axis=alt.Axis(orient="top", labelAngle=-40, ticks=False, domain=False, labelLimit=150),
        ),
        y=alt.Y("target:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False)),
        tooltip=tips(columns),
    )
    told = base.transform_filter("datum.shade != null")
    open_ = base.transform_filter("datum.shade == null")
    colour = alt.Color(
        "shade:Q",
        scale=alt.Scale(domainMid=0, range=["#6fb1e0", "#eceff1", "#f2a766"], interpolate="rgb"),
        legend=None,
    )
    room = {"padding": {"left": 4, "right": 90, "top": 4, "bottom": 4}}
    return alt.layer(
        told.mark_rect().encode(color=colour),
        open_.mark_rect(fillOpacity=0, stroke="#8a9299", strokeOpacity=0.35, strokeWidth=1),
        told.mark_text(fill="#16191d", fontSize=11).encode(text="said:N"),
        open_.mark_text(fontSize=11, opacity=0.75).encode(text="said:N"),
    ).properties(height=alt.Step(30), **room)


def _transfer(s: Studies) -> Figure | None:
    frame = losses(s, "model")
    if frame.empty:
        return None
    names: list[str] = sorted(set(frame["source"]) | set(frame["target"]))
    return Figure(
        "transfer-models",
        "Settings of one model used on another",
        "Orange cells cost accuracy, blue ones gain; near zero the setting carries over.",
        "Accuracy of the model’s own CADE setting minus that of the setting tuned on another model,"
        " in points, multiple choice.",
        pd.DataFrame(frame),
        heat(LOSS, "tuned on", "used on", (names, names), "points lost"),
        ("test",),
        LOSS,
    )
