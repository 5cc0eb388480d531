"""Images derived on demand: noised copies of stored images (VCD) and blank images.

A derived image has an id, ``noise-<step>:<image_id>`` or ``blank:<width>x<height>``, and always the
same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache

import numpy as np
from PIL import Image

from sdgbias.raw.images.composite import SIDE, encode_png, open_picture
from sdgbias.raw.images.shards import ImageReader

STEPS, KEPT = 1000, 16
#: Channel means and deviations that CLIP normalises pixels with: the unit that the noise is
#: measured in.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
_NOISE = re.compile(r"noise-(\d{1,3}):(.+)", re.DOTALL)
_BLANK = re.compile(r"blank:([1-9]\d{0,3})x([1-9]\d{0,3})")


def noise_id(image_id: str, step: int = 500) -> str:
    """Id of a stored picture noised to a diffusion step, 0 to 999."""
    return f"noise-{step}:{image_id}"


def blank_id(width: int = SIDE, height: int = SIDE) -> str:
    """Id of a white picture."""
    return f"blank:{width}x{height}"


class Pictures(Mapping[str, tuple[bytes, ...]]):
    """image_id -> its images, derived ids included. Iterates over the stored ones. Raises
    InputError as ImageReader does.

    The most recent noised images are cached, because prompts about one image are adjacent.
    """

    def __init__(self, stored: ImageReader) -> None:
        self.stored = stored
        self._noised = lru_cache(KEPT)(self._noise)

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and (
            _BLANK.fullmatch(key) is not None or _source(key) in self.stored
        )

    def require(self, wanted: Iterable[str]) -> None:
        """Raise InputError unless every id (except ''), or the image that it is derived from,
        exists."""
        self.stored.require({_source(key) for key in wanted if not _BLANK.fullmatch(key)})

    def __getitem__(self, key: str) -> tuple[bytes, ...]:
        if blank := _BLANK.fullmatch(key):
            return (_white(int(blank[1]), int(blank[2])),)
        if noised := _NOISE.fullmatch(key):
            return self._noised(noised[2], int(noised[1]))
        return self.stored[key]

    def _noise(self, image_id: str, step: int) -> tuple[bytes, ...]:
        return tuple(
            noise(part, step, f"{image_id}/{number}")
            for number, part in enumerate(self.stored[image_id])
        )


def _source(key: str) -> str:
    noised = _NOISE.fullmatch(key)
    return noised[2] if noised else key


@cache
def signal_left(step: int) -> float:
    """Product of 1 - beta up to a diffusion step; betas rise along a sigmoid from 1e-5 to 0.005
    (METHODS 1.3, Leng 2024)."""
    betas = 1.0 / (1.0 + np.exp(-np.linspace(-6.0, 6.0, STEPS))) * (0.005 - 1e-5) + 1e-5
    return float(np.cumprod(1.0 - betas)[step])


def noise(picture: bytes, step: int, key: str) -> bytes:
    """PNG of sqrt(s) x + sqrt(1 - s) e: x the picture's pixels in CLIP's normalised units, s =
    signal_left(step), e standard normal, drawn from ``key`` and the step alone.

    The noise is added at the original image size and the result is clipped to the valid pixel
    range. The reference adds it after the model's preprocessing, to the resized tensor, without
    clipping, from a global random state (METHODS 1.3).
    """
    seed = int.from_bytes(hashlib.sha256(f"noise-{step}:{key}".encode()).digest()[:8], "big")
    pixels = np.asarray(open_picture(picture), dtype=np.float32) / 255
    mean, deviation = np.array((CLIP_MEAN, CLIP_DEVIATION), dtype=np.float32)
    left = signal_left(step)
    drawn = np.random.default_rng(seed).standard_normal(pixels.shape, dtype=np.float32)
    noised = np.sqrt(left) * (pixels - mean) / deviation + np.sqrt(1 - left) * drawn
    noised = noised * deviation + mean
    shown = np.rint(np.clip(noised, 0, 1) * 255).astype(np.uint8)
    return encode_png(Image.fromarray(shown), level=0)  # noise can't be compressed


@cache
def _white(width: int, height: int) -> bytes:
    return encode_png(Image.new("RGB", (width, height), "white"))
