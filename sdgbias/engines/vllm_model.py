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
