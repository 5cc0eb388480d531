"""From prompts to the inputs of a model: batches, left-padded, with their pictures decoded and
processed.

Prompts without a picture are tokenised alone where a processor requires one (PaliGemma), because
the views Q-only and CTX+Q need them. Beside an accelerator the scorer's reader makes the inputs of
the next chunks, so that they are ready when the device is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from sdgbias.engines.hf.chat import Chat
from sdgbias.engines.hub_errors import BROKEN
from sdgbias.errors import ModelError, NotAnswerable, OutOfMemory, first_line
from sdgbias.raw.images.composite import open_picture
from sdgbias.types import Prompt

# prompt
logging.getLogger("transformers.processing_utils").addFilter(
    lambda record: not str(record.msg).startswith("Kwargs passed to `processor.__call__`")
)


class Batch(NamedTuple):
    """Prompts that are computed together, all with pictures or all without, and their rows among
    those that an engine was given; shared: behind what they begin with, one picture included."""

    rows: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    shared: bool = False

    @classmethod
    def of(cls, rows: Sequence[int], prompts: Sequence[Prompt], shared: bool = False) -> Batch:
        return cls(tuple(rows), tuple(prompts[row] for row in rows), shared)


class Inputs(NamedTuple):
    """What a processor makes of a batch, on the CPU: the left-padded inputs of its B prompts; of
    those behind a shared picture the first one's alone, and the token ids of each text."""

    tensors: dict[str, torch.Tensor]
    ids: list[list[int]]


