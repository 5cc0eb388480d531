"""An engine without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdgbias.engines import Backend
from sdgbias.errors import OutOfMemory
from sdgbias.types import Generated, Prompt, ScoreBatch


class Engine(Backend):
    """Scores two candidates by the length of the text, which is the number of tokens, and with
    ``by_place`` by the place in the batch; fails where it is told to: beyond ``room`` prompts, and
    with ``error`` at the texts that are ``bad``. sizes: of the batches so far."""

    fingerprint = "f"

    def __init__(
        self,
        bad: Sequence[str] = (),
        error: type[Exception] | Exception = ValueError,
        room: int = 99,
        by_place: float = 0.0,
    ) -> None:
        self.bad, self.error, self.room, self.by_place = bad, error, room, by_place
        self.sizes: list[int] = []

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        self.sizes.append(len(prompts))
        if len(prompts) > self.room:
            raise OutOfMemory("out of memory: tried to allocate")
        for text in (prompt.text for prompt in prompts if prompt.text in self.bad):
            raise self.error if isinstance(self.error, Exception) else self.error(f"at {text}")
        lengths = np.array([len(prompt.text) for prompt in prompts])
        logits = np.stack([lengths, 5.0 + self.by_place * np.arange(len(prompts))], axis=1)
        logits[[prompt.text.startswith("nan") for prompt in prompts], 0] = np.nan
        half = np.full(len(prompts), 0.5, np.float32)
        tops = ["A"] * len(prompts)
        return ScoreBatch(logits.astype(np.float32), half, half, tops, lengths.astype(np.int32))

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        return Generated.whole([[start + "1" for start in starts] for _ in prompts])
