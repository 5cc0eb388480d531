"""Figures of the page Compare: the leaderboard, and a matrix of every pair."""

from __future__ import annotations

import pandas as pd

from sdgbias.analysis.night_text import p_value
from sdgbias.report.charts import Figure, drawn, figure, shaped
from sdgbias.report.data import ALL_TESTS
from sdgbias.report.labels import number
from sdgbias.report.leaderboard import Board

VERDICTS = ("differ (Holm, 5 %)", "not told apart")


def figures(board: Board) -> list[Figure]:
    return drawn(board, _leaderboard, _pairs)


def _leaderboard(board: Board) -> Figure:
    frame = _pooled_first(shaped(board.places))
    order = list(
        dict.fromkeys(
            frame[frame["method"] == "Full"].sort_values("value", ascending=False, kind="stable")[
                "model"
            ]
        )
    )
    measured = [m for m in order if not m.endswith("(planted)")]
    order = [*measured, *(m for m in order if m not in measured)]
    return figure("compare-accuracy", frame, sort=order)


def _pooled_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows by test, that of all tests first."""
    return frame.sort_values(
        "test", key=lambda c: c.where(c != ALL_TESTS, ""), kind="stable", ignore_index=True
    )


def _pairs(board: Board) -> Figure:
    """A matrix of all pairs, each twice: row minus column. Pairs that can't be told apart are
    without colour."""
    turned = board.pairs.assign(
        one=board.pairs["other"],
        other=board.pairs["one"],
        value=-board.pairs["value"],
        ci_low=-board.pairs["ci_high"],
        ci_high=-board.pairs["ci_low"],
    )
    frame = shaped(pd.concat([board.pairs, turned], ignore_index=True), signed=True)
    frame = _pooled_first(frame).assign(
        source=lambda f: f["other"].map(_short),
        target=lambda f: f["one"].map(_short),
        verdict=lambda f: [VERDICTS[0] if p < 0.05 else VERDICTS[1] for p in f["p"]],
        shade=lambda f: f["value"].where(f["p"].astype(float) < 0.05, None),
        mde=lambda f: [number(100 * v) for v in f["mde"]],
        p=lambda f: f["p"].map(p_value),
    )
    order = _order(board)
    return figure("compare-pairs", frame, across=order, down=order)


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
