"""Greedy answers of the transformers engine, one per forced start.

Prompts are prefilled once and their KV cache is repeated for each start (branching.py), where that
equals plain generation; elsewhere each start is one ordinary generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from transformers import LogitsProcessor

from sdgbias.engines.hf import batching, branching
from sdgbias.engines.hf.prompting import after_space, end_ids, start_choices
from sdgbias.engines.hf.tokens import decoded
from sdgbias.errors import NonFiniteLogits
from sdgbias.methods.answers import thought_begun
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
        # without positions that allow for padding, or where prompts disturb each other, one by one
        alone = not engine.places or engine.batches.get(with_image) is False
        size = 1 if alone else len(own)
        shared = not engine.begin and branching.holds(engine, own[:size], with_image)
        decode = branch if shared else by_prefix
        for at in range(0, len(own), size):
            found = decode(engine, own[at : at + size], starts, max_new_tokens)
            for i, text, cut in zip(
                rows[at : at + size], found.texts, found.truncated, strict=True
            ):
                begun = thought_begun(engine.render(prompts[i]))
                texts[i], truncated[i] = [begun + one for one in text], cut
    return Generated(texts, truncated)


def branch(
    engine: HuggingFace, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
) -> Generated:
    """Prefill once, repeat the KV cache per start, decode greedily; B prompts x S starts."""
    s = len(starts)
    state, cache, logits = branching.prefill(engine, prompts)  # (B, V)
    forced = _choices(
        engine, starts, logits, lambda token: branching.after(engine, state, cache, token)
    )
    state, cache, logits = branching.repeat(state, cache, logits, s)  # (B*S, V)
    ends = end_ids(engine.model.generation_config.eos_token_id, engine.tokenizer)
    said: list[list[int]] = [[] for _ in forced]
    done, ended = [False] * len(forced), [False] * len(forced)
    for step in range(max_new_tokens + max(map(len, forced))):
        best, greedy = (found.tolist() for found in logits.max(-1))
        token = [
            _likeliest(logits[i], queue[step]) if step < len(queue) else greedy[i]
            for i, queue in enumerate(forced)
        ]
        for i, t in enumerate(token):
            done[i] = done[i] or step >= len(forced[i]) + max_new_tokens
            ended[i] = ended[i] or (not done[i] and t in ends)
            done[i] = done[i] or ended[i]
            if not done[i]:
                _check(best[i])
                said[i].append(t)
        if all(done):
            break
        ids = torch.tensor(token, device=engine.device)[:, None]
        logits = branching.step(engine, state, cache, ids)
        engine.counts["decode_steps"] += 1
    texts = [decoded(engine.tokenizer, ids).strip() for ids in said]
    rows = range(0, len(texts), s)
    return Generated(
        [texts[i : i + s] for i in rows], [[not e for e in ended[i : i + s]] for i in rows]
    )


def _choices(
    engine: HuggingFace,
    starts: Sequence[str],
    logits: torch.Tensor,
    follow: Callable[[int], torch.Tensor],
) -> list[list[tuple[int, ...]]]:
    """The tokens to choose from at each position of each start, prompt by prompt (B x S).

    logits: (B, V) of the first token; follow: token -> (B, V) logits of the one behind it. A start
    comes after a lone space token where that beginning is the likelier one.
    """
    known, found = engine.candidates, []
    plain = [start_choices(start, known, engine.minus_ids) for start in starts]
    spaced = [after_space(start, known, own) for start, own in zip(starts, plain, strict=True)]
    first, second = torch.log_softmax(logits.double(), -1), None
    for row in range(len(logits)):
        for own, other in zip(plain, spaced, strict=True):
            direct = float(first[row, list(own[0])].max()) if own else 0.0
            if other is not None and float(first[row, other[0][0]]) > direct:
                if second is None:  # by far not every model needs it
                    second = torch.log_softmax(follow(other[0][0]).double(), -1)
                behind = float(first[row, other[0][0]] + second[row, list(own[0])].max())
                own = other if behind > direct else own
            found.append(own)
    return found


def _likeliest(logits: torch.Tensor, ids: tuple[int, ...]) -> int:
    """Which of ``ids`` has the largest of the logits (V,)."""
    return ids[0] if len(ids) == 1 else ids[int(logits[list(ids)].argmax())]


def _check(best: float) -> None:
    """Raises NonFiniteLogits if this, the largest logit of a token, is none."""
    if not math.isfinite(best):
        raise NonFiniteLogits("a logit of the free answer is NaN or infinite")


class _Finite(LogitsProcessor):  # type: ignore[misc]
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        _check(float(scores.max()))
        return scores


class _Forced(LogitsProcessor):  # type: ignore[misc]
    """Leaves the tokens of a start at its positions, and everything after them."""

    def __init__(self, choices: Sequence[tuple[int, ...]]) -> None:
        self.left = list(choices)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.left:
            return scores
        ids = list(self.left.pop(0))
        allowed = torch.full_like(scores, -torch.inf)
        allowed[:, ids] = scores[:, ids]
        return allowed


def _choices_alone(
    engine: HuggingFace, prompt: Prompt, starts: Sequence[str]
) -> list[list[tuple[int, ...]]]:
    """The same for one prompt whose cache can't be used."""
    known = engine.candidates
    if not any(start[:1] in known.needs_space for start in starts if start):
        return [start_choices(start, known, engine.minus_ids) for start in starts]
    scored = batching.alone(engine, [prompt], 0, True)
    first, behind = scored.logits[None], scored.after_space
    assert behind is not None
    return _choices(engine, starts, first, lambda token: behind[None])


def by_prefix(
    engine: HuggingFace, prompts: Sequence[Prompt], starts: Sequence[str], limit: int
) -> Generated:
    """For models whose branches differ from plain generation: one ordinary generation per start."""
    answers: list[list[str]] = [[] for _ in prompts]
    truncated: list[list[bool]] = [[] for _ in prompts]
    ends = end_ids(engine.model.generation_config.eos_token_id, engine.tokenizer)
    for i, prompt in enumerate(prompts):
        for start, choices in zip(starts, _choices_alone(engine, prompt, starts), strict=True):
            # a text that ends with the start is not always what the model writes: several digits
            # may be one token, or come after a lone space
            chosen = len(choices) > len(start) or any(len(ids) > 1 for ids in choices)
            inputs = engine.inputs([prompt], suffix="" if chosen or engine.begin else start)
            inputs.pop("position_ids", None)
            if engine.begin:
                given = [] if chosen else [ids[0] for ids in choices]
                begin = torch.tensor([[*engine.begin, *given]], device=engine.device)
                inputs["decoder_input_ids"] = begin
            model, known = branching.generator(engine, inputs)
            most = limit + (len(choices) if chosen else 0)
            ids = model.generate(
                **known,
                max_new_tokens=most,
                do_sample=False,
                logits_processor=[_Finite(), *([_Forced(choices)] if chosen else ())],
            )
            length = inputs["decoder_input_ids" if engine.begin else "input_ids"].shape[1]
            new = ids[0, length:] if ids.shape[1] > length else ids[0]
            text = decoded(engine.tokenizer, new.tolist())
            answers[i].append((text if chosen else start + text).strip())
            truncated[i].append(len(new) >= most and int(new[-1]) not in ends)
    return Generated(answers, truncated)
