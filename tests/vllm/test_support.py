"""What this environment's vLLM says that it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.conftest import has_vllm


def test_its_own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_vllm():
        pytest.skip("vLLM has an environment of its own: make vllm")
    from sdgbias.engines.vllm_support import served, version

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = served(None)
    for name in ("Llava", "LlavaOnevision", "Qwen2_5_VL", "InternVL"):
        assert f"{name}ForConditionalGeneration" in found.architectures
    for name in ("InstructBlip", "Mllama", "Kosmos2"):
        assert f"{name}ForConditionalGeneration" not in found.architectures
    assert found.version == version(None)
    assert len(list((tmp_path / "sdgbias").iterdir())) == 1
