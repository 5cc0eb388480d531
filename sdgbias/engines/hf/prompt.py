"""From prompts to the inputs of a model: rendered, tokenised and padded, their pictures decoded and
processed. Shared by the engines, so that the same prompt becomes the same tokens in each of them.

A language model's tokenizer stands behind the interface of a processor, so that no engine needs a
second path. Prompts without a picture are tokenised alone where a processor requires one
(PaliGemma), because the views Q-only and CTX+Q need them. Beside an accelerator the scorer's reader
makes the inputs of the next chunks, so that they are ready when the device is.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import TemplateError
from PIL import Image
from transformers import PreTrainedTokenizerBase

from sdgbias.engines.hub_errors import BROKEN
from sdgbias.engines.options import WeightOptions, read
from sdgbias.errors import ModelError, OutOfMemory, RegistryError, first_line
from sdgbias.raw.images.composite import open_picture
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import LETTERS, NEEDS_PICTURES, Prompt

#: The date passed to every chat template (Llama's default): a template that writes today's date
#: would change prompts from night to night under an unchanged key.
TODAY = datetime(2024, 7, 26)
# transformers doesn't count strftime_now among the variables of a template, and warns on every
# prompt
logging.getLogger("transformers.processing_utils").addFilter(
    lambda record: not str(record.msg).startswith("Kwargs passed to `processor.__call__`")
)
#: Two prompts whose rendered text stands for a template: without a picture and with one.
PROBES = (Prompt("Question?", LETTERS), Prompt("Question?", LETTERS, (b"",), "probe"))
#: How a template that takes content as one text writes a list of parts.
_PARTS = "{'type': "
#: Whether they are scored behind the picture that they share, and the prompts.
Batch = tuple[bool, tuple[Prompt, ...]]


class TextProcessor:
    """A tokenizer as a processor of text alone. Chat templates of language models expect the
    content of a message as one text, not as a list of parts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.image_processor: Any = None

    @property
    def chat_template(self) -> Any:
        return self.tokenizer.chat_template

    @property
    def model_input_names(self) -> list[str]:
        return list(self.tokenizer.model_input_names)

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The rendered text. Parts that stand for a picture are left out: the hash of rendered
        probes has one, and a prompt with a picture is refused before it gets here."""
        plain = [
            {**m, "content": "".join(p["text"] for p in m["content"] if p["type"] == "text")}
            for m in messages
        ]
        text = str(self.tokenizer.apply_chat_template(plain, **options))
        if all(str(m["content"]).strip() in text for m in plain):
            return text
        # a template that reads lists of parts alone leaves out what isn't one
        parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in plain]
        return str(self.tokenizer.apply_chat_template(parts, **options))

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        """The tokenizer's output. ModelError for a prompt with a picture."""
        if images is not None:
            raise ModelError(f"{NEEDS_PICTURES}: a language model was asked about a picture")
        return self.tokenizer(text, **options)


