"""What can be told before an engine is loaded: these need no vLLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines.options import Options, VllmOptions, read
from sdgbias.engines.vllm import (
    VLLM,
    float32_head,
    load_error,
)
from sdgbias.errors import InfrastructureError, ModelError, RegistryError
from sdgbias.types import ModelSpec
from tests.vllm.conftest import has_vllm

ROOT = Path(__file__).resolve().parents[2]


def test_an_unknown_option_is_answered_with_the_valid_ones(tiny: ModelSpec) -> None:
    with pytest.raises(RegistryError) as told:
        VLLM(replace(tiny, options={"max_model_length": 512}), Path())
    assert "tiny-llava.yaml: unknown option 'max_model_length'" in str(told.value)
    assert all(name in str(told.value) for name in VllmOptions.model_fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 0),
        ("block_size", True),
        ("enforce_eager", "yes"),
        ("gpu_memory_utilization", 1.2),
        ("gpu_memory_utilization", "0.9"),
        ("kv_cache_gib", 0),
        ("max_model_len", 512.0),
        ("tensor_parallel_size", -1),
        ("quantization", True),
        ("pipeline_parallel_size", 0),
    ],
)
def test_a_bad_value_names_the_file_and_what_is_valid(
    tiny: ModelSpec, name: str, value: object
) -> None:
    with pytest.raises(
        RegistryError, match=rf"registry/models/tiny-llava.yaml: {name} is .*; valid: "
    ):
        read(replace(tiny, options={name: value}), VllmOptions)


def test_good_values_pass(tiny: ModelSpec) -> None:
    of_every_backend = Options.model_fields
    options = {
        "block_size": 32,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.9,
        "kv_cache_gib": 0.5,
        "max_images": 2,
        "max_model_len": 512,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 64,
        "pipeline_parallel_size": 2,
        "processor": {"max_pixels": 200704},
        "quantization": "fp8",
        "template": {"enable_thinking": False},
        "tensor_parallel_size": 2,
    }
    assert set(options) == set(VllmOptions.model_fields) - {*of_every_backend}
    found = read(replace(tiny, options=options), VllmOptions).model_dump(exclude_unset=True)
    assert found == options


def test_weights_that_are_not_there(tiny: ModelSpec, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"no config.json; registry entry tiny-llava has repo: local:"
    ):
        VLLM(tiny, tmp_path)


def test_no_vllm_is_said_in_one_line(tiny: ModelSpec) -> None:
    if has_vllm():
        pytest.skip("vLLM is in this environment")
    with pytest.raises(
        InfrastructureError,
        match=r"^tiny-llava: no vLLM here .*; install it: docs/how-to/vllm.md$",
    ):
        VLLM(tiny, Path(__file__).resolve().parents[2])


def test_the_kind_of_a_failed_start() -> None:
    cache = ValueError(
        "To serve one request, 3 GiB KV cache is needed, which is larger than the available KV"
        " cache memory."
    )
    assert isinstance(load_error("m", "folder", cache, local=True), InfrastructureError)
    assert "raise kv_cache_gib" in str(load_error("m", "folder", cache, local=True))
    assert isinstance(
        load_error("m", "o/n", OSError("can't reach\nthe hub"), local=False), InfrastructureError
    )
    broken = load_error(
        "m", "folder", RuntimeError("\nCannot find any model weights\nmore"), local=True
    )
    assert isinstance(broken, ModelError)
    assert str(broken) == "m: vLLM can't load folder: Cannot find any model weights"


def test_both_configurations_of_a_multimodal_model_name_a_float32_head() -> None:
    from transformers import LlavaConfig, Qwen2Config

    config = float32_head(LlavaConfig())
    assert config.head_dtype == config.text_config.head_dtype == "float32"
    assert float32_head(Qwen2Config()).head_dtype == "float32"


def test_a_quantised_head_is_refused_with_the_engine_that_takes_it() -> None:
    """vLLM's own words; where its engine is a process of its own, among others."""
    words = (
        "A head_dtype different from the model dtype is only supported for an unquantized lm_head."
    )
    for text in (words, f"Engine core initialization failed. See root cause above. {words}"):
        told = load_error("m", "folder", ValueError(text), local=True)
        assert isinstance(told, ModelError)
        assert "its head is quantised; set backend: hf in registry/models/m.yaml" in str(told)
