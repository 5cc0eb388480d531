"""Loads models, processors and other parts of a repository: pinned, safetensors only, every failure
reported in one line.

A model is loaded as its registry entry says, by its configuration, by the views it is asked, and,
for a repository with code of its own that a person has read, by that code's `auto_map`. Its head
computes in float32, whatever the dtype of the model: a head in bfloat16 rounds its logits to steps
of 0.06 to 0.125, so that 5 to 10 % of prompts tie at the top, and argmax gives every tie to the
first candidate. Products of two bfloat16 (or float16) numbers are exact in float32, so the same
weights and the same last hidden state give logits without that rounding, and what the model's own
forward does with logits afterwards (scaling, soft caps) happens in float32, too.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateError
from tokenizers.processors import TemplateProcessing
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoProcessor,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import (
    CONFIG_NAME,
    IMAGE_PROCESSOR_NAME,
    PROCESSOR_NAME,
    cached_file,
)

from sdgbias.engines.fingerprint import local_folder, pinned
from sdgbias.engines.hf import prompt
from sdgbias.engines.hub_errors import translate
from sdgbias.engines.options import HfOptions, WeightOptions, read
from sdgbias.errors import ModelError, NotAnswerable, OutOfMemory, RegistryError, SdgbiasError
from sdgbias.registry.facts import adapters, classifies, code_elsewhere
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import IMAGE_FREE

#: Text of the plain RuntimeError that torch raises when main memory is full.
NO_MEMORY = "can't allocate memory"
#: Names under which repositories list a model that answers about pictures, the likeliest first;
#: some are of older versions of transformers. A language model is a causal one, or nothing else.
_OWN = (
    "AutoModelForImageTextToText",
    "AutoModelForVision2Seq",
    "AutoModelForMultimodalLM",
    "AutoModelForConditionalGeneration",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForVisualQuestionAnswering",
    "AutoModelForPreTraining",
    "AutoModel",
)
#: Rows of the head that are converted at a time: 256 MiB in float32 at a width of 4096.
_ROWS = 16384
#: Settings that count a picture's tokens -> the part of config.json that has them.
_COUNTS = {
    "patch_size": "vision_config",
    "vision_feature_select_strategy": "",
    "num_query_tokens": "",
}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def memory_errors(where: str = "out of memory") -> Iterator[None]:
    """OutOfMemory in place of what torch raises when the device's or the machine's is full."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise OutOfMemory(f"{where}: {str(error).splitlines()[0]}") from None
        raise


@contextmanager
def reading(spec: ModelSpec, folder: Path | None, what: str = "can't load") -> Iterator[None]:
    """ModelError (of a folder's files), InfrastructureError (the hub) or OutOfMemory in place of
    whatever transformers raises while it reads an entry's files; ``what`` can't be done with
    them."""
    try:
        with memory_errors(f"{spec.name}: out of memory while loading"):
            yield
    except SdgbiasError:
        raise
    except Exception as error:  # faulty files raise nearly anything inside transformers
        raise translate(spec, folder, what, error) from None


def part(spec: ModelSpec, root: Path, loader: Any, **options: Any) -> Any:
    """``loader.from_pretrained`` on a registry entry's repository at its revision. Raises as
    `reading` does."""
    folder, source, where = pinned(spec, root)
    with reading(spec, folder):
        return loader.from_pretrained(source, **where, **options)


def model(spec: ModelSpec, root: Path, from_pretrained: Callable[..., Any], **options: Any) -> Any:
    """A model in its entry's dtype, ready for inference, on the accelerator where there is one and
    no option device_map splits it. Raises as `reading` does, and ModelError where the checkpoint
    lacks some of its weights, which transformers would initialise at random: a tower without its
    projection, a classifier without its head."""
    folder, source, where = pinned(spec, root)
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with reading(spec, folder):
            loaded, about = from_pretrained(
                source,
                dtype=getattr(torch, spec.dtype),
                use_safetensors=True,
                output_loading_info=True,
                **where,
                **options,
            )
    finally:
        logging.set_verbosity(verbosity)  # type: ignore[no-untyped-call]
    refuse_lacking(spec, loaded, about)
    with memory_errors(f"{spec.name}: out of memory while loading"):
        return loaded.eval() if "device_map" in options else loaded.eval().to(device())


