"""From prompts to the inputs of a model: rendered, tokenised and padded, their pictures decoded and
processed. Beside an accelerator the scorer's reader does this for the next chunks, so that they are
ready when the device is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from sdgbias.engines.hf import prompting
from sdgbias.errors import ModelError, OutOfMemory
from sdgbias.raw.images.composite import open_picture
from sdgbias.types import Prompt

#: Whether they are scored behind the picture that they share, and the prompts.
Batch = tuple[bool, tuple[Prompt, ...]]


class Inputs(NamedTuple):
    """What a processor makes of a batch, on the CPU: the left-padded inputs of its B prompts; of
    those behind a shared picture the first one's alone, and the token ids of each text."""

    tensors: dict[str, torch.Tensor]
    ids: list[list[int]]


class InputMaker:
    """The processor of a model, as it is used for prompts. parameters: names of what the model's
    forward takes; max_images: the most pictures of one prompt, None for any number; ahead: whether
    batches are made before they are needed, which a model on the same cores would pay for."""

    def __init__(
        self,
        processor: Any,
        template: prompting.ChatTemplate,
        name: str,
        parameters: Mapping[str, Any],
        max_images: int | None,
        ahead: bool,
    ) -> None:
        self.processor, self.template, self.name = processor, template, name
        self.max_images, self.ahead = max_images, ahead
        self.tokenizer = processor.tokenizer
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token is None:  # any will do: no score depends on padding
            first = self.tokenizer.convert_ids_to_tokens(0)
            self.tokenizer.pad_token = self.tokenizer.eos_token or first
        #: Whether the processor takes prompts without a picture (PaliGemma's doesn't).
        self.reads_text = prompting.supports_text_only(processor)
        #: Whether pictures have to be marked in the text here, which no chat template does.
        self.marks_pictures = prompting.marks_pictures(processor)
        #: Whether the processor takes one picture per prompt, not a list of them.
        self.flat_pictures = not (
            getattr(processor, "chat_template", None) or getattr(processor, "image_token", None)
        )
        #: Whether the kinds of tokens are inputs, which some processors return on request only.
        self.marks_kinds = "mm_token_type_ids" in parameters and (
            "mm_token_type_ids" in getattr(processor, "model_input_names", ())
        )
        #: Batches that were made before they are needed.
        self.made: dict[Batch, Inputs] = {}
        self._one_tokenizer = threading.Lock()  # two threads can't use it at once

    def prefetch(self, batches: Sequence[Batch]) -> None:
        """Makes batches that are asked for later, in another thread than the model's. One that
        can't be made fails when it is asked for."""
        if not self.ahead:
            return
        torch.set_num_threads(1)  # of this thread: more would take the model's cores
        for batch in batches:
            with suppress(Exception):
                self.made[batch] = self._make(*batch)

    @contextmanager
    def using(self, batches: Sequence[Batch]) -> Iterator[None]:
        """Forgets the batches at the end; where memory is full, all: the next ones are smaller."""
        try:
            yield
        except OutOfMemory:
            self.made.clear()
            raise
        finally:
            for batch in batches:
                self.made.pop(batch, None)

    def get(self, prompts: Sequence[Prompt], behind_picture: bool = False) -> Inputs:
        """The inputs of prompts that all show pictures, or none: the processor's output, the
        tokenizer's where the processor takes no text alone. ModelError for too many pictures."""
        batch = behind_picture, tuple(prompts)
        return self.made.get(batch) or self._make(*batch)

    def _make(self, behind_picture: bool, prompts: Sequence[Prompt]) -> Inputs:
        with self._one_tokenizer:
            return self._processed(behind_picture, prompts)

    def _processed(self, behind_picture: bool, prompts: Sequence[Prompt]) -> Inputs:
        texts = [prompting.render(self.processor, prompt, self.template) for prompt in prompts]
        if self.marks_pictures:
            mark = self.processor.image_token
            texts = [mark * len(p.images) + t for p, t in zip(prompts, texts, strict=True)]
        special = prompting.adds_special_tokens(self.processor, texts[0])
        options: dict[str, Any] = {} if special else {"add_special_tokens": False}
        ids: list[list[int]] = []
        if behind_picture:
            ids = self.tokenizer(texts, **options)["input_ids"]
            prompts, texts = prompts[:1], texts[:1]
        options |= {"padding": True, "return_tensors": "pt"}
        most = max(len(prompt.images) for prompt in prompts)
        if most:
            inputs = self._with_pictures(prompts, texts, most, options)
        elif self.reads_text:
            inputs = self.processor(images=None, text=texts, **options)
        else:
            inputs = self.tokenizer(texts, **options)
        tensors = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor) and k != "labels"}
        return Inputs(tensors, ids)

    def _with_pictures(
        self, prompts: Sequence[Prompt], texts: list[str], most: int, options: dict[str, Any]
    ) -> Any:
        if self.max_images is not None and most > self.max_images:
            raise ModelError(
                prompting.too_many(self.name, most, f"takes {self.max_images} at most")
            )
        opened = {data: open_picture(data) for prompt in prompts for data in prompt.images}
        images: list[Any] = [[opened[data] for data in prompt.images] for prompt in prompts]
        if self.flat_pictures:
            images = [picture for of_prompt in images for picture in of_prompt]
        if self.marks_kinds:
            options = {**options, "return_mm_token_type_ids": True}
        try:
            return self.processor(images=images, text=texts, **options)
        except (ValueError, TypeError, IndexError) as error:
            if most < 2:
                raise
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            why = f"its processor refuses: {cause}"
            raise ModelError(prompting.too_many(self.name, most, why)) from error
