"""Prompts about one picture in one forward: the picture is encoded once and every common beginning is prefilled once.

The prompts become a tree of tokens (trees.py) that the model reads with a mask of the tree and each token's own position, so
each prompt's last hidden state is the one that it would have alone. This holds for causal models whose picture features don't
depend on the text. Whether it holds for the model at hand is not looked up in a list: the first group is scored both ways, and
where the two differ the plain way is taken for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sdgbias.backends import trees
from sdgbias.types import Prompt

if TYPE_CHECKING:
    from sdgbias.backends.hf import HuggingFace

#: A tree's attention costs the square of its tokens; beyond this many, another tree is cheaper than what it would share.
TREE_TOKENS = 1024
#: Largest difference of a candidate's log-odds between the two ways that still counts as the same score, by dtype.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
HALF_TOLERANCE = 0.25
_TEXT_INPUTS = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "token_type_ids")


@dataclass(frozen=True)
class Scored:
    """One prompt's first-token logits (V,), those after a lone space (V,) or None, and its length in tokens."""

    row: int
    logits: torch.Tensor
    after_space: torch.Tensor | None
    n_tokens: int


def groups(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Row numbers by picture, in order of appearance; prompts without a picture are one group."""
    found: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        found.setdefault(prompt.image_id if prompt.images else "", []).append(row)
    return list(found.values())


def possible(engine: HuggingFace) -> bool:
    """Whether the model takes what a tree needs, and its processor feeds the text to nothing but the language model."""
    wanted = set(getattr(engine.processor, "model_input_names", ()))
    return {"position_ids", "attention_mask", "logits_to_keep"} <= engine.accepts and not any(n.startswith("qformer") for n in wanted)


def tree_limit(path: np.ndarray) -> int:
    """Most tokens of a tree of prompts like this one: where the picture is long, more of them are worth their attention."""
    return max(TREE_TOKENS, 4 * len(path))


def score(engine: HuggingFace, prompts: Sequence[Prompt], rows: Sequence[int], spaced: bool) -> Iterator[Scored]:
    """Scores the prompts ``rows``, all about one picture or all without, in as few and as small trees as pays.

    ``spaced``: the logits after a lone space token are wanted too; it is one more leaf below each prompt.
    """
    inputs = engine.inputs([prompts[row] for row in rows])
    ids, keep = inputs["input_ids"], inputs["attention_mask"].bool()
    paths = [ids[b][keep[b]].cpu().numpy() for b in range(len(rows))]
    positions = _positions(engine, inputs, keep)
    picture = {k: v[: v.shape[0] // len(rows)] for k, v in inputs.items() if k not in _TEXT_INPUTS}
    for members in trees.split(paths, tree_limit(paths[0])):
        own = [paths[m] for m in members]
        space = engine.candidates.space if spaced else None
        tree = trees.build([*own, *[np.append(p, space) for p in own]] if space is not None else own)
        at = torch.as_tensor(tree.depth, device=engine.device)[None]  # (1, N)
        if positions is not None:
            steps = [_path_positions(positions[m], len(paths[m]) + 1) for m in members]
            columns = [steps[p % len(own)][:, d] for p, d in zip(tree.path, tree.depth, strict=True)]
            at = torch.stack(columns, dim=1)[:, None]  # (3, 1, N)
        seen = torch.as_tensor(tree.mask(), device=engine.device)
        hidden = torch.finfo(engine.dtype).min
        mask = torch.zeros(seen.shape, dtype=engine.dtype, device=engine.device).masked_fill_(~seen, hidden)[None, None]
        out = engine.forward(
            {"input_ids": torch.as_tensor(tree.tokens, device=engine.device)[None], "attention_mask": mask, "position_ids": at, **picture},
            use_cache=False,
            logits_to_keep=torch.as_tensor(tree.leaf, device=engine.device),
        )
        logits = out.logits[0]  # (P or 2 P, V)
        engine.counts["tokens_prefilled"] += len(tree.tokens)
        engine.counts["tokens_of_prompts"] += sum(map(len, own))
        engine.counts["images_encoded"] += len(prompts[rows[0]].images)
        engine.counts["forwards"] += 1
        for number, m in enumerate(members):
            after = logits[len(own) + number] if space is not None else None
            yield Scored(rows[m], logits[number], after, len(paths[m]))


def _positions(engine: HuggingFace, inputs: dict[str, Any], keep: torch.Tensor) -> list[torch.Tensor] | None:
    """(3, L) positions of every prompt, for models that place the tokens of a picture in space; None where it is 0, 1, 2, ..."""
    place = getattr(getattr(engine.model, "model", engine.model), "get_rope_index", None)
    if place is None:
        return None
    known = {k: v for k, v in inputs.items() if k not in ("position_ids", "pixel_values")}
    found, _ = place(**engine.known_to(place, known))
    return [found[:, b][:, keep[b]] for b in range(keep.shape[0])]


def _path_positions(positions: torch.Tensor, length: int) -> torch.Tensor:
    """(3, length): the positions of a prompt, counted on from its last token where it is longer (text is placed alike in all)."""
    more = length - positions.shape[1]
    on = positions.max() + torch.arange(1, more + 1, device=positions.device)
    return torch.cat([positions, on.expand(3, more)], dim=1)
