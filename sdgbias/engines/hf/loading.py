"""Loads an image-text-to-text or a language model as its registry entry says, and its language
part alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from sdgbias.engines.fingerprint import local_folder
from sdgbias.engines.hf import auto_class, checkpoint
from sdgbias.engines.hf.head import keep_precise
from sdgbias.engines.options import HfOptions, read
from sdgbias.errors import ModelError, NotAnswerable
from sdgbias.registry.facts import adapters
from sdgbias.registry.spec import ModelSpec


def load_model(spec: ModelSpec, root: Path) -> tuple[Any, torch.device]:
    """(the model of a registry entry in its dtype, with a float32 head, ready for inference, and
    the device that prompts go to): on the accelerator where there is one, or split over several
    where the entry has a device_map. Safetensors only. Raises ModelError, InfrastructureError,
    OutOfMemory, RegistryError."""
    folder = local_folder(spec, root)
    beside = folder.rglob("adapter_config.json") if folder else ()
    if folder and (why := adapters(path.relative_to(folder).as_posix() for path in beside)):
        raise ModelError(f"{spec.name}: {folder}: {why}")

    def from_pretrained(source: str, **options: Any) -> Any:
        where = {k: v for k, v in options.items() if k in ("revision", "trust_remote_code")}
        return auto_class.loader(spec, source, **where)(source, **options)

    split = read(spec, HfOptions).device_map
    more = {"device_map": split} if split else {}
    trust = spec.trust_remote_code
    model = checkpoint.model(spec, root, from_pretrained, trust_remote_code=trust, **more)
    _greedy(model)
    keep_precise(model)
    first = model.get_input_embeddings().weight.device
    return model, first if split else checkpoint.device()


def accepted(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that the model's forward takes; a cache is handed on by `generate`."""
    names = {*inspect.signature(model.forward).parameters, "past_key_values"}
    return {name: value for name, value in inputs.items() if name in names}


def _greedy(model: Any) -> None:
    """Leaves of every generation_config.json inside the model the tokens that begin and end
    answers: beams, penalties on repetition, forbidden and forced tokens would turn greedy answers
    into others wherever the library's own generation writes them."""
    for part in model.modules():
        config = getattr(part, "generation_config", None)
        if config is not None:
            tokens = {k: v for k, v in config.to_dict().items() if k.endswith("_token_id")}
            kept = {k: v for k, v in tokens.items() if k != "forced_eos_token_id"}
            part.generation_config = GenerationConfig(**kept)


def language_part(model: Any, name: str) -> Any:
    """The language model with its head inside a model that requires a picture: it answers what is
    asked without one. Raises NotAnswerable where there is none."""
    for part in ("language_model", "text_model", "text_decoder"):
        found = getattr(model, part, None)
        if getattr(found, "get_output_embeddings", lambda: None)() is not None:
            return found
    raise NotAnswerable(
        f"{name}: {type(model).__name__} answers no prompt without a picture; its views Q-only and"
        " CTX+Q don't exist"
    )


def too_many(name: str, pictures: int, why: str) -> str:
    """The message of the error about a prompt that shows too many pictures."""
    return (
        f"{name}: {pictures} pictures in one prompt, {why}; build the benchmark with the image"
        " layout composite (layout: composite)"
    )


def attention(config: Any) -> str:
    """The attention implementations that the model and its parts selected, e.g. 'sdpa
    text_config:sdpa vision_config:sdpa'."""
    parts = {
        name: getattr(config, name, None) for name in sorted(getattr(config, "sub_configs", ()))
    }
    named = [
        f"{name}:{getattr(part, '_attn_implementation', None)}"
        for name, part in parts.items()
        if part is not None
    ]
    return " ".join([str(getattr(config, "_attn_implementation", None)), *named])
