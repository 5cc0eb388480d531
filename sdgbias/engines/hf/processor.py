"""A model's processor as its repository describes it, with the image processor that gives the same
pixels on every machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoImageProcessor, AutoProcessor
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import (
    CONFIG_NAME,
    IMAGE_PROCESSOR_NAME,
    PROCESSOR_NAME,
    cached_file,
)

from sdgbias.engines.fingerprint import pinned
from sdgbias.engines.hf import prompting
from sdgbias.engines.hf.loading import reading
from sdgbias.engines.hf.text_only import TextProcessor, processor_of
from sdgbias.engines.options import WeightOptions, read
from sdgbias.errors import ModelError, RegistryError
from sdgbias.registry.facts import code_elsewhere
from sdgbias.registry.spec import ModelSpec


def load_processor(spec: ModelSpec, root: Path) -> Any:
    """Tokenizer, chat template and image processor, without the model. Raises ModelError,
    InfrastructureError.

    The image processor is the Pillow one, where the family has one: torchvision resizes slightly
    differently. It is loaded separately, because AutoProcessor passes the argument `backend` to
    every part, and no video processor has a Pillow version.
    """
    folder, source, where = pinned(spec, root)
    where["trust_remote_code"] = spec.trust_remote_code
    with reading(spec, folder, "can't load the processor of"):
        if spec.trust_remote_code:
            _refuse_code_elsewhere(spec, source, where)
        processor: Any = processor_of(spec, AutoProcessor.from_pretrained(source, **where))
        if getattr(processor, "image_processor", None) is not None:
            options = read(spec, WeightOptions).processor
            processor.image_processor = AutoImageProcessor.from_pretrained(
                source, backend="pil", **where, **options
            )
            _check(spec, processor.image_processor, options)
        fill_from_config(processor, lambda: AutoConfig.from_pretrained(source, **where))
        if not isinstance(processor, TextProcessor):
            processor.chat_template = template_in(processor)
        if getattr(processor, "tokenizer", None) is not None:
            leave_open(processor.tokenizer, lambda: _reads_twice(source, where))
    return processor


#: Settings that count a picture's tokens -> the part of config.json that has them.
_COUNTS = {
    "patch_size": "vision_config",
    "vision_feature_select_strategy": "",
    "num_query_tokens": "",
}


def fill_from_config(processor: Any, read_config: Callable[[], Any]) -> None:
    """Takes what counts a picture's tokens from config.json where processor_config.json lacks it,
    as in repositories of 2023 and 2024. ValueError where it is in neither."""
    lacking = [name for name in _COUNTS if getattr(processor, name, "") is None]
    config = read_config() if lacking else None
    for name in lacking:
        part = getattr(config, _COUNTS[name], None) if _COUNTS[name] else config
        value = getattr(part, name, None)
        if value is None:
            place = f"{_COUNTS[name]}.{name}".lstrip(".")
            raise ValueError(
                f"neither processor_config.json says {name} nor config.json {place}; without it no"
                " prompt can show a picture: add it to processor_config.json"
            )
        setattr(processor, name, value)
    # the first feature, which "default" drops, is none of a patch
    if "patch_size" in lacking and processor.vision_feature_select_strategy == "default":
        processor.num_additional_image_tokens = 1


def _refuse_code_elsewhere(spec: ModelSpec, source: str, where: dict[str, Any]) -> None:
    """ModelError where files name code of another repository than the entry's."""
    held = {k: v for k, v in where.items() if k == "revision"}
    for name in (CONFIG_NAME, PROCESSOR_NAME, IMAGE_PROCESSOR_NAME, TOKENIZER_CONFIG_FILE):
        path = cached_file(source, name, _raise_exceptions_for_missing_entries=False, **held)
        if path and (
            why := code_elsewhere(spec.repo, json.loads(Path(path).read_text(encoding="utf-8")))
        ):
            raise ModelError(f"{spec.name}: {name}: {why}")


def template_in(processor: Any) -> str | None:
    """The chat template of a processor; its tokenizer's, where that alone has one that shows
    pictures. Of several named ones 'default', or the only one. ValueError where none is either."""
    template = _unnamed(getattr(processor, "chat_template", None))
    held = _unnamed(getattr(getattr(processor, "tokenizer", None), "chat_template", None))
    if template or not held:
        return template
    processor.chat_template = held
    try:
        bare, shown = (prompting.render(processor, probe) for probe in prompting.PROBES)
    except (TemplateError, TypeError, ValueError, LookupError, ModelError):
        return None
    mark = getattr(processor, "image_token", None)
    # a processor that names no mark puts pictures in itself (GIT, Kosmos)
    return held if (shown != bare if mark is None else str(mark) in shown) else None


def _unnamed(template: Any) -> str | None:
    if isinstance(template, list):  # as tokenizer_config.json lists several
        template = {one["name"]: one["template"] for one in template}
    if not template or not isinstance(template, dict):
        return template or None
    if "default" not in template and len(template) != 1:
        raise ValueError(
            f"its chat templates are named {', '.join(map(str, template))}, none of them default"
        )
    return str(template.get("default") or next(iter(template.values())))


def leave_open(tokenizer: Any, reads_twice: Callable[[], bool]) -> None:
    """Keeps a tokenizer from ending prompts with a special token (add_eos_token, BERT's [SEP]):
    no decoder begins its answer behind one. What it puts first stays. ``reads_twice``: whether the
    prompt goes into an encoder, which was trained with that end."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    bare = tokenizer("A", add_special_tokens=False)["input_ids"]
    whole = tokenizer("A")["input_ids"]
    starts = (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    before = next(starts, None)
    if core is None or before is None or before + len(bare) == len(whole) or reads_twice():
        return
    first = list(zip(tokenizer.convert_ids_to_tokens(whole[:before]), whole, strict=False))
    core.post_processor = TemplateProcessing(
        single=[*(token for token, _ in first), "$A"], special_tokens=first
    )


def _reads_twice(source: str, where: dict[str, Any]) -> bool:
    return bool(AutoConfig.from_pretrained(source, **where).is_encoder_decoder)


def _check(spec: ModelSpec, images: Any, options: dict[str, Any]) -> None:
    """RegistryError for a setting that this image processor doesn't have, since it would be
    ignored."""
    named = getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})
    valid = {*named, *vars(type(images)())}
    for name in options:
        if name not in valid:
            raise RegistryError(
                f"registry/models/{spec.name}.yaml: processor: {type(images).__name__} has no"
                f" setting {name}; valid: {', '.join(sorted(k for k in valid if k[0] != '_'))}"
            )
