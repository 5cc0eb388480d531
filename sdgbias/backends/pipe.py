"""What goes through the pipe between an engine's process and ours: frames of a JSON header and raw bytes. Nothing is unpickled.

A frame is 8 bytes length of the header (big-endian), 8 bytes length of the payload, the header (JSON: prompts, options, texts, errors)
and the payload: pictures one after the other (`sizes` in the header), or the arrays of a ScoreBatch as .npz.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sdgbias import errors
from sdgbias.types import Prompt, ScoreBatch

VERSION = 1
_LENGTHS = struct.Struct(">QQ")
_MOST = 2**34  # a longer frame is noise on the pipe
_ARRAYS = ("logits", "mass", "minus_logit", "n_tokens", "upper")

Frame = tuple[dict[str, Any], bytes]


class FailedElsewhere(Exception):
    """A failure of the other process that is no error of this house; `kind` is its name there."""

    kind = ""


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def read(take: Callable[[int], bytes]) -> Frame:
    """The next frame; ``take(n)`` gives n bytes or raises EOFError. ValueError for bytes that are no frame."""
    header_size, payload_size = _LENGTHS.unpack(take(_LENGTHS.size))
    if max(header_size, payload_size) > _MOST:
        raise ValueError("not a frame")
    header = json.loads(take(header_size))
    if not isinstance(header, dict):
        raise ValueError("not a frame")
    return header, take(payload_size)


def put_prompts(prompts: Sequence[Prompt]) -> Frame:
    """Prompts as a frame; a picture that several of them show is sent once."""
    places: dict[bytes, int] = {}
    rows = [
        {
            "text": p.text,
            "candidates": p.candidates,
            "image_id": p.image_id,
            "images": [places.setdefault(image, len(places)) for image in p.images],
        }
        for p in prompts
    ]
    return {"prompts": rows, "sizes": [len(image) for image in places]}, b"".join(places)


def get_prompts(frame: Frame) -> list[Prompt]:
    header, payload = frame
    ends = np.cumsum([0, *header["sizes"]]).tolist()
    images = [payload[start:end] for start, end in pairwise(ends)]
    return [Prompt(r["text"], r["candidates"], tuple(images[i] for i in r["images"]), r["image_id"]) for r in header["prompts"]]


def put_scores(batch: ScoreBatch) -> Frame:
    arrays = {name: value for name in _ARRAYS if (value := getattr(batch, name)) is not None}
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return {"top_token": list(batch.top_token)}, data.getvalue()


def get_scores(frame: Frame) -> ScoreBatch:
    header, payload = frame
    with np.load(io.BytesIO(payload), allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in _ARRAYS if name in kept}
    return ScoreBatch(top_token=header["top_token"], **arrays)


def put_error(error: BaseException) -> dict[str, Any]:
    """An error as a header: its class, the nearest class of errors.py (for the exit code), and what it says."""
    house = (kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return {"error": type(error).__name__, "class": next(house, ""), "message": str(error)}


def get_error(header: dict[str, Any]) -> Exception:
    """The same class of errors.py, else FailedElsewhere; `kind` names the class that it had there."""
    kind = getattr(errors, str(header["class"]), None) if header["class"] else None
    known = isinstance(kind, type) and issubclass(kind, errors.SdgbiasError)
    error: Exception = kind(header["message"]) if kind is not None and known else FailedElsewhere(header["message"])
    if type(error).__name__ != header["error"]:
        error.kind = header["error"]  # type: ignore[attr-defined]
    return error
