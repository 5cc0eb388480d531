"""Figures of the page Models compared: the leaderboard, the difference of every pair, and settings
tuned on one model used on another."""

from __future__ import annotations

import pandas as pd

from sdgbias.report.charts import Figure, holm, shaped
from sdgbias.report.charts.marks import Hue, Rows, ValueAxis, dots, heat
from sdgbias.report.charts.parameters import LOSS, losses
from sdgbias.report.data import Studies
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
    if board.pairs.empty:
        return None
    frame = shaped(board.pairs, signed=True)
    differ = frame["p"].astype(float) < 0.05
    frame = (
        frame.assign(
            pair=frame["one"].str.removesuffix(" (planted)")
            + " −\n"
            + frame["other"].str.removesuffix(" (planted)"),
            verdict=[VERDICTS[0][0] if d else VERDICTS[1][0] for d in differ],
            mde=[number(100 * v) for v in frame["mde"]],
            p=frame["p"].map(holm),
            _at=frame["test"].map(_rank),
        )
        .sort_values("_at", kind="stable", ignore_index=True)
        .drop(columns="_at")
    )
    columns = {
        "pair": "Pair",
        "kind": "Kind",
        "p": "p (Holm)",
        "mde": "Smallest detectable",
        "verdict": "Verdict",
    }
    return Figure(
        "compare-pairs",
        "Every pair of models",
        "Grey pairs can’t be told apart; the smallest detectable difference says how large a real"
        " one may still be.",
        "Accuracy of the first minus that of the second on the same questions, in percentage"
        " points, with paired 95 % intervals; p-values are adjusted over all pairs (Holm). Smallest"
        " detectable: found with 80 % power at 5 %, before adjustment.",
        frame,
        dots(
            "pair",
            ValueAxis("difference, points", zero=True),
            columns,
            hue=Hue("verdict", VERDICTS),
            rows=Rows(by_value=True, step=38),
        ),
        ("method", "test"),
        columns,
        VERDICTS,
    )


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
