"""From the files of a repository to a model: pinned, safetensors only, every failure reported in
one line.

A model is loaded as its registry entry says, by its configuration, by the views it is asked, and,
for a repository with code of its own that a person has read, by that code's `auto_map`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
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
from transformers.utils import GENERATION_CONFIG_NAME, cached_file, is_flash_attn_2_available

from sdgbias.engines.fingerprint import pinned
from sdgbias.engines.hf.model import attention, keep_greedy, keep_precise, memory_errors
from sdgbias.engines.hub_errors import translate
from sdgbias.engines.options import HfOptions, read
from sdgbias.errors import ModelError, SdgbiasError
from sdgbias.registry.facts import adapters, answers_not
from sdgbias.registry.spec import ModelSpec

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
#: How peft names the weights that it adds to a model.
_OF_ADAPTER = re.compile(
    r"^base_model\.model\.|\.(lora_\w+|ia3_l|(oft|vera)_\w+|modules_to_save|base_layer)(\.|$)"
)


def visual() -> frozenset[str]:
    """The model_types that answer in text about pictures, as named in config.json: those of
    AutoModelForImageTextToText, and of the models for several senses those that see."""
    seeing = set(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES) & set(IMAGE_PROCESSOR_MAPPING_NAMES)
    return frozenset(map(str, seeing | set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)))


def language() -> frozenset[str]:
    """The model_types that it can load as causal language models, and not as vision-language
    models."""
    return frozenset(map(str, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)) - visual()


def further_layers(unused: Iterable[str], names: Iterable[str]) -> list[str]:
    """Of the weights that a model leaves unused, those of layers like the ones that it has by these
    ``names``. A layer with weights of another kind is none of these: DeepSeek's last one guesses
    further tokens."""

    def kind(name: str) -> str:
        return re.sub(r"\.\d+\.", ".N.", name)

    def layer(name: str) -> str:
        return (re.match(r".*?\.\d+\.", name) or [name])[0]

    kinds, keys = set(map(kind, names)), sorted(unused)
    others = {layer(key) for key in keys if kind(key) not in kinds}
    return [key for key in keys if layer(key) not in others]


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Repository:
    """The files of a registry entry: a folder, or a hub repository at its revision. source, where:
    the arguments of `from_pretrained`. Whatever is read from them raises ModelError (of a folder's
    files), InfrastructureError (the hub) or OutOfMemory."""

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.spec = spec
        self.folder, self.source, self.revision = pinned(spec, root)
        self.where = {**self.revision, "trust_remote_code": spec.trust_remote_code}

    @contextmanager
    def reading(self, what: str = "can't load") -> Iterator[None]:
        """The package's errors in place of whatever transformers raises while it reads files;
        ``what`` can't be done with them."""
        try:
            with memory_errors(f"{self.spec.name}: out of memory while loading"):
                yield
        except SdgbiasError:
            raise
        except Exception as error:  # faulty files raise nearly anything inside transformers
            raise translate(self.spec, self.folder, what, error) from None

    def file(self, name: str) -> Path | None:
        """A single file; None where there is none of this name."""
        with self.reading(f"can't read {name} of"):
            path = cached_file(
                self.source, name, _raise_exceptions_for_missing_entries=False, **self.revision
            )
        return Path(path) if path else None

    def config(self) -> Any:
        return AutoConfig.from_pretrained(self.source, **self.where)

    def part(self, loader: Any, **options: Any) -> Any:
        """``loader.from_pretrained`` of these files."""
        with self.reading():
            return loader.from_pretrained(self.source, **self.where, **options)

    def model(self, from_pretrained: Callable[..., Any], **options: Any) -> Any:
        """A model in its entry's dtype, ready for inference, on the accelerator where there is one
        and no option device_map splits it. ModelError where the checkpoint lacks some of its
        weights, or has them in other shapes, which transformers would initialise at random: a tower
        without its projection, a classifier without its head. Buffers that the model computes
        itself may be absent."""
        if self.file(GENERATION_CONFIG_NAME):  # a broken one would be passed over
            with self.reading():
                GenerationConfig.from_pretrained(self.source, **self.revision)
        logging = transformers.utils.logging
        verbosity = logging.get_verbosity()  # type: ignore[no-untyped-call]
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            with self.reading():
                model, about = from_pretrained(
                    self.source,
                    dtype=getattr(torch, self.spec.dtype),
                    use_safetensors=True,
                    output_loading_info=True,
                    **self.where,
                    **options,
                )
        finally:
            logging.set_verbosity(verbosity)  # type: ignore[no-untyped-call]
        if adapted := [key for key in sorted(about["unexpected_keys"]) if _OF_ADAPTER.search(key)]:
            raise ModelError(
                f"{self.spec.name}: {self.spec.repo} has weights of an adapter that would be left"
                f" out, the first {adapted[0]}; merge them (peft: merge_and_unload) and save the"
                " whole"
            )
        computed = {name for name, _ in model.named_buffers()}
        lacking = sorted({*map(str, about["missing_keys"])} - computed)
        lacking += sorted(map(str, about["mismatched_keys"]))
        if lacking:
            raise ModelError(
                f"{self.spec.name}: {self.spec.repo} lacks {len(lacking)} of the weights of a"
                f" {type(model).__name__}, the first {lacking[0]}; copy or download it again, whole"
            )
        if more := further_layers(about["unexpected_keys"], model.state_dict()):
            raise ModelError(
                f"{self.spec.name}: {self.spec.repo} has weights of more layers than config.json"
                f" says, the first {more[0]}; copy both again, of one revision"
            )
        for part in model.modules():  # outputs are read by name, whatever config.json asks for
            if getattr(part, "config", None) is not None:
                part.config.return_dict = True
        with memory_errors(f"{self.spec.name}: out of memory while loading"):
            return model.eval() if "device_map" in options else model.eval().to(device())

    def loader(self) -> Callable[..., Any]:
        """`from_pretrained` of the class that loads the model: the repository's own class where the
        entry trusts its code and auto_map names one; of a model that also speaks (Omni) the part
        that thinks; AutoModelForCausalLM for a language model that is asked no view with a picture.
        Raises ModelError for a model that doesn't write answers."""
        with self.reading():
            config = self.config()
            encodes = config.is_encoder_decoder and config.model_type in language()
            if why := answers_not((config.architectures or [""])[0], encodes):
                raise ModelError(f"{self.spec.name}: {self.spec.repo}: {why}")
            flash = is_flash_attn_2_available() and self.spec.dtype != "float32"
            options: dict[str, Any] = {"config": config}
            if "flash" in attention(config) and not flash:  # the library's choice instead
                options["attn_implementation"] = None
            named = getattr(config, "auto_map", None) or {}
            reference = next((named[name] for name in _OWN if name in named), None)
            if reference and self.spec.trust_remote_code:
                model_class = add_generation_mixin_to_remote_model(
                    get_class_from_dynamic_module(reference, self.source, **self.revision)
                )
                return partial(model_class.from_pretrained, **options)
        auto: Any = AutoModelForCausalLM
        kind, thinker = config.model_type, getattr(config, "thinker_config", None)
        if thinker is not None and thinker.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
            auto, options = AutoModelForImageTextToText, {**options, "config": thinker}
        elif kind in visual() and kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
            auto = AutoModelForMultimodalLM
        elif kind in visual() or self.spec.pictured:
            auto = AutoModelForImageTextToText
        return partial(auto.from_pretrained, **options)


def load_model(spec: ModelSpec, root: Path) -> tuple[Any, torch.device]:
    """(the model of a registry entry in its dtype, with a float32 head, ready for inference, and
    the device that prompts go to): on the accelerator where there is one, or split over several
    where the entry has a device_map. Safetensors only. Raises ModelError, InfrastructureError,
    OutOfMemory, RegistryError."""
    repository = Repository(spec, root)
    if folder := repository.folder:
        beside = (path.relative_to(folder) for path in folder.rglob("adapter_*"))
        if why := adapters(path.as_posix() for path in beside):
            raise ModelError(f"{spec.name}: {folder}: {why}")
    split = read(spec, HfOptions).device_map
    options = {"device_map": split} if split else {}
    model = repository.model(repository.loader(), **options)
    keep_greedy(model)
    keep_precise(model)
    return model, model.get_input_embeddings().weight.device
