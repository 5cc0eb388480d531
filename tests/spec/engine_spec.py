"""What `Backend` promises, whatever engine is behind it: the tests of a module whose fixture
`engine` is one. Used by test_backends.py, and for vLLM in its own environment by
tests/vllm/test_spec.py."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.engines import Backend
from sdgbias.types import DIGITS, Prompt
from tests.builders.pictures import noise

PROMPTS = [
    Prompt("Question: how high?\nOptions: A. low; B. high", "AB"),
    Prompt(
        "Question: how high is it in this place, all things considered?\nOptions: A. low; B. mid;"
        " C. high",
        "ABC",
    ),
    Prompt("Q", "ABC", (noise(1),), "one"),
    Prompt(
        "Question: a longer text about asset_index=1.5 with a picture", "ABC", (noise(2),), "two"
    ),
    Prompt("How many years?", DIGITS, (noise(1),), "one"),
    Prompt("How many years of schooling?", DIGITS),
]
#: A street and a map, as the image layout `several` gives them; the second shares a picture with
#: the first.
PAIRS = [
    Prompt("Question: which of the two?", "AB", (noise(4), noise(5)), "four-five"),
    Prompt(
        "Question: which of the two, all things considered?",
        "ABC",
        (noise(5), noise(4)),
        "five-four",
    ),
    Prompt("How many years?", DIGITS, (noise(4), noise(6)), "four-six"),
]


def test_shapes_and_meaning(engine: Backend) -> None:
    batch = engine.candidate_scores(PROMPTS)
    assert batch.logits.shape == (len(PROMPTS), 10)
    assert batch.logits.dtype == np.float32
    for row, prompt in zip(batch.logits, PROMPTS, strict=True):
        k = len(prompt.candidates)
        assert np.isfinite(row[:k]).all()
        assert np.isnan(row[k:]).all()
    assert ((batch.mass > 0) & (batch.mass <= 1 + 1e-6)).all()
    assert (batch.n_tokens > 0).all()
    assert len(batch.top_token) == len(PROMPTS)


def test_neighbours_padding_and_order_never_change_a_score(engine: Backend) -> None:
    together = engine.candidate_scores(PROMPTS)
    alone = [engine.candidate_scores([p]) for p in PROMPTS]
    backward = engine.candidate_scores(PROMPTS[::-1])
    for i, (prompt, one) in enumerate(zip(PROMPTS, alone, strict=True)):
        k = len(prompt.candidates)
        assert together.logits[i, :k] == pytest.approx(one.logits[0, :k], abs=1e-4)
        assert together.logits[i, :k] == pytest.approx(backward.logits[-1 - i, :k], abs=1e-4)
        assert together.mass[i] == pytest.approx(one.mass[0], abs=1e-4)
        assert together.n_tokens[i] == one.n_tokens[0]


def test_the_image_and_the_text_matter(engine: Backend) -> None:
    p = PROMPTS[2]
    variants = [
        p,
        Prompt(p.text, p.candidates, (noise(3),), "three"),
        Prompt(p.text + "?", p.candidates, p.images, p.image_id),
        Prompt(p.text, p.candidates),
    ]
    scores = engine.candidate_scores(variants).logits
    assert len({tuple(np.round(row, 3)) for row in scores}) == 4


def test_several_pictures_and_their_order_matter(engine: Backend) -> None:
    """The same promises for prompts of two pictures, alone, together and beside prompts of one or
    none."""
    mixed = [PROMPTS[0], PAIRS[0], PROMPTS[2], PAIRS[1], PAIRS[2]]
    together = engine.candidate_scores(mixed)
    for i, prompt in enumerate(mixed):
        alone = engine.candidate_scores([prompt])
        k = len(prompt.candidates)
        assert together.logits[i, :k] == pytest.approx(alone.logits[0, :k], abs=1e-4)
        assert together.n_tokens[i] == alone.n_tokens[0]
    p = PAIRS[1]
    variants = [
        p,
        Prompt(p.text, p.candidates, p.images[::-1], "four-five"),
        Prompt(p.text, p.candidates, p.images[:1], "five"),
    ]
    scores = engine.candidate_scores(variants).logits
    assert len({tuple(np.round(row, 3)) for row in scores}) == 3


def test_forced_starts(engine: Backend) -> None:
    prompts = PROMPTS[4:]
    starts = ["", "0", "7", "-3"]
    answers = engine.generate(prompts, starts, 4).texts
    assert [len(a) for a in answers] == [4, 4]
    for said in answers:
        for start, text in zip(starts, said, strict=True):
            assert text.startswith(start)
    assert engine.generate(prompts[:1], [""], 4).texts[0][0] == answers[0][0], (
        "neighbours don't change an answer"
    )


def test_what_is_named_beforehand_gives_the_same(engine: Backend) -> None:
    """As the scorer does it: the next chunk is named while one is asked."""
    first, second = PROMPTS[:3], PROMPTS[3:]
    scores = engine.candidate_scores(second).logits
    answers = engine.generate(second[1:], ["", "7"], 4)

    engine.prefetch(first)
    engine.prefetch(second)
    engine.candidate_scores(first)
    assert engine.candidate_scores(second).logits == pytest.approx(scores, abs=1e-4, nan_ok=True)

    engine.prefetch(second[1:], ["", "7"], 4)
    assert engine.generate(second[1:], ["", "7"], 4) == answers
