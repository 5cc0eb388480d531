"""A model without weights whose biases are known because they are planted: an instrument, not a test helper.

Its logit for candidate j of K is  optimism * j/(K-1) + context_weight * E_ctx + image_weight * E_img + noise * e, where
E_ctx leans to the upper candidates with the `asset_index` that the prompt's context states, E_img leans with a number
drawn from the image's digest, and e is drawn from the prompt's digest. Every number depends on the prompt alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from sdgbias.types import ModelSpec, Prompt, ScoreBatch

_ASSET = re.compile(r"asset_index=(-?\d+\.\d)")
_VERSION = "planted-1"


def _normal(key: str, size: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(size)


class Planted:
    def __init__(self, spec: ModelSpec) -> None:
        weights = {"optimism": 0.6, "image_weight": 1.0, "context_weight": 1.0, "noise": 0.5, "seed": 0}
        self.weights = {name: float(str(spec.options.get(name, default))) for name, default in weights.items()}
        identity = json.dumps([_VERSION, self.weights], sort_keys=True)
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]

    def _logits(self, prompt: Prompt) -> np.ndarray:
        w, k = self.weights, len(prompt.candidates)
        up = np.linspace(-1.0, 1.0, k)
        logits = w["optimism"] * (up + 1) / 2 + w["noise"] * _normal(f"{w['seed']}|{prompt.text}|{prompt.image_id}", k)
        asset = _ASSET.search(prompt.text)
        if asset:
            logits = logits + w["context_weight"] * float(asset[1]) * up
        if prompt.image_id:
            logits = logits + w["image_weight"] * _normal(prompt.image_id, 1)[0] * up
        return np.asarray(logits)

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        width = max((len(p.candidates) for p in prompts), default=0)
        logits = np.full((len(prompts), width), np.nan, dtype=np.float32)
        for row, prompt in zip(logits, prompts, strict=True):
            row[: len(prompt.candidates)] = self._logits(prompt)
        best = [p.candidates[int(np.nanargmax(row))] for p, row in zip(prompts, logits, strict=True)]
        n = len(prompts)
        return ScoreBatch(
            logits,
            np.ones(n, dtype=np.float32),
            np.full(n, np.nan, dtype=np.float32),
            best,
            np.array([len(p.text.split()) for p in prompts], dtype=np.int32),
        )

    def generate(self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int) -> list[list[str]]:
        answers = []
        for prompt in prompts:
            first = prompt.candidates[int(np.argmax(self._logits(prompt)))]
            answers.append([(start or first) + ".0" for start in starts])
        return answers
