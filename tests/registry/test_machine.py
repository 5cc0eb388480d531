"""Whether a model fits into the memory of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

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
