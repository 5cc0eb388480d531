"""What a prompt becomes: text by the chat template, token ids by the tokenizer. Shared by the
engines, so that the same prompt is the same tokens in each of them.

A language model's tokenizer stands behind the interface of a processor, so that no engine needs a
second path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from jinja2 import TemplateError
from PIL import Image
from transformers import PreTrainedTokenizerBase

from sdgbias.engines.hf.tokens import find_candidates
from sdgbias.engines.options import TemplateArguments
from sdgbias.errors import ModelError, RegistryError, first_line
from sdgbias.raw.images.composite import open_picture
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, NEEDS_PICTURES, Prompt

#: The date passed to every chat template (Llama's default): a template that writes today's date
#: would change prompts from night to night under an unchanged key.
TODAY = datetime(2024, 7, 26)
#: Two prompts whose rendered text stands for a template: without a picture and with one.
PROBES = (Prompt("Question?", LETTERS), Prompt("Question?", LETTERS, (b"",), "probe"))
#: What a template raises that can't be rendered with these messages.
UNRENDERED = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError)
#: How a template that takes content as one text writes a list of parts.
_PARTS = "{'type': "
_SHOWN = 8


class TextProcessor:
    """A tokenizer as a processor of text alone; what it lacks is the tokenizer's."""

    image_processor: Any = None

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        """The tokenizer's output. ModelError for a prompt with a picture."""
        if images is not None:
            raise ModelError(f"{NEEDS_PICTURES}: a language model was asked about a picture")
        return self.tokenizer(text, **options)


