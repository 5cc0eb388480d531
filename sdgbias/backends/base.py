"""The contract of an engine, and the one place that turns a registry entry into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sdgbias.errors import RegistryError, one_of
from sdgbias.types import ModelSpec, Prompt, ScoreBatch

BACKENDS = ("api", "hf", "planted", "vllm")


class Backend(Protocol):
    """What every engine can do. Scores depend on the prompt alone, never on its neighbours in the batch (to 1e-4)."""

    #: 16 hex digits over everything but the prompt that can change a score: weights, processor, dtype, engine, versions.
    fingerprint: str

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Exact first-token scores of N prompts over their candidates."""
        ...

    def generate(self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int) -> list[list[str]]:
        """Greedy answers of N prompts, one per forced start: (N, S) texts, each with its start ('' = free decoding)."""
        ...


def load(spec: ModelSpec, root: Path) -> Backend:
    """The engine of a registry entry. `root` is the folder that 'local:' repositories are relative to."""
    if spec.backend == "planted":
        from sdgbias.backends.planted import Planted

        return Planted(spec)
    if spec.backend == "hf":
        from sdgbias.backends.hf import HuggingFace

        return HuggingFace(spec, root)
    if spec.backend == "api":
        from sdgbias.backends.api import Api

        return Api(spec, root)
    if spec.backend == "vllm":
        from sdgbias.backends.vllm import VLLM

        return VLLM(spec, root)
    raise RegistryError(f"registry/models/{spec.name}.yaml: {one_of('backend', spec.backend, BACKENDS)}")
