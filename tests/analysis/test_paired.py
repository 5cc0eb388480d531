"""Study 'paired', models and nights: the same questions, and only those."""

from __future__ import annotations

import numpy as np

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.studies.table import STUDIES
from tests.builders.analysis_run import OPEN, mcq_cell, one, run_of

A, B = [3.0, 0.0, 0.0], [0.0, 9.0, 0.0]


def test_questions_of_one_place_have_one_vote_and_shared_prompts_widen() -> None:
    """Forty better answers at four places: 2 / 2^4, not 2 / 2^40. Q-only gives them one prompt."""
    cell = mcq_cell(
        {"full": [A] * 40, "img_q": [B] * 40, "q_only": [A] * 40},
        "B" * 40,
        params=OPEN,
        cluster_id=[f"place-{i % 4}" for i in range(40)],
    )
    rows = STUDIES["paired"].rows(run_of(cell), AnalysisSettings())
    exact = one(rows, test="T1", versus="full", parameter="cluster", metric="mcnemar")
    assert "40 better, 0 worse; by place 4 to 0" in exact["note"] and exact["p"] == 0.125
    of_prompt = one(rows, test="T1", versus="q_only", parameter="cluster", metric="mcnemar")
    assert "40 better, 0 worse; by prompt 1 to 0" in of_prompt["note"] and of_prompt["p"] == 1.0
    spread = mcq_cell({"full": [A] * 42, "img_q": [B] * 42}, "BAC" * 14, params=OPEN)
    rows = STUDIES["paired"].rows(run_of(spread), AnalysisSettings())
    counts = one(rows, test="T1", versus="full", parameter="cluster", metric="mcnemar")["note"]
    assert counts.startswith("14 better, 14 worse"), "an answer that stays wrong is neither"
    pick = {"test": "T1", "parameter": "cluster", "metric": "accuracy_gain"}
    assert np.isfinite(one(rows, **pick, versus="full")["low"])
    shared = one(rows, **pick, versus="q_only")
    assert np.isnan(shared["low"]) and shared["note"].startswith("1 cluster: too few")
