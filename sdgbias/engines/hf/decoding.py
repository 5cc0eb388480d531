"""Pieces of scoring and decoding that need no model: rows grouped into batches, forced tokens, and
where an answer ends."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from transformers import LogitsProcessor

from sdgbias.engines.hf.tokens import Choices
from sdgbias.errors import NonFiniteLogits
from sdgbias.types import Prompt

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


def cut(ids: Sequence[int], forced: int, limit: int, ends: Collection[int]) -> Answer:
    """An answer up to the token that ends it, or ``limit`` tokens behind its forced start."""
    whole = list(ids[: forced + limit])
    end = next((at for at in range(forced, len(whole)) if whole[at] in ends), None)
    return (whole, True) if end is None else (whole[:end], False)
