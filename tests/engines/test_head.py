"""Scores of a model in bfloat16: no ties and no position bias made by the head, and no flips beyond
the tolerance."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sdgbias.engines.agreement import TOLERANCES, compare, log_shares
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.model import attention, keep_precise
from sdgbias.errors import ModelError, NonFiniteLogits, NotAnswerable
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import LETTERS, Prompt
from tests.builders.families import write_small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("half") / "llava", "llava")


def load(folder: Path, dtype: str = "bfloat16", **options: Any) -> HuggingFace:
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", dtype=dtype)
    return HuggingFace(dataclasses.replace(spec, options=options), Path())


def questions(n: int, seed: int = 0) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    words = ["how", "high", "is", "it", "asset=1.5", "water=2", "low;", "rural", "urban", "years"]
    return [
        Prompt(f"{i} {' '.join(rng.choice(words, rng.integers(3, 12)))}", LETTERS) for i in range(n)
    ]


class Bare(torch.nn.Module):
    """A head alone, as a model presents it."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


def shares_of_letters(logits: torch.Tensor) -> tuple[np.ndarray, float]:
    """How often each of three letters is the argmax, and the share of rows tied at the top."""
    z = logits.float().numpy()
    tied = (z == z.max(axis=1, keepdims=True)).sum(axis=1) > 1
    return np.bincount(z.argmax(axis=1), minlength=3) / len(z), float(tied.mean())


def test_a_uniform_head_in_bfloat16_prefers_no_letter() -> None:
    """180,000 hidden states of which each letter reads its own third, alike in distribution, around
    a logit of 20: each share has a standard error of 0.11 %."""
    torch.manual_seed(0)
    head = torch.nn.Linear(97, 3, bias=False).to(torch.bfloat16)
    rows = torch.zeros(3, 97)
    rows[:, 0] = 1.0
    for letter in range(3):
        rows[letter, 1 + 32 * letter : 33 + 32 * letter] = 0.125
    head.weight.data.copy_(rows)
    hidden = torch.randn(180_000, 97)
    hidden[:, 0] = 20.0
    hidden = hidden.to(torch.bfloat16)
    with torch.inference_mode():
        rounded, ties = shares_of_letters(head(hidden))
        assert ties > 0.05 and rounded[0] > 0.345, "the fault that a float32 head is there to cure"
        keep_precise(Bare(head))
        logits = head(hidden)
        exact, ties = shares_of_letters(logits)
    assert logits.dtype == torch.float32
    assert np.abs(exact - 1 / 3).max() <= 0.005
    assert ties < 1e-3


def test_other_neighbours_flip_nothing_beyond_the_tolerance(folder: Path) -> None:
    """64 prompts in batches of 8 and, in another order, of 32: no best letter differs where the
    margin exceeds the tolerance of the dtype."""
    engine = load(folder, share_prefix=False)
    prompts = questions(64)
    limit = TOLERANCES["bfloat16"]
    one = engine.candidate_scores(prompts)
    engine.batch_size = 32
    order = np.random.default_rng(0).permutation(len(prompts))
    mixed = engine.candidate_scores([prompts[i] for i in order])
    back = np.argsort(order)
    two = dataclasses.replace(
        mixed,
        logits=mixed.logits[back],
        mass=mixed.mass[back],
        n_tokens=mixed.n_tokens[back],
    )
    row = compare("8 / 32", prompts, one, two, limit)
    assert row["n"] == 64 and row["flips"] == 0 and row["agrees"]
    ordered = np.sort(log_shares(one.logits), axis=1)
    assert (ordered[:, -1] - ordered[:, -2] > limit).mean() > 0.5, (
        "few margins exceed the tolerance"
    )


def test_a_model_in_float32_keeps_its_own_head(folder: Path) -> None:
    engine = load(folder, "float32")
    assert "forward" not in vars(engine.model.get_output_embeddings())


def test_an_end_token_that_is_text_is_one_line(folder: Path, tmp_path: Path) -> None:
    written = shutil.copytree(folder, tmp_path / "m") / "generation_config.json"
    config = json.loads(written.read_text()) if written.exists() else {}
    written.write_text(json.dumps({**config, "eos_token_id": "</s>"}))
    with pytest.raises(ModelError, match="m: eos_token_id of .* is the text '</s>'; write the num"):
        load(written.parent, "float32")


def test_a_picture_token_in_a_question_is_named(folder: Path) -> None:
    engine = load(folder, "float32")
    pixels = io.BytesIO()
    Image.new("RGB", (30, 30)).save(pixels, "PNG")
    prompt = Prompt("What is <image>?", LETTERS, (pixels.getvalue(),), "x")
    with pytest.raises(NotAnswerable, match="m: the prompt holds '<image>', its mark of a picture"):
        engine.candidate_scores([prompt])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_token_that_overflows_leaves_no_score_and_no_answer(folder: Path, value: float) -> None:
    engine = load(folder, "float32")
    prompt = questions(1)[0]
    assert np.isfinite(engine.candidate_scores([prompt]).logits).all()
    engine.model.lm_head.weight.data[5] = value  # no candidate's
    found = engine.candidate_scores([prompt])
    assert np.isnan(found.logits).all() and np.isnan(found.mass).all()
    for engine.share_prefix in (True, False):
        with pytest.raises(NonFiniteLogits):
            engine.generate([prompt], ["", "1"], 4)


def test_plain_attention_is_set_in_every_part_and_taken_back(folder: Path) -> None:
    engine = load(folder)
    engine.model.get_output_embeddings().config = 0.5  # Idefics' parts keep numbers there
    before = attention(engine.model.config)
    with engine.other_attention() as differs:
        assert differs and set(attention(engine.model.config).split()) == {
            "eager",
            "text_config:eager",
            "vision_config:eager",
        }
    assert attention(engine.model.config) == before != "eager"
