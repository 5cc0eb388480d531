"""Prompts without a picture, where a processor asks for one (PaliGemma): the views Q-only and CTX+Q need them all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from sdgbias.backends.sharing import OF_TEXT


def taken(processor: Any) -> bool:
    """Whether the processor takes words without a picture."""
    try:
        processor(images=None, text=["A"])
    except ValueError:
        return False
    return True


def made(processor: Any, texts: Sequence[str], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """(B, L) tensors: what the processor makes of the words around a stand-in picture, whose tokens, as many in each text, are left out."""
    marked = [processor.image_token + text for text in texts]
    whole = processor(images=[[Image.new("RGB", (1, 1))] for _ in texts], text=marked, **options)
    words = whole["input_ids"] != processor.image_token_id
    return {name: whole[name][words].reshape(len(texts), -1) for name in OF_TEXT if name in whole}
