"""Processed pixels kept by image: one image stands in some thirty prompts, and preparing it costs as much as scoring it."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch
from PIL import Image

from sdgbias.types import Prompt

LIMIT_BYTES = 256 * 2**20
_KEY = "sdgbias_image_id"


class PixelCache:
    """Stands in front of a processor's image processor. Images that come out as one plain `pixel_values` tensor each
    (CLIP, SigLIP) are kept, least recently used out first; image processors that return more are passed through."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.kept: OrderedDict[str, torch.Tensor] = OrderedDict()
        self.size = 0
        self._stand_in = Image.new("RGB", (1, 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, prompt: Prompt) -> list[Image.Image]:
        """The decoded pictures of a prompt, or a stand-in of one pixel for each whose processed pixels are kept."""
        opened = []
        for number, data in enumerate(prompt.images):
            key = f"{prompt.image_id}/{number}" if prompt.image_id else ""
            image = self._stand_in.copy() if key in self.kept else Image.open(io.BytesIO(data)).convert("RGB")
            image.info[_KEY] = key
            opened.append(image)
        return opened

    def __call__(self, images: Any = None, *args: Any, **options: Any) -> Any:
        flat = images if isinstance(images, list) else [images]
        keys = [i.info.get(_KEY, "") if isinstance(i, Image.Image) else "" for i in flat]
        if args or not all(keys):
            return self.inner(images, *args, **options)
        fresh = {key: image for key, image in zip(keys, flat, strict=True) if key not in self.kept}
        known = {key: self.kept[key] for key in keys if key in self.kept}
        batch = None
        if fresh:
            batch = self.inner(list(fresh.values()), **options)
            if set(batch) != {"pixel_values"} or not isinstance(batch["pixel_values"], torch.Tensor):
                return batch if len(fresh) == len(keys) else self.inner(images, **options)
            for key, pixels in zip(fresh, batch["pixel_values"], strict=True):
                known[key] = pixels
                self._keep(key, pixels)
        for key in keys:
            if key in self.kept:
                self.kept.move_to_end(key)
        from transformers import BatchFeature

        return BatchFeature({"pixel_values": torch.stack([known[key] for key in keys])})

    def _keep(self, key: str, pixels: torch.Tensor) -> None:
        self.kept[key] = pixels.clone()
        self.size += pixels.nbytes
        while self.size > LIMIT_BYTES:
            self.size -= self.kept.popitem(last=False)[1].nbytes
