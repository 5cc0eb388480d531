"""Free answers of a model that thinks aloud: its thoughts stay in the text, marked, so that the
readers of numbers and letters leave them out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.methods.answers import parse_number
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Prompt
from tests.builders import thinker

PROMPTS = [Prompt("How many?", DIGITS), Prompt("How many years?", DIGITS)]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = thinker.write(tmp_path_factory.mktemp("thinker") / "m", thinker.ALOUD)
    return ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")


@pytest.mark.parametrize("share", [True, False])
def test_the_marks_of_thoughts_stay_in_an_answer(share: bool, spec: ModelSpec) -> None:
    """Though they are special tokens here."""
    engine = HuggingFace(spec, Path())
    engine.share_prefix = share
    whole, short = (engine.generate(PROMPTS, ["", "1"], limit) for limit in (8, 2))
    assert [text for text, _ in whole.texts] == ["<think>5</think>7"] * 2
    assert [cut for cut, _ in whole.truncated] == [False] * 2
    assert parse_number(whole.texts[0][0]) == 7.0
    assert [text for text, _ in short.texts] == ["<think>5"] * 2
    assert [cut for cut, _ in short.truncated] == [True] * 2
    assert parse_number(short.texts[0][0]) is None


def test_a_template_that_begins_the_thought_is_told_in_the_answer(spec: ModelSpec) -> None:
    """As Qwen3-VL's thinking models do; without it, a thought that was cut is an answer."""
    begun = replace(spec, options={"template": {"answer_prefix": "<think>"}})
    found = HuggingFace(begun, Path()).generate(PROMPTS, [""], 1)
    assert found.texts == [["<think>5"]] * 2
    closed = replace(spec, options={"template": {"answer_prefix": "<think></think>"}})
    assert HuggingFace(closed, Path()).generate(PROMPTS, [""], 4).texts == [["7"]] * 2
