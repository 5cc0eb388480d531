"""Loads an image-text-to-text or a language model, and reads what its registry entry and its
configuration say about prompts: the largest number of pictures, whether prompts can be scored
together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, GenerationConfig

from sdgbias.engines.fingerprint import pinned
from sdgbias.engines.hf import auto_class, shared_prefix
from sdgbias.engines.hf.checkpoint import refuse_lacking
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hub_errors import BROKEN, translate
from sdgbias.engines.options import HfOptions, WeightOptions, read
from sdgbias.errors import ModelError, NotAnswerable, OutOfMemory, SdgbiasError
from sdgbias.types import ModelSpec

#: Text of the plain RuntimeError that torch raises when main memory is full.
NO_MEMORY = "can't allocate memory"


def load_model(spec: ModelSpec, root: Path) -> Any:
    """The model of a registry entry in its dtype, in main memory, or split over the devices where
    the entry has a device_map. Safetensors only. Raises ModelError, InfrastructureError,
    OutOfMemory, RegistryError."""
    folder, source, where = pinned(spec, root)
    where["trust_remote_code"] = spec.trust_remote_code
    split = read(spec, HfOptions).device_map
    more: dict[str, Any] = {"device_map": split} if split else {}
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, told = auto_class.loader(spec, source, **where)(
            source,
            dtype=getattr(torch, spec.dtype),
            use_safetensors=True,
            output_loading_info=True,
            **where,
            **more,
        )
    except SdgbiasError:
        raise
    except Exception as error:  # faulty files raise nearly anything inside transformers
        if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise OutOfMemory(
                f"{spec.name}: out of memory while loading; {str(error).splitlines()[0]}"
            ) from None
        raise translate(spec, folder, "can't load", error) from None
    refuse_lacking(spec, model, told)
    _greedy(model)
    return model


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


def window(config: Any) -> int | None:
    """The fewest tokens that a layer of the decoder sees at once (sliding windows, chunks); None
    where each layer sees them all."""
    layers = shared_prefix.cache_layers(config)
    sizes = [getattr(layer, "sliding_window", None) for layer in layers]
    return min((size for size in sizes if size), default=None)


def decoder_start(model: Any) -> list[int]:
    """Token ids that every answer of an encoder-decoder model begins with; [] for other models."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return []
    config, text = model.generation_config, model.config.get_text_config(decoder=True)
    for name in ("decoder_start_token_id", "bos_token_id"):
        for one in (config, model.config, text):
            start = getattr(one, name, None)
            if isinstance(start, int):
                forced = getattr(config, "forced_bos_token_id", None)
                return [start] if forced is None else [start, forced]
    raise ModelError(
        f"{type(model).__name__}: no decoder_start_token_id in generation_config.json; add it there"
    )


def too_many(name: str, pictures: int, why: str) -> str:
    """The message of the error about a prompt that shows too many pictures."""
    return (
        f"{name}: {pictures} pictures in one prompt, {why}; build the benchmark with the image"
        " layout composite (layout: composite)"
    )


def tree_tokens(spec: ModelSpec, root: Path) -> int | None:
    """Upper limit on the tokens of one tree of prompts (shared_prefix.py), from the model's
    configuration alone; None where prompts can't be scored together. Raises ModelError,
    InfrastructureError."""
    options = read(spec, WeightOptions)
    alone = isinstance(options, HfOptions) and not options.share_prefix
    if alone or shared_prefix.reads_the_question(load_processor(spec, root)):
        return None
    folder, source, where = pinned(spec, root)
    try:
        config = AutoConfig.from_pretrained(
            source, trust_remote_code=spec.trust_remote_code, **where
        )
    except (*BROKEN, OSError, ValueError) as error:
        raise translate(spec, folder, "can't read the configuration of", error) from None
    if shared_prefix.keeps_a_state(config):
        return None
    return shared_prefix.row_tokens(int(getattr(config.get_text_config(), "hidden_size", 0)))


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