def by_picture(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Row numbers by picture, in order of appearance; prompts without one are one group."""
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt.image_id if prompt.images else "", []).append(row)
    return list(groups.values())


def alike(lengths: Sequence[int], size: int, places: int = 1 << 30) -> Iterator[list[int]]:
    """Rows of similar length, ``size`` at most; fewer, but a quarter of them, where more than a
    tenth of a batch would be padding, and so few that rows times distinct lengths stay within
    ``places``: the logits of each length are computed for all rows of a batch."""
    batch: list[int] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        long, n = lengths[row], len(batch) + 1
        padded = n > max(size // 4, 1) and long * n > 1.1 * (tokens + long)
        wide = n * len({long, *(lengths[b] for b in batch)}) > places
        if batch and (len(batch) == size or padded or wide):
            yield batch
            batch, tokens = [], 0
        batch.append(row)
        tokens += long
    if batch:
        yield batch


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """Tokens that all rows begin with; each row keeps one of its own behind them."""
    first, last = min(map(list, rows)), max(map(list, rows))
    most = min(map(len, rows)) - 1
    return next((at for at in range(most) if first[at] != last[at]), most)


def supports_text_only(processor: Any) -> bool:
    """Whether the processor accepts text without a picture."""
    try:
        processor(images=None, text=["A"])
    except (ValueError, *BROKEN):  # some processors access pictures without checking for any
        return False
    return True


def too_many(name: str, pictures: int, why: str) -> ModelError:
    """The error about a prompt that shows too many pictures."""
    return ModelError(
        f"{name}: {pictures} pictures in one prompt, {why}; build the benchmark with the image"
        " layout composite (layout: composite)"
    )


class InputMaker:
    """The processor of a model, as it is used for prompts; what it declares is asked once, here.
    parameters: names of what the model's forward takes; max_images: the most pictures of one
    prompt, None for any number; ahead: whether batches are made before they are needed, which a
    model on the same cores would pay for."""

    def __init__(
        self,
        chat: Chat,
        name: str,
        parameters: Mapping[str, Any],
        max_images: int | None,
        ahead: bool,
    ) -> None:
        self.chat, self.name, self.max_images, self.ahead = chat, name, max_images, ahead
        tokenizer, processor = chat.tokenizer, chat.processor
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:  # any will do: no score depends on padding
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        #: Whether the processor takes prompts without a picture (PaliGemma's doesn't).
        self.reads_text = supports_text_only(processor)
        #: What marks a picture in the text, where neither a chat template nor the processor writes
        #: it, or the processor takes it for the place of its own tokens (PaliGemma's, which
        #: otherwise warns on every call); else ''.
        self.mark = ""
        self.token = token = getattr(processor, "image_token", None)
        if token is not None and not chat.template:
            texts = ("A", f"{token}A")
            bare, marked = (chat.picture_tokens(text, str(token), (True,)) for text in texts)
            self.mark = str(token) if marked and bare in (0, marked) else ""
        #: Whether the processor takes one picture per prompt, not a list of them.
        self.flat_pictures = not (chat.template or token)
        #: Whether the kinds of tokens are inputs, which some processors return on request only.
        self.marks_kinds = "mm_token_type_ids" in parameters and (
            "mm_token_type_ids" in getattr(processor, "model_input_names", ())
        )
        #: Batches that were made before they are needed.
        self.ready: dict[Batch, Inputs] = {}
        self._one_tokenizer = threading.Lock()  # two threads can't use it at once

    def prefetch(self, batches: Sequence[Batch]) -> None:
        """Makes batches that are asked for later, in another thread than the model's. One that
        can't be made fails when it is asked for."""
        if not self.ahead:
            return
        torch.set_num_threads(1)  # of this thread: more would take the model's cores
        for batch in batches:
            with suppress(Exception):
                self.ready[batch] = self._make(batch)

    @contextmanager
    def using(self, batches: Sequence[Batch]) -> Iterator[None]:
        """Forgets the batches at the end; where memory is full, all: the next ones are smaller."""
        try:
            yield
        except OutOfMemory:
            self.ready.clear()
            raise
        finally:
            for batch in batches:
                self.ready.pop(batch, None)

    def get(self, batch: Batch) -> Inputs:
        """The processor's output, the tokenizer's where the processor takes no text alone.
        ModelError for too many pictures."""
        return self.ready.get(batch) or self._make(batch)

    def _make(self, batch: Batch) -> Inputs:
        prompts = batch.prompts
        if self.token and any(p.images and str(self.token) in p.text for p in prompts):
            raise NotAnswerable(
                f"{self.name}: the prompt holds {str(self.token)!r}, its mark of a picture; word"
                " the question without it"
                # the question without it"
            )
        texts = [self.mark * len(p.images) + self.chat.render(p) for p in prompts]
        special = self.chat.adds_special_tokens(texts[0])
        options: dict[str, Any] = {} if special else {"add_special_tokens": False}
        padded = {**options, "padding": True, "return_tensors": "pt"}
        ids: list[list[int]] = []
        with self._one_tokenizer:
            if batch.shared:
                ids = self.chat.tokenizer(texts, **options)["input_ids"]
                prompts, texts = prompts[:1], texts[:1]
            if prompts[0].images:
                inputs = self._with_pictures(prompts, texts, padded)
            elif self.reads_text:
                inputs = self.chat.processor(images=None, text=texts, **padded)
            else:
                inputs = self.chat.tokenizer(texts, **padded)
        tensors = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor) and k != "labels"}
        return Inputs(tensors, ids)

    def _with_pictures(
        self, prompts: Sequence[Prompt], texts: list[str], options: dict[str, Any]
    ) -> Any:
        most = max(len(prompt.images) for prompt in prompts)
        if self.max_images is not None and most > self.max_images:
            raise too_many(self.name, most, f"takes {self.max_images} at most")
        opened = {data: open_picture(data) for prompt in prompts for data in prompt.images}
        images: list[Any] = [[opened[data] for data in prompt.images] for prompt in prompts]
        if self.flat_pictures:
            images = [picture for of_prompt in images for picture in of_prompt]
        if self.marks_kinds:
            options = {**options, "return_mm_token_type_ids": True}
        try:
            return self.chat.processor(images=images, text=texts, **options)
        except (ValueError, TypeError, IndexError) as error:
            if most < 2:
                raise
            why = f"its processor refuses: {first_line(error)}"
            raise too_many(self.name, most, why) from error