@dataclass(frozen=True)
class ChatTemplate:
    """Contents of an entry's option `template`: arguments of the chat template, a system prompt,
    and the beginning of the answer."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    answer_prefix: str = ""


def template_of(spec: ModelSpec) -> ChatTemplate:
    """Option `template` of a registry entry. RegistryError where it isn't a mapping of plain
    values."""
    given = read(spec, WeightOptions).template
    return ChatTemplate(given.model_extra or {}, given.system, given.answer_prefix)


def render(processor: Any, prompt: Prompt, template: ChatTemplate | None = None) -> str:
    """The text the tokenizer sees: the chat template around the prompt, with the pictures before
    the text; the bare text where the processor has no template. Its date is always TODAY."""
    settings = template or ChatTemplate()
    if not getattr(processor, "chat_template", None):
        return prompt.text + settings.answer_prefix
    content: list[dict[str, str]] = [{"type": "image"} for _ in prompt.images]
    content.append({"type": "text", "text": prompt.text})
    messages = [{"role": "user", "content": content}]
    if settings.system:
        parts = [{"type": "text", "text": settings.system}]
        messages.insert(0, {"role": "system", "content": parts})
    variables = {"strftime_now": TODAY.strftime, "date_string": TODAY.strftime("%d %b %Y")}
    # transformers takes a name that the template doesn't read for an argument of the processor
    given = {k: v for k, v in variables.items() if k in str(processor.chat_template)}
    options = {"add_generation_prompt": True, "tokenize": False, **given, **settings.arguments}
    try:
        text = processor.apply_chat_template(messages, **options)
    except TypeError:  # as a template joins content to its own text
        text = _PARTS
    if _PARTS in text:
        text = processor.apply_chat_template(_as_text(processor, messages), **options)
    return f"{text}{settings.answer_prefix}"


def _as_text(processor: Any, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose content is one text with the marks of the pictures before it, each on a line
    of its own, as vLLM writes them for such templates. ModelError where there is no mark."""
    token = getattr(processor, "image_token", None)
    flattened = []
    for message in messages:
        pictures = sum(part["type"] == "image" for part in message["content"])
        if pictures and token is None:
            raise ModelError(
                f"{type(processor).__name__}: its chat template takes no pictures and the processor"
                " names no token for one; repair chat_template.jinja"
            )
        texts = [part["text"] for part in message["content"] if part["type"] == "text"]
        flattened.append({**message, "content": "\n".join([*[str(token)] * pictures, *texts])})
    return flattened


def probe_hash(processor: Any, template: ChatTemplate) -> str:
    """16 hex digits over two rendered prompts, without a picture and with one: part of a
    fingerprint, so that scores of another wording get another key."""
    texts = [render(processor, probe, template) for probe in PROBES]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def check_template(processor: Any, template: ChatTemplate, spec: ModelSpec) -> None:
    """RegistryError where an entry's option `template` would change nothing: an argument that the
    chat template doesn't read, or no chat template at all. ModelError for a template that can't be
    rendered or loses question or picture."""
    text, name = getattr(processor, "chat_template", None), spec.name
    where = f"registry/models/{name}.yaml: template"
    if not text and (template.arguments or template.system):
        raise RegistryError(f"{where}: this model has no chat template; valid: answer_prefix alone")
    try:
        bare, shown = (render(processor, probe, template) for probe in PROBES)
    except (TemplateError, TypeError, ValueError, LookupError) as error:
        raise ModelError(
            f"{name}: its chat template can't be rendered ({first_line(error)}); repair"
            " chat_template.jinja, or set another system prompt or argument: options: template"
        ) from None
    if PROBES[0].text not in bare:
        raise ModelError(
            f"{name}: its chat template leaves the question out; repair chat_template.jinja"
        )
    token = str(getattr(processor, "image_token", None) or "")
    marks = shown.count(token) - bare.count(token) if token and text and spec.pictured else 1
    # some processors find the place of a picture themselves
    if marks != 1 and not any(_picture_tokens(processor, shown, token, n) for n in (True, False)):
        raise ModelError(
            f"{name}: its chat template writes {token} {marks} times for one picture, which its"
            " processor doesn't take; repair chat_template.jinja"
        )
    for argument in template.arguments:
        if argument not in str(text):
            raise RegistryError(
                f"{where}: its chat template doesn't read {argument}; look at it: sdgbias models"
                f" prompt {name}"
            )


def adds_special_tokens(processor: Any, rendered: str) -> bool:
    """False where the chat template has already written the first token (BOS), so that it is not
    added twice; and for every template of a language model, which by the library's rule writes all
    special tokens itself."""
    if isinstance(processor, TextProcessor) and processor.chat_template:
        return False
    first = processor.tokenizer.bos_token
    return not (first and rendered.startswith(first))


def too_many(name: str, pictures: int, why: str) -> str:
    """The message of the error about a prompt that shows too many pictures."""
    return (
        f"{name}: {pictures} pictures in one prompt, {why}; build the benchmark with the image"
        " layout composite (layout: composite)"
    )


