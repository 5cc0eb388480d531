"""Study 'paired', models and nights: the same questions, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.analysis.rows import KEY, AnalysisSettings
from sdgbias.analysis.studies import paired
from tests.builders.analysis_run import OPEN, mcq_cell, number_cell, one, run_of

A, B = [3.0, 0.0, 0.0], [0.0, 9.0, 0.0]


def test_gain_by_place_and_by_country() -> None:
    """Twelve countries of two places; CADE fixes 6 answers and breaks 2."""
    gold = "B" * 6 + "A" * 18
    cell = mcq_cell(
        {"full": [A] * 24, "img_q": [B] * 8 + [A] * 16},
        gold,
        params=OPEN,
        country=[f"country-{i // 2:02d}" for i in range(24)],
    )
    rows = paired.rows(run_of(cell), AnalysisSettings())
    pick = {"test": "T1", "method": "cade", "level": "cade minus full"}
    place, country = (
        one(rows, **pick, by=by, metric="accuracy_gain") for by in ("cluster", "country")
    )
    assert place["value"] == country["value"] == pytest.approx((6 - 2) / 24)
    # residuals by country: 1 - 1/6 twice in three countries, -1 - 1/6 twice in one, -1/6 twice in
    # eight
    variance = 12 / 11 * (3 * (2 * 5 / 6) ** 2 + (2 * 7 / 6) ** 2 + 8 * (2 / 6) ** 2) / 24**2
    # the 24 answers are worth so many; one gain and one loss are added to them
    n = (8 / 24 - (4 / 24) ** 2) / variance
    centre, moved = 4 / 24 * n / (n + 2), (8 / 24 * n + 2) / (n + 2)
    error = ((moved - centre**2) / (n + 2)) ** 0.5
    assert country["ci_high"] == pytest.approx(centre + 2.200985 * error), "t(0.975, 11)"
    assert country["ci_high"] > place["ci_high"] and "fewer" not in country["note"]
    mde = one(rows, **pick, by="country", metric="mde")["value"]
    assert mde == pytest.approx((2.200985 + 0.875530) * error, rel=1e-4), "and t(0.8, 11)"
    exact = one(rows, **pick, by="cluster", metric="mcnemar")
    assert "6 better, 2 worse" in exact["note"] and "alone 0.289" in exact["note"], (
        "2 (1 + 8 + 28) / 2^8"
    )
    assert not rows.duplicated(list(KEY)).any()


def test_few_countries_have_no_interval_and_say_so() -> None:
    cell = mcq_cell(
        {"full": [A] * 4, "img_q": [B, A, A, A]}, "BAAA", params=OPEN, country=["x", "x", "y", "z"]
    )
    row = one(
        paired.rows(run_of(cell), AnalysisSettings()),
        test="T1",
        level="cade minus full",
        by="country",
        metric="accuracy_gain",
    )
    assert row["note"].startswith("3 groups: too few for an interval")


def test_numbers_are_compared_by_interval_accuracy() -> None:
    digits = np.tile(np.arange(10.0), (3, 1))
    z = np.zeros((3, 10))
    z[:, 7] = 1.0
    cell = number_cell(
        {"full": [4.0] * 3}, [7.0, 7.0, 4.0], digits, {"full": z.tolist()}, params=OPEN
    )
    row = one(
        paired.rows(run_of(cell), AnalysisSettings()),
        task="regression",
        test="T2",
        level="cade minus full",
        by="cluster",
        metric="interval_accuracy_gain",
    )
    assert row["value"] == pytest.approx((2 - 1) / 3)


def test_questions_of_one_place_have_one_vote_and_shared_prompts_widen() -> None:
    """Forty better answers at four places: 2 / 2^4, not 2 / 2^40. Q-only gives them one prompt."""
    cell = mcq_cell(
        {"full": [A] * 40, "img_q": [B] * 40, "q_only": [A] * 40},
        "B" * 40,
        params=OPEN,
        cluster_id=[f"place-{i % 4}" for i in range(40)],
    )
    rows = paired.rows(run_of(cell), AnalysisSettings())
    exact = one(rows, test="T1", level="cade minus full", by="cluster", metric="mcnemar")
    assert "40 better, 0 worse; by place 4 to 0" in exact["note"] and "alone 0.125" in exact["note"]
    spread = mcq_cell({"full": [A] * 40, "img_q": [B] * 40}, "BA" * 20, params=OPEN)
    rows = paired.rows(run_of(spread), AnalysisSettings())
    pick = {"test": "T1", "by": "cluster", "metric": "accuracy_gain"}
    assert np.isfinite(one(rows, **pick, level="cade minus full")["ci_low"])
    shared = one(rows, **pick, level="cade minus q_only")
    assert np.isnan(shared["ci_low"]) and shared["note"].startswith("1 cluster: too few")
