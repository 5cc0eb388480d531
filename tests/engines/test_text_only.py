"""Language models of several families, with a chat template and without, against the bare model;
and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.ways import decide
from sdgbias.errors import OutOfRange
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, IMAGE_FREE, VIEWS, Prompt
from tests.builders import language_models
from tests.builders.bare_model import four_views
from tests.builders.families import write_small
from tests.builders.refusals import Refusal

PROMPTS = [prompt for prompt in four_views() if not prompt.images]
#: Prompts that are shorter than the windows of language_models.MORE, and longer ones.
SHORT = [Prompt(f"How high?\n{c}A. low; B. high", "AB") for c in ("", "asset=1\n", "asset=2\n")]
SHORT += [Prompt("How many years?", DIGITS), Prompt("How many years of school?", DIGITS)]
_PLACE = "The place lies in a valley, far from the next town, and its people draw water from wells"
LONG = [Prompt(f"{_PLACE}. {p.text}", p.candidates) for p in SHORT]


def entry(folder: Path, **options: Any) -> ModelSpec:
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", options=options)
    return replace(spec, views=IMAGE_FREE)


class Bare:
    """The model called by hand, one prompt at a time: no padding, no cache."""

    def __init__(self, folder: Path) -> None:
        self.tokens: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ids(self, prompt: Prompt) -> torch.Tensor:
        """By the library's own rules: a chat template writes all special tokens itself."""
        if not self.tokens.chat_template:
            return self.tokens(prompt.text, return_tensors="pt")["input_ids"]
        messages = [{"role": "user", "content": prompt.text}]
        return self.tokens.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]

    @torch.inference_mode()
    def scores(self, prompt: Prompt, ids: torch.Tensor | None = None) -> np.ndarray:
        """(K,) of each candidate alone and behind a lone space, up to a constant."""
        ids = self.ids(prompt) if ids is None else ids
        space, *letters = self.tokens.convert_tokens_to_ids(["\u0120", *prompt.candidates])
        longer = torch.cat([ids, torch.tensor([[space]])], dim=1)
        first, after = (self.model(i).logits[0, -1].double().log_softmax(-1) for i in (ids, longer))
        found = first[letters].logaddexp(first[space] + after[letters]).numpy()
        return np.asarray(found - found.mean())

    @torch.inference_mode()
    def answer(self, prompt: Prompt) -> str:
        ids = self.ids(prompt)
        new = self.model.generate(ids, max_new_tokens=3, do_sample=False)[0, ids.shape[1] :]
        return str(self.tokens.decode(new, skip_special_tokens=True)).strip()


def worst(engine: HuggingFace, bare: Bare, prompts: list[Prompt]) -> float:
    """The largest difference of a candidate's score, all prompts in one call."""
    rows = engine.candidate_scores(prompts).logits.astype(float)
    own = [row[: len(p.candidates)] for row, p in zip(rows, prompts, strict=True)]
    return max(
        float(np.abs(row - row.mean() - bare.scores(p)).max())
        for row, p in zip(own, prompts, strict=True)
    )


@pytest.mark.parametrize(
    ("family", "template"),
    [
        *((name, name in ("llama", "gpt2", "bloom")) for name in language_models.FAMILIES),
        *((name, False) for name in language_models.MORE),
    ],
)
def test_every_batch_gives_the_scores_and_answers_of_the_bare_model(
    family: str, template: bool, tmp_path: Path
) -> None:
    folder = language_models.write(tmp_path / family, family, template=template)
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    decide(engine, [*SHORT, *LONG])
    for batch in (PROMPTS, LONG, [*LONG[::2], *SHORT[::-1]]):
        assert worst(engine, bare, batch) <= 1e-4
    numbers = [p for p in (*PROMPTS, *LONG) if p.candidates == DIGITS]
    assert engine.generate(numbers, [""], 3).texts == [[bare.answer(p)] for p in numbers]
    if family == "cohere":  # in bfloat16 what stands behind the head is float32, too
        half = HuggingFace(replace(entry(folder), dtype="bfloat16"), tmp_path)
        logits = half.candidate_scores(SHORT).logits[:, :2]
        assert np.abs(logits - torch.tensor(logits).bfloat16().float().numpy()).max() > 0


