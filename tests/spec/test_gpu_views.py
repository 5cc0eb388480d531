"""The whole path of the GPU benchmarks, at small shapes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_runs_at_small_shapes() -> None:
    options = ["--tiny", "--pictures", "2", "--questions", "2", "--runs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_views", *options],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    tokens = {
        name: [
            (int(computed.replace(",", "")), int(of_prompts.replace(",", "")))
            for computed, of_prompts in re.findall(
                rf"^{name}: .* s, ([\d,]+) tokens of ([\d,]+),", done.stdout, re.M
            )
        ]
        for name in ("naive", "plan")
    }
    assert len(tokens["plan"]) == 3, "LLaVA, Qwen2.5-VL and InternVL3"
    for (computed, of_prompts), (naive, naive_of_prompts) in zip(
        tokens["plan"], tokens["naive"], strict=True
    ):
        assert naive == naive_of_prompts, "prompt by prompt nothing is shared"
        assert of_prompts < 0.6 * naive, "each distinct prompt once"
        assert computed < of_prompts, "a picture's beginning once"
    assert done.stdout.count("and behind shared beginnings") == 3, "what the probes say"
    speeds = re.findall(
        r"engine ([\d.]+) prompts/s, model.generate ([\d.]+) prompts/s", done.stdout
    )
    assert len(speeds) == 6 and all(float(speed) > 0 for pair in speeds for speed in pair)


@pytest.mark.slow
def test_a_whole_evaluation_runs_at_small_shapes(small_benchmark: Path, tmp_path: Path) -> None:
    options = ["--tiny", "--shape", "qwen", "--benchmark", str(small_benchmark)]
    options += ["--folder", str(tmp_path), "--passes", "none", "--generated", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_evaluate", *options, "--draws", "10"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert ", exit 0" in done.stdout, done.stderr
    figures = dict(re.findall(r"^(n_scored|n_failed|tokens_prefilled) +(\d+)$", done.stdout, re.M))
    assert int(figures["n_scored"]) > 100 and figures["n_failed"] == "0", done.stdout
