"""Pictures of noise, each another one."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def noise(seed: int, width: int = 56, height: int = 56) -> bytes:
    """A PNG file of so many pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
