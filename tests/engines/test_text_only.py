"""Language models of several families, with a chat template and without, against the bare model;
and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.text_only import model_class
from sdgbias.errors import ModelError
from sdgbias.types import DIGITS, IMAGE_FREE, VIEWS, ModelSpec, Prompt
from tests.builders import language_models
from tests.builders.bare_model import four_views
from tests.builders.tiny_models import save_llava

PROMPTS = [prompt for prompt in four_views() if not prompt.images]


def entry(folder: Path) -> ModelSpec:
    return ModelSpec(
        "m", "M", "hf", f"path:{folder}", "local", "enabled", notes="here", views=IMAGE_FREE
    )


@pytest.mark.parametrize("template", [True, False], ids=["template", "no-template"])
@pytest.mark.parametrize("family", language_models.FAMILIES)
def test_scores_and_answers_equal_the_bare_model(
    family: str, template: bool, tmp_path: Path
) -> None:
    folder = language_models.write(tmp_path / family, family, template=template)
    engine = HuggingFace(entry(folder), tmp_path)
    tokens = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scored = engine.candidate_scores(PROMPTS).logits
    for prompt, row in zip(PROMPTS, scored, strict=True):
        if template:
            messages = [{"role": "user", "content": prompt.text}]
            ids = tokens.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )["input_ids"]
        else:
            ids = tokens(prompt.text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = model(ids).logits[0, -1].double().numpy()
            said = model.generate(ids, max_new_tokens=3, do_sample=False)[0, ids.shape[1] :]
        want = logits[tokens.convert_tokens_to_ids(list(prompt.candidates))]
        own = row[: len(want)].astype(float)
        assert np.abs((own - own.mean()) - (want - want.mean())).max() <= 1e-4
        if prompt.candidates == DIGITS:
            text = tokens.decode(said, skip_special_tokens=True).strip()
            assert engine.generate([prompt], [""], 3).texts == [[text]]


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
    folder = save_llava(tmp_path / "m")
    two, four = (replace(entry(folder), views=views) for views in (IMAGE_FREE, VIEWS))
    assert model_class(two, str(folder)) is model_class(four, str(folder))
    prompts = PROMPTS[:2]
    one, other = (HuggingFace(spec, tmp_path).candidate_scores(prompts) for spec in (two, four))
    assert np.array_equal(one.logits, other.logits, equal_nan=True)
