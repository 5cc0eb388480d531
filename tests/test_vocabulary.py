"""The one vocabulary: what results hold has a word."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from pydantic import ValidationError

from sdgbias import wording
from sdgbias.benchmark.people_items import CHOICES
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.suites.facet import NONE_RIGHT, NOT_UNDERSTOOD
from sdgbias.suites.rows import FEWER, HEADLINE, NOT_SCORED, UNDEFINED
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, PILLARS
from sdgbias.vocabulary import METHODS, WORDS, Word, metric_word, shown_as

GOLDEN = pd.read_parquet(Path(__file__).parent / "golden" / "numbers.parquet")
#: Counts of single letters are named by the letter.
OF_A_LETTER = re.compile(r"(share|recall)_[A-Z]?$")


def test_every_headline_metric_and_method_has_a_word() -> None:
    headline = GOLDEN[GOLDEN["study"] == HEADLINE]
    metrics = {m for m in headline["metric"] if not OF_A_LETTER.match(m)}
    assert metrics <= WORDS.metrics.keys()
    generated = {m for m in headline["method"] if m.endswith("_generated")}
    assert set(headline["method"]) - generated <= METHODS.keys() | WORDS.readings.keys()


@pytest.mark.parametrize("prompt", CHOICES)
def test_a_prompt_about_people_is_described_with_the_answers_that_it_offers(prompt: str) -> None:
    described, asked = WORDS.tests[prompt].description.lower(), CHOICES[prompt]
    assert all(answer in asked for answer in ("Yes", "No", "Unknown"))
    assert "yes, no or unknown" in described
    assert ("do you think" in asked.lower()) == ("is the person" in described)


def test_a_word_has_one_unit_and_one_better_end() -> None:
    plain = [name for name in WORDS.metrics if not wording.is_share(name)]
    assert list(filter(wording.is_difference, plain)) == ["mae_change"]
    better = {name: word.better for name, word in WORDS.metrics.items()}
    assert all(better[f"{kind}_rate"] == -1 for kind in ("tie", "broken", "unparsed"))
    assert not any(better[f"share_{d}"] for d in DIRECTIONS)
    assert metric_word("share_optimistic").in_sentence == "optimistic answers"
    with pytest.raises(ValidationError, match="bettr"):
        Word(name="Accuracy", bettr="higher")  # type: ignore[call-arg]


def test_every_pillar_group_and_missing_reason_has_a_word() -> None:
    assert list(WORDS.pillars) == ["all", *PILLARS]
    assert {*GOLDEN["attribute"]} & {"gender", "skin", "age", "country"} <= WORDS.groups.keys()
    coded = {NEEDS_PICTURES, NEEDS_SCORES, FEWER, NOT_SCORED, UNDEFINED}
    assert coded | {NOT_UNDERSTOOD, NONE_RIGHT} <= WORDS.missing_reasons.keys()
    assert all(word.description for word in WORDS.missing_reasons.values())


@pytest.mark.parametrize(
    ("estimate", "metric", "text"),
    [
        (Estimate(0.61, 490, 0.488, 0.72), "accuracy", "61.0 % (95 % CI 48.8–72.0, n = 490)"),
        (
            Estimate(-0.02, 1200, -0.05, 0.01),
            "disparity",
            "−2.0 points (95 % CI −5.0 to +1.0, n = 1,200)",
        ),
        (Estimate(1234.5, 30), "mae", "1,234.50 (no interval, n = 30)"),
        (Estimate(0.5, 20, clusters=1), "recall", "50.0 % (no interval: 1 cluster, n = 20)"),
        (
            Estimate(-0.00001, 9, -0.1, 0.1),
            "accuracy_gain",
            "0.0 points (95 % CI −10.0 to +10.0, n = 9)",
        ),
        (  # no end of an interval that excludes zero reads as zero
            Estimate(0.145, 490, 0.0004, 0.284),
            "accuracy_gain",
            "+14.5 points (95 % CI +0.04 to +28.4, n = 490)",
        ),
        (
            Estimate(-0.5, 30, -1.0, -0.003),
            "mae_change",
            "−0.50 (95 % CI −1.00 to −0.003, n = 30)",
        ),
    ],
)
def test_one_function_writes_an_estimate(estimate: Estimate, metric: str, text: str) -> None:
    assert str(wording.written(estimate, metric)).replace(wording.NBSP, " ") == text


@pytest.mark.parametrize(
    ("group", "metric"),
    [
        ("all", "no_rate"),
        ("Health & Nutrition", "no_rate"),
        ("gender=male & age=old", "no_rate"),
        ("size:cm=1:2", "no_rate"),
        ("gender:male-female", "disparity"),
        ("gender:male-female, 52 classes", "disparity"),
    ],
)
def test_a_difference_between_groups_is_shown_as_one(group: str, metric: str) -> None:
    assert shown_as("no_rate", group) == metric
