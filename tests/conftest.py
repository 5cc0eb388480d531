"""What several test folders need: the shared real data, a random-weight LLaVA, and a small
benchmark built by the house."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

import sdgbias.engines  # noqa: F401  before the tests import transformers, and so torchvision

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "GX_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)

with suppress(ImportError):  # the environment of vLLM has no hypothesis
    from hypothesis import HealthCheck, settings

    # the same examples on every machine, however busy it is
    settings.register_profile(
        "house",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("house")

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real raw data beside the checkout; it is never committed."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared real data beside the checkout ({SHARED.parent.name}/{SHARED.name})")
    return SHARED


@pytest.fixture(scope="session")
def small_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of 60 synthetic clusters, 120 MCQs and 40 regression questions."""
    from sdgbias.benchmark.build import build
    from sdgbias.raw.synthetic import write_sample

    folder = tmp_path_factory.mktemp("small")
    write_sample(folder / "raw", 60, 5)
    build(
        folder / "raw", folder / "raw" / "indicators", folder / "benchmark", mcq=120, regression=40
    )
    return folder / "benchmark"
