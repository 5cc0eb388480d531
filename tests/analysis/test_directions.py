"""Study 'directions': four answers whose directions can be read off, prompts counted, gaps between
views."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.studies.table import STUDIES
from tests.builders.analysis_run import mcq_cell, one, run_of

A, B, C = [3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]
TWO_A, TWO_B = [3.0, 0.0, np.nan], [0.0, 3.0, np.nan]


def _rows(third_token: str = "The"):  # type: ignore[no-untyped-def]
    cell = mcq_cell(
        {
            "full": [A, A, B, C, TWO_B, A],
            "q_only": [C, C, C, C, TWO_A, C],
            "ctx_q": [B, A, B, C, TWO_B, B],
        },
        "AABCAA",
        polarity=["higher", "lower", "higher", "higher", "higher", ""],
        question=["q1", "q1", "q1", "q2", "q2", "q3"],
        top_token={"full": ["A", " A", third_token, "C", "C", "A"]},
    )
    return STUDIES["directions"].rows(run_of(cell), AnalysisSettings())


def test_directions_of_full() -> None:
    rows = _rows()
    # higher: A pessimistic, B conservative, C optimistic; lower: A optimistic; the last has no
    # polarity, the fifth two options
    for direction, count in (("pessimistic", 1), ("conservative", 1), ("optimistic", 2)):
        r = one(rows, test="T1", method="full", metric=f"share_{direction}")
        assert (r["value"], r["n"]) == (count / 4, 4)
    two = one(rows, test="T1", method="full", metric="share_optimistic_two_option")
    assert (two["value"], two["n"]) == (1.0, 1)
    assert (
        one(rows, test="T1", method="full", metric="share_pessimistic_two_option")["value"] == 0.0
    )


@pytest.mark.parametrize("token", ["The", "D"])
def test_invalid_answers_are_a_share_of_their_own(token: str) -> None:
    rows = _rows(token)
    shares = {
        d: one(rows, test="T1", method="full", metric=f"answered_{d}")["value"]
        for d in ("pessimistic", "conservative", "optimistic", "invalid")
    }
    assert shares == {
        "pessimistic": 1 / 4,
        "conservative": 0,
        "optimistic": 2 / 4,
        "invalid": 1 / 4,
    }, "'The' is no letter, and there is no option D"
    assert rows[(rows["method"] == "q_only") & (rows["metric"] == "answered_invalid")].empty, (
        "its first tokens aren't known"
    )


def test_q_only_stands_beside_its_distinct_prompts() -> None:
    rows = _rows()
    prompts = one(rows, test="T1", method="q_only", metric="distinct_prompts")
    assert (prompts["value"], prompts["n"]) == (4, 6), "q1; q2 with three and with two options; q3"
    shares = one(rows, test="T1", method="q_only", metric="share_optimistic")
    assert shares["value"] == 3 / 4 and np.isnan(shares["low"]), "four prompts: no interval"


@pytest.mark.parametrize("test", ["T1", "T3"])
def test_intervals_of_image_free_views_count_prompts(test: str) -> None:
    """Six questions of six places each, three of them answered C: 36 places for Full, six prompts
    for Q-only, and for CTX+Q where its context holds no value."""
    cell = mcq_cell(
        {"full": [C] * 18 + [A] * 18},
        "A" * 36,
        test=test,
        question=[f"q{i}" for i in range(6) for _ in range(6)],
        context=[json.dumps({"T1": f"asset index {i}", "T3": "asset index"}) for i in range(36)],
    )
    rows = STUDIES["directions"].rows(run_of(cell), AnalysisSettings())
    wordy = 36 if test == "T1" else 6
    for method, many in (("full", 36), ("q_only", 6), ("ctx_q", wordy)):
        r = one(rows, test=test, method=method, metric="share_optimistic")
        # Wilson with t(clusters - 1) at the effective n: 36 places, or prompts' residual sums of 3
        n = 36 if many == 36 else 0.25 / (6 / 5 * 6 * 9 / 36**2)
        t = {36: 2.030108, 6: 2.570582}[many]
        half = t / (1 + t**2 / n) * (0.25 / n + t**2 / (4 * n**2)) ** 0.5
        assert r["value"] == 1 / 2
        assert r["high"] == pytest.approx(0.5 + half, rel=0.02), method


def test_a_gap_to_answers_that_share_a_prompt_counts_prompts() -> None:
    """Without context values CTX+Q is one prompt for forty places: one answer, not forty."""
    for test, known in (("T1", True), ("T3", False)):
        context = [json.dumps({"T1": f"asset index {i}", "T3": "asset index"}) for i in range(40)]
        views = {"full": [A, B] * 20, "ctx_q": [A] * 40}
        cell = mcq_cell(views, "AABB" * 10, test=test, context=context)
        rows = STUDIES["directions"].rows(run_of(cell), AnalysisSettings())
        gap = one(rows, test=test, metric="accuracy_gain", versus="ctx_q", attribute="")
        assert np.isfinite(gap["low"]) == known
        assert ("Holm over" in gap["note"]) == np.isfinite(gap["p_adjusted"]) == known
        assert gap["note"].startswith("1 cluster: too few") != known
        assert np.isfinite(
            one(rows, test=test, metric="accuracy_gain", versus="img_q", attribute="")["low"]
        )