class Chat:
    """A processor and option `template` of its registry entry."""

    def __init__(self, processor: Any, settings: TemplateArguments | None = None) -> None:
        self.processor, self.settings = processor, settings or TemplateArguments()

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @property
    def template(self) -> Any:
        """The chat template; None for a model that gets the bare text."""
        return getattr(self.processor, "chat_template", None)

    @property
    def _of_language(self) -> bool:
        return isinstance(self.processor, TextProcessor)

    def render(self, prompt: Prompt) -> str:
        """The text the tokenizer sees: the chat template around the prompt, with the pictures
        before the text; the bare text where there is no template. Its date is always TODAY."""
        if not self.template:
            return prompt.text + self.settings.answer_prefix
        # the probe with a picture is rendered for language models, too
        pictures = () if self._of_language else prompt.images
        content: list[dict[str, str]] = [{"type": "image"} for _ in pictures]
        content.append({"type": "text", "text": prompt.text})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if system := self.settings.system:
            parts = [{"type": "text", "text": system}]
            messages.insert(0, {"role": "system", "content": parts})
        return self._fill(messages) + self.settings.answer_prefix

    def _fill(self, messages: list[dict[str, Any]]) -> str:
        """The chat template with content as the template reads it: a list of parts or one text,
        which templates of language models usually expect."""
        variables = {"strftime_now": TODAY.strftime, "date_string": TODAY.strftime("%d %b %Y")}
        # transformers takes a name that the template doesn't read for an argument of the processor
        read = {k: v for k, v in variables.items() if k in str(self.template)}
        options = {"add_generation_prompt": True, "tokenize": False, **read}
        options |= self.settings.arguments
        apply = self.processor.apply_chat_template
        if self._of_language:
            text = str(apply(self._as_text(messages), **options))
            texts = [part["text"] for message in messages for part in message["content"]]
            # a template that reads lists of parts alone leaves out what isn't one
            whole = all(t.strip() in text for t in texts)
            return text if whole else str(apply(messages, **options))
        try:
            text = str(apply(messages, **options))
        except TypeError:  # as a template joins content to its own text
            text = _PARTS
        return str(apply(self._as_text(messages), **options)) if _PARTS in text else text

    def _as_text(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages whose content is one text with the marks of the pictures before it, each on a
        line of its own, as vLLM writes them for such templates. ModelError where there is no
        mark."""
        mark = getattr(self.processor, "image_token", None)
        parts = [part for message in messages for part in message["content"]]
        if mark is None and any(part["type"] == "image" for part in parts):
            raise ModelError(
                f"{type(self.processor).__name__}: its chat template takes no pictures and the"
                " processor names no token for one; repair chat_template.jinja"
            )
        return [
            {**m, "content": "\n".join(str(p.get("text", mark)) for p in m["content"])}
            for m in messages
        ]

    def probe_hash(self) -> str:
        """16 hex digits over two rendered prompts, without a picture and with one: part of a
        fingerprint, so that scores of another wording get another key."""
        texts = [self.render(probe) for probe in PROBES]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]

    def check(self, spec: ModelSpec) -> None:
        """RegistryError where the entry's option `template` would change nothing: an argument that
        the chat template doesn't read, or no chat template at all. ModelError for a template that
        can't be rendered or loses question or picture."""
        name, where = spec.name, f"registry/models/{spec.name}.yaml: template"
        if not self.template and (self.settings.arguments or self.settings.system):
            raise RegistryError(
                f"{where}: this model has no chat template; valid: answer_prefix alone"
            )
        try:
            bare, shown = map(self.render, PROBES)
        except UNRENDERED as error:
            raise ModelError(
                f"{name}: its chat template can't be rendered ({first_line(error)}); repair"
                " chat_template.jinja, or set another system prompt or argument: options: template"
            ) from None
        if PROBES[0].text not in bare:
            raise ModelError(
                f"{name}: its chat template leaves the question out; repair chat_template.jinja"
            )
        mark = str(getattr(self.processor, "image_token", None) or "")
        marks = shown.count(mark) - bare.count(mark) if mark and self.template else 1
        # some processors find the place of a picture themselves
        if spec.pictured and marks != 1 and not self.picture_tokens(shown, mark):
            raise ModelError(
                f"{name}: its chat template writes {mark} {marks} times for one picture, which its"
                " processor doesn't take; repair chat_template.jinja"
            )
        for argument in self.settings.arguments:
            if argument not in str(self.template):
                raise RegistryError(
                    f"{where}: its chat template doesn't read {argument}; look at it: sdgbias"
                    f" models prompt {name}"
                )

    def picture_tokens(self, text: str, mark: str, forms: Sequence[bool] = (True, False)) -> int:
        """How many picture tokens a text about one picture gets; 0 where the processor refuses it.
        ``forms``: whether pictures go in as a list for each prompt; the first that is taken
        counts."""
        picture = Image.new("RGB", (32, 32))
        index = self.tokenizer.convert_tokens_to_ids(mark)
        for nested in forms:
            try:
                images = [[picture] if nested else picture]
                ids = self.processor(images=images, text=[text])["input_ids"][0]
            except Exception:  # each processor refuses in a way of its own
                continue
            if count := list(ids).count(index):
                return count
        return 0

    def adds_special_tokens(self, rendered: str) -> bool:
        """False where the chat template has already written the first token (BOS), so that it is
        not added twice; and for every template of a language model, which by the library's rule
        writes all special tokens itself."""
        if self._of_language and self.template:
            return False
        first = self.tokenizer.bos_token
        return not (first and rendered.startswith(first))

    def token_paths(
        self, prompts: Sequence[Prompt], image_tokens: int | None = None
    ) -> list[np.ndarray]:
        """Token ids of prompts as an engine would prefill them, (L,) int64 each, without any model
        or pixel work.

        The tokens of a picture are placed at the beginning as -1, as many as the processor produces
        for the first prompt's pictures (``image_tokens`` instead, per picture). Their position
        changes neither lengths nor common prefixes.
        """
        if not prompts:
            return []
        texts = [self.render(prompt) for prompt in prompts]
        special = self.adds_special_tokens(texts[0])
        ids = self.tokenizer(texts, add_special_tokens=special)["input_ids"]
        extra = 0
        first = next((at for at, prompt in enumerate(prompts) if prompt.images), None)
        if first is not None and image_tokens is not None:
            extra = max(image_tokens - 1, 0)  # the placeholder is one of them
        elif first is not None:
            pictures = [open_picture(data) for data in prompts[first].images]
            options = {"return_tensors": "np", "add_special_tokens": special}
            whole = self.processor(images=pictures, text=[texts[first]], **options)["input_ids"][0]
            extra = (len(whole) - len(ids[first])) // len(pictures)
        return [
            np.array([-1] * (extra * len(p.images)) + list(i), dtype=np.int64)
            for p, i in zip(prompts, ids, strict=True)
        ]

    def describe(self, prompt: Prompt) -> list[str]:
        """A prompt in the form that the model receives, for people: rendered text with its special
        tokens, token ids, picture tokens, the ids of each candidate and how a number begins."""
        tokenizer, text = self.tokenizer, self.render(prompt)
        names = tokenizer.convert_ids_to_tokens
        ids = tokenizer(text, add_special_tokens=self.adds_special_tokens(text))["input_ids"]
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
        first = "no special token in front"
        if ids[:1] != bare[:1] or len(ids) > len(bare):
            first = "the tokenizer adds the first"
        elif ids and ids[0] in tokenizer.all_special_ids:
            first = "the template writes the first"
        pictures = "none, this view shows no picture"
        if prompt.images:
            path = self.token_paths([prompt])[0]
            count = int(np.count_nonzero(path == -1)) + len(prompt.images)
            pictures = (
                f"{count} of {len(path)} in all, for {len(prompt.images)} picture(s), by"
                f" {type(self.processor.image_processor).__name__}"
            )
        lines = [
            f"rendered, {len(text)} characters:",
            tokenizer.decode(ids, skip_special_tokens=False),
            "",
            f"token ids before pictures are put in, {len(ids)} ({first}):",
            " ".join(map(str, ids)),
            f"tokens: {' '.join(map(repr, names(ids)))}",
            f"picture tokens: {pictures}",
        ]
        tokens = find_candidates(tokenizer)
        for candidate in prompt.candidates:
            of_candidate = tokens.ids.get(candidate, ())
            shown = list(of_candidate[:_SHOWN])  # of numbers that begin with a digit: up to 111
            more = len(of_candidate) - len(shown)
            lines.append(
                f"candidate {candidate!r}: ids {' '.join(map(str, shown))}"
                f" ({' '.join(map(repr, names(shown)))}){f', and {more} more' if more else ''}"
            )
        digits = ", ".join(f"{digit}: {tokens.ids[digit][0]}" for digit in DIGITS)
        several = ", or as a number of several digits" if tokens.numbers else ""
        minus = " ".join(map(str, tokens.minus)) or "no token"
        space = "without a space token of its own"
        if tokens.space is not None:
            space = f"after a lone space token ({tokens.space}) or without"
        number = f"a digit ({digits}){several}, or a minus ({minus}), {space}"
        lines.append(f"a number begins with {number}")
        return [*lines, f"hash of the rendered probe prompts: {self.probe_hash()}"]
