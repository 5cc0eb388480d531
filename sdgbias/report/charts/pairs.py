"""Figures of the page Compare: the accuracy of every model, and a matrix of every pair."""

from __future__ import annotations

import pandas as pd

from sdgbias.report.charts import Figure, figure
from sdgbias.report.charts.draw import named, shaped
from sdgbias.report.leaderboard import Board
from sdgbias.wording import ALL_TESTS, number

VERDICTS = ("differ (Holm, 5 %)", "not told apart")


def figures(board: Board) -> list[Figure]:
    """Both figures; [] of a board without answers."""
    if board.places.empty:
        return []
    charts = [_leaderboard(board)]
    return charts if board.pairs["value"].isna().all() else [*charts, _pairs(board)]


def _leaderboard(board: Board) -> Figure:
    frame = _pooled_first(shaped(board.places.assign(metric="accuracy")))
    full = frame[frame["method"] == "Full"].sort_values("value", ascending=False, kind="stable")
    ranked = list(dict.fromkeys(full["model"]))
    planted = [m for m in ranked if m.endswith("(planted)")]
    order = [*(m for m in ranked if m not in planted), *planted]
    return figure("compare-accuracy", frame, sort=order)


def _pooled_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows by test, that of all tests first."""
    return frame.sort_values(
        "test", key=lambda c: c.where(c != ALL_TESTS, ""), kind="stable", ignore_index=True
    )


def _pairs(board: Board) -> Figure:
    """A matrix of all pairs, each twice: row minus column. Pairs that can't be told apart are
    without colour."""
    pairs = board.pairs
    turned = pairs.assign(
        one=pairs["other"],
        other=pairs["one"],
        value=-pairs["value"],
        ci_low=-pairs["ci_high"],
        ci_high=-pairs["ci_low"],
    )
    both = pd.concat([pairs, turned], ignore_index=True)
    frame = _pooled_first(shaped(both.assign(metric="accuracy_gain")))
    clear = frame["p"] < 0.05
    frame = frame.assign(
        source=frame["other"].map(_short),
        target=frame["one"].map(_short),
        verdict=clear.map({True: VERDICTS[0], False: VERDICTS[1]}),
        shade=frame["value"].where(clear, None),
        mde=[number(100 * v) for v in frame["mde"]],
    )
    order = _order(board)
    return figure("compare-pairs", named(frame, "compare-pairs"), across=order, down=order)


def _short(name: str) -> str:
    return name.removesuffix(" (planted)")


def _order(board: Board) -> list[str]:
    """Models in the order of the leaderboard: the most accurate first, planted ones last."""
    places = board.places[(board.places["method"] == "Full") & (board.places["test"] == ALL_TESTS)]
    places = (places if len(places) else board.places).assign(
        last=lambda f: f["model"].str.endswith("(planted)")
    )
    ranked = places.sort_values(["last", "value"], ascending=[True, False], kind="stable")
    return list(dict.fromkeys(_short(m) for m in ranked["model"]))
