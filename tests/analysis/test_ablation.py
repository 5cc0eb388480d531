"""Tables 2 and 3 and Figure 8 as study rows, against the plain road through streams and decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods.search import RANGES, SearchSettings, random_search, take
from sdgbias.types import Task
from tests.builders.analysis_run import run_of
from tests.builders.tuned_runs import letters, numbers, payoff_of, value

QUICK = AnalysisSettings(draws=300, seed=3)
CELL = letters(300)
RUN = run_of(CELL, letters(300, "T4"), numbers(200), numbers(200, "T5"))


def rows_of(run: RunData) -> pd.DataFrame:
    return pd.concat(STUDIES[name].rows(run, QUICK) for name in ("ablation", "streams", "sweep"))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return rows_of(RUN)


def test_retuned_steps_search_only_what_was_added(table: pd.DataFrame) -> None:
    rows = table[
        (table["study"] == "ablation")
        & (table["parameter"] == "retuned")
        & (table["test"] == "T1")
        & (table["metric"] == "accuracy")
    ]
    notes = rows.set_index("method")["note"]
    assert "lambda_kl 0, beta 0" in notes["+alpha"]
    assert "beta 0" in notes["+lambda"] and "lambda_kl 0," not in notes["+lambda"]
    assert "no gate" in notes["+beta"] and "no gate" not in notes["+tau"]
    ranges = (RANGES[Task.MCQ][0], (0.0, 0.0), (0.0, 0.0), (2.0, 2.0))
    alone = random_search(
        take(CELL.streams(), CELL.val),
        CELL.payoff[CELL.val],
        Task.MCQ,
        SearchSettings(300, 3, ranges),
    ).params
    assert value(rows, method="+alpha") == pytest.approx(payoff_of(CELL, alone))


def test_test_rows_never_tune(table: pd.DataFrame) -> None:
    turned = replace(CELL, payoff=np.where(CELL.test_rows[:, None], 1 - CELL.payoff, CELL.payoff))
    other = rows_of(run_of(turned))
    mine = table[(table["task"] == "mcq") & (table["test"] == "T1")]
    for study in ("ablation", "streams", "sweep"):
        a, b = (
            t[(t["study"] == study) & (t["test"] == "T1")]["note"].tolist() for t in (mine, other)
        )
        assert a == b


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_test_without_rows_to_tune_on_or_to_report_has_no_table(split: str) -> None:
    assert rows_of(run_of(replace(CELL, items=CELL.items.assign(split=split)))).empty
