"""Which class loads a model: by its configuration, by the views it is asked, and, for a repository
with code of its own that a person has read, by that code's `auto_map`.

Also lists the kinds of models that the installed transformers can load, by `model_type`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from sdgbias.errors import ModelError
from sdgbias.registry.facts import classifies
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
    own = _own_class(spec, config, source, where)
    if own is not None:
        return partial(own.from_pretrained, config=config)
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
    made = get_class_from_dynamic_module(reference, source, **revision)
    return add_generation_mixin_to_remote_model(made)
