"""How a model's prompts may be scored: in batches, and behind shared beginnings.

Neither padding nor a neighbour nor a cache that is used twice may change a score, but in some
families they do (positions that don't begin at 0, an encoder between picture and language model
that reads the question, a tokenizer that pads on the other side). There is no list of such models:
at admission a few probes are scored alone, in batches, shuffled, and behind shared beginnings, and
what gives the same scores is written into the registry entry. The tolerance is that of
`sdgbias models parity`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sdgbias.engines.agreement import TOLERANCES, Comparison, compare
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.errors import OutOfMemory, first_line
from sdgbias.types import Prompt, ScoreBatch


@dataclass(frozen=True)
class Ways:
    """batch_size, share_prefix: the settings of the entry; line: what was compared, and why a
    setting is not the faster one."""

    batch_size: int
    share_prefix: bool
    line: str


def decide(engine: HuggingFace, prompts: Sequence[Prompt], seed: int = 0) -> Ways:
    """Which ways of scoring give the probes the scores that each has alone; the engine is left
    with these settings. Raises what the engine raises for a prompt alone, and OutOfMemory."""
    limit = TOLERANCES[str(engine.dtype).removeprefix("torch.")]
    size, engine.batch_size, engine.share_prefix = engine.batch_size, 1, False
    alone = engine.candidate_scores(prompts)
    engine.batch_size = size
    order = np.random.default_rng(seed).permutation(len(prompts)).tolist()

    def shuffled() -> ScoreBatch:
        return _in_order(engine, prompts, order)

    why = _differs("in batches", alone, lambda: engine.candidate_scores(prompts), limit)
    why = why or _differs("shuffled", alone, shuffled, limit)
    if why:
        engine.batch_size = 1
        return Ways(1, False, f"each prompt alone, in batches of 1: {why}")
    engine.share_prefix = True
    why = _differs("behind shared beginnings", alone, shuffled, limit)
    why = why or _branches_differ(engine, prompts, limit)
    engine.share_prefix = not why
    told = f"the same scores alone, in batches of {size} and shuffled (to {limit:g})"
    told += f"; beginnings aren't shared: {why}" if why else ", and behind shared beginnings"
    return Ways(size, not why, told)


def _in_order(engine: HuggingFace, prompts: Sequence[Prompt], order: list[int]) -> ScoreBatch:
    """Scores in the order of the prompts, which are asked in another."""
    mixed = engine.candidate_scores([prompts[row] for row in order])
    back = np.argsort(order)
    return ScoreBatch(
        mixed.logits[back],
        mixed.mass[back],
        mixed.minus_logit[back],
        [mixed.top_token[at] for at in back],
        mixed.n_tokens[back],
    )


def _differs(way: str, alone: ScoreBatch, score: Callable[[], ScoreBatch], limit: float) -> str:
    """Why a way of scoring is not the same as each prompt alone; '' where it is. A model that
    can't be asked so raises nearly anything."""
    try:
        found: Comparison = compare(way, alone, score(), limit)
    except OutOfMemory:
        raise
    except Exception as error:
        return f"{way}: {type(error).__name__}: {first_line(error)}"
    if found.agrees(limit) and not found.lengths:
        return ""
    if found.lengths:
        return f"{way}: {found.lengths} of {found.n} prompts have another number of tokens"
    return (
        f"{way}: log-probabilities differ by up to {found.logp_max:.2g}, {found.flips} of"
        f" {found.n} best candidates"
    )


def _branches_differ(engine: HuggingFace, prompts: Sequence[Prompt], limit: float) -> str:
    """Why answers that branch off one prompt differ from those of the prompt alone, by what follows
    a digit; '' where they don't."""
    ids = sorted({token for own in engine.candidates.ids.values() for token in own})
    token = engine.candidates.ids["1"][0]
    for pictured in (True, False):
        own = [prompt for prompt in prompts if bool(prompt.images) is pictured][:2]
        if not own:
            continue
        try:
            with torch.inference_mode():
                _, plain, _ = engine.first_tokens(own, token)
                state = engine.repeat(engine.prefill(own), 2)
                branched = engine.follow(state, token)
        except OutOfMemory:
            raise
        except Exception as error:
            return f"branches: {type(error).__name__}: {first_line(error)}"
        assert plain is not None
        one, two = (torch.log_softmax(z.double(), -1)[:, ids] for z in (plain, branched[::2]))
        apart = float((one - two).abs().max())
        if not apart <= limit:
            return f"branches: log-probabilities behind a digit differ by up to {apart:.2g}"
    return ""
