"""The pass `paraphrases`: eight reviewed wordings of every indicator, asked once per indicator and
options."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from sdgbias.benchmark.prompts import build_prompts
from sdgbias.raw.indicators import load_indicators
from sdgbias.suites import extra_prompts, paraphrases
from sdgbias.types import Task
from tests.suites.test_extra_prompts import item_tables

#: Words that push an answer up or down.
LEADING = re.compile(
    r"\b(only|still|even|unfortunately|fortunately|fail\w*|as (many|much|few|little) as|already"
    r"|poor|rich|good deal|severe\w*|alarming\w*|impressive\w*)\b",
    re.IGNORECASE,
)


def tables(question: str = "") -> dict[Task, pd.DataFrame]:
    """Twelve items in two groups with the reference wording, or another one."""
    known = {entry.slug: entry.question for entry in load_indicators()}
    found = item_tables()
    found[Task.MCQ] = found[Task.MCQ].assign(
        question=question or found[Task.MCQ]["indicator"].map(known)
    )
    return found


def cells(found: dict[Task, pd.DataFrame]) -> pd.DataFrame:
    prompts = pd.concat([build_prompts(t, task) for task, t in found.items()], ignore_index=True)
    return extra_prompts.extra_cells(found, prompts, extra_prompts.choose("paraphrases"))


@pytest.mark.parametrize("entry", load_indicators(), ids=lambda e: e.slug)
def test_every_indicator_has_eight_neutral_wordings_of_the_same_thing(entry) -> None:  # type: ignore[no-untyped-def]
    texts = paraphrases.wordings()[entry.slug]
    assert len(set(texts) - {entry.question}) >= 8
    hints = set(re.findall(r"[a-z]{5,}", entry.question.split("Where an image is given, ")[1]))
    hints -= {"which", "where", "whether", "overall", "level", "shows", "their", "given", "these"}
    scale = re.findall(
        r"\b(?:under five|100,000|30-minute|\d+ ?=|index|WHO|absolute)\b", entry.question
    )
    for text in texts:
        assert not LEADING.search(text), text
        assert "this place" in text and text.count("?") <= 1 and "image" in text
        told = set(re.findall(r"[a-z]{5,}", text.lower()))
        assert len(hints & told) >= 0.6 * len(hints), text
        for word in scale:
            number = word.rstrip(" =")
            if number.isdigit() or number in ("100,000", "WHO", "absolute"):
                assert number in text, (word, text)


def test_the_pass_changes_the_question_and_nothing_else() -> None:
    found = tables()
    made = cells(found)
    assert set(made["view"]) == set(paraphrases.VIEWS) and len(made) == 2 * 8
    assert set(made["test"]) == {"T1"} and set(made["image_id"]) == {""}
    assert made["text"].nunique() == 16, "no wording is asked twice"
    first = made[made["view"] == "wording:0"].iloc[0]
    text = paraphrases.wordings()["wasting"][0]
    assert first["text"].startswith(f"Question: {text}\nOptions: A. few; B. some; C. many\n")
    assert "Context:" not in first["text"]


def test_questions_of_an_imported_benchmark_have_no_wordings() -> None:
    assert cells(tables("Wie viele?")).empty
