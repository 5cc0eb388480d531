"""How a model's prompts may be scored: in batches, and behind shared beginnings.

Neither padding nor a neighbour nor a cache that is used twice may change a score, but in some
families they do (positions that don't begin at 0, an encoder between picture and language model
that reads the question, a tokenizer that pads on the other side). There is no list of such models:
at admission a few probes are scored alone, in batches, shuffled, and behind shared beginnings, and
what gives the same scores is written into the registry entry. The tolerance is that of
`sdgbias models parity`: that of the dtype, or twice the model's own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sdgbias.engines.agreement import (
    Itself,
    Probed,
    compare,
    rounding,
    same_score,
    score,
    score_three_times,
    shuffled,
)
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.errors import OutOfMemory, first_line
from sdgbias.types import Prompt


@dataclass(frozen=True)
class Ways:
    """batch_size, share_prefix: the settings of the entry; line: what was compared, and why a
    setting is not the faster one; limit: the largest difference that counts as the same score;
    itself: the scores with these settings."""

    batch_size: int
    share_prefix: bool
    line: str
    limit: float
    itself: Itself


def decide(engine: HuggingFace, prompts: Sequence[Prompt], seed: int = 0) -> Ways:
    """Which ways of scoring give the probes the scores that each has alone; the engine is left
    with these settings. Raises what the engine raises where each prompt fails alone, and
    OutOfMemory where a batch is too large."""
    n, size, dtype = len(prompts), engine.batch_size, str(engine.dtype).removeprefix("torch.")
    engine.share_prefix = False
    itself = score_three_times(engine, prompts, n, seed)
    limit = same_score(dtype, rounding(engine, prompts, itself.alone.scores))
    for way, other in (("in batches", itself.batched), ("shuffled", itself.shuffled)):
        if why := _differs(way, prompts, itself.alone, other, limit):
            engine.batch_size = 1
            itself = score_three_times(engine, prompts, 1, seed)
            return Ways(1, False, f"each prompt alone, in batches of 1: {why}", limit, itself)
    engine.share_prefix = True
    shared = score(engine, prompts, shuffled(n, seed), n)
    why = _differs("behind shared beginnings", prompts, itself.alone, shared, limit)
    why = why or _branches_differ(engine, prompts, limit)
    engine.share_prefix = not why
    line = f"the same scores alone, in batches of {size} and shuffled (to {limit:.2g})"
    line += f"; beginnings aren't shared: {why}" if why else ", and behind shared beginnings"
    return Ways(size, not why, line, limit, itself if why else itself._replace(shuffled=shared))


def _differs(
    way: str, prompts: Sequence[Prompt], alone: Probed, other: Probed, limit: float
) -> str:
    """Why a way of scoring is not the same as each prompt alone; '' where it is."""
    if isinstance(other.refused, OutOfMemory):
        raise other.refused
    if other.refused is not None:
        return f"{way}: {type(other.refused).__name__}: {first_line(other.refused)}"
    row = compare(way, prompts, alone.scores, other.scores, limit)
    if row["lengths"]:
        return f"{way}: {row['lengths']} of {row['n']} prompts have another number of tokens"
    if row["agrees"]:
        return ""
    return (
        f"{way}: log-probabilities differ by up to {row['logp_max']:.2g} (rounding explains"
        f" {limit:.2g}), {row['flips']} of {row['n']} best candidates"
    )


def _branches_differ(engine: HuggingFace, prompts: Sequence[Prompt], limit: float) -> str:
    """Why answers that branch off one prompt differ from those of the prompt alone, by what follows
    a digit; '' where they don't."""
    ids = sorted({token for tokens in engine.candidates.ids.values() for token in tokens})
    token = engine.candidates.ids["1"][0]
    for pictured in (True, False):
        pair = [prompt for prompt in prompts if bool(prompt.images) is pictured][:2]
        if not pair:
            continue
        try:
            logits = engine.behind(pair, token), engine.behind(pair, token, branches=2)[::2]
        except OutOfMemory:
            raise
        except Exception as error:
            return f"branches: {type(error).__name__}: {first_line(error)}"
        one, two = (torch.log_softmax(z.double(), -1)[:, ids] for z in logits)
        apart = float((one - two).abs().max())
        if not apart <= limit:
            return f"branches: log-probabilities behind a digit differ by up to {apart:.2g}"
    return ""
