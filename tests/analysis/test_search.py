"""What a better search gains, as study rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import TaskCell
from sdgbias.analysis.studies.parameters import PARAMETERS
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods import stats
from sdgbias.methods.cade import decide
from sdgbias.methods.search import RANGES, SearchSettings, held_out, random_search, take
from sdgbias.types import CadeParams, Task
from tests.builders.analysis_run import run_of
from tests.builders.tuned_runs import letters, numbers, payoff_of, value

QUICK = AnalysisSettings(draws=300, seed=1, bootstrap=60)
LETTERS, NUMBERS = letters(400), numbers(160)
METHODS = ("random", "exact", "exact_centred")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return STUDIES["search"].rows(run_of(LETTERS, NUMBERS), QUICK)


def params_of(rows: pd.DataFrame, method: str) -> CadeParams:
    return CadeParams(*(value(rows, method=method, metric=name) for name in PARAMETERS))


@pytest.mark.parametrize("task", list(Task))
def test_values_are_those_of_the_parameters_beside_them(table: pd.DataFrame, task: Task) -> None:
    cell, metric, sign = (LETTERS, "accuracy", 1) if task is Task.MCQ else (NUMBERS, "mae", -1)
    rows = table[table["task"] == task.value]
    for method in METHODS:
        params = params_of(rows, method)
        for x, (low, high) in zip(vars(params).values(), RANGES[task], strict=True):
            assert low <= x <= high
        assert value(rows, method=method, metric=metric) == pytest.approx(
            sign * payoff_of(cell, params)
        )
        assert value(rows, method=method, metric=f"val_{metric}") == pytest.approx(
            sign * payoff_of(cell, params, cell.val)
        )
    paper = random_search(
        take(cell.streams(), cell.val), cell.payoff[cell.val], task, SearchSettings(300, 1)
    )
    assert params_of(rows, "random") == paper.params
    best = payoff_of(cell, params_of(rows, "exact"), cell.val)
    assert best >= payoff_of(cell, paper.params, cell.val) - 1e-12
    assert best == pytest.approx(payoff_of(cell, params_of(rows, "exact_centred"), cell.val))


@pytest.mark.parametrize(
    ("cell", "kind"), [(LETTERS, "difference"), (NUMBERS, "mean")], ids=["letters", "numbers"]
)
def test_optimism_is_what_tuned_rows_earn_more_than_held_out_ones(
    table: pd.DataFrame, cell: TaskCell, kind: stats.Kind
) -> None:
    rows = table[table["task"] == cell.task.value]
    s, payoff = take(cell.streams(), cell.val), cell.payoff[cell.val]
    place = stats.codes(cell.items["cluster_id"][cell.val].to_numpy(dtype=str))[0]
    held = held_out(s, payoff, cell.task, place, SearchSettings(300, 1), folds=5)
    choice = decide(s, params_of(rows, "exact_centred")).choice

    [optimism] = rows[rows["metric"] == "optimism"].to_dict("records")

    expected = stats.mean(payoff[np.arange(len(choice)), choice] - held, place, kind)
    of_row = (optimism["value"], optimism["low"], optimism["high"])
    assert of_row == pytest.approx((expected.value, expected.low, expected.high))
