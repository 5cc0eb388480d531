"""Figures of the page Compare: the accuracy of every model, and a matrix of every pair."""

from __future__ import annotations

import pandas as pd

from sdgbias.report.charts import Figure, figure
from sdgbias.report.charts.draw import named, shaped
from sdgbias.report.leaderboard import Board
from sdgbias.wording import ALL_TESTS, number

PLANTED = " (planted)"
VERDICTS = ("differ (Holm, 5 %)", "not told apart")


def figures(board: Board) -> list[Figure]:
    """Both figures; [] of a board without answers."""
    if board.places.empty:
        return []
    ranked = _ranked(board.places)
    places = _pooled_first(shaped(board.places.assign(metric="accuracy")))
    accuracy = figure("compare-accuracy", places, sort=ranked)
    if board.pairs["value"].isna().all():
        return [accuracy]
    return [accuracy, _pairs(board.pairs, list(map(_short, ranked)))]


def _ranked(places: pd.DataFrame) -> list[str]:
    """Models in the order of the leaderboard: the most accurate first, planted ones last."""
    pooled = places[(places["method"] == "Full") & (places["test"] == ALL_TESTS)]
    pooled = pooled if len(pooled) else places
    pooled = pooled.assign(last=pooled["model"].str.endswith(PLANTED))
    ranked = pooled.sort_values(["last", "value"], ascending=[True, False], kind="stable")
    return list(dict.fromkeys(ranked["model"]))


def _pooled_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows by test, that of all tests first."""
    return frame.sort_values(
        "test", key=lambda c: c.where(c != ALL_TESTS, ""), kind="stable", ignore_index=True
    )


def _pairs(pairs: pd.DataFrame, order: list[str]) -> Figure:
    """A matrix of all pairs, each twice: row minus column. Pairs that can't be told apart are
    without colour."""
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
    return figure("compare-pairs", named(frame, "compare-pairs"), across=order, down=order)


def _short(name: str) -> str:
    return name.removesuffix(PLANTED)
