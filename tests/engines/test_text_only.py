"""Language models of several families, with a chat template and without, against the bare model;
and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdgbias.engines.hf import loading
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.ways import decide
from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, IMAGE_FREE, VIEWS, Prompt
from tests.builders import language_models
from tests.builders.bare_model import four_views
from tests.builders.families import write_small

PROMPTS = [prompt for prompt in four_views() if not prompt.images]


def entry(folder: Path) -> ModelSpec:
    return ModelSpec(
        "m", "M", "hf", f"path:{folder}", "local", "enabled", notes="here", views=IMAGE_FREE
    )


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
        asked = self.ids(prompt) if ids is None else ids
        space, *letters = self.tokens.convert_tokens_to_ids(["\u0120", *prompt.candidates])
        longer = torch.cat([asked, torch.tensor([[space]])], dim=1)
        first, after = (
            self.model(i).logits[0, -1].double().log_softmax(-1) for i in (asked, longer)
        )
        found = first[letters].logaddexp(first[space] + after[letters]).numpy()
        return np.asarray(found - found.mean())

    @torch.inference_mode()
    def answer(self, prompt: Prompt) -> str:
        ids = self.ids(prompt)
        said = self.model.generate(ids, max_new_tokens=3, do_sample=False)[0, ids.shape[1] :]
        return str(self.tokens.decode(said, skip_special_tokens=True)).strip()


def worst(engine: HuggingFace, bare: Bare, prompts: list[Prompt]) -> float:
    """The largest difference of a candidate's score, all prompts in one call."""
    found = 0.0
    for prompt, row in zip(prompts, engine.candidate_scores(prompts).logits, strict=True):
        own = row[: len(prompt.candidates)].astype(float)
        found = max(found, float(np.abs(own - own.mean() - bare.scores(prompt)).max()))
    return found


@pytest.mark.parametrize("template", [True, False], ids=["template", "no-template"])
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_scores_and_answers_equal_the_bare_model(
    family: str, template: bool, tmp_path: Path
) -> None:
    folder = language_models.write(tmp_path / family, family, template=template)
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    assert worst(engine, bare, PROMPTS) <= 1e-4
    numbers = [prompt for prompt in PROMPTS if prompt.candidates == DIGITS]
    assert engine.generate(numbers, [""], 3).texts == [[bare.answer(p)] for p in numbers]


#: Prompts that are shorter than the windows of language_models.MORE, and longer ones.
SHORT = [Prompt(f"How high?\n{c}A. low; B. high", "AB") for c in ("", "asset=1\n", "asset=2\n")]
SHORT += [Prompt("How many years?", DIGITS), Prompt("How many years of school?", DIGITS)]
_PLACE = "The place lies in a valley, far from the next town, and its people draw water from wells"
LONG = [Prompt(f"{_PLACE}. {_PLACE}. {p.text}", p.candidates) for p in SHORT]


@pytest.mark.parametrize("family", language_models.MORE)
def test_every_batch_of_every_kind_of_layer_equals_the_bare_model(
    family: str, tmp_path: Path
) -> None:
    folder = language_models.write(tmp_path / family, family, template=False)
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    decide(engine, [*SHORT, *LONG])
    for batch in (SHORT, LONG, [*LONG[::2], *SHORT[::-1]], LONG[1:2]):
        assert worst(engine, bare, batch) <= 1e-4
    numbers = [p for p in (*SHORT, *LONG) if p.candidates == DIGITS]
    assert engine.generate(numbers, [""], 3).texts == [[bare.answer(p)] for p in numbers]
    if family == "cohere":  # in bfloat16 what stands behind the head is float32, too
        half = HuggingFace(replace(entry(folder), dtype="bfloat16"), tmp_path)
        logits = half.candidate_scores(SHORT).logits[:, :2]
        assert np.abs(logits - torch.tensor(logits).bfloat16().float().numpy()).max() > 0


class Prefix:
    """Post-processors of a tokenizer, as repositories have them."""

    STARTS: ClassVar[Any] = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    ENDS: ClassVar[Any] = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )


def change_tokenizer(folder: Path, processor: Any, template: str) -> None:
    tokens = AutoTokenizer.from_pretrained(folder)
    tokens.backend_tokenizer.post_processor = processor
    tokens.chat_template = template or None
    tokens.save_pretrained(folder)


