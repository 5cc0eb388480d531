"""Logits of the first token -> the rows of a ScoreBatch: token variants of a candidate merged, the
candidates' share of the whole vocabulary, the token that greedy decoding begins with (after a lone
space, where candidates may come second, the one behind it)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from sdgbias.engines.hf.shared_prefix import Scored
from sdgbias.types import Prompt, ScoreBatch

if TYPE_CHECKING:
    from sdgbias.engines.hf.engine import HuggingFace


def put(
    engine: HuggingFace, out: ScoreBatch, prompts: Sequence[Prompt], scored: Sequence[Scored]
) -> None:
    """Logits over the vocabulary -> rows of `out`, for prompts with the same candidates."""
    if not scored:
        return
    candidates = prompts[scored[0].row].candidates
    logits = torch.stack([s.logits for s in scored]).double()  # (B, V)
    total = torch.logsumexp(logits, dim=-1)
    merged = torch.stack(
        [torch.logsumexp(logits[:, list(engine.candidates.ids[c])], -1) for c in candidates],
        dim=1,
    )  # (B, K)
    spaced = any(c in engine.candidates.needs_space for c in candidates)
    if spaced:
        after = torch.log_softmax(
            torch.stack([s.after_space for s in scored if s.after_space is not None]).double(),
            dim=-1,
        )
        for k, c in enumerate(candidates):
            if c in engine.candidates.needs_space:
                second = logits[:, engine.candidates.space] + torch.logsumexp(
                    after[:, list(engine.candidates.ids[c])], -1
                )
                merged[:, k] = torch.logaddexp(merged[:, k], second)
    # one token that overflows leaves no distribution to read the others' share from
    merged[~torch.isfinite(total)] = torch.nan
    rows = [s.row for s in scored]
    out.logits[rows, : len(candidates)] = merged.cpu().numpy()
    out.mass[rows] = torch.exp(torch.logsumexp(merged, -1) - total).cpu().numpy()
    out.n_tokens[rows] = [s.n_tokens for s in scored]
    if engine.minus_ids:
        out.minus_logit[rows] = torch.logsumexp(logits[:, engine.minus_ids], -1).cpu().numpy()
    for s, top in zip(scored, logits.argmax(-1).tolist(), strict=True):
        ids = [top]
        if spaced and top == engine.candidates.space and s.after_space is not None:
            ids.append(int(s.after_space.argmax()))
        out.top_token[s.row] = engine.tokenizer.decode(ids).strip()


def by_candidates(prompts: Sequence[Prompt], done: Sequence[Scored]) -> Iterator[list[Scored]]:
    """The scored prompts, grouped by their candidates."""
    for candidates in dict.fromkeys(prompts[s.row].candidates for s in done):
        yield [s for s in done if prompts[s.row].candidates == candidates]
