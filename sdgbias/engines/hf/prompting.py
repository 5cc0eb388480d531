"""From a prompt to token ids: what the engines share, so that the same prompt is the same tokens in
each of them.

Prompts without a picture, where a processor asks for one (PaliGemma): the views Q-only and CTX+Q
need them all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from sdgbias.engines.hf.shared_prefix import OF_TEXT
from sdgbias.engines.hf.tokens import CandidateTokens
from sdgbias.engines.hub_errors import BROKEN
from sdgbias.errors import ModelError
from sdgbias.raw.images.composite import open_picture
from sdgbias.types import Prompt

MINUS = ("-", "\u2581-", "\u0120-")


def render(processor: Any, prompt: Prompt) -> str:
    """The text the tokenizer sees: the chat template around the prompt, with the pictures before
    the text; the bare text where the processor has no template."""
    if not getattr(processor, "chat_template", None):
        return prompt.text
    content: list[dict[str, str]] = [{"type": "image"} for _ in prompt.images]
    content.append({"type": "text", "text": prompt.text})
    messages = [{"role": "user", "content": content}]
    return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def adds_special_tokens(tokenizer: Any, rendered: str) -> bool:
    """False where the chat template has written the first token (BOS) itself, so that it is not put
    there twice."""
    return not (tokenizer.bos_token and rendered.startswith(tokenizer.bos_token))


def minus_ids(tokenizer: Any) -> list[int]:
    """Ids of the tokens that are a '-', with a space before it or without."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in MINUS if token in vocabulary]


def forced_ids(start: str, candidates: CandidateTokens, minus: Sequence[int]) -> list[int]:
    """Token ids of a forced start, character by character ('-7' is two tokens). ModelError for
    anything but a number's start."""
    ids = []
    for character in start:
        if character == "-" and minus:
            ids.append(minus[0])
        elif character in candidates.ids:
            ids.append(candidates.ids[character][0])
        else:
            raise ModelError(
                f"a forced start may hold digits and a leading '-' only, not {start!r}"
            )
    return ids


def end_ids(configured: int | Sequence[int] | None, tokenizer: Any) -> set[int]:
    """Ids that end an answer: those of the generation config and the tokenizer's own."""
    ids = [configured] if configured is None or isinstance(configured, int) else list(configured)
    return {i for i in (*ids, tokenizer.eos_token_id) if i is not None}


def token_paths(
    processor: Any, prompts: Sequence[Prompt], image_tokens: int | None = None
) -> list[np.ndarray]:
    """Token ids of prompts as an engine would prefill them, (L,) int64 each, without any model or
    pixel work.

    The tokens of a picture stand at the beginning as -1: as many as the processor makes of the
    first prompt's pictures (``image_tokens`` instead, per picture). Where they stand changes
    neither lengths nor what prompts share.
    """
    if not prompts:
        return []
    texts = [render(processor, prompt) for prompt in prompts]
    special = adds_special_tokens(processor.tokenizer, texts[0])
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


def taken(processor: Any) -> bool:
    """Whether the processor takes words without a picture."""
    try:
        processor(images=None, text=["A"])
    except (ValueError, *BROKEN):  # some look for pictures without asking whether there are any
        return False
    return True


def made(processor: Any, texts: Sequence[str], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """(B, L) tensors: what the processor makes of the words around a stand-in picture, whose
    tokens, as many in each text, are left out."""
    marked = [processor.image_token + text for text in texts]
    whole = processor(images=[[Image.new("RGB", (1, 1))] for _ in texts], text=marked, **options)
    words = whole["input_ids"] != processor.image_token_id
    return {name: whole[name][words].reshape(len(texts), -1) for name in OF_TEXT if name in whole}
