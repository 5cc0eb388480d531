"""Several continuations of one prefill: the KV cache is repeated for each of them, and each
decoding step gets what the model's forward takes for a new token.

What that is follows from the prefill's inputs, not from a list of families: the attention mask and
every other mask with one row per token (cross-attention: the pictures that a token sees) grow by
their last row; positions, of one axis or of several (mRoPE: text has the same position on all
axes), go on from the last one, and where the model computes them itself it is left to. The first
prompts of each kind, with a picture and without, are decoded both ways; where that differs from the
library's own generation, or fails, the model decodes one prompt and start at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from sdgbias.engines.hf import shared_prefix
from sdgbias.engines.hf.loading import language_part
from sdgbias.errors import OutOfMemory
from sdgbias.types import Prompt

if TYPE_CHECKING:
    from sdgbias.engines.hf.engine import HuggingFace

#: Tokens of the answers that are decoded both ways.
PROBED = 4


def prefill(
    engine: HuggingFace, prompts: Sequence[Prompt]
) -> tuple[dict[str, Any], Any, torch.Tensor]:
    """(state of `step`, KV cache, (B, V) logits of the last tokens) of B prompts, all with a
    picture, or all without."""
    inputs = engine.inputs(prompts)
    out = engine.forward(inputs, use_cache=True)
    engine.counts["decode_prefills"] += len(prompts)
    engine.counts["decode_tokens_prefilled"] += int(inputs["attention_mask"].sum())
    return masks(inputs), out.past_key_values, out.logits[:, -1]


def masks(inputs: dict[str, Any]) -> dict[str, Any]:
    """The state of `step` behind a prefill of these inputs: what grows with every token."""
    length = inputs["input_ids"].shape[1]
    return {
        name: value
        for name, value in inputs.items()
        if name == "position_ids"  # (B, L), or (axes, B, L)
        or (name.endswith("mask") and value.dim() > 1 and value.shape[1] == length)
    }


def repeat(
    state: dict[str, Any], cache: Any, logits: torch.Tensor, branches: int
) -> tuple[dict[str, Any], Any, torch.Tensor]:
    """What `prefill` gave, each of its B prompts ``branches`` times in a row."""
    cache.batch_repeat_interleave(branches)
    more = {
        name: value.repeat_interleave(branches, -2 if name == "position_ids" else 0)
        for name, value in state.items()
    }
    return more, cache, logits.repeat_interleave(branches, 0)


def after(engine: HuggingFace, state: dict[str, Any], cache: Any, token: int) -> torch.Tensor:
    """(B, V) logits of what follows one more token, without extending state and cache."""
    ids = torch.full((len(state["attention_mask"]), 1), token, device=engine.device)
    engine.counts["decode_steps"] += 1
    return step(engine, dict(state), copy.deepcopy(cache), ids)


def step(
    engine: HuggingFace, state: dict[str, Any], cache: Any, token: torch.Tensor
) -> torch.Tensor:
    """(B * branches, V) logits of one decoding step of every branch; ``token`` (B * branches, 1).
    Extends what ``state`` holds."""
    new: dict[str, Any] = {"input_ids": token}
    for name, value in state.items():
        if name == "position_ids":
            state[name] = new[name] = value[..., -1:] + 1
        elif name == "attention_mask":
            state[name] = new[name] = torch.cat([value, value.new_ones((len(value), 1))], dim=1)
        else:
            new[name] = value[:, -1:]
    logits: torch.Tensor = engine.forward(new, past_key_values=cache, use_cache=True).logits[:, -1]
    return logits


def holds(engine: HuggingFace, prompts: Sequence[Prompt], pictured: bool) -> bool:
    """Whether branches equal plain generation; decided once per kind of prompts."""
    if pictured not in engine.branches:
        engine.branches[pictured] = _verified(engine, prompts[:2])
    return engine.branches[pictured]


def _verified(engine: HuggingFace, prompts: Sequence[Prompt]) -> bool:
    simple = engine.place is None and engine.steps and engine.places
    try:
        plain = [_plain(engine, prompt) for prompt in prompts]
    except OutOfMemory:
        raise
    except Exception:  # its own generate doesn't take such prompts
        return simple
    try:
        return _agree(engine, prompts, plain)
    except OutOfMemory:
        raise
    except Exception:  # a cache that can't be repeated, positions in another layout, ...
        return False


def generator(engine: HuggingFace, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(the part of the model whose `generate` answers these inputs, those that it takes): where the
    model requires a picture, its language model answers the prompts that show none."""
    if not engine.needs_picture or "pixel_values" in inputs:
        return engine.model, inputs
    known = {name: value for name, value in inputs.items() if name in shared_prefix.OF_TEXT}
    return language_part(engine.model, engine.name), known


def _plain(engine: HuggingFace, prompt: Prompt) -> tuple[list[int], torch.Tensor]:
    """(tokens, (PROBED, V) logits) of the library's own greedy generation, one prompt alone."""
    inputs = engine.inputs([prompt])
    inputs.pop("position_ids", None)
    model, known = generator(engine, inputs)
    out = model.generate(
        **known,
        max_new_tokens=PROBED,
        min_new_tokens=PROBED,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(list(out.logits))
    return out.sequences[0, -len(logits) :].tolist(), logits


def _agree(
    engine: HuggingFace,
    prompts: Sequence[Prompt],
    plain: Sequence[tuple[list[int], torch.Tensor]],
) -> bool:
    """Whether two branches of each prompt, side by side, give the logits of plain generation when
    they follow its tokens."""
    ids = sorted({i for own in engine.candidates.ids.values() for i in own})
    state, cache, logits = prefill(engine, prompts)
    if engine.candidates.space is not None:  # must change neither
        after(engine, state, cache, engine.candidates.space)
    state, cache, logits = repeat(state, cache, logits, 2)
    rows = [at for at in range(len(prompts)) for _ in range(2)]
    for at in range(PROBED):
        want = torch.stack([plain[row][1][at] for row in rows])
        if not shared_prefix.alike(engine.dtype, ids, logits, want):
            return False
        if at + 1 < PROBED:
            token = torch.tensor([[plain[row][0][at]] for row in rows], device=engine.device)
            logits = step(engine, state, cache, token)
            engine.counts["decode_steps"] += 1
    return True