def refuse_lacking(spec: ModelSpec, model: Any, info: dict[str, Any]) -> None:
    """Raises ModelError where a checkpoint lacks some of its model's weights, or has them in other
    shapes: transformers then initialises them at random. info: its loading info. Buffers that the
    model computes itself may be absent."""
    computed = {name for name, _ in model.named_buffers()}
    lacking = sorted({*map(str, info["missing_keys"])} - computed)
    lacking += sorted(map(str, info["mismatched_keys"]))
    if lacking:
        raise ModelError(
            f"{spec.name}: {spec.repo} lacks {len(lacking)} of the weights of a"
            f" {type(model).__name__}, the first {lacking[0]}; copy or download it again, whole"
        )


def file(spec: ModelSpec, root: Path, name: str) -> Path | None:
    """A single file of the repository; None where it has none of this name. Raises
    InfrastructureError when the hub can't be reached."""
    folder = local_folder(spec, root)
    if folder:
        return folder / name if (folder / name).is_file() else None
    with reading(spec, None, f"can't read {name} of"):
        path = cached_file(
            spec.repo, name, revision=spec.revision, _raise_exceptions_for_missing_entries=False
        )
    return Path(path) if path else None


def known() -> frozenset[str]:
    """The model_types that answer in text about pictures, as named in config.json: those of
    AutoModelForImageTextToText, and of the models for several senses those that see."""
    seeing = set(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES) & set(IMAGE_PROCESSOR_MAPPING_NAMES)
    return frozenset(map(str, seeing | set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)))


def language() -> frozenset[str]:
    """The model_types that it can load as causal language models, and not as vision-language
    models."""
    return frozenset(map(str, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)) - known()


def loader(spec: ModelSpec, source: str, **where: Any) -> Callable[..., Any]:
    """`from_pretrained` of the class that loads the model, without its first argument's options:
    the repository's own class where the entry trusts its code and auto_map names one; of a model
    that also speaks (Omni) the part that thinks; AutoModelForCausalLM for a language model that is
    asked no view with a picture. Raises ModelError for a classifier, and what AutoConfig and the
    repository's code raise."""
    config = AutoConfig.from_pretrained(source, **where)
    if why := classifies((getattr(config, "architectures", None) or [""])[0]):
        raise ModelError(f"{spec.name}: {spec.repo}: {why}")
    model_class = _own_class(spec, config, source, where)
    if model_class is not None:
        return partial(model_class.from_pretrained, config=config)
    kind, thinker = config.model_type, getattr(config, "thinker_config", None)
    if thinker is not None and thinker.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return partial(AutoModelForImageTextToText.from_pretrained, config=thinker)
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForImageTextToText.from_pretrained
    if kind in known():
        return AutoModelForMultimodalLM.from_pretrained
    if spec.pictured:
        return AutoModelForImageTextToText.from_pretrained
    return AutoModelForCausalLM.from_pretrained


