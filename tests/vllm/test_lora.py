"""A LoRA adapter on tiny-llava: one that adds nothing changes no score, one that adds does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sdgbias.types import ModelSpec, Prompt
from tests.vllm.conftest import REPOSITORY, has_vllm


def adapter(folder: Path, config: dict[str, int], size: float) -> Path:
    """An adapter of rank 4 on the query projections, whose update has this size."""
    folder.mkdir()
    told = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(told))
    generator = torch.Generator().manual_seed(0)
    width, out = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.language_model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, width, generator=generator)
        tensors[f"{name}.lora_B.weight"] = size * torch.randn(out, 4, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_scores_with_an_adapter(tiny: ModelSpec, prompts: list[Prompt], tmp_path: Path) -> None:
    if not has_vllm():
        pytest.skip("vLLM has an environment of its own: make vllm")
    from sdgbias.engines.vllm import VLLM

    text = json.loads((REPOSITORY / "registry/weights/tiny-llava/config.json").read_text())
    text = text["text_config"]
    text.setdefault("head_dim", text["hidden_size"] // text["num_attention_heads"])

    def scores(**options: object) -> tuple[np.ndarray, str]:
        engine = VLLM(replace(tiny, options={**tiny.options, **options}), REPOSITORY)
        return engine.candidate_scores(prompts).logits, engine.fingerprint

    bare, without = scores()
    nothing, with_nothing = scores(lora=f"path:{adapter(tmp_path / 'none', text, 0.0)}")
    some, with_some = scores(lora=f"path:{adapter(tmp_path / 'some', text, 2.0)}")
    np.testing.assert_allclose(nothing, bare, atol=1e-5)
    assert np.nanmax(np.abs(some - bare)) > 1e-2
    assert len({without, with_nothing, with_some}) == 3
