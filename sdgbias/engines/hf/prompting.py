"""From a prompt to token ids: shared by the engines, so that the same prompt becomes the same
tokens in each of them.

Also handles prompts without a picture where a processor requires one (PaliGemma), because the views
Q-only and CTX+Q need them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from jinja2 import TemplateError
from PIL import Image

from sdgbias.engines.hf.text_only import TextProcessor
from sdgbias.engines.hub_errors import BROKEN
from sdgbias.engines.options import WeightOptions, read
from sdgbias.errors import ModelError, RegistryError, first_line
from sdgbias.raw.images.composite import open_picture
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import LETTERS, Prompt

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


def check_template(processor: Any, template: ChatTemplate, spec: ModelSpec) -> None:
    """RegistryError where an entry's option `template` would change nothing: an argument that the
    chat template doesn't read, or no chat template at all."""
    text, name = getattr(processor, "chat_template", None), spec.name
    where = f"registry/models/{name}.yaml: template"
    if not text and (template.arguments or template.system):
        raise RegistryError(f"{where}: this model has no chat template; valid: answer_prefix alone")
    try:
        shown = render(processor, PROBES[0], template)
        probe_hash(processor, template)
    except (TemplateError, TypeError, ValueError, LookupError) as error:
        why = first_line(error)
        raise ModelError(
            f"{name}: its chat template can't be rendered ({why}); repair chat_template.jinja, or"
            " set another system prompt or argument: options: template"
        ) from None
    if PROBES[0].text not in shown:
        raise ModelError(
            f"{name}: its chat template leaves the question out; repair chat_template.jinja"
        )
    if spec.pictured:
        _check_marks(processor, template, name)
    for argument in template.arguments:
        if argument not in str(text):
            raise RegistryError(
                f"{where}: its chat template doesn't read {argument}; look at it: sdgbias models"
                f" prompt {name}"
            )


def _check_marks(processor: Any, template: ChatTemplate, name: str) -> None:
    """ModelError where the chat template marks no place for a picture, or several, and the
    processor doesn't take it so; some find the place themselves (Qianfan-OCR's)."""
    token = str(getattr(processor, "image_token", None) or "")
    if not token or not getattr(processor, "chat_template", None):
        return
    bare, shown = (render(processor, probe, template) for probe in PROBES)
    marks = shown.count(token) - bare.count(token)
    if marks != 1 and not any(_picture_tokens(processor, shown, token, n) for n in (True, False)):
        raise ModelError(
            f"{name}: its chat template writes {token} {marks} times for one picture, which its"
            " processor doesn't take; repair chat_template.jinja"
        )


def _strftime_now(pattern: str) -> str:
    return TODAY.strftime(pattern)


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
    variables = {"strftime_now": _strftime_now, "date_string": _strftime_now("%d %b %Y")}
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


#: How a template that takes content as one text writes a list of parts.
_PARTS = "{'type': "


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
        content = "\n".join([*[str(token)] * pictures, *texts])
        flattened.append({**message, "content": content})
    return flattened


def probe_hash(processor: Any, template: ChatTemplate) -> str:
    """16 hex digits over two rendered prompts, without a picture and with one: part of a
    fingerprint, so that scores of another wording get another key."""
    texts = [render(processor, probe, template) for probe in PROBES]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


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


def supports_text_only(processor: Any) -> bool:
    """Whether the processor accepts text without a picture."""
    try:
        processor(images=None, text=["A"])
    except (ValueError, *BROKEN):  # some processors access pictures without checking for any
        return False
    return True


def marks_pictures(processor: Any) -> bool:
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
