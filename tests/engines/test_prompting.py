"""From a prompt to token ids, without a model."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from sdgbias.benchmark.build import Draw, build
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.prompting import (
    adds_special_tokens,
    render,
    supports_text_only,
    token_paths,
)
from sdgbias.engines.hf.tokens import (
    CandidateTokens,
    FirstTokens,
    choices_of,
    end_ids,
    find_candidates,
    start_choices,
)
from sdgbias.errors import ModelError
from sdgbias.raw.synthetic import write_sample
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import cost
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


def broken(tmp_path: Path, change: Callable[[dict[str, object]], None]) -> ModelSpec:
    """tiny-llava with another processor_config.json, as an entry of a folder of its own."""
    root = entries.find_root()
    weights = shutil.copytree(root / "registry/weights/tiny-llava", tmp_path / "weights")
    config = json.loads((weights / "processor_config.json").read_text())
    change(config)
    (weights / "processor_config.json").write_text(json.dumps(config))
    return replace(entries.load(root, "tiny-llava"), repo=f"path:{weights}")


def test_a_processor_that_its_own_files_break_is_one_line(tmp_path: Path) -> None:
    spec = broken(tmp_path, lambda config: config.update(image_processor=[1]))
    with pytest.raises(ModelError, match="tiny-llava: can't load the processor of") as told:
        load_processor(spec, entries.find_root())
    assert "\n" not in str(told.value)


def test_a_processor_without_a_patch_size_has_that_of_config_json(tmp_path: Path) -> None:
    """transformers divides by it where a picture comes in, which was a TypeError."""
    spec = broken(tmp_path, lambda config: config.update(patch_size=None))
    write_sample(tmp_path / "raw", 12, 5)
    build(
        tmp_path / "raw", tmp_path / "raw" / "indicators", tmp_path / "b", Draw(mcq=6, regression=3)
    )
    assert cost.cost(spec, entries.find_root(), tmp_path / "b")["image_tokens"] == 36


def test_a_processor_that_stumbles_over_no_picture_does_not_take_words_alone() -> None:
    def stumbles(images: object, text: list[str]) -> object:
        return [len(one) for one in images]  # type: ignore[attr-defined]

    assert not supports_text_only(stumbles)


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
    signed = replace(known, minus=(3, 4))
    assert start_choices("-70", signed) == [(3, 4), (17,), (10,)]
    assert start_choices("7", known) == [(17, 57)]
    assert start_choices("", known) == []
    with pytest.raises(ModelError, match="digits and a leading '-' only, not '-7'"):
        start_choices("-7", known)
    for wrong in ("x", "7-"):
        with pytest.raises(ModelError, match=f"not '{wrong}'"):
            start_choices(wrong, signed)


def test_a_number_may_begin_after_a_lone_space_and_a_minus_does_not() -> None:
    """Of two prompts the first is likelier to begin with the space."""
    known = CandidateTokens(
        {str(d): (10 + d,) for d in range(10)}, 9, frozenset("0123456789"), minus=(3,)
    )
    row = {i: np.array([-5.0, -1.0]) for i in (3, *range(10, 20))}
    first = FirstTokens({**row, 9: np.array([-1.0, -5.0])}, np.zeros(2), [9, 17])
    behind = FirstTokens(row, np.array([-4.9, 0.0]), [17, 17])

    spaced, direct = choices_of(["70", "-7", ""], known, 2, (first, behind))

    assert direct == [[(17,), (10,)], [(3,), (17,)], []]
    assert spaced == [[(9,), (17,), (10,)], *direct[1:]]
    apart = replace(known, needs_space=frozenset())
    assert choices_of(["70"], apart, 2, (first, behind)) == [direct[:1]] * 2


def test_digits_of_a_byte_level_tokenizer_may_come_after_its_space() -> None:
    found = find_candidates(vocabulary("\u0120", "7", "A", "\u0120A"), "A7")
    assert found.space == 10 and found.needs_space == frozenset("7")
    assert find_candidates(vocabulary("\u0120", "A", "\u0120A"), "A").space is None


def test_small_facts() -> None:
    tokenizer = SimpleNamespace(
        eos_token_id=2,
        all_special_tokens=[],
        get_vocab=lambda: {"-": 5, "\u0120-": 9, "--": 7},
    )
    assert find_candidates(tokenizer, "").minus == (5, 9)
    processor, bare = (
        SimpleNamespace(tokenizer=SimpleNamespace(bos_token=token)) for token in ("<s>", None)
    )
    assert adds_special_tokens(processor, "USER: <s>")
    assert not adds_special_tokens(processor, "<s>USER:")
    assert adds_special_tokens(bare, "USER:")
    assert end_ids(None, tokenizer) == {2}
    assert end_ids(7, tokenizer) == {2, 7}
    assert end_ids([7, 8], SimpleNamespace(eos_token_id=None)) == {7, 8}


def vocabulary(*tokens: str, special: tuple[str, ...] = ()) -> SimpleNamespace:
    """Token ids are places in the list, 10 first; get_vocab gives them in no order."""
    ids = {token: 10 + at for at, token in enumerate(tokens)}
    return SimpleNamespace(
        all_special_tokens=special, get_vocab=lambda: dict(sorted(ids.items(), reverse=True))
    )


def test_every_single_token_of_a_candidate_counts_in_the_order_of_ids() -> None:
    """\u0120B, a special C and AB: one way to say A plainly, two with a space, none that is
    special."""
    tokens = ("\u0120A", "A", "\u2581A", "B", "AB", "C", "\u0120C")
    found = find_candidates(vocabulary(*tokens, special=("C",)), "ABC")
    assert found.ids == {"A": (10, 11, 12), "B": (13,), "C": (16,)}
    assert found.space is None and found.needs_space == frozenset()


def test_a_candidate_without_a_space_of_its_own_may_come_after_a_lone_one() -> None:
    found = find_candidates(vocabulary("\u2581", "7", "A", "\u2581A"), "A7")
    assert found.space == 10 and found.needs_space == frozenset("7")
    assert found.ids == {"A": (12, 13), "7": (11,)}


def test_a_wanted_candidate_must_be_one_token_and_an_optional_one_may() -> None:
    assert find_candidates(vocabulary("A", "B"), "AB", "-").ids == {"A": (10,), "B": (11,)}
    assert find_candidates(vocabulary("A", "-"), "A", "-").ids == {"A": (10,), "-": (11,)}
    with pytest.raises(ModelError, match="no single token for 'B'"):
        find_candidates(vocabulary("A", "BB"), "AB")


def test_tokens_of_two_pictures_are_twice_those_of_one(processor: object) -> None:
    two = replace(ONE, images=ONE.images * 2)
    first, second = token_paths(processor, [two, ONE])
    assert (first == -1).sum() == 2 * (second == -1).sum() > 0
    assert np.array_equal(second, token_paths(processor, [ONE])[0])
