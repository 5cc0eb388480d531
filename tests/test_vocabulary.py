"""The one vocabulary: what results hold has a word."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from pydantic import ValidationError

from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import labels
from sdgbias.suites.rows import HEADLINE
from sdgbias.vocabulary import METHODS, WORDS, MetricWord, metric_in_sentence

GOLDEN = pd.read_parquet(Path(__file__).parent / "golden" / "numbers.parquet")
#: Counts of single letters are named by the letter.
OF_A_LETTER = re.compile(r"(share|recall)_[A-Z]?$")


def test_every_headline_metric_and_method_has_a_word() -> None:
    headline = GOLDEN[GOLDEN["study"] == HEADLINE]
    metrics = {m for m in headline["metric"] if not OF_A_LETTER.match(m)}
    assert metrics <= WORDS.metrics.keys()
    generated = {m for m in headline["method"] if m.endswith("_generated")}
    assert set(headline["method"]) - generated <= METHODS.keys() | WORDS.readings.keys()


def test_a_word_has_one_unit_and_one_better_end() -> None:
    assert {"mae_change"} == labels.PLAIN & labels.SIGNED
    assert all(labels.BETTER[f"{kind}_rate"] == -1 for kind in ("tie", "broken", "unparsed"))
    assert not {f"share_{d}" for d in DIRECTIONS} & labels.BETTER.keys()
    assert metric_in_sentence("share_optimistic") == "optimistic answers"
    with pytest.raises(ValidationError, match="bettr"):
        MetricWord(name="Accuracy", bettr="higher")  # type: ignore[call-arg]


def test_the_most_severe_verdict_stands_for_a_group() -> None:
    given = dict.fromkeys(WORDS.verdicts, 1)
    order = []
    while given:
        order.append(labels.worst(given))
        del given[order[-1]]
    assert order == ["BREACH", "MISSING", "INSUFFICIENT_EVIDENCE", "FIRST_RUN", "PASS"]
