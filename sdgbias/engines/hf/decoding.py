"""Greedy answers of the transformers engine, one per forced start.

Prompts are prefilled once and their KV cache is repeated for each start (branching.py), where that
equals plain generation; elsewhere each start is one ordinary generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from sdgbias.engines.hf import branching
from sdgbias.engines.hf.prompting import end_ids, forced_ids
from sdgbias.types import Generated, Prompt

if TYPE_CHECKING:
    from sdgbias.engines.hf.engine import HuggingFace


def generate(
    engine: HuggingFace, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
) -> Generated:
    texts = [[""] * len(starts) for _ in prompts]
    truncated = [[False] * len(starts) for _ in prompts]
    for with_image in (True, False):
        rows = [i for i, p in enumerate(prompts) if bool(p.images) is with_image]
        if not rows:
            continue
        own = [prompts[i] for i in rows]
        decode = branch if branching.holds(engine, own, with_image) else by_prefix
        found = decode(engine, own, starts, max_new_tokens)
        for i, text, cut in zip(rows, found.texts, found.truncated, strict=True):
            texts[i], truncated[i] = text, cut
    return Generated(texts, truncated)


def branch(
    engine: HuggingFace, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
) -> Generated:
    """Prefill once, repeat the KV cache per start, decode greedily; B prompts x S starts."""
    s = len(starts)
    state, cache, logits = branching.prefill(engine, prompts, s)  # (B*S, V)
    forced = [forced_ids(start, engine.candidates, engine.minus_ids) for start in starts] * len(
        prompts
    )
    ends = end_ids(engine.model.generation_config.eos_token_id, engine.tokenizer)
    said: list[list[int]] = [[] for _ in forced]
    done, ended = [False] * len(forced), [False] * len(forced)
    for step in range(max_new_tokens + max(map(len, forced))):
        greedy = logits.argmax(-1).tolist()
        token = [queue[step] if step < len(queue) else greedy[i] for i, queue in enumerate(forced)]
        for i, t in enumerate(token):
            done[i] = done[i] or step >= len(forced[i]) + max_new_tokens
            ended[i] = ended[i] or (not done[i] and t in ends)
            done[i] = done[i] or ended[i]
            if not done[i]:
                said[i].append(t)
        if all(done):
            break
        ids = torch.tensor(token, device=engine.device)[:, None]
        logits = branching.step(engine, state, cache, ids).logits[:, -1]
    texts = [engine.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in said]
    rows = range(0, len(texts), s)
    return Generated(
        [texts[i : i + s] for i in rows], [[not e for e in ended[i : i + s]] for i in rows]
    )


def by_prefix(
    engine: HuggingFace, prompts: Sequence[Prompt], starts: Sequence[str], limit: int
) -> Generated:
    """For models whose branches differ from plain generation: one ordinary generation per start."""
    answers: list[list[str]] = [[] for _ in prompts]
    truncated: list[list[bool]] = [[] for _ in prompts]
    ends = end_ids(engine.model.generation_config.eos_token_id, engine.tokenizer)
    for start in starts:
        for i, prompt in enumerate(prompts):
            inputs = engine.inputs([prompt], suffix=start)
            inputs.pop("position_ids", None)
            ids = engine.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
            length = inputs["input_ids"].shape[1]
            new = ids[0, length:] if ids.shape[1] > length else ids[0]
            answers[i].append(
                start + engine.tokenizer.decode(new, skip_special_tokens=True).strip()
            )
            truncated[i].append(len(new) >= limit and int(new[-1]) not in ends)
    return Generated(answers, truncated)
