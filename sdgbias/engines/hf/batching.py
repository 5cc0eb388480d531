"""Padded batches, and proof that they change no score.

Neither padding nor the positions that go with it may change a score, but in some families they do
(pictures packed into one row, positions that don't begin at 0), and some processors take one prompt
at a time. There is no list of such models. The first prompt with a picture and the first without
are scored with the positions counted here and with the model's own, and of the first batch of each
kind the shortest and the longest prompt are scored alone as well. Where a score differs, positions
are left to the model, or prompts are scored one at a time, from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from sdgbias.engines.hf.shared_prefix import Scored, alike
from sdgbias.errors import ModelError, OutOfMemory
from sdgbias.types import Prompt

if TYPE_CHECKING:
    from sdgbias.engines.hf.engine import HuggingFace


def score(
    engine: HuggingFace, prompts: Sequence[Prompt], rows: Sequence[int], spaced: bool
) -> list[Scored]:
    """The prompts ``rows``, all with a picture or all without, in one batch where that is known to
    give the same scores."""
    picture = bool(prompts[rows[0]].images)
    if picture not in engine.placed and engine.places:
        engine.places = _own_positions(engine, prompts, rows[0])
        engine.placed.add(picture)
    if len(rows) == 1 or engine.batches.get(picture) is False:
        return [s for row in rows for s in engine.plain(prompts, [row], spaced)]
    known = picture in engine.batches
    try:
        done = list(engine.plain(prompts, rows, spaced))
    except (OutOfMemory, ModelError):
        raise
    except Exception:
        if known:
            raise
        engine.batches[picture] = False  # an error of the model itself is raised by the next line
        return score(engine, prompts, rows, spaced)
    if not known:
        by_length = sorted(done, key=lambda s: s.n_tokens)
        engine.batches[picture] = all(
            same(engine, prompts[s.row], s, alone(engine, prompts, s.row, spaced))
            for s in (by_length[0], by_length[-1])
        )
        if not engine.batches[picture]:
            return score(engine, prompts, rows, spaced)
    return done


def _own_positions(engine: HuggingFace, prompts: Sequence[Prompt], row: int) -> bool:
    """Whether a prompt has the same scores with the positions that are passed to the model and
    with those that it counts itself (Kosmos begins elsewhere than at 0). The same positions take
    the same steps, so that nothing is rounded otherwise, whatever the dtype."""
    given = alone(engine, prompts, row, False)
    engine.places = False
    own = alone(engine, prompts, row, False)
    return same(engine, prompts[row], given, own, torch.float32)


def alone(engine: HuggingFace, prompts: Sequence[Prompt], row: int, spaced: bool) -> Scored:
    """One prompt scored alone, which a proof needs and the next run doesn't repeat: not counted."""
    counts = engine.counts.copy()
    try:
        return next(iter(engine.plain(prompts, [row], spaced)))
    finally:
        engine.counts = counts


def same(
    engine: HuggingFace, prompt: Prompt, one: Scored, two: Scored, dtype: torch.dtype | None = None
) -> bool:
    """Whether two ways of scoring a prompt give its candidates the same log-probabilities, to the
    tolerance of ``dtype``, by default the model's."""
    ids = [i for c in prompt.candidates for i in engine.candidates.ids[c]]
    both = ((one.logits, two.logits), (one.after_space, two.after_space))
    return all(
        alike(dtype or engine.dtype, ids, a, b) for a, b in both if a is not None and b is not None
    )
