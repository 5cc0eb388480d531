"""The whole path of the GPU benchmarks, at small shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import gpu_evaluate, gpu_views


def test_runs_at_small_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_views.main(["--tiny", "--pictures", "2", "--questions", "2", "--runs", "1"])

    out = capsys.readouterr().out
    tokens = {
        name: [
            (int(computed.replace(",", "")), int(of_prompts.replace(",", "")))
            for computed, of_prompts in re.findall(
                rf"^{name}: .* s, ([\d,]+) tokens of ([\d,]+),", out, re.M
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
    assert out.count("and behind shared beginnings") == 3, "what the probes say"
    speeds = re.findall(r"engine ([\d.]+) prompts/s, model.generate ([\d.]+) prompts/s", out)
    assert len(speeds) == 6 and all(float(speed) > 0 for pair in speeds for speed in pair)


@pytest.mark.slow
def test_a_whole_evaluation_runs_at_small_shapes(
    few_questions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--tiny", "--shape", "qwen", "--benchmark", str(few_questions)]
    options += ["--folder", str(tmp_path), "--passes", "none", "--generated", "none"]

    gpu_evaluate.main([*options, "--draws", "10"])

    out, error = capfd.readouterr()
    assert ", exit 0" in out, error
    figures = dict(re.findall(r"^(n_scored|n_failed|tokens_prefilled) +(\d+)$", out, re.M))
    assert int(figures["n_scored"]) > 50 and figures["n_failed"] == "0", out
