"""What the tokenizer sees of a prompt, and which tokens can begin an answer: the single-token variants of a candidate ("A", " A",
"\u2581A")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdgbias.errors import ModelError
from sdgbias.types import Prompt

SPACE_MARKS = " \u2581\u0120\n\t"


@dataclass(frozen=True)
class CandidateTokens:
    """ids: candidate -> its token ids; space: id of the lone-space token when some candidate has no variant that carries
    the space itself (SentencePiece digits), so that the model may say the space first and the digit second."""

    ids: dict[str, tuple[int, ...]]
    space: int | None
    needs_space: frozenset[str]


def find_candidates(tokenizer: Any, wanted: str) -> CandidateTokens:
    """Scans the vocabulary once. Raises ModelError when a wanted candidate has no single token."""
    special = set(tokenizer.all_special_tokens)
    found: dict[str, list[int]] = {c: [] for c in wanted}
    spaced: set[str] = set()
    space: int | None = None
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
        if token in special:
            continue
        bare = token.lstrip(SPACE_MARKS)
        if bare in found and len(bare) == 1:
            found[bare].append(index)
            if bare != token:
                spaced.add(bare)
        elif token == "\u2581":
            space = index
    missing = [c for c in wanted if not found[c]]
    if missing:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ModelError(
            f"{name}: the tokenizer has no single token for {', '.join(map(repr, missing))}, so first-token scores over "
            f"{wanted!r} don't exist; retire the model: set enabled: false in its registry entry"
        )
    needs = frozenset(wanted) - spaced if space is not None else frozenset()
    return CandidateTokens({c: tuple(ids) for c, ids in found.items()}, space, needs)


def render(processor: Any, prompt: Prompt) -> str:
    """The text the tokenizer sees: the chat template around the prompt, with the pictures before the text."""
    if not getattr(processor, "chat_template", None):
        return prompt.text
    content: list[dict[str, str]] = [{"type": "image"} for _ in prompt.images]
    content.append({"type": "text", "text": prompt.text})
    messages = [{"role": "user", "content": content}]
    return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def token_paths(processor: Any, prompts: Sequence[Prompt], image_tokens: int | None = None) -> list[np.ndarray]:
    """Token ids of prompts as an engine would prefill them, (L,) int64 each, without any model or pixel work.

    The tokens of a picture stand at the beginning as -1: as many as the processor makes of the first prompt's pictures
    (``image_tokens`` instead, per picture). Where they stand changes neither lengths nor what prompts share.
    """
    if not prompts:
        return []
    texts = [render(processor, prompt) for prompt in prompts]
    bos = processor.tokenizer.bos_token
    special = not (bos and texts[0].startswith(bos))
    ids = processor.tokenizer(texts, add_special_tokens=special)["input_ids"]
    extra = 0
    first = next((at for at, prompt in enumerate(prompts) if prompt.images), None)
    if first is not None and image_tokens is not None:
        extra = max(image_tokens - 1, 0)  # the placeholder is one of them
    elif first is not None:
        import io

        from PIL import Image

        pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in prompts[first].images]
        whole = processor(images=pictures, text=[texts[first]], return_tensors="np", add_special_tokens=special)["input_ids"][0]
        extra = (len(whole) - len(ids[first])) // len(pictures)
    return [np.array([-1] * (extra * len(p.images)) + list(i), dtype=np.int64) for p, i in zip(prompts, ids, strict=True)]
