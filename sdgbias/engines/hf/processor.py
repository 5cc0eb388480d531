"""What makes prompts of text and pictures, without the weights: tokenizer, chat template and image
processor, from the files of repositories of every age."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers.processors import TemplateProcessing
from transformers import AutoImageProcessor, AutoProcessor, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME, IMAGE_PROCESSOR_NAME, PROCESSOR_NAME

from sdgbias.engines.hf.chat import PROBES, UNRENDERED, Chat, TextProcessor
from sdgbias.engines.hf.load import Repository
from sdgbias.engines.options import WeightOptions, read
from sdgbias.errors import ModelError, RegistryError, argument
from sdgbias.registry.facts import code_elsewhere
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import IMAGE_FREE

#: Settings that count a picture's tokens -> the part of config.json that has them.
_COUNTS = {
    "patch_size": "vision_config",
    "vision_feature_select_strategy": "",
    "num_query_tokens": "",
}


def load_chat(spec: ModelSpec, root: Path) -> Chat:
    """The processor of an entry with its option `template`, which was checked against it. Raises
    ModelError, InfrastructureError, RegistryError."""
    chat = Chat(load_processor(spec, root), read(spec, WeightOptions).template)
    chat.check(spec)
    return chat


def load_processor(spec: ModelSpec, root: Path) -> Any:
    """The processor of an entry. Raises ModelError, InfrastructureError.

    The image processor is the Pillow one, where the family has one: torchvision resizes slightly
    differently. It is loaded separately, because AutoProcessor passes the argument `backend` to
    every part, and no video processor has a Pillow version.
    """
    files, settings = Repository(spec, root), read(spec, WeightOptions).processor
    if spec.trust_remote_code:
        _refuse_code_elsewhere(files)
    with files.reading("can't load the processor of"):
        processor: Any = AutoProcessor.from_pretrained(files.source, **files.where)
        # of a repository without a processor it returns the bare tokenizer
        if isinstance(processor, PreTrainedTokenizerBase):
            if spec.pictured:
                raise ModelError(
                    f"{spec.name}: {spec.repo} has a tokenizer and no processor for pictures; a"
                    f" language model has views: [{', '.join(IMAGE_FREE)}] in registry/models/"
                    f"{spec.name}.yaml: sdgbias register-model {argument(spec.repo)}"
                    f" --name {spec.name} --overwrite"
                )
            processor = TextProcessor(processor)
        else:
            if getattr(processor, "image_processor", None) is not None:
                images = AutoImageProcessor.from_pretrained(
                    files.source, backend="pil", **files.where, **settings
                )
                _check_settings(spec, images, settings)
                processor.image_processor = images
            fill_from_config(processor, files.config)
            processor.chat_template = template_in(processor)
        if getattr(processor, "tokenizer", None) is not None:
            leave_open(processor.tokenizer, lambda: bool(files.config().is_encoder_decoder))
    return processor


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


def _refuse_code_elsewhere(files: Repository) -> None:
    """ModelError where files name code of another repository than the entry's."""
    for name in (CONFIG_NAME, PROCESSOR_NAME, IMAGE_PROCESSOR_NAME, TOKENIZER_CONFIG_FILE):
        path = files.file(name)
        with files.reading("can't load the processor of"):
            settings = json.loads(path.read_text(encoding="utf-8")) if path else {}
            if why := code_elsewhere(files.spec.repo, settings):
                raise ModelError(f"{files.spec.name}: {name}: {why}")


def template_in(processor: Any) -> str | None:
    """The chat template of a processor, of several named ones 'default'; its tokenizer's, where
    that alone has one that shows pictures. ValueError for named ones without a default."""
    parts = (processor, getattr(processor, "tokenizer", None))
    templates = [getattr(part, "chat_template", None) for part in parts]
    template, held = map(_default, templates)
    if any(templates) and not (template or held):
        raise ValueError("it has several chat templates and none is named default")
    if template or not held:
        return template
    processor.chat_template = held
    try:
        bare, shown = map(Chat(processor).render, PROBES)
    except (*UNRENDERED, ModelError):
        return None
    mark = getattr(processor, "image_token", None)
    # a processor that names no mark puts pictures in itself (GIT, Kosmos)
    return held if (shown != bare if mark is None else str(mark) in shown) else None


def _default(template: Any) -> str | None:
    if isinstance(template, list):  # as tokenizer_config.json lists several
        template = {one["name"]: one["template"] for one in template}
    return template.get("default") if isinstance(template, dict) else template


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


def _check_settings(spec: ModelSpec, images: Any, settings: dict[str, Any]) -> None:
    """RegistryError for a setting that this image processor doesn't have, since it would be
    ignored."""
    named = getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})
    valid = {*named, *vars(type(images)())}
    for name in settings:
        if name not in valid:
            raise RegistryError(
                f"registry/models/{spec.name}.yaml: processor: {type(images).__name__} has no"
                f" setting {name}; valid: {', '.join(sorted(k for k in valid if k[0] != '_'))}"
            )
