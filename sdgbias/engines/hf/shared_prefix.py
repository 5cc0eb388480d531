"""Scores prompts about one picture together: the picture is encoded once and every common prefix is
prefilled once.

The common prefix of all prompts, picture included, is prefilled into a KV cache. The rest becomes
trees of tokens (token_tree.py), a few of them side by side as the rows of one batch, which the
model reads behind the cache with a mask for each tree and each token's original position, so each
prompt's last hidden state is the one that it would have alone. This holds for causal models whose
picture features don't depend on the text. There is no list of such models: the first group with a
picture and the first without are scored both ways, and where the two differ, prompts are scored one
by one from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from sdgbias.engines.hf import token_tree
from sdgbias.types import Prompt

if TYPE_CHECKING:
    from sdgbias.engines.hf.engine import HuggingFace

#: Upper limit on the tokens of one batch, including the cache in front of each row.
BATCH_TOKENS = 8192
#: Largest difference of a token's log-probability between the two ways that still counts as the
#: same score, by dtype.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 0.25 / 8}
HALF_TOLERANCE = 0.25
OF_TEXT = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "token_type_ids")


@dataclass(frozen=True)
class Scored:
    """One prompt's first-token logits (V,), those after a lone space (V,) or None, and its length
    in tokens."""

    row: int
    logits: torch.Tensor
    after_space: torch.Tensor | None
    n_tokens: int


def alike(dtype: torch.dtype, ids: list[int], one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether (..., V) logits give the tokens ``ids`` the same log-probabilities, to the tolerance
    of the model's dtype."""
    a, b = (torch.log_softmax(z.double(), -1)[..., ids] for z in (one, two))
    return torch.allclose(a, b, atol=TOLERANCE.get(dtype, HALF_TOLERANCE), rtol=0)


class BeyondWindow(Exception):
    """A prompt that is longer than what some layer of the model sees at once: the mask of a tree
    hides nothing that is far away."""


def groups(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Row numbers by picture, in order of appearance; prompts without a picture are one group."""
    found: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        found.setdefault(prompt.image_id if prompt.images else "", []).append(row)
    return list(found.values())


def possible(engine: HuggingFace) -> bool:
    """Whether the model accepts the inputs that a tree needs, its processor passes the text to the
    language model only, and all that it keeps of a beginning is keys and values."""
    needed = {"position_ids", "attention_mask", "past_key_values", "logits_to_keep"}
    if not needed <= engine.accepts or reads_the_question(engine.processor):
        return False
    # every token of PaliGemma's prompts sees the whole prompt, which the first group shows, but in
    # bfloat16 might pass for rounding
    if engine.asks_for_picture and "token_type_ids" in engine.accepts:
        return False
    return not keeps_a_state(engine.model.config)


def keeps_a_state(config: Any) -> bool:
    """Whether a layer of the decoder is recurrent or convolutional (Mamba, LFM2): its state went
    through every token in front of it, those of other branches too."""
    layers = cache_layers(config)
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def cache_layers(config: Any) -> list[Any]:
    """What each layer of the decoder keeps of a beginning, as the library's own cache has it; []
    where it doesn't know the configuration (the first group then decides alone)."""
    try:
        return list(DynamicCache(config=config).layers)
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def reads_the_question(processor: Any) -> bool:
    """Whether something between the picture and the language model (a Q-Former) also receives the
    text."""
    return any(name.startswith("qformer") for name in getattr(processor, "model_input_names", ()))


def row_tokens(width: int) -> int:
    """Upper limit on the tokens of one tree. Attention over a tree costs the square of its tokens,
    everything else its tokens times the width of the model: the narrower the model, the smaller the
    tree at which sharing stops paying off."""
    return min(max(256, 2 * width), 2048)


def score(
    engine: HuggingFace, prompts: Sequence[Prompt], rows: Sequence[int], spaced: Set[int]
) -> Iterator[Scored]:
    """Scores the prompts ``rows``, all about one picture or all without.

    ``spaced``: the rows that also need the logits after a lone space token, which is one more leaf
    below each of them.
    """
    inputs = engine.inputs([prompts[row] for row in rows], once=True)
    ids, keep = inputs["input_ids"], inputs["attention_mask"].bool()
    own = [ids[b][keep[b]].cpu().numpy() for b in range(len(rows))]
    if engine.window is not None and max(map(len, own)) >= engine.window:
        raise BeyondWindow
    placed = inputs[
        "position_ids"
    ]  # (B, L), or (3, B, L) where the tokens of a picture are placed in space
    places = [placed[..., b, :][..., keep[b]].cpu().numpy() for b in range(len(rows))]
    ends = [(b, False) for b in range(len(rows))] + [
        (b, True) for b in range(len(rows)) if rows[b] in spaced
    ]
    paths = [
        np.append(own[b], engine.candidates.space or 0) if space else own[b] for b, space in ends
    ]
    places = [_on(places[b]) if space else places[b] for b, space in ends]
    common = token_tree.common(paths)
    picture = {k: v for k, v in inputs.items() if k not in OF_TEXT}
    # by the kinds of tokens Gemma lets those of a picture see each other
    kinds = {k: inputs[k][:1, keep[0]][:, :common] for k in OF_TEXT[3:] if k in inputs}
    cache = (
        _prefill(engine, paths[0][:common], places[0][..., :common], {**picture, **kinds})
        if common
        else None
    )
    if not common and picture:
        raise ValueError("the prompts have nothing in common, not even their picture")
    engine.counts["tokens_prefilled"] += common
    engine.counts["tokens_of_prompts"] += sum(map(len, own))
    engine.counts["images_encoded"] += len(prompts[rows[0]].images)
    found: dict[tuple[int, bool], torch.Tensor] = {}
    tails = [path[common:] for path in paths]
    members = token_tree.split(tails, row_tokens(engine.width))
    forest = [(group, token_tree.build([tails[m] for m in group])) for group in members]
    for batch in _batches(forest, common):
        logits = _forward(engine, batch, [place[..., common:] for place in places], common, cache)
        for at, (group, tree) in enumerate(batch):
            last = np.unique(tree.leaf)  # the leaves are at the end of the row, in this order
            for m, leaf in zip(group, tree.leaf, strict=True):
                found[ends[m]] = logits[at, int(np.searchsorted(last, leaf)) - len(last)]
    for b, row in enumerate(rows):
        yield Scored(row, found[b, False], found.get((b, True)), len(own[b]))


def _on(place: np.ndarray) -> np.ndarray:
    """Positions (L,) or (3, L) of a prompt with one more token at the end (text has the same
    position on all three axes)."""
    return np.concatenate([place, np.full((*place.shape[:-1], 1), place.max() + 1)], axis=-1)


def _prefill(
    engine: HuggingFace, tokens: np.ndarray, place: np.ndarray, picture: dict[str, Any]
) -> Any:
    """The KV cache of the common prefix of all prompts."""
    ids = torch.as_tensor(tokens, device=engine.device)[None]
    at = torch.as_tensor(place, device=engine.device).unsqueeze(-2)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": at,
        **picture,
    }
    engine.counts["forwards"] += 1
    return engine.forward(inputs, use_cache=True).past_key_values


