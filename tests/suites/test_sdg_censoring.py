"""What withheld scores leave open of a run, counted by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sdgbias.methods.bounds import Bounds, between
from sdgbias.suites.sdg_censoring import METRICS, judged
from sdgbias.types import CadeParams, Task, View
from tests.builders.bounded import exactly

GATE_OPEN = CadeParams(
    0.0, 0.0, 0.0, 2.0
)  # nothing is subtracted and nothing is kept: the larger of Full and IMG+Q wins
TOLD, TWO = [-0.5, -2.0, -3.0], [-0.5, -2.0, -np.inf]
NOTHING = [-np.inf] * 3


def items(n: int) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"item_id": np.arange(n), "pillar": "p", "indicator": "i", "split": "test"}
    )
    return frame.assign(cluster_id=[f"c{i}" for i in range(n)])


def views(full: Bounds) -> dict[View, Bounds]:
    """Full as given; the other views know everything and lean the same way."""
    others = exactly(np.tile(TOLD, (len(full.low), 1)))
    return {View.FULL: full, View.CTX_Q: others, View.IMG_Q: others, View.Q_ONLY: others}


def counted(
    table: pd.DataFrame, method: str, task: Task = Task.MCQ
) -> dict[str, tuple[float, int]]:
    rows = table[table["method"] == method]
    answers = {str(name): rows[name].to_numpy() for name in rows}
    sums = {name: pd.Series(values(answers), dtype=float) for name, values, _ in METRICS[task]}
    some = {name: values for name, values in sums.items() if values.notna().any()}
    return {name: (values.mean(), int(values.notna().sum())) for name, values in some.items()}


def test_shares_of_a_view_and_of_cade() -> None:
    nan = np.nan
    logits = np.array([TOLD, TWO, TWO, NOTHING, [nan] * 3])
    upper = np.array([[nan] * 3, [nan, nan, -2.5], [nan, nan, -0.1], [-1.0] * 3, [nan] * 3])
    full = between(logits, upper)
    gold = np.array([0, 0, 2, 1, 0])
    payoff = np.eye(3)[gold]
    table = judged(
        items(5),
        views(full),
        np.ones((5, 3), dtype=bool),
        payoff,
        np.ones(5, dtype=bool),
        GATE_OPEN,
    )
    # Full, of the four items that it has scores for: three hide C, one names nobody; certain is A
    # in the first two.
    assert counted(table, "full") == {
        "censored_rate": (3 / 4, 4),
        "unanswered_rate": (1 / 4, 4),
        "certain_rate": (2 / 4, 4),
        "accuracy_low": (2 / 4, 4),  # the first two are right
        "accuracy_high": (4 / 4, 4),  # C may be right in the third, anything in the fourth
    }
    assert counted(table, "ctx_q") == {
        "censored_rate": (0.0, 5),
        "unanswered_rate": (0.0, 5),
        "certain_rate": (1.0, 5),
        "accuracy_low": (3 / 5, 5),
        "accuracy_high": (3 / 5, 5),
    }
    cade = counted(table, "cade")
    assert set(cade) == {"censored_rate", "certain_rate", "accuracy_low", "accuracy_high"}
    assert cade["censored_rate"] == (3 / 5, 5)
    # The third item's C has at most 0.90 / (0.61 + 0.14 + 0.90) = 0.55 in Full and 0.06 in IMG+Q,
    # its A at least 0.37 and 0.77: A, which is wrong. In the fourth Full may say anything for sure,
    # against 0.77 of IMG+Q for A. The fifth has IMG+Q's A, which is right.
    assert cade["certain_rate"] == (4 / 5, 5)
    assert cade["accuracy_low"] == (3 / 5, 5) and cade["accuracy_high"] == (4 / 5, 5)


def test_only_test_rows_count_and_only_usable_ones_for_cade() -> None:
    table = items(4).assign(split=["test", "val", "test", "test"])
    full = exactly(np.tile(TOLD, (4, 1)))
    found = judged(
        table,
        views(full),
        np.ones((4, 3), dtype=bool),
        np.eye(3)[[0, 0, 1, 0]],
        np.array([True, True, True, False]),
        GATE_OPEN,
    )
    assert found[found["method"] == "full"]["item_id"].tolist() == [0, 2, 3]
    assert found[found["method"] == "cade"]["item_id"].tolist() == [0, 2]
    assert counted(found, "cade")["accuracy_low"] == (1 / 2, 2)


def test_without_parameters_there_is_no_cade() -> None:
    found = judged(
        items(2),
        views(exactly(np.tile(TOLD, (2, 1)))),
        np.ones((2, 3), dtype=bool),
        np.eye(3)[[0, 0]],
        np.ones(2, bool),
        None,
    )
    assert set(found["method"]) == {v.value for v in View}


def test_an_option_that_a_question_lacks_is_not_withheld() -> None:
    present = np.array([[True, True, False]])
    found = judged(
        items(1),
        views(exactly(np.array([[-0.5, -2.0, np.nan]]))),
        present,
        np.eye(3)[[0]],
        np.ones(1, bool),
        GATE_OPEN,
    )
    assert not found["censored"].any() and found["certain"].all()


def test_errors_of_numbers_between_their_bounds() -> None:
    """Two digits: 1 leads to 10, 2 to 20, and the gold number is 12 twice."""
    full = between(
        np.array([[-0.5, -1.0], [-3.0, -np.inf]]), np.array([[np.nan, np.nan], [np.nan, -0.1]])
    )
    others = exactly(np.tile([-0.5, -1.0], (2, 1)))
    four = {View.FULL: full, View.CTX_Q: others, View.IMG_Q: others, View.Q_ONLY: others}
    payoff = -np.abs(np.array([[10.0, 20.0]] * 2) - 12.0)
    found = judged(items(2), four, np.ones((2, 2), dtype=bool), payoff, np.ones(2, bool), GATE_OPEN)
    cade = counted(found, "cade", Task.REGRESSION)
    assert cade["mae_low"] == (pytest.approx((2 + 2) / 2), 2)
    assert cade["mae_high"] == (pytest.approx((2 + 8) / 2), 2)
    assert cade["certain_rate"] == (1 / 2, 2)
    assert set(counted(found, "full", Task.REGRESSION)) == {
        "censored_rate"
    }  # the number is decoded freely
