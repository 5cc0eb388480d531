"""The registered entry of vLLM, from the environment without it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.builders.commands import REPOSITORY, metrics, ok

VLLM_PYTHON = REPOSITORY / ".venv-vllm" / "bin" / "python"


@pytest.mark.long
def test_the_registered_entry_is_evaluated_and_checked(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    """From the environment without vLLM: the same accuracies as transformers', and a verdict that
    says so."""
    if not VLLM_PYTHON.is_file():
        pytest.skip("no .venv-vllm: vLLM has an environment of its own; build it: make vllm")
    results = tmp_path / "r.duckdb"
    for name in ("tiny-llava", "tiny-llava-vllm"):
        ok("evaluate", name, "--benchmark", tiny_benchmark, "--results", results, "--draws", 50)
    table = metrics(results, "metric IN ('accuracy', 'mae')")
    a, b = (
        table[table["model"] == n].drop(columns=["run_id", "model"])
        for n in ("tiny-llava", "tiny-llava-vllm")
    )
    order = [c for c in a.columns if c not in ("value", "ci_low", "ci_high")]
    pd.testing.assert_frame_equal(
        a.sort_values(order, ignore_index=True), b.sort_values(order, ignore_index=True), atol=1e-4
    )
    said = ok(
        "models",
        "parity",
        "tiny-llava-vllm",
        "--benchmark",
        tiny_benchmark,
        "--results",
        results,
        "--probes",
        24,
    )
    assert "vllm / hf" in said and "verdict: agree" in said