def token_paths(
    processor: Any,
    prompts: Sequence[Prompt],
    image_tokens: int | None = None,
    template: ChatTemplate | None = None,
) -> list[np.ndarray]:
    """Token ids of prompts as an engine would prefill them, (L,) int64 each, without any model or
    pixel work.

    The tokens of a picture are placed at the beginning as -1, as many as the processor produces for
    the first prompt's pictures (``image_tokens`` instead, per picture). Their position changes
    neither lengths nor common prefixes.
    """
    if not prompts:
        return []
    texts = [render(processor, prompt, template) for prompt in prompts]
    special = adds_special_tokens(processor, texts[0])
    ids = processor.tokenizer(texts, add_special_tokens=special)["input_ids"]
    extra = 0
    first = next((at for at, prompt in enumerate(prompts) if prompt.images), None)
    if first is not None and image_tokens is not None:
        extra = max(image_tokens - 1, 0)  # the placeholder is one of them
    elif first is not None:
        pictures = [open_picture(data) for data in prompts[first].images]
        whole = processor(
            images=pictures, text=[texts[first]], return_tensors="np", add_special_tokens=special
        )["input_ids"][0]
        extra = (len(whole) - len(ids[first])) // len(pictures)
    return [
        np.array([-1] * (extra * len(p.images)) + list(i), dtype=np.int64)
        for p, i in zip(prompts, ids, strict=True)
    ]


def by_picture(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Row numbers by picture, in order of appearance; prompts without one are one group."""
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt.image_id if prompt.images else "", []).append(row)
    return list(groups.values())


def batches(lengths: Sequence[int], size: int, places: int = 1 << 30) -> Iterator[list[int]]:
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


def _marks_pictures(processor: Any) -> bool:
    """Whether the place of a picture has to be marked in the text before the processor sees it: no
    chat template does, and the processor doesn't itself, or takes the mark for the place of its
    own tokens (PaliGemma's, which otherwise warns on every call)."""
    token = getattr(processor, "image_token", None)
    if token is None or getattr(processor, "chat_template", None):
        return False
    unmarked, marked = (_picture_tokens(processor, text, str(token)) for text in ("A", f"{token}A"))
    return marked > 0 and unmarked in (0, marked)


def _picture_tokens(processor: Any, text: str, token: str, nested: bool = True) -> int:
    """How many picture tokens a text about one picture gets; 0 where the processor refuses it.
    ``nested``: pictures go in as a list for each prompt."""
    picture = Image.new("RGB", (32, 32))
    try:
        ids = processor(images=[[picture] if nested else picture], text=[text])["input_ids"][0]
    except Exception:  # each processor refuses in a way of its own
        return 0
    return list(ids).count(processor.tokenizer.convert_tokens_to_ids(token))


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
        template: ChatTemplate,
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
        self.reads_text = supports_text_only(processor)
        #: Whether pictures have to be marked in the text here, which no chat template does.
        self.marks_pictures = _marks_pictures(processor)
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
        texts = [render(self.processor, prompt, self.template) for prompt in prompts]
        if self.marks_pictures:
            mark = self.processor.image_token
            texts = [mark * len(p.images) + t for p, t in zip(prompts, texts, strict=True)]
        special = adds_special_tokens(self.processor, texts[0])
        options: dict[str, Any] = {} if special else {"add_special_tokens": False}
        padded = {**options, "padding": True, "return_tensors": "pt"}
        ids: list[list[int]] = []
        with self._one_tokenizer:
            if behind_picture:
                ids = self.tokenizer(texts, **options)["input_ids"]
                prompts, texts = prompts[:1], texts[:1]
            if any(prompt.images for prompt in prompts):
                inputs = self._with_pictures(prompts, texts, padded)
            elif self.reads_text:
                inputs = self.processor(images=None, text=texts, **padded)
            else:
                inputs = self.tokenizer(texts, **padded)
        tensors = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor) and k != "labels"}
        return Inputs(tensors, ids)

    def _with_pictures(
        self, prompts: Sequence[Prompt], texts: list[str], options: dict[str, Any]
    ) -> Any:
        most = max(len(prompt.images) for prompt in prompts)
        if self.max_images is not None and most > self.max_images:
            raise ModelError(too_many(self.name, most, f"takes {self.max_images} at most"))
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
            why = f"its processor refuses: {first_line(error)}"
            raise ModelError(too_many(self.name, most, why)) from error
