"""Loads models and other parts of a repository: pinned, safetensors only, every failure reported in
one line. An image-text-to-text or a language model is loaded as its registry entry says, by its
configuration, by the views it is asked, and, for a repository with code of its own that a person
has read, by that code's `auto_map`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    GenerationConfig,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
from transformers.utils import cached_file

from sdgbias.engines.fingerprint import local_folder, pinned
from sdgbias.engines.hf.head import keep_precise
from sdgbias.engines.hub_errors import translate
from sdgbias.engines.options import HfOptions, read
from sdgbias.errors import ModelError, NotAnswerable, OutOfMemory, SdgbiasError
from sdgbias.registry.facts import adapters, classifies
from sdgbias.registry.spec import ModelSpec

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
