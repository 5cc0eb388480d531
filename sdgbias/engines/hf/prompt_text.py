"""One prompt in the form that a model receives, for inspection."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sdgbias.engines.hf.load import load_processor
from sdgbias.engines.hf.prompt import (
    adds_special_tokens,
    check_template,
    probe_hash,
    render,
    template_of,
    token_paths,
)
from sdgbias.engines.hf.tokens import find_candidates
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, Prompt

_SHOWN = 8


def lines(spec: ModelSpec, root: Path, prompt: Prompt) -> list[str]:
    """Rendered text with its special tokens, token ids, picture tokens, the ids of each candidate
    and how a number begins; without the weights. Raises ModelError, RegistryError."""
    processor, template = load_processor(spec, root), template_of(spec)
    check_template(processor, template, spec)
    tokenizer = processor.tokenizer
    text = render(processor, prompt, template)
    special = adds_special_tokens(processor, text)
    ids = tokenizer(text, add_special_tokens=special)["input_ids"]
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    first = "no special token in front"
    if ids[:1] != bare[:1] or len(ids) > len(bare):
        first = "the tokenizer adds the first"
    elif ids and ids[0] in tokenizer.all_special_ids:
        first = "the template writes the first"
    tokens = find_candidates(tokenizer, LETTERS + DIGITS, optional=LETTERS.lower())
    out = [
        f"rendered, {len(text)} characters:",
        tokenizer.decode(ids, skip_special_tokens=False),
        "",
        f"token ids before pictures are put in, {len(ids)} ({first}):",
        " ".join(map(str, ids)),
        f"tokens: {' '.join(map(repr, tokenizer.convert_ids_to_tokens(ids)))}",
    ]
    if prompt.images:
        path = token_paths(processor, [prompt], template=template)[0]
        count = int(np.count_nonzero(path == -1)) + len(prompt.images)
        out.append(
            f"picture tokens: {count} of {len(path)} in all, for {len(prompt.images)} picture(s),"
            f" by {type(processor.image_processor).__name__}"
        )
    else:
        out.append("picture tokens: none, this view shows no picture")
    for candidate in prompt.candidates:
        token_ids = tokens.ids.get(candidate, ())
        shown = list(token_ids[:_SHOWN])  # of the numbers that begin with a digit there may be 111
        names = " ".join(map(repr, tokenizer.convert_ids_to_tokens(shown)))
        more = f", and {len(token_ids) - len(shown)} more" if len(token_ids) > len(shown) else ""
        out.append(f"candidate {candidate!r}: ids {' '.join(map(str, shown))} ({names}){more}")
    several = ", or as a number of several digits" if tokens.numbers else ""
    digits = ", ".join(f"{d}: {tokens.ids[d][0]}" for d in DIGITS)
    minus = " ".join(map(str, tokens.minus)) or "no token"
    space = (
        f"after a lone space token ({tokens.space}) or without"
        if tokens.space is not None
        else "without a space token of its own"
    )
    out.append(f"a number begins with a digit ({digits}){several}, or a minus ({minus}), {space}")
    out.append(f"hash of the rendered probe prompts: {probe_hash(processor, template)}")
    return out
