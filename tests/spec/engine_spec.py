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


def test_neighbours_padding_and_order_never_change_a_score(engine: Backend) -> None:
    """Prompts of no picture, one and two, with two to ten candidates."""
    prompts = [*PROMPTS, *PAIRS]
    together, backward = engine.candidate_scores(prompts), engine.candidate_scores(prompts[::-1])
    assert together.logits.shape == (len(prompts), 10) and together.logits.dtype == np.float32
    assert ((together.mass > 0) & (together.mass <= 1 + 1e-6)).all()
    assert (together.n_tokens > 0).all() and len(together.top_token) == len(prompts)
    for i, prompt in enumerate(prompts):
        alone, k = engine.candidate_scores([prompt]), len(prompt.candidates)
        assert np.isfinite(together.logits[i, :k]).all() and np.isnan(together.logits[i, k:]).all()
        assert together.logits[i, :k] == pytest.approx(alone.logits[0, :k], abs=1e-4)
        assert together.logits[i, :k] == pytest.approx(backward.logits[-1 - i, :k], abs=1e-4)
        assert together.mass[i] == pytest.approx(alone.mass[0], abs=1e-4)
        assert together.n_tokens[i] == alone.n_tokens[0]


def test_pictures_their_order_and_the_text_matter(engine: Backend) -> None:
    one, two = PROMPTS[2], PAIRS[1]
    variants = [
        one,
        Prompt(one.text, one.candidates, (noise(3),), "three"),
        Prompt(one.text + "?", one.candidates, one.images, one.image_id),
        Prompt(one.text, one.candidates),
        two,
        Prompt(two.text, two.candidates, two.images[::-1], "four-five"),
        Prompt(two.text, two.candidates, two.images[:1], "five"),
    ]
    scores = engine.candidate_scores(variants).logits
    assert len({tuple(np.round(row, 3)) for row in scores}) == len(variants)


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
