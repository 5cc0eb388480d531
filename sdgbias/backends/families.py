"""Which kinds of models the installed transformers can load as image-text-to-text."""

from __future__ import annotations


def known() -> frozenset[str]:
    """Their model_types, as config.json names them."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return frozenset(map(str, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES))
