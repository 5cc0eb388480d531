"""Processed pixels cached by picture: a picture appears in some thirty prompts, and preparing it
costs as much as scoring it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers import BatchFeature

from sdgbias.raw.images.composite import open_picture
from sdgbias.types import Prompt

LIMIT_BYTES = 256 * 2**20
_KEY, _BYTES = "sdgbias_image_id", "sdgbias_bytes"


class PixelCache:
    """Wraps a processor's image processor. Its output for each picture is cached (least recently
    used evicted first) and reassembled into the output of a single call; the first call checks that
    the two are equal, and where they are not (`separable` False) nothing is cached."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.kept_bytes = 0  # no name of an image processor's own setting, such as size
        self.separable: bool | None = None
        #: `once`: where a picture has several rows of pixels, return them once, however often it is
        #: requested; values that exist once per picture are still repeated. `left_out`: whether the
        #: last call omitted repeated rows.
        self.once = self.left_out = False
        self._stand_in = Image.new("RGB", (1, 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, prompts: Sequence[Prompt]) -> list[list[Image.Image]]:
        """The pictures of each prompt, each decoded once, or a one-pixel stand-in for those whose
        processed pixels are cached."""
        opened: dict[str, Image.Image] = {}
        pictures: list[list[Image.Image]] = []
        for prompt in prompts:
            pictures.append([])
            for number, data in enumerate(prompt.images):
                key = f"{prompt.image_id}/{number}" if prompt.image_id else ""
                image = opened.get(key)
                if image is None:
                    image = self._stand_in.copy() if key in self.kept else open_picture(data)
                    image.info.update({_KEY: key, _BYTES: data})
                    if key:
                        opened[key] = image
                pictures[-1].append(image)
        return pictures

    def forget(self) -> None:
        self.kept.clear()
        self.kept_bytes = 0

    def __call__(self, images: Any = None, *args: Any, **options: Any) -> Any:
        flat = _flat(images)
        keys = [i.info.get(_KEY, "") if isinstance(i, Image.Image) else "" for i in flat]
        if args or self.separable is False or not all(keys):
            return self.inner(images, *args, **options)
        known = {key: self.kept[key] for key in keys if key in self.kept}
        if self.separable is None:
            self.separable = self._try(flat[0], options)
            if not self.separable:
                return self.inner(images, **options)
        for key, image in zip(keys, flat, strict=True):
            if key not in known:
                known[key] = dict(self.inner([image], **options))
                self._keep(key, known[key])
            elif key in self.kept:
                self.kept.move_to_end(key)
        try:
            batch = {
                name: _joined([known[key][name] for key in keys])
                for name in known[keys[0]]
                if name != "pixel_values"
            }
            pixels = [known[key]["pixel_values"] for key in keys]
            self.left_out = self.once and any(len(of_one) > 1 for of_one in pixels)
            shown = (
                [known[key]["pixel_values"] for key in dict.fromkeys(keys)]
                if self.left_out
                else pixels
            )
            return BatchFeature({**batch, "pixel_values": _joined(shown)})
        except (
            RuntimeError,
            TypeError,
        ):  # pictures of different sizes, which only the image processor can bring to one shape
            return self.inner(_reopened(images), **options)

    def _try(self, image: Image.Image, options: dict[str, Any]) -> bool:
        """Whether the output for a picture given twice equals its output for the picture once,
        concatenated with itself."""
        try:
            one = dict(self.inner([image], **options))
            two = dict(self.inner([image, image], **options))
        except (TypeError, ValueError):  # takes only lists per prompt, or returns a bare tensor
            return False
        if set(one) != set(two) or "pixel_values" not in one:
            return False
        try:
            return all(_same(_joined([one[name], one[name]]), two[name]) for name in one)
        except (RuntimeError, TypeError):
            return False

    def _keep(self, key: str, made: dict[str, Any]) -> None:
        self.kept[key] = made
        self.kept_bytes += _bytes(made)
        while self.kept_bytes > LIMIT_BYTES:
            self.kept_bytes -= _bytes(self.kept.popitem(last=False)[1])


def _flat(images: Any) -> list[Any]:
    """The pictures of a list, of a list of lists (one per prompt), or a single one."""
    return (
        [picture for part in images for picture in _flat(part)]
        if isinstance(images, list)
        else [images]
    )


def _reopened(images: Any) -> Any:
    """The same pictures in the same lists, none of them a stand-in."""
    return (
        [_reopened(part) for part in images]
        if isinstance(images, list)
        else open_picture(images.info[_BYTES])
    )


def _joined(parts: list[Any]) -> Any:
    """Concatenated tensors or lists. RuntimeError for tensors that don't fit, TypeError for
    anything else."""
    if all(isinstance(part, torch.Tensor) for part in parts):
        if len(parts) > 1 and len(parts[0]) == 1 and all(part is parts[0] for part in parts):
            return parts[0].expand(len(parts), *parts[0].shape[1:])  # no copy
        return torch.cat(parts)
    if all(isinstance(part, list) for part in parts):
        return [value for part in parts for value in part]
    raise TypeError("neither tensors nor lists")


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return type(one) is type(two) and bool(one == two)


def _bytes(made: dict[str, Any]) -> int:
    return sum(value.nbytes for value in made.values() if isinstance(value, torch.Tensor))
