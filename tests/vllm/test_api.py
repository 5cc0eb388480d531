"""The API engine against a real server: vLLM's OpenAI-compatible one, on loopback, with the
embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.api import Api
from sdgbias.engines.client import PromptRefused
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.options import VllmOptions, read
from sdgbias.engines.vllm_server import Server
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Prompt, ScoreBatch
from tests.builders.sample_prompts import sample_prompts
from tests.vllm.conftest import REPOSITORY

WEIGHTS = "registry/weights/tiny-llava"
KEY = "loopback-only-4711"


@pytest.fixture(scope="module")
def url(tiny: ModelSpec) -> Iterator[str]:
    """Address of a server that renders prompts with the model's own chat template, as others
    start it."""
    template = (REPOSITORY / WEIGHTS / "chat_template.jinja").read_text(encoding="utf-8")
    try:
        server = Server(tiny, REPOSITORY, read(tiny, VllmOptions))
    except InfrastructureError as none:
        pytest.skip(str(none))
    server.start(KEY, template)
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def asked() -> list[Prompt]:
    return sample_prompts(2)


@pytest.fixture(scope="module")
def reference() -> HuggingFace:
    """Without what comes behind a lone space: an endpoint shows the first token only."""
    engine = HuggingFace(
        ModelSpec("tiny-llava", "Tiny", "hf", f"local:{WEIGHTS}", "local", True), REPOSITORY
    )
    engine.candidates = replace(engine.candidates, space=None, needs_space=frozenset())
    return engine


def log_probabilities(batch: ScoreBatch) -> np.ndarray:
    """(N, K) over the whole vocabulary, from an engine that gives logits and the mass of the
    candidates."""
    z = batch.logits.astype(float)
    return (
        z
        - np.logaddexp.reduce(np.where(np.isnan(z), -np.inf, z), axis=1, keepdims=True)
        + np.log(batch.mass.astype(float))[:, None]
    )


@pytest.fixture(scope="module")
def exact(reference: HuggingFace, asked: list[Prompt]) -> tuple[np.ndarray, ScoreBatch]:
    batch = reference.candidate_scores(asked)
    return log_probabilities(batch), batch


@pytest.fixture
def make(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("LOOPBACK_KEY", KEY)
    made: list[Api] = []

    def api(**options: Any) -> Api:
        base = {"api_key_env": "LOOPBACK_KEY", "base_url": url, "model": "tiny-llava"}
        spec = ModelSpec("served", "Served", "api", "local/tiny-llava", "local", "enabled")
        made.append(Api(replace(spec, options={**base, **options}), REPOSITORY))
        return made[-1]

    yield api
    for one in made:
        one.close()


def check(batch: ScoreBatch, exact: np.ndarray) -> None:
    """What is told is right to the precision of the answers, and what is withheld lies below its
    bound."""
    seen = np.isfinite(batch.logits)
    assert np.abs(batch.logits - exact)[seen].max() < 1e-4
    assert batch.upper is not None
    most = np.where(np.isnan(batch.upper), batch.logits, batch.upper)
    assert (exact <= most + 1e-4)[~np.isnan(exact)].all()
    assert (np.isnan(batch.logits) == np.isnan(exact)).all() and np.isnan(
        batch.upper[np.isnan(exact)]
    ).all()


def test_scores_equal_those_of_the_engine_in_this_process(
    make: Any, asked: list[Prompt], exact: tuple[np.ndarray, ScoreBatch]
) -> None:
    api = make()
    batch = api.candidate_scores(asked)
    check(batch, exact[0])
    assert len(asked) >= 40 and sum(bool(p.images) for p in asked) >= 24
    assert np.isneginf(batch.logits).mean() < 0.02
    assert batch.top_token == exact[1].top_token and (batch.n_tokens == exact[1].n_tokens).all()
    told = np.isfinite(batch.logits).sum(axis=1) == np.isfinite(exact[0]).sum(axis=1)
    assert batch.mass[told] == pytest.approx(exact[1].mass[told], abs=1e-4)
    assert api.counts["prompt_tokens"] == exact[1].n_tokens.sum() and api.counts["requests"] == len(
        asked
    )


def test_the_top_two_leave_something_out_and_ids_nothing(
    make: Any, reference: HuggingFace, asked: list[Prompt], exact: tuple[np.ndarray, ScoreBatch]
) -> None:
    batch = make(top_logprobs=2).candidate_scores(asked)
    check(batch, exact[0])
    assert (np.isfinite(batch.logits).sum(axis=1) <= 2).all()
    assert np.isneginf(batch.logits).any(axis=1).mean() > 0.9
    ids = {c: list(ids) for c, ids in reference.candidates.ids.items()}
    batch = make(candidate_ids=ids, top_logprobs=2).candidate_scores(asked)
    check(batch, exact[0])
    assert not np.isneginf(batch.logits).any() and np.isnan(batch.upper).all()
    assert batch.mass == pytest.approx(exact[1].mass, abs=1e-4)


def test_answers_and_forced_starts(make: Any, reference: HuggingFace, asked: list[Prompt]) -> None:
    numbers = [p for p in asked if len(p.candidates) == 10][:6]
    api = make(prefill=True)
    said = api.generate(numbers, ["", "7"], 8).texts
    assert [row[0] for row in said] == [
        row[0] for row in reference.generate(numbers, [""], 8).texts
    ]
    assert all(row[1].startswith("7") for row in said)
    with pytest.raises(ModelError, match="--mode replace"):
        make().generate(numbers, ["7"], 8)


def test_errors_of_a_real_server(
    make: Any, asked: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="no model 'tiny'"):
        make(model="tiny").candidate_scores(asked[:1])
    with pytest.raises(PromptRefused, match="context length"):
        make().candidate_scores([Prompt("word 12 " * 600, "ABC")])
    with pytest.raises(ModelError, match="top_logprobs|logprobs"):
        make(top_logprobs=999).candidate_scores(asked[:1])
    monkeypatch.setenv("LOOPBACK_KEY", "wrong-key-0123")
    with pytest.raises(ModelError, match="LOOPBACK_KEY") as caught:
        make().candidate_scores(asked[:1])
    assert "wrong-key" not in str(caught.value)