def _own_class(spec: ModelSpec, config: Any, source: str, where: dict[str, Any]) -> Any:
    """The class that auto_map names; None where there is none, or its code isn't trusted."""
    named = getattr(config, "auto_map", None) or {}
    reference = next((named[name] for name in _OWN if name in named), None)
    if reference is None or not spec.trust_remote_code:
        return None
    revision = {k: v for k, v in where.items() if k == "revision"}
    return add_generation_mixin_to_remote_model(
        get_class_from_dynamic_module(reference, source, **revision)
    )


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
        return loader(spec, source, **where)(source, **options)

    split = read(spec, HfOptions).device_map
    more = {"device_map": split} if split else {}
    trust = spec.trust_remote_code
    loaded = model(spec, root, from_pretrained, trust_remote_code=trust, **more)
    _greedy(loaded)
    keep_precise(loaded)
    first = loaded.get_input_embeddings().weight.device
    return loaded, first if split else device()


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
        module = getattr(model, part, None)
        if getattr(module, "get_output_embeddings", lambda: None)() is not None:
            return module
    raise NotAnswerable(
        f"{name}: {type(model).__name__} answers no prompt without a picture; its views Q-only and"
        " CTX+Q don't exist"
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


@contextmanager
def plain_attention(model: torch.nn.Module) -> Iterator[bool]:
    """Inside, attention is plain matrix products in place of the kernels that the model selected;
    False where it is so already."""
    configs = (getattr(part, "config", None) for part in model.modules())
    parts: list[Any] = [c for c in configs if isinstance(c, PreTrainedConfig)]
    selected = [getattr(part, "_attn_implementation", None) for part in parts]
    try:
        for part in parts:
            part._attn_implementation = "eager"  # noqa: SLF001
        yield any(name not in (None, "eager") for name in selected)
    finally:  # in this order, because a configuration sets those of its parts
        for part, name in zip(parts, selected, strict=True):
            part._attn_implementation = name  # noqa: SLF001


# ----------------------------------------------------------------------
# the head in float32


def keep_precise(model: torch.nn.Module) -> None:
    """Makes the head of a model in bfloat16 or float16 return float32 logits, where it can be
    identified."""
    head = _head_of(model)
    weight = None if head is None else next(head.parameters(), None)
    if head is None or weight is None or weight.dtype not in (torch.bfloat16, torch.float16):
        return
    plain = copy.copy(head)  # shares the parameters; its forward is the family's own
    if type(head).forward is torch.nn.Linear.forward:
        head.forward = lambda hidden: _precise_linear(plain, hidden)  # type: ignore[method-assign]
    else:
        head.forward = lambda hidden: torch.func.functional_call(  # type: ignore[method-assign]
            plain,
            {name: p.float() for name, p in plain.named_parameters()},
            (hidden.float(),),
        )


def _head_of(model: Any) -> torch.nn.Module | None:
    """The module whose output are the logits."""
    head = model.get_output_embeddings()
    if isinstance(head, torch.nn.Module):
        return head
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return next((m for m in reversed(linear) if m.out_features == size), None)


def _precise_linear(head: Any, hidden: torch.Tensor) -> torch.Tensor:
    """(..., V) float32 logits of the hidden states (..., D)."""
    weight, bias = head.weight, head.bias
    hidden = hidden.to(weight.device)  # of a model split over devices
    if weight.is_cuda and hidden.dtype == weight.dtype:
        # accumulated in float32 and returned so, without a converted copy of the weights
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = torch.mm(flat, weight.t(), out_dtype=torch.float32)
        logits = logits if bias is None else logits + bias.float()
        return logits.reshape(*hidden.shape[:-1], -1)
    exact = hidden.float()
    parts = [
        functional.linear(
            exact,
            weight[at : at + _ROWS].float(),
            None if bias is None else bias[at : at + _ROWS].float(),
        )
        for at in range(0, len(weight), _ROWS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


# ----------------------------------------------------------------------
# processors


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
        processor: Any = _as_processor(spec, AutoProcessor.from_pretrained(source, **where))
        if getattr(processor, "image_processor", None) is not None:
            options = read(spec, WeightOptions).processor
            processor.image_processor = AutoImageProcessor.from_pretrained(
                source, backend="pil", **where, **options
            )
            _check_settings(spec, processor.image_processor, options)
        fill_from_config(processor, lambda: AutoConfig.from_pretrained(source, **where))
        if not isinstance(processor, prompt.TextProcessor):
            processor.chat_template = template_in(processor)
        if getattr(processor, "tokenizer", None) is not None:
            leave_open(processor.tokenizer, lambda: _reads_twice(source, where))
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
    """The chat template of a processor, of several named ones 'default'; its tokenizer's, where
    that alone has one that shows pictures."""
    template = _default(getattr(processor, "chat_template", None))
    held = _default(getattr(getattr(processor, "tokenizer", None), "chat_template", None))
    if template or not held:
        return template
    processor.chat_template = held
    try:
        bare, shown = (prompt.render(processor, probe) for probe in prompt.PROBES)
    except (TemplateError, TypeError, ValueError, LookupError, ModelError):
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


def _reads_twice(source: str, where: dict[str, Any]) -> bool:
    return bool(AutoConfig.from_pretrained(source, **where).is_encoder_decoder)


def _check_settings(spec: ModelSpec, images: Any, options: dict[str, Any]) -> None:
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


def _as_processor(spec: ModelSpec, loaded: Any) -> Any:
    """What AutoProcessor gave, as a processor: of a repository without one it returns the bare
    tokenizer. ModelError where the entry asks such a model about pictures."""
    if not isinstance(loaded, PreTrainedTokenizerBase):
        return loaded
    if spec.pictured:
        raise ModelError(
            f"{spec.name}: {spec.repo} has a tokenizer and no processor for pictures; a language"
            f" model has views: [{', '.join(IMAGE_FREE)}] in registry/models/{spec.name}.yaml:"
            f" sdgbias register-model {spec.repo} --name {spec.name} --overwrite"
        )
    return prompt.TextProcessor(loaded)