def test_no_end_is_put_behind_a_prompt(tmp_path: Path) -> None:
    """A tokenizer with add_eos_token: an answer begins behind the prompt, not behind its end."""
    folder = language_models.write(tmp_path / "m", "llama", template=False)
    change_tokenizer(folder, Prefix.ENDS, "")
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    for prompt in PROMPTS[:2]:
        whole = bare.ids(prompt)
        assert whole[0, [0, -1]].tolist() == [1, 2]
        row = engine.candidate_scores([prompt]).logits[0, : len(prompt.candidates)].astype(float)
        assert np.abs(row - row.mean() - bare.scores(prompt, whole[:, :-1])).max() <= 1e-4


def test_a_template_writes_all_special_tokens_of_a_language_model(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    chat = "{% for m in messages %}USER: {{ m['content'] }}\n{% endfor %}ASSISTANT:"
    change_tokenizer(folder, Prefix.STARTS, chat)
    engine, bare = HuggingFace(entry(folder), tmp_path), Bare(folder)
    assert bare.ids(PROMPTS[0])[0, 0] != 1
    assert worst(engine, bare, PROMPTS) <= 1e-4


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}USER: {% for p in m['content'] %}{{ p['text'] }}{% endfor %}"
        "{% endfor %} A:",
        "{{ 'USER: ' + messages[0]['content'] + ' A:' }}",
    ],
    ids=["parts", "text"],
)
def test_content_is_given_as_the_template_reads_it(template: str, tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    change_tokenizer(folder, Prefix.STARTS, template)
    engine = HuggingFace(entry(folder), tmp_path)
    assert engine.render(Prompt("How high?", "AB")).split() == ["USER:", "How", "high?", "A:"]


def test_beams_and_penalties_of_a_repository_change_no_answer(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "mamba", template=False)
    numbers = [prompt for prompt in PROMPTS if prompt.candidates == DIGITS]
    want = [[Bare(folder).answer(prompt)] for prompt in numbers]
    found = {"num_beams": 3, "repetition_penalty": 9.0, "suppress_tokens": [9, 10, 11, 12]}
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **found}), encoding="utf-8")
    assert [[Bare(folder).answer(prompt)] for prompt in numbers] != want
    assert HuggingFace(entry(folder), tmp_path).generate(numbers, [""], 3).texts == want


def test_a_system_prompt_is_rendered_as_text(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    spec = replace(entry(folder), options={"template": {"system": "Be brief."}})
    text = HuggingFace(spec, tmp_path).render(Prompt("How high?", "AB"))
    assert text == "<s><system>\nBe brief.\n<user>\nHow high?\n<assistant>\n"


def test_a_picture_is_refused(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    engine = HuggingFace(entry(folder), tmp_path)
    with pytest.raises(ModelError, match="needs pictures"):
        engine.candidate_scores(four_views()[:1])


def test_an_entry_that_asks_it_all_views_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = language_models.write(tmp_path / "m", "llama")
    with pytest.raises(ModelError, match="a language model has views: .q_only, ctx_q.") as raised:
        load_processor(replace(entry(folder), views=VIEWS), tmp_path)
    assert "\n" not in str(raised.value) and "register-model" in str(raised.value)


def test_a_vision_language_model_with_two_views_stays_one(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "m", "llava")
    two, four = (replace(entry(folder), views=views) for views in (IMAGE_FREE, VIEWS))
    assert loading.loader(two, str(folder)) == loading.loader(four, str(folder))
    prompts = PROMPTS[:2]
    one, other = (HuggingFace(spec, tmp_path).candidate_scores(prompts) for spec in (two, four))
    assert np.array_equal(one.logits, other.logits, equal_nan=True)


def test_an_error_of_a_language_model_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HuggingFace(entry(language_models.write(tmp_path / "m", "llama")), tmp_path)

    def fails(**_: Any) -> None:
        raise ValueError("rope of another length")

    monkeypatch.setattr(engine.model.model, "forward", fails)
    with pytest.raises(ValueError, match="rope of another length"):
        engine.candidate_scores(PROMPTS[:1])
