"""A model called by hand, as its documentation shows: transformers alone, one prompt at a time, no
padding, no cache, positions left to the model."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, AutoModelForMultimodalLM, AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from sdgbias.types import DIGITS, LETTERS, Prompt
from tests.builders.pictures import noise


class Bare:
    def __init__(self, folder: Path) -> None:
        # the older word for Pillow's image processor, which no video processor minds
        self.processor: Any = AutoProcessor.from_pretrained(folder, use_fast=False)
        held = self.processor.tokenizer.chat_template  # not every processor takes it from its files
        self.processor.chat_template = self.processor.chat_template or held
        config, loads = AutoConfig.from_pretrained(folder), AutoModelForMultimodalLM
        if hasattr(config, "thinker_config"):  # it also speaks, which is none of our business
            named = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[config.thinker_config.model_type]
            loads = getattr(transformers, named)
        self.model: Any = loads.from_pretrained(folder, dtype=torch.float32).eval()

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """What processor and chat template make of one prompt."""
        text = prompt.text
        if getattr(self.processor, "chat_template", None):
            content: list[dict[str, str]] = [{"type": "image"} for _ in prompt.images]
            content.append({"type": "text", "text": text})
            messages = [{"role": "user", "content": content}]
            text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        shown = [Image.open(io.BytesIO(data)).convert("RGB") for data in prompt.images]
        options: dict[str, Any] = {"return_tensors": "pt"}
        name = "mm_token_type_ids"
        takes = inspect.signature(self.model.forward).parameters
        if name in self.processor.model_input_names and name in takes:
            options["return_mm_token_type_ids"] = True
        made = self.processor(images=shown or None, text=[text], **options)
        own = getattr(self.processor, "image_token", None)
        if shown and not getattr(self.processor, "chat_template", None) and own is not None:
            there = self.processor.tokenizer.convert_tokens_to_ids(str(own))
            if not (made["input_ids"] == there).any():
                made = self.processor(images=shown, text=[f"{own}{text}"], **options)
        if self._model(prompt) is not self.model:
            return {k: made[k] for k in ("input_ids", "attention_mask")}
        made = {k: v for k, v in made.items() if k not in ("labels", "rows", "cols")}
        floats = (
            k for k, v in made.items() if isinstance(v, torch.Tensor) and v.is_floating_point()
        )
        return {**made, **{k: made[k].float() for k in list(floats)}}

    @property
    def refuses_text(self) -> bool:
        """Whether the family's own processor takes no prompt without a picture."""
        try:
            self.processor(images=None, text=["A"])
        except (ValueError, TypeError, LookupError, AttributeError):
            return True
        return False

    def _model(self, prompt: Prompt) -> Any:
        """For a prompt without a picture, where the whole model can't do without one, the language
        model inside it."""
        needs = type(self.model).__name__.startswith(("Blip2", "InstructBlip", "Kosmos"))
        if prompt.images or not needs:
            return self.model
        return getattr(self.model, "language_model", None) or self.model.text_model

    @torch.inference_mode()
    def log_probabilities(self, prompt: Prompt) -> np.ndarray:
        """(K,) of the candidates, K single tokens, each alone or with a space before it: in one
        token, or after a lone space where no token has both."""
        inputs, model = self.inputs(prompt), self._model(prompt)
        if model.config.is_encoder_decoder:
            start = model.generation_config.decoder_start_token_id
            start = model.generation_config.bos_token_id if start is None else start
            forced = model.generation_config.forced_bos_token_id
            begin = [start] if forced is None else [start, forced]
            inputs["decoder_input_ids"] = torch.tensor([begin])
        vocabulary = self.processor.tokenizer.get_vocab()
        ids = [vocabulary[c] for c in prompt.candidates]
        first = model(**inputs).logits[0, -1].double().log_softmax(-1)
        found = first[ids]
        space = next((s for s in ("\u2581", "\u0120") if s in vocabulary), None)
        if space is not None and f"{space}{prompt.candidates[0]}" not in vocabulary:
            after = model(**longer(inputs, [vocabulary[space]])).logits[0, -1].double()
            found = found.logaddexp(first[vocabulary[space]] + after.log_softmax(-1)[ids])
        elif space is not None:
            found = found.logaddexp(first[[vocabulary[f"{space}{c}"] for c in prompt.candidates]])
        return np.asarray(found)

    def scores(self, prompt: Prompt) -> np.ndarray:
        """(K,) the same up to a constant."""
        found = self.log_probabilities(prompt)
        return found - found.mean()

    @torch.inference_mode()
    def answer(self, prompt: Prompt, length: int, start: str = "") -> str:
        """A greedy answer by the library's own generate, without the penalty on repetition that a
        generation_config.json may set; ``start``: what it begins with."""
        inputs, model = self.inputs(prompt), self._model(prompt)
        given = self.processor.tokenizer(start, add_special_tokens=False)["input_ids"]
        inputs = longer(inputs, given) if start else inputs
        greedy = {"do_sample": False, "repetition_penalty": 1.0}
        ids = model.generate(**inputs, max_new_tokens=length, **greedy)
        begun = 0 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        new = ids[0, begun:]
        return (start + self.processor.tokenizer.decode(new, skip_special_tokens=True)).strip()


def longer(inputs: Mapping[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
    """The inputs of one prompt with tokens at its end, as the model's documentation has them."""
    found = dict(inputs)
    if "decoder_input_ids" in found:
        more = torch.tensor([list(tokens)], dtype=torch.long)
        return {**found, "decoder_input_ids": torch.cat([found["decoder_input_ids"], more], dim=1)}
    length = found["input_ids"].shape[1]
    for name, value in found.items():
        per_token = isinstance(value, torch.Tensor) and value.dim() >= 2
        if not per_token or value.shape[1] != length or name == "pixel_values":
            continue
        last = value[:, -1:].repeat_interleave(len(tokens), 1)
        new = torch.tensor([list(tokens)], dtype=torch.long) if name == "input_ids" else last
        found[name] = torch.cat([value, new], dim=1)
    return found


def four_views() -> list[Prompt]:
    """A question with and without its context and its picture, one about another picture, and a
    regression question with a picture and without."""

    one, two = ((noise(seed, 448, 448),) for seed in (1, 2))
    question = "Question: how high?\n{}Options: A. low; B. mid; C. high"
    full, bare = question.format("Context: asset=1.5\n"), question.format("")
    years = "How many years?"
    return [
        Prompt(full, LETTERS, one, "one"),
        Prompt(bare, LETTERS, one, "one"),
        Prompt(full, LETTERS),
        Prompt(bare, LETTERS),
        Prompt(full, LETTERS, two, "two"),
        Prompt(years, DIGITS, one, "one"),
        Prompt(years, DIGITS),
    ]


def largest_difference(bare: Bare, engine: Any, prompts: Sequence[Prompt]) -> float:
    """Of centred candidate scores, over all prompts, each asked of the bare model alone; without
    those that show no picture, where the family's own processor refuses them (PaliGemma)."""
    if bare.refuses_text:
        prompts = [prompt for prompt in prompts if prompt.images]
    ours = engine.candidate_scores(prompts)
    worst = 0.0
    for row, prompt in zip(ours.logits, prompts, strict=True):
        own = row[: len(prompt.candidates)].astype(float)
        worst = max(worst, float(np.abs(own - own.mean() - bare.scores(prompt)).max()))
    return worst
