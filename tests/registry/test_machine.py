"""Whether a model fits into the memory of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.errors import UsageError
from sdgbias.registry import machine
from sdgbias.registry.machine import Machine

# ----------------------------------------------------------------------
# memory


def test_memory_rule() -> None:
    half = machine.weights_gib(8e9, "bfloat16")
    assert half == 16e9 / 2**30 and machine.weights_gib(8e9, "float32") == 2 * half
    assert machine.need(10.0) == 1.15 * 10 + 4
    assert machine.need(10.0, 4) == 1.15 * 2.5 + 2.5
    assert machine.need(0.01) == pytest.approx(1.15 * 0.01 + 0.5)
    two = Machine((24.0, 80.0), 100.0)
    assert machine.fits(50, 1, two) and not machine.fits(50, 2, two) and machine.fits(24, 2, two)
    assert not machine.fits(90, 1, two), "main memory is of no use to a GPU"
    none = Machine((), 16.0)
    assert (
        machine.fits(16, 1, none) and not machine.fits(17, 1, none) and not machine.fits(1, 2, none)
    )
    assert "no GPU, 16 GiB" in none.words() and two.words() == "2 GPUs of 24, 80 GiB"


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.this().gpus == () and 0.1 < machine.this().ram < 100_000
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 81920\necho 24576\n")
    tool.chmod(0o755)
    assert machine.this().gpus == (80.0, 24.0)
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert machine.this().gpus == ()


#: The shapes of Qwen2.5-VL-72B and of its vision tower, as its config.json gives them.
LARGE = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "vision_config": {"hidden_size": 1280, "intermediate_size": 3456, "patch_size": 14},
}
EIGHT = Machine((79.6,) * 8, 1000.0)


def test_cache_and_activations_follow_from_the_shapes() -> None:
    found = machine.sizes(LARGE, 135.0, "bfloat16")
    assert found.cache == 2 * 80 * 8 * 128 * 2 * 8192 / 2**30  # keys and values: 2.5 GiB
    assert found.vision == 8 * 32**2 * (4 * 1280 + 3456) * 2 / 2**30
    assert found.need(4) == 1.15 * 135 / 4 + 4 and found.heads == 64
    many = machine.sizes({**LARGE, "num_key_value_heads": 64}, 135.0, "bfloat16")
    assert many.need(4) == 1.15 * 135 / 4 + many.cache / 4 + many.vision + 0.5  # 20 GiB of cache
    whole = {"text_config": LARGE, "vision_config": {}}
    omni = machine.sizes({"thinker_config": whole, "talker_config": {}}, 1.0, "bfloat16")
    assert omni == machine.sizes(whole, 1.0, "bfloat16") and omni.cache > 0
    nested = machine.sizes({"text_config": LARGE, "vision_config": {}}, 1.0, "bfloat16")
    assert nested.cache == found.cache and nested.vision == 0
    for unknown in ({}, {"text_config": {"num_hidden_layers": True}}, {"text_config": [1]}):
        assert machine.sizes(unknown, 10.0, "float32").need() == machine.need(10.0)


@pytest.mark.parametrize(
    ("weights", "gpus", "devices"),
    [
        *[(13, 8, 1), (62, 8, 1), (71, 8, 2), (135, 8, 4), (165, 8, 4), (400, 8, 8), (600, 8, 0)],
        *[(135, 3, 0), (71, 3, 2), (13, 0, 1), (2000, 0, 0)],
    ],
)
def test_as_few_devices_as_hold_it(weights: float, gpus: int, devices: int) -> None:
    here = Machine((79.6,) * gpus, 1000.0)
    assert machine.sizes(LARGE, weights, "bfloat16").devices(here) == devices


def test_devices_divide_the_heads() -> None:
    odd = {**LARGE, "num_attention_heads": 30, "head_dim": 128}
    assert machine.sizes(odd, 135.0, "bfloat16").devices(EIGHT) == 0, "30 heads are not 4 x 7.5"
    assert machine.sizes(odd, 71.0, "bfloat16").devices(EIGHT) == 2


def test_gpus_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_GPUS", "8x79.6")
    assert machine.this().gpus == EIGHT.gpus
    for wrong in ("8", "0x80", "8x", "8x80x", "eight"):
        monkeypatch.setenv("SDGBIAS_GPUS", wrong)
        with pytest.raises(UsageError, match="valid: COUNTxGIB, such as 8x80"):
            machine.this()
