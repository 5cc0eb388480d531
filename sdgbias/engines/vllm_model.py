"""What the vLLM engine does to its loaded model, inside the process that holds it."""

from __future__ import annotations

from typing import Any

_COUNTED = "sdgbias_pictures_encoded"


def count_encoder(model: Any) -> None:
    """Makes a loaded model count the pictures that its encoder processes."""
    encode = model.embed_multimodal
    setattr(model, _COUNTED, 0)

    def counted(**inputs: Any) -> Any:
        pictures = encode(**inputs)
        setattr(model, _COUNTED, getattr(model, _COUNTED) + len(pictures))
        return pictures

    model.embed_multimodal = counted


def encoded(model: Any) -> int:
    return int(getattr(model, _COUNTED))


def jitter_on(model: Any) -> None:
    """Moves every last hidden state within its rounding before the head reads it (hf/head.py)."""
    import torch

    from sdgbias.engines.hf.head import jitter

    compute, source = model.compute_logits, torch.Generator().manual_seed(0)

    def moved(hidden: Any, *rest: Any, **more: Any) -> Any:
        return compute(jitter(hidden, source), *rest, **more)

    model.compute_logits = moved


def jitter_off(model: Any) -> None:
    del model.compute_logits
