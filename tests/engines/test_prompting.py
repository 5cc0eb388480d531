"""From a prompt to token ids, without a model: candidates, forced starts, and what a processor
makes of a prompt."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdgbias.engines.hf.chat import Chat
from sdgbias.engines.hf.inputs import supports_text_only
from sdgbias.engines.hf.processor import load_chat
from sdgbias.engines.hf.tokens import (
    CandidateTokens,
    FirstTokens,
    choices_of,
    end_ids,
    find_candidates,
    start_choices,
)
from sdgbias.errors import ModelError
from sdgbias.registry import entries
from sdgbias.types import Prompt
from tests.builders.pictures import noise

ROOT = entries.find_root()
ONE = Prompt("Question: how high?", "AB", (noise(1, 40, 40),), "p")
#: Tokens of a vocabulary from id 10 on -> candidates: their ids, the lone space, who needs it.
VOCABULARIES: dict[str, tuple[str, str, dict[str, tuple[int, ...]], int | None, str]] = {
    "every variant, in the order of ids": (
        *("\u0120A A \u2581A B AB \u0120C", "ABC"),
        *({"A": (10, 11, 12), "B": (13,), "C": (15,)}, None, ""),
    ),
    "a space of SentencePiece": (
        *("\u2581 7 A \u2581A", "A7"),
        *({"A": (12, 13), "7": (11,)}, 10, "7"),
    ),
    "a byte-level space": (
        *("\u0120 7 A \u0120A", "A7"),
        *({"A": (12, 13), "7": (11,)}, 10, "7"),
    ),
    "no digit": ("\u0120 A \u0120A", "A", {"A": (11, 12)}, None, ""),
    "numbers of several digits": (
        *("\u0120 8 \u01208 87 \u012087", "8"),
        *({"8": (11, 12, 13, 14)}, 10, "8"),
    ),
}


def vocabulary(tokens: str, special: str = "") -> Any:
    """get_vocab gives the ids, which are places in the list, in no order."""
    ids = {token: 10 + at for at, token in enumerate(tokens.split(" "))}
    return SimpleNamespace(
        all_special_tokens=special.split(),
        eos_token_id=2,
        get_vocab=lambda: dict(sorted(ids.items(), reverse=True)),
    )


@pytest.mark.parametrize(
    ("tokens", "wanted", "ids", "space", "needs"), VOCABULARIES.values(), ids=VOCABULARIES
)
def test_candidates_are_single_tokens(
    tokens: str, wanted: str, ids: dict[str, tuple[int, ...]], space: int | None, needs: str
) -> None:
    found = find_candidates(vocabulary(tokens), wanted)
    assert found.ids == ids
    assert (found.space, found.needs_space) == (space, frozenset(needs))


def test_a_special_token_is_no_candidate_and_an_optional_one_may_be_missing() -> None:
    tokens = vocabulary("A B C - \u0120-", special="C")
    found = find_candidates(tokens, "AB", "CX")
    assert found.ids == {"A": (10,), "B": (11,)} and found.minus == (13, 14)
    with pytest.raises(ModelError, match="no single token for 'C'"):
        find_candidates(tokens, "ABC")


@pytest.mark.parametrize(
    ("configured", "own", "ends"), [(None, 2, {2}), (7, 2, {2, 7}), ([7, 8], None, {7, 8})]
)
def test_ends_are_those_of_the_configuration_and_the_tokenizers(
    configured: Any, own: Any, ends: set[int]
) -> None:
    assert end_ids(configured, SimpleNamespace(eos_token_id=own)) == ends


DIGITS = CandidateTokens({str(d): (10 + d, 50 + d) for d in range(10)}, None, frozenset())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "choices"),
    [("", []), ("7", [(17, 57)]), ("-70", [(3, 4), (17,), (10,)]), ("x", None), ("7-", None)],
)
def test_a_forced_start_is_its_digits_behind_a_minus(start: str, choices: Any) -> None:
    signed = replace(DIGITS, minus=(3, 4))
    if choices is None:
        with pytest.raises(ModelError, match=f"digits and a leading '-' only, not '{start}'"):
            start_choices(start, signed)
    else:
        assert start_choices(start, signed) == choices
    with pytest.raises(ModelError, match="not '-7'"):
        start_choices("-7", DIGITS)


def test_a_number_may_begin_after_a_lone_space_and_a_minus_does_not() -> None:
    """Of two prompts the first is likelier to begin with the space."""
    single = {str(d): (10 + d,) for d in range(10)}
    tokens = CandidateTokens(single, 9, frozenset("0123456789"), minus=(3,))  # type: ignore[arg-type]
    row = {(i,): np.array([-5.0, -1.0]) for i in (3, *range(10, 20))}
    behind = FirstTokens(row, np.array([-4.9, 0.0]), [(17,), (17,)])
    first = FirstTokens({**row, (9,): np.array([-1.0, -5.0])}, np.zeros(2), [(9,), (17,)])
    first = first.followed(9, behind)

    spaced, direct = choices_of(["70", "-7", ""], tokens, 2, first)

    assert first.top == [(9, 17), (17,)]
    assert direct == [[(17,), (10,)], [(3,), (17,)], []]
    assert spaced == [[(9,), (17,), (10,)], *direct[1:]]
    apart = replace(tokens, needs_space=frozenset())
    assert choices_of(["70"], apart, 2, first) == [direct[:1]] * 2


@pytest.mark.parametrize(
    ("bos", "text", "adds"), [("<s>", "USER: <s>", True), ("<s>", "<s>U", False), (None, "U", True)]
)
def test_the_first_token_is_not_added_twice(bos: str | None, text: str, adds: bool) -> None:
    processor = SimpleNamespace(tokenizer=SimpleNamespace(bos_token=bos))
    assert Chat(processor).adds_special_tokens(text) == adds


# ----------------------------------------------------------------------
# processors


@pytest.fixture(scope="module")
def chat() -> Chat:
    return load_chat(entries.load(ROOT, "tiny-llava"), ROOT)


def test_a_processor_that_stumbles_over_no_picture_does_not_take_words_alone() -> None:
    assert not supports_text_only(lambda images, text: [len(one) for one in images])


def test_pictures_stand_before_the_text(chat: Chat) -> None:
    mark = chat.processor.image_token
    none, two = replace(ONE, images=()), replace(ONE, images=ONE.images * 2)
    assert [chat.render(p).count(mark) for p in (none, ONE, two)] == [0, 1, 2]
    shown = chat.render(two)
    assert shown.rindex(mark) < shown.index(ONE.text)
    assert Chat(SimpleNamespace(chat_template=None)).render(ONE) == ONE.text


def test_paths_are_as_long_as_what_the_processor_makes(chat: Chat) -> None:
    bare, two = replace(ONE, images=(), image_id=""), replace(ONE, images=ONE.images * 2)
    prompts = [ONE, bare, replace(ONE, text="Q"), two]
    for prompt, path in zip(prompts, chat.token_paths(prompts), strict=True):
        pictures = [Image.open(io.BytesIO(data)) for data in prompt.images] or None
        whole = chat.processor(images=pictures, text=[chat.render(prompt)], return_tensors="np")
        assert len(path) == whole["input_ids"].shape[1]
    longer = chat.token_paths(prompts, image_tokens=576)
    assert [(path == -1).sum() for path in longer] == [575, 0, 575, 2 * 575]
    first, second = chat.token_paths([two, ONE])
    assert (first == -1).sum() == 2 * (second == -1).sum() > 0
    assert chat.token_paths([]) == []


def test_a_prompt_is_described_with_the_ids_of_every_option(chat: Chat) -> None:
    lines = chat.describe(Prompt("Question: which?", "AJ"))
    ids = [line for line in lines if line.startswith("candidate ")]
    assert len(ids) == 2 and all(re.match(r"candidate '[AJ]': ids \d+", line) for line in ids)
