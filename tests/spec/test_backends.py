"""One specification, run on every engine, and what the engine hf promises beyond it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sdgbias.engines import Backend, load
from sdgbias.errors import ModelError
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from tests.builders import endpoint, served_model
from tests.builders.families import write_small
from tests.spec.engine_spec import *  # noqa: F403
from tests.spec.engine_spec import PAIRS, PROMPTS

ROOT = entries.find_root()


def spec(backend: str, repo: str = "planted") -> ModelSpec:
    return ModelSpec("m", "M", backend, repo, "local", "enabled")


@pytest.fixture(
    scope="module", params=["planted", "hf-byte", "hf-metaspace", "tiny-llava", "endpoint"]
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    kind = str(request.param)
    if kind == "planted":
        return load(spec("planted"), Path())
    if kind == "tiny-llava":
        return load(entries.load(ROOT, "tiny-llava"), ROOT)
    if kind == "endpoint":
        server = served_model.serve(load(entries.load(ROOT, "tiny-llava"), ROOT))
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("UNIT_KEY", endpoint.KEY)
            return load(endpoint.spec(server, **served_model.OPTIONS), Path())
    folder = write_small(tmp_path_factory.mktemp(kind), "llava", kind.removeprefix("hf-"))
    return load(spec("hf", f"path:{folder}"), Path())


def test_an_endpoint_gives_the_scores_and_answers_of_the_model_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(entries.load(ROOT, "tiny-llava"), ROOT)
    server = served_model.serve(model)
    monkeypatch.setenv("UNIT_KEY", endpoint.KEY)
    api = load(endpoint.spec(server, **served_model.OPTIONS), Path())
    for prompt in (*PROMPTS, *PAIRS):
        k = len(prompt.candidates)
        near, far = (e.candidate_scores([prompt]) for e in (model, api))
        shares = [row - row.max() for row in (near.logits[0, :k], far.logits[0, :k])]
        assert shares[0] == pytest.approx(shares[1], abs=1e-4)
        assert near.mass == pytest.approx(far.mass, abs=1e-4)
        assert near.n_tokens.tolist() == far.n_tokens.tolist()
    starts = ["", "7"]
    assert api.generate(PROMPTS[4:], starts, 4) == model.generate(PROMPTS[4:], starts, 4)
    server.httpd.shutdown()


def test_fingerprint_is_stable_and_covers_the_weights(tmp_path: Path) -> None:
    one, same, other = (
        load(spec("hf", f"path:{write_small(tmp_path / n, 'llava', seed=s)}"), Path())
        for n, s in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_no_single_token_for_b(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no single token for 'B'"):
        load(spec("hf", f"path:{write_small(tmp_path, 'llava', 'no-b')}"), Path())


def test_models_that_take_one_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_small(tmp_path, "llava")
    one = dataclasses.replace(spec("hf", f"path:{folder}"), options={"max_images": 1})
    engine = load(one, Path())
    assert engine.candidate_scores(PROMPTS).logits.shape == (6, 10)
    limit = r"m: 2 pictures in one prompt, takes 1 at most; .*\(layout: composite\)"
    with pytest.raises(ModelError, match=limit):
        engine.candidate_scores(PAIRS)
    engine = load(spec("hf", f"path:{folder}"), Path())
    monkeypatch.setattr(type(engine.processor.image_processor), "__call__", only_one)  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="its processor refuses: one image per prompt; build"):
        engine.candidate_scores(PAIRS)


def only_one(*_: object, **__: object) -> None:
    raise ValueError("one image per prompt\nsecond line")
