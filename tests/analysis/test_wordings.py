"""Study 'wordings': every wording counts once, and the interval counts wordings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods import stats
from sdgbias.suites.paraphrases import VIEWS
from tests.builders.analysis_run import mcq_cell, one, run_of
from tests.builders.item_tables import indicator

A, B, C = [3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]
NOT_ASKED = [np.nan] * 3


def test_a_wording_is_one_answer_whatever_the_number_of_places() -> None:
    """Forty places share one question; the reference wording says C, of eight more seven do. The
    share of its indicator counts wordings; one indicator says nothing about others."""
    cell = mcq_cell({"full": [A] * 40, "q_only": [C] * 40}, "A" * 40)
    extra = {view: np.array([B if view == VIEWS[3] else C, *[NOT_ASKED] * 39]) for view in VIEWS}
    rows = STUDIES["wordings"].rows(run_of(replace(cell, extra=extra)), AnalysisSettings())
    place = {"group": "Health & Nutrition", "indicator": "wasting"}
    found = one(rows, test="T1", method="q_only", metric="share_optimistic", **place)
    expected = stats.share(np.array([1.0] * 8 + [0.0]), np.arange(9))
    assert (found["value"], found["n"]) == (pytest.approx(8 / 9), 9)
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    pooled = one(rows, test="T1", method="q_only", metric="share_optimistic")
    assert pooled["value"] == pytest.approx(8 / 9) and np.isnan(pooled["low"])
    scoped = one(rows, test="T1", method="q_only", metric="wordings_share_optimistic")
    assert (scoped["low"], scoped["high"]) == (expected.low, expected.high)
    for metric, count in (("distinct_prompts", 9), ("distinct_indicators", 1)):
        assert one(rows, test="T1", method="q_only", metric=metric)["value"] == count
    assert one(rows, test="T1", metric="share_conservative", **place)["value"] == pytest.approx(
        1 / 9
    )


def test_without_the_pass_it_says_so() -> None:
    cell = mcq_cell({"full": [A]}, "A")
    question = indicator(cell.items["indicator"].iloc[0]).question
    ours = replace(cell, items=cell.items.assign(question=question))

    rows, foreign = (STUDIES["wordings"].rows(run_of(c), AnalysisSettings()) for c in (ours, cell))

    assert list(rows["metric"]) == list(foreign["metric"]) == ["not_run"]
    assert rows["note"][0] == "extra pass paraphrases was not scored"
    assert foreign["note"][0] == "no question is worded as in indicators.yaml"
