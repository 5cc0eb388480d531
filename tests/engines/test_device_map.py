"""Option `device_map` of the transformers engine, and what is said without accelerate."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.errors import ModelError
from sdgbias.registry import entries
from tests.builders.sample_prompts import sample_prompts

ROOT = entries.find_root()


def test_a_model_that_is_placed_by_its_map_scores_as_before() -> None:
    spec = entries.load(ROOT, "tiny-llava")
    split = replace(spec, options={**spec.options, "device_map": "auto"})
    if importlib.util.find_spec("accelerate") is None:
        with pytest.raises(ModelError, match="device_map needs the package accelerate"):
            HuggingFace(split, ROOT)
        return
    prompts = sample_prompts(3)
    bare, placed = HuggingFace(spec, ROOT), HuggingFace(split, ROOT)
    assert placed.device.type == bare.device.type
    np.testing.assert_array_equal(
        placed.candidate_scores(prompts).logits, bare.candidate_scores(prompts).logits
    )
    assert placed.fingerprint == bare.fingerprint, "where layers lie changes no score"