def change_tokenizer(folder: Path, single: str, template: str) -> None:
    tokens: Any = AutoTokenizer.from_pretrained(folder)
    special = [(token, at) for token, at in (("<s>", 1), ("</s>", 2)) if token in single]
    tokens.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=special
    )
    tokens.chat_template = template or None
    tokens.save_pretrained(folder)


def test_no_end_is_put_behind_a_prompt(tmp_path: Path) -> None:
    """A tokenizer with add_eos_token: an answer begins behind the prompt, not behind its end."""
    folder = language_models.write(tmp_path / "m", "llama", template=False)
    change_tokenizer(folder, "<s> $A </s>", "")
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    for prompt in PROMPTS[:2]:
        whole = bare.ids(prompt)
        assert whole[0, [0, -1]].tolist() == [1, 2]
        row = engine.candidate_scores([prompt]).logits[0, : len(prompt.candidates)].astype(float)
        assert np.abs(row - row.mean() - bare.scores(prompt, whole[:, :-1])).max() <= 1e-4


def test_a_template_writes_all_special_tokens_of_a_language_model(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    chat = "{% for m in messages %}USER: {{ m['content'] }}\n{% endfor %}ASSISTANT:"
    change_tokenizer(folder, "<s> $A", chat)
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    assert bare.ids(PROMPTS[0])[0, 0] != 1
    assert worst(engine, bare, PROMPTS) <= 1e-4


_PARTS = (
    "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %} A:"
)
SYSTEM = "<s><system>\nBe brief.\n<user>\nHow high?\n<assistant>\n"


@pytest.mark.parametrize(
    ("template", "options", "text"),
    [
        (_PARTS, {}, "How high? A:"),
        ("{{ 'USER: ' + messages[0]['content'] + ' A:' }}", {}, "USER: How high? A:"),
        (language_models.TEMPLATE, {"template": {"system": "Be brief."}}, SYSTEM),
    ],
    ids=["parts", "text", "system"],
)
def test_content_is_given_as_the_template_reads_it(
    template: str, options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    change_tokenizer(folder, "<s> $A", template)
    engine = HuggingFace(entry(folder, **options), tmp_path)
    assert engine.chat.render(Prompt("How high?", "AB")) == text


def test_beams_and_penalties_of_a_repository_change_no_answer(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "mamba", template=False)
    numbers = [prompt for prompt in PROMPTS if prompt.candidates == DIGITS]
    greedy = [[Bare(folder).answer(prompt)] for prompt in numbers]
    settings = {"num_beams": 3, "repetition_penalty": 9.0, "suppress_tokens": [9, 10, 11, 12]}
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}), encoding="utf-8")
    assert [[Bare(folder).answer(prompt)] for prompt in numbers] != greedy
    assert HuggingFace(entry(folder), tmp_path).generate(numbers, [""], 3).texts == greedy


def test_what_a_model_has_no_weights_for_is_not_padded_with_and_is_named(tmp_path: Path) -> None:
    """Repositories add a token for padding to the tokenizer alone (LLaMA's of 2023)."""
    folder = language_models.write(tmp_path / "m", "gpt2")
    tokens = AutoTokenizer.from_pretrained(folder)
    rows = len(tokens)
    tokens.add_special_tokens({"pad_token": "[PAD]"})
    tokens.save_pretrained(folder)
    engine = HuggingFace(entry(folder), Path())
    assert worst(engine, Bare(folder), SHORT) < 1e-4
    with pytest.raises(OutOfRange, match=rf"4121 tokens, .*has 4096 positions and {rows} tokens"):
        engine.candidate_scores([Prompt("x" * 4100, "AB")])


def test_a_picture_and_an_entry_that_shows_pictures_are_refused(
    tmp_path: Path, refusal: Refusal
) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    with refusal("a prompt"):
        HuggingFace(entry(folder), tmp_path).candidate_scores(four_views()[:1])
    with refusal("an entry"):
        load_processor(replace(entry(folder), views=VIEWS), tmp_path)


def test_a_vision_language_model_with_two_views_stays_one(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "m", "llava")
    two, four = (
        HuggingFace(replace(entry(folder), views=views), tmp_path).candidate_scores(PROMPTS[:2])
        for views in (IMAGE_FREE, VIEWS)
    )
    np.testing.assert_array_equal(two.logits, four.logits)
