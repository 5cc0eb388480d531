"""From a prompt to token ids, without a model."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.prompting import (
    adds_special_tokens,
    end_ids,
    forced_ids,
    minus_ids,
    render,
    token_paths,
)
from sdgbias.engines.hf.tokens import CandidateTokens
from sdgbias.errors import ModelError
from sdgbias.registry import entries
from sdgbias.types import Prompt


@pytest.fixture(scope="module")
def processor() -> object:
    root = entries.find_root()
    return load_processor(entries.load(root, "tiny-llava"), root)


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "green").save(buffer, "PNG")
    return buffer.getvalue()


ONE = Prompt("Question: how high?", "AB", (picture(),), "p")


def test_pictures_stand_before_the_text(processor: object) -> None:
    image = processor.image_token  # type: ignore[attr-defined]
    two = replace(ONE, images=ONE.images * 2)
    assert [render(processor, p).count(image) for p in (replace(ONE, images=()), ONE, two)] == [
        0,
        1,
        2,
    ]
    shown = render(processor, two)
    assert shown.rindex(image) < shown.index(ONE.text)
    assert render(SimpleNamespace(chat_template=None), ONE) == ONE.text


def test_paths_are_as_long_as_what_the_processor_makes(processor: object) -> None:
    prompts = [
        ONE,
        replace(ONE, images=(), image_id=""),
        replace(ONE, text="Q"),
        replace(ONE, images=ONE.images * 2),
    ]
    for prompt, path in zip(prompts, token_paths(processor, prompts), strict=True):
        pictures = [Image.open(io.BytesIO(data)) for data in prompt.images] or None
        whole = processor(images=pictures, text=[render(processor, prompt)], return_tensors="np")  # type: ignore[operator]
        assert len(path) == whole["input_ids"].shape[1]
    longer = token_paths(processor, prompts, image_tokens=576)
    plain = token_paths(processor, [prompts[1]])
    assert np.array_equal(longer[1], plain[0])
    assert (longer[0] == -1).sum() == 575
    assert (longer[3] == -1).sum() == 2 * 575
    assert token_paths(processor, []) == []


def test_forced_starts_are_single_digits() -> None:
    known = CandidateTokens({str(d): (10 + d, 50 + d) for d in range(10)}, None, frozenset())
    assert forced_ids("-70", known, [3, 4]) == [3, 17, 10]
    assert forced_ids("", known, []) == []
    with pytest.raises(ModelError, match="digits and a leading '-' only, not '-7'"):
        forced_ids("-7", known, [])
    with pytest.raises(ModelError, match="not 'x'"):
        forced_ids("x", known, [3])


def test_small_facts() -> None:
    tokenizer = SimpleNamespace(
        bos_token="<s>", eos_token_id=2, get_vocab=lambda: {"-": 5, "\u0120-": 9, "--": 7}
    )
    assert minus_ids(tokenizer) == [5, 9]
    assert adds_special_tokens(tokenizer, "USER: <s>")
    assert not adds_special_tokens(tokenizer, "<s>USER:")
    assert adds_special_tokens(SimpleNamespace(bos_token=None), "USER:")
    assert end_ids(None, tokenizer) == {2}
    assert end_ids(7, tokenizer) == {2, 7}
    assert end_ids([7, 8], SimpleNamespace(eos_token_id=None)) == {7, 8}
