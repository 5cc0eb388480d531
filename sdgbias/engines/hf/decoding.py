"""Pieces of scoring and decoding that need no model: rows grouped into batches, the tokens that a
forced start may consist of, and where an answer ends."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from transformers import LogitsProcessor

from sdgbias.engines.hf.prompting import after_space, start_choices
from sdgbias.engines.hf.tokens import CandidateTokens
from sdgbias.errors import NonFiniteLogits
from sdgbias.types import Prompt

#: The tokens allowed at each of the first positions of an answer; the model's likeliest is taken.
Choices = Sequence[tuple[int, ...]]
#: Tokens of an answer, and whether the limit ended it.
Answer = tuple[list[int], bool]


def by_picture(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Row numbers by picture, in order of appearance; prompts without one are one group."""
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt.image_id if prompt.images else "", []).append(row)
    return list(groups.values())


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """Tokens that all rows begin with; each row keeps one of its own behind them."""
    first, last = min(map(list, rows)), max(map(list, rows))
    most = min(map(len, rows)) - 1
    return next((at for at in range(most) if first[at] != last[at]), most)


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


class Forced(LogitsProcessor):  # type: ignore[misc]
    """Leaves each row the tokens of its choices, one position after the other, and everything
    behind them. step: tokens written so far. Where logits have to be ``finite``, NonFiniteLogits
    for a row whose largest one isn't."""

    def __init__(self, choices: Sequence[Choices], finite: bool = True) -> None:
        self.choices, self.finite, self.step = choices, finite, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.finite and not math.isfinite(float(scores.max(-1).values.sum())):
            raise NonFiniteLogits("a logit of the free answer is NaN or infinite")
        forced = [
            (row, token)
            for row, choices in enumerate(self.choices)
            if self.step < len(choices)
            for token in choices[self.step]
        ]
        self.step += 1
        if not forced:
            return scores
        rows, ids = torch.tensor(forced, device=scores.device).T
        allowed = scores.clone()  # what was given is put out as the model's own logits
        allowed[rows] = -torch.inf
        allowed[rows, ids] = scores[rows, ids]
        return allowed


def choices_of(
    starts: Sequence[str],
    candidates: CandidateTokens,
    minus: Sequence[int],
    prompts: int,
    spaced: tuple[torch.Tensor, torch.Tensor] | None,
) -> list[list[Choices]]:
    """The choices of each start (S) of each of B prompts. spaced: (B, V) logits of the first token,
    and of the one behind a lone space token, where a start may come behind one; there it does where
    that beginning is the likelier one."""
    plain = [start_choices(start, candidates, minus) for start in starts]
    if spaced is None:
        return [[*plain] for _ in range(prompts)]
    longer = [after_space(s, candidates, own) for s, own in zip(starts, plain, strict=True)]
    first, behind = (torch.log_softmax(logits.double(), -1) for logits in spaced)
    found: list[list[Choices]] = []
    for row in range(prompts):
        found.append([])
        for own, other in zip(plain, longer, strict=True):
            ids = list(own[0]) if own else []
            if other is not None:
                second = float(first[row, other[0][0]] + behind[row, ids].max())
                own = other if second > float(first[row, ids].max()) else own
            found[-1].append(own)
    return found


def begins_behind_space(starts: Sequence[str], candidates: CandidateTokens) -> bool:
    """Whether any start may come behind a lone space token."""
    firsts = {start[:1] for start in starts if start}
    return candidates.space is not None and not firsts.isdisjoint(candidates.needs_space)


def cut(ids: Sequence[int], forced: int, limit: int, ends: Collection[int]) -> Answer:
    """An answer up to the token that ends it, or ``limit`` tokens behind its forced start."""
    whole = list(ids[: forced + limit])
    end = next((at for at in range(forced, len(whole)) if whole[at] in ends), None)
    return (whole, True) if end is None else (whole[:end], False)
