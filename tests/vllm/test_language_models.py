"""Families of language models that vLLM serves, against transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, IMAGE_FREE, Prompt
from tests.builders import language_models
from tests.vllm.conftest import SEPARATE_WORKER, has_vllm

PROMPTS = [
    Prompt("How high?\nContext: asset=1.5\nOptions: A. low; B. mid; C. high", "ABC"),
    Prompt("How high?\nOptions: A. low; B. mid; C. high", "ABC"),
    Prompt("How many years?", DIGITS),
]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder of this process and its children, with a path short enough for
    sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_scores_equal_those_of_transformers_and_nothing_stays_behind(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_vllm():
        pytest.skip("vLLM has an environment of its own: make vllm")
    from sdgbias.engines.hf.engine import HuggingFace
    from sdgbias.engines.vllm import VLLM

    monkeypatch.setenv(SEPARATE_WORKER, "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # as many images do
    folder = language_models.write(tmp_path / "lm", "qwen2")
    spec = ModelSpec("m", "M", "vllm", f"path:{folder}", "local", "enabled", views=IMAGE_FREE)
    spec = replace(spec, options={"max_model_len": 512, "kv_cache_gib": 0.25})
    engine = VLLM(spec, tmp_path)
    ours = engine.candidate_scores(PROMPTS)
    variables = Path(f"/proc/{engine.server.process.pid}/environ").read_bytes()
    assert b"PYTHONDONTWRITEBYTECODE" not in variables, "each process would compile all it imports"
    engine.close()
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("sdgbias-vllm-")]
    assert left == [], "what vLLM leaves is in the folder that goes with the server"
    bare = replace(spec, backend="hf", options={})
    theirs = HuggingFace(bare, tmp_path).candidate_scores(PROMPTS)
    for one, two, prompt in zip(ours.logits, theirs.logits, PROMPTS, strict=True):
        n = len(prompt.candidates)
        difference = (one[:n] - one[:n].mean()) - (two[:n] - two[:n].mean())
        assert np.abs(difference).max() <= 1e-3
