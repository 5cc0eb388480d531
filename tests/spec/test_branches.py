"""Numbers of several starts from one prefill, against generation of one prompt and start at a time:
positions in space, cross-attention, plain ones, and a model whose branches go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sdgbias.engines import load
from sdgbias.engines.hf import branching, decoding
from sdgbias.types import DIGITS, ModelSpec, Prompt
from tests.builders import families, tiny_models
from tests.builders.bare_model import Bare, four_views, longer

STARTS = ["", *DIGITS]
SPATIAL, CROSS = "qwen2_5_vl", "mllama"
MORE = tuple(  # the logits of a branch with cross-attention are compared below
    pytest.param(name, marks=pytest.mark.long)
    for name in (CROSS, "glm4v", "qwen2_vl", "qwen3_vl", "llava", "gemma3")
)


def numbers() -> list[Prompt]:
    """Two with pictures, of different lengths, and two without."""
    views = four_views()
    longer = "How many years does a woman of this place go to school?"
    seen, bare = views[-2:]
    return [
        seen,
        Prompt(longer, DIGITS, views[4].images, "two"),
        bare,
        Prompt(longer, DIGITS),
    ]


def opened(name: str, tmp_path: Path) -> tuple[Any, Path]:
    folder = families.write(tmp_path / name, name)
    return load(ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled"), Path()), folder


@pytest.mark.parametrize("name", [SPATIAL, *MORE])
def test_one_prefill_gives_all_eleven_answers(name: str, tmp_path: Path) -> None:
    engine, _ = opened(name, tmp_path)
    prompts = numbers()
    with torch.inference_mode():
        want = decoding.by_prefix(engine, prompts, STARTS, 3)
    probe = Prompt("How high?", DIGITS, prompts[0].images, "one")
    engine.generate([probe, Prompt("How high?", DIGITS)], [""], 1)  # both kinds are checked here
    assert engine.branches == {True: True, False: True}
    forwards = count_forwards(engine)
    before = engine.counts.copy()
    assert engine.generate(prompts, STARTS, 3) == want
    done = engine.counts - before
    lengths = engine.inputs(prompts[:2])["attention_mask"].sum()
    lengths += engine.inputs(prompts[2:])["attention_mask"].sum()
    assert done["decode_prefills"] == len(prompts)  # one a question, for eleven answers
    assert done["decode_tokens_prefilled"] == int(lengths)
    assert len(forwards) == 2 + done["decode_steps"]  # two kinds, each prefilled as one batch
    assert done["decode_steps"] <= 2 * (
        3 + 3
    )  # the space before a start, and once to look behind it
    wide = [shape for shape in forwards if shape[1] > 1]
    assert [rows for rows, _ in wide] == [2, 2]


def count_forwards(engine: Any) -> list[tuple[int, int]]:
    """(rows, tokens) of every forward of the model from now on."""
    shapes: list[tuple[int, int]] = []
    engine.model.register_forward_pre_hook(
        lambda module, args, inputs: shapes.append(tuple(inputs["input_ids"].shape)),
        with_kwargs=True,
    )
    return shapes


@pytest.mark.parametrize("name", [SPATIAL, CROSS])
def test_logits_of_a_branch_equal_the_bare_model_s(name: str, tmp_path: Path) -> None:
    engine, folder = opened(name, tmp_path)
    bare, prompts = Bare(folder), numbers()[:2]
    tokens = engine.tokenizer.convert_tokens_to_ids(["4", "2", "7"])
    with torch.inference_mode():
        state, cache, logits = branching.repeat(*branching.prefill(engine, prompts), 2)
        for at in range(len(tokens) + 1):
            for row, prompt in enumerate(prompts):
                inputs = longer(bare.inputs(prompt), tokens[:at])
                want = bare.model(**inputs).logits[0, -1]
                for branch in (2 * row, 2 * row + 1):
                    difference = (logits[branch] - want).abs().max()
                    assert float(difference) <= 1e-4, (prompt.text, at)
            if at < len(tokens):
                token = torch.full((4, 1), tokens[at])
                logits = branching.step(engine, state, cache, token)


def test_a_model_whose_branches_differ_is_decoded_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = opened(SPATIAL, tmp_path)
    prompts = numbers()
    with torch.inference_mode():
        want = decoding.by_prefix(engine, prompts, ["", "7"], 2)
    place = engine.place

    def shifted(**inputs: Any) -> Any:
        positions, delta = place(**inputs)
        return positions[..., :] * 2, delta

    shifted.__signature__ = __import__("inspect").signature(place)  # type: ignore[attr-defined]
    engine.place = shifted
    assert engine.generate(prompts, ["", "7"], 2) == want
    assert engine.branches == {True: False, False: False}
    assert engine.counts["decode_prefills"] == 4  # of the two checks alone


def test_a_cache_that_can_not_be_repeated_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import DynamicCache

    engine, _ = opened(SPATIAL, tmp_path)
    monkeypatch.delattr(DynamicCache.__mro__[1], "batch_repeat_interleave")
    prompts = numbers()[:1]
    with torch.inference_mode():
        want = decoding.by_prefix(engine, prompts, ["", "7"], 2)
    assert engine.generate(prompts, ["", "7"], 2) == want
    assert engine.branches == {True: False}


def test_a_model_that_requires_a_picture_answers_without_one_too(tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path / "m", "instructblip")
    engine = load(ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled"), Path())
    [answers] = engine.generate([Prompt("How many years?", DIGITS)], ["", "7"], 3).texts
    assert len(answers) == 2 and answers[1].startswith("7")
    assert engine.branches == {False: True}  # type: ignore[attr-defined]
