"""The specification of every engine, on vLLM; and, last of all, the end of its server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdgbias.engines.agreement import log_shares, rounding, same_score
from sdgbias.errors import EngineDied
from sdgbias.registry.spec import ModelSpec
from tests.builders.sample_prompts import prompts_of
from tests.spec.engine_spec import *  # noqa: F403
from tests.vllm.conftest import REPOSITORY


def test_a_killed_server_is_started_again(
    engine, reference, tiny: ModelSpec, request: pytest.FixtureRequest
) -> None:
    """In bfloat16 this time: the head of the language model inside the multimodal one is in float32
    all the same, so that no logit is a multiple of a bfloat16 step."""
    asked = [p for place in range(90, 94) for p in prompts_of(place)]
    pid = engine.server.process.pid
    engine.kill()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(EngineDied, match="tiny-llava: the server was killed by SIGKILL"):
        engine.candidate_scores(asked[:2])

    engine.server.settings["dtype"] = "bfloat16"
    engine.restart()
    found = engine.candidate_scores(asked)

    half = replace(tiny, backend="hf", dtype="bfloat16", options={})
    plain = type(reference)(half, REPOSITORY)
    far = np.abs(log_shares(found.logits) - log_shares(plain.candidate_scores(asked).logits))
    # a processor's own kernels of bfloat16 decide how far it rounds: as parity asks
    assert np.nanmax(far) <= same_score("bfloat16", rounding(plain, asked))
    steps = (found.logits[:, 1:] - found.logits[:, :1]) * 128
    steps = steps[np.isfinite(steps)]
    assert np.mean(np.abs(steps - np.round(steps)) > 0.01) > 0.9

    engine.server.settings["dtype"] = tiny.dtype
    later = request.session.items[request.session.items.index(request.node) + 1 :]
    if any("engine" in item.fixturenames for item in later):  # a start takes 20 s
        engine.restart()
