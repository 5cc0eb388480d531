"""Numbers of several starts from one prefill, against generation of one prompt and start at a time:
positions in space, plain ones, and a model whose branches go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.ways import decide
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Prompt
from tests.builders import families
from tests.builders.bare_model import Bare, four_views, longer

STARTS = ["", *DIGITS]
SPATIAL = "qwen2_5_vl"


def numbers() -> list[Prompt]:
    """Two with pictures, of different lengths, and two without."""
    views = four_views()
    years = "How many years does a woman of this place go to school?"
    seen, bare = views[-2:]
    return [seen, Prompt(years, DIGITS, views[4].images, "two"), bare, Prompt(years, DIGITS)]


@pytest.fixture(scope="module")
def spatial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.write(tmp_path_factory.mktemp(SPATIAL), SPATIAL)


def opened(folder: Path) -> Any:
    return HuggingFace(ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled"), Path())


@pytest.mark.parametrize("name", [SPATIAL, "llava"])
def test_one_prefill_gives_all_eleven_answers(name: str, spatial: Path, tmp_path: Path) -> None:
    engine = opened(spatial if name == SPATIAL else families.write(tmp_path / name, name))
    prompts = numbers()
    want = engine.generate(prompts, STARTS, 3)
    engine.share_prefix = True
    widths: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    assert engine.generate(prompts, STARTS, 3) == want
    assert engine.counts["decode_prefills"] == len(prompts), "one a question, for eleven answers"
    assert sum(width > 1 for width in widths) == 2, "two kinds, each prefilled as one batch"


def test_logits_of_a_branch_equal_the_bare_model_s(spatial: Path) -> None:
    engine, bare, prompts = opened(spatial), Bare(spatial), numbers()[:2]
    token = engine.tokenizer.convert_tokens_to_ids("4")
    with torch.inference_mode():
        state = engine.repeat(engine.prefill(prompts), 2)
        logits = engine.follow(state, token)
        for row, prompt in enumerate(prompts):
            want = bare.model(**longer(bare.inputs(prompt), [token])).logits[0, -1]
            for branch in (2 * row, 2 * row + 1):
                assert float((logits[branch] - want).abs().max()) <= 1e-4, prompt.text


def test_a_model_whose_branches_differ_shares_nothing(
    spatial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted disagreement behind a repeated cache alone."""
    engine = opened(spatial)
    whole = HuggingFace.repeat

    def shifted(self: HuggingFace, state: Any, times: int) -> Any:
        found = whole(self, state, times)
        for module in self.model.modules():
            if isinstance(getattr(module, "rope_deltas", None), torch.Tensor):
                module.rope_deltas = module.rope_deltas + 40
        return found

    monkeypatch.setattr(HuggingFace, "repeat", shifted)
    found = decide(engine, four_views())
    assert not found.share_prefix and not engine.share_prefix
    assert "branches: log-probabilities behind a digit differ by up to" in found.line


def test_a_model_that_requires_a_picture_answers_without_one_too(tmp_path: Path) -> None:
    engine = opened(families.write_small(tmp_path / "m", "instructblip"))
    [answers] = engine.generate([Prompt("How many years?", DIGITS)], ["", "7"], 3).texts
    assert len(answers) == 2 and answers[1].startswith("7")
