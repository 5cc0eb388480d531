"""What this environment's vLLM says that it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.conftest import has_vllm


def test_its_own_list_and_its_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_vllm():
        pytest.skip("vLLM has an environment of its own: make vllm")
    from sdgbias.engines.vllm_support import BACKEND, NATIVE, served

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = served(None)
    for name in ("Llava", "LlavaOnevision", "Qwen2_5_VL", "InternVL"):
        assert found.how[f"{name}ForConditionalGeneration"] == NATIVE
    assert found.how["VipLlavaForConditionalGeneration"] == BACKEND
    for name in ("InstructBlip", "Mllama", "Kosmos2"):
        assert f"{name}ForConditionalGeneration" not in found.how
    assert len(list((tmp_path / "sdgbias").iterdir())) == 1
