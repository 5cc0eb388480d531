"""Whether a model fits into the memory of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.errors import UsageError
from sdgbias.registry import machine
from sdgbias.registry.machine import Machine


def test_memory_rule() -> None:
    half = machine.weights_gib(8e9, "bfloat16")
    assert half == 16e9 / 2**30 and machine.weights_gib(8e9, "float32") == 2 * half
    assert machine.need(10.0) == 12.0 and machine.need(10.0, 4) == 3.0
    assert machine.need(0.01) == 0.5
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


def test_heads_are_the_decoders() -> None:
    whole = {"text_config": {"num_attention_heads": 64}, "num_attention_heads": 12}
    assert machine.heads_of(whole) == 64
    assert machine.heads_of({"thinker_config": whole, "talker_config": {}}) == 64
    for unknown in ({}, {"text_config": {"num_attention_heads": True}}, {"text_config": [1]}):
        assert machine.heads_of(unknown) == 0


@pytest.mark.parametrize(
    ("weights", "gpus", "heads", "devices"),
    [
        *[(13, 8, 64, 1), (62, 8, 64, 1), (71, 8, 64, 2), (135, 8, 64, 4), (165, 8, 64, 4)],
        *[(400, 8, 64, 8), (600, 8, 64, 0), (135, 3, 64, 0), (71, 3, 64, 2), (13, 0, 64, 1)],
        *[(2000, 0, 64, 0), (135, 8, 30, 0), (71, 8, 30, 2)],  # 30 heads are not 4 x 7.5
    ],
)
def test_as_few_devices_as_hold_it_and_divide_the_heads(
    weights: float, gpus: int, heads: int, devices: int
) -> None:
    assert machine.devices_for(weights, Machine((79.6,) * gpus, 1000.0), heads) == devices


def test_gpus_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_GPUS", "8x79.6")
    assert machine.this().gpus == (79.6,) * 8
    for wrong in ("8", "0x80", "8x", "8x80x", "eight"):
        monkeypatch.setenv("SDGBIAS_GPUS", wrong)
        with pytest.raises(UsageError, match="valid: COUNTxGIB, such as 8x80"):
            machine.this()


@pytest.mark.parametrize(
    ("params", "gpus", "devices", "size"),
    [
        *[(7e9, (), 1, 8), (7e9, (16.0,), 1, 8), (7e9, (24.0,), 1, 8), (7e9, (40.0,), 1, 16)],
        *[(7e9, (80.0,), 1, 64), (7e9, (139.0,), 1, 128), (7e9, (139.0, 40.0), 1, 16)],
        *[
            (34e9, (80.0,), 1, 4),
            (34e9, (80.0,) * 4, 4, 32),
            (5e8, (8.0,), 1, 64),
            (0, (80.0,), 1, 4),
        ],
    ],
)
def test_a_batch_fills_half_of_what_the_weights_leave_of_a_gpu(
    params: float, gpus: tuple[float, ...], devices: int, size: int
) -> None:
    weights = machine.weights_gib(params, "bfloat16")
    assert machine.batch_size(params, weights, devices, Machine(gpus, 200.0)) == size
