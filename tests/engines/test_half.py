"""Models in float16, bfloat16 and float32: prompts scored together, in batches and alone have the
scores of the model called by hand in float32, but for rounding; and no other way of scoring passes
for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.ways import decide
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import LETTERS, Prompt
from tests.builders import families
from tests.builders.bare_model import Bare
from tests.spec.engine_spec import image

#: Largest difference of a log-score: rounding of 11 and of 8 bits, through two layers.
NEAR = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}
SHOWN = (((), ""), ((image(1),), "one"))
PROMPTS = [
    Prompt(f"How many years of schooling do women have here?{' word' * k}", LETTERS, pictures, name)
    for k in (0, 7, 3)
    for pictures, name in SHOWN
]


def load(folder: Path, dtype: str) -> HuggingFace:
    return HuggingFace(
        ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", dtype=dtype), Path()
    )


@pytest.mark.parametrize(("name", "dtype"), [("llava", "float16"), ("gemma3", "bfloat16")])
def test_half_precision_only_rounds(name: str, dtype: str, tmp_path: Path) -> None:
    """Gemma's picture tokens see each other."""
    folder = families.write(tmp_path / "m", name)
    bare, engine = Bare(folder), load(folder, dtype)
    found = engine.candidate_scores(PROMPTS)
    wanted = np.array([bare.scores(prompt) for prompt in PROMPTS])
    own = found.logits.astype(float)
    apart = own - own.mean(axis=1, keepdims=True) - (wanted - wanted.mean(axis=1, keepdims=True))
    assert np.abs(apart).max() <= NEAR[dtype]
    assert not np.isnan(found.mass).any()
    said = engine.generate(PROMPTS[:2], ["", "3"], 4).texts
    assert [one[1][0] for one in said] == ["3", "3"]


def test_prompts_that_see_all_of_themselves_are_never_shared(tmp_path: Path) -> None:
    """In bfloat16 the difference must not pass for rounding."""
    engine = load(families.write(tmp_path / "m", "paligemma"), "bfloat16")
    found = decide(engine, PROMPTS)
    assert not found.share_prefix
    together = engine.candidate_scores(PROMPTS).logits
    alone = np.vstack([engine.candidate_scores([prompt]).logits for prompt in PROMPTS])
    assert np.abs(together - alone).max() <= NEAR["bfloat16"]