_Trees = list[tuple[list[int], token_tree.Tree]]


def _batches(forest: _Trees, common: int) -> Iterator[_Trees]:
    """Batches of trees of similar size, as many as BATCH_TOKENS allows."""
    batch: _Trees = []
    for group, tree in sorted(forest, key=lambda pair: -len(pair[1].tokens)):
        longest = len(batch[0][1].tokens) if batch else 0
        if batch and (len(batch) + 1) * (common + longest) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append((group, tree))
    if batch:
        yield batch


def _forward(
    engine: HuggingFace, batch: _Trees, places: Sequence[np.ndarray], common: int, cache: Any
) -> torch.Tensor:
    """(B, K, V) logits of each tree's leaves, which are placed at the end of its row; padding is on
    the left."""
    length = max(len(tree.tokens) for _, tree in batch)
    kept = max(len(np.unique(tree.leaf)) for _, tree in batch)
    kinds = places[0].shape[:-1]  # () or (3,)
    tokens = np.zeros((len(batch), length), dtype=np.int64)
    at = np.zeros((*kinds, len(batch), length), dtype=np.int64)
    seen = np.zeros((len(batch), length, common + length), dtype=bool)
    seen[:, :, :common] = True
    seen[:, np.arange(length), common + np.arange(length)] = True
    for row, (group, tree) in enumerate(batch):
        n = len(tree.tokens)
        leaf = np.zeros(n, dtype=bool)
        leaf[tree.leaf] = True
        order = np.argsort(leaf, kind="stable")
        tokens[row, length - n :] = tree.tokens[order]
        joined = np.stack(
            [
                places[group[p]][..., d]
                for p, d in zip(tree.path[order], tree.depth[order], strict=True)
            ],
            axis=-1,
        )
        at[..., row, length - n :] = joined
        seen[row, length - n :, common + length - n :] = tree.mask()[np.ix_(order, order)]
        engine.counts["tokens_prefilled"] += n
    engine.counts["forwards"] += 1
    visible = torch.as_tensor(seen, device=engine.device)[:, None]
    mask = torch.zeros(visible.shape, dtype=engine.dtype, device=engine.device).masked_fill_(
        ~visible, torch.finfo(engine.dtype).min
    )
    inputs = {"input_ids": torch.as_tensor(tokens, device=engine.device), "attention_mask": mask}
    inputs["position_ids"] = torch.as_tensor(at, device=engine.device)
    more: dict[str, Any] = {"use_cache": False}
    if cache is not None:
        branched = copy.deepcopy(cache)
        branched.batch_repeat_interleave(len(batch))
        more = {"past_key_values": branched, "use_cache": True}
    logits: torch.Tensor = engine.forward(inputs, logits_to_keep=kept, **more).logits
    return logits
