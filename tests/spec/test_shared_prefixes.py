"""Scoring behind one beginning changes no score: every architecture against itself without sharing,
and against the model called by hand; and what admission decides about it."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdgbias.engines.hf import engine as hf
from sdgbias.engines.hf.ways import decide
from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, Prompt, ScoreBatch
from tests.builders.bare_model import Bare
from tests.builders.families import write_small


def picture(seed: int, width: int = 56, height: int = 56) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


#: A square, a wide and a tall picture: as many tokens each as its shape asks for.
PICTURES = {
    "": (),
    "square": (picture(1),),
    "wide": (picture(2, 84, 42),),
    "tall": (picture(3, 42, 84),),
}
QUESTIONS = [
    ("Question: how high is it?\nOptions: A. low; B. high", "AB"),
    ("Question: how high is it?\nContext: asset=1.5\nOptions: A. low; B. mid; C. high", LETTERS),
    ("Question: how high is it?\nContext: asset=2\nOptions: A. low; B. mid; C. high", LETTERS),
    ("Question: how many years, all things considered?", DIGITS),
    ("Question: how many years?", DIGITS),
    ("Q", LETTERS),
]
#: Families whose beginnings depend on what follows, or that can't go on behind them.
NOT_SHARING = ("instructblip", "mllama")
PROMPTS = [
    Prompt(text, candidates, data, name)
    for name, data in PICTURES.items()
    for text, candidates in QUESTIONS
]

Saved = Callable[[str, str], Path]
Load = Callable[..., hf.HuggingFace]
Alone = Callable[[str, str], tuple[hf.HuggingFace, ScoreBatch]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A random model in the files of a hub repository."""
    return functools.cache(
        lambda family, kind: write_small(tmp_path_factory.mktemp(f"{family}-{kind}"), family, kind)
    )


@pytest.fixture(scope="module")
def load(saved: Saved) -> Load:
    """An engine around such a model."""

    def _load(family: str, kind: str = "byte", share: bool = True) -> hf.HuggingFace:
        spec = ModelSpec(
            name="m",
            title="M",
            backend="hf",
            repo=f"path:{saved(family, kind)}",
            revision="local",
            state="enabled",
            options={"share_prefix": share},
        )
        return hf.HuggingFace(spec, Path())

    return _load


@pytest.fixture(scope="module")
def alone(load: Load) -> Alone:
    """An engine that shares nothing, and what it once gave for all prompts."""

    def _alone(family: str, kind: str) -> tuple[hf.HuggingFace, ScoreBatch]:
        engine = load(family, kind, share=False)
        return engine, engine.candidate_scores(PROMPTS)

    return functools.cache(_alone)


def centred(scores: Any) -> np.ndarray:
    return np.asarray(scores, dtype=float) - np.mean(scores)


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
@pytest.mark.parametrize(
    "family",
    ["llava", "llava_onevision", "qwen2_5_vl", "internvl", "instructblip", "gemma3", "mllama"],
)
def test_together_alone_and_by_hand_are_the_same(
    saved: Saved, load: Load, alone: Alone, family: str, kind: str
) -> None:
    plain, want = alone(family, kind)
    bare = Bare(saved(family, kind))
    shown = [p for p in PROMPTS if p.images]
    assert plain.counts["tokens_prefilled"] == plain.counts["tokens_of_prompts"]
    assert plain.counts["tokens_prefilled"] == want.n_tokens.sum()
    assert plain.counts["images_encoded"] == len(shown)
    for i, prompt in enumerate(PROMPTS):
        k = len(prompt.candidates)
        assert centred(want.logits[i, :k]) == pytest.approx(bare.scores(prompt), abs=1e-4)
    if family in NOT_SHARING:
        return
    engine = load(family, kind)
    found = engine.candidate_scores(PROMPTS)
    assert found.n_tokens.tolist() == want.n_tokens.tolist()
    assert found.logits == pytest.approx(want.logits, abs=1e-4, nan_ok=True)
    assert found.mass == pytest.approx(want.mass, abs=1e-4)
    assert found.top_token == want.top_token
    assert engine.counts["tokens_of_prompts"] == want.n_tokens.sum()
    assert engine.counts["tokens_prefilled"] < 0.95 * want.n_tokens.sum()
    assert engine.counts["images_encoded"] == 3


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "instructblip", "mllama"])
def test_admission_decides_once_which_ways_are_right(load: Load, family: str) -> None:
    engine = load(family, share=False)
    found = decide(engine, PROMPTS)
    assert found.batch_size == engine.batch_size == 8, "batches of all of them are right"
    assert found.share_prefix == engine.share_prefix == (family not in NOT_SHARING), found.line
    assert ("beginnings aren't shared: behind shared beginnings:" in found.line) == (
        family in NOT_SHARING
    )


def test_words_are_scored_without_a_picture_where_the_processor_asks_for_one(load: Load) -> None:
    engine = load("paligemma", share=False)
    assert not engine.maker.reads_text
    scores = engine.candidate_scores(PROMPTS)
    assert np.isfinite(scores.logits[:, :2]).all()


def test_a_picture_is_prepared_and_encoded_once(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load("qwen2_5_vl")
    whole = type(engine.processor.image_processor).__call__
    calls: list[int] = []

    def counted(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(images))
        return whole(self, images, *args, **options)

    monkeypatch.setattr(type(engine.processor.image_processor), "__call__", counted)
    engine.candidate_scores(PROMPTS)
    assert calls == [1, 1, 1]


@pytest.mark.parametrize(("size", "places"), [(1, 512), (32, 1), (3, 6)])
def test_any_size_of_batch_behind_a_beginning_gives_the_same(
    load: Load, alone: Alone, monkeypatch: pytest.MonkeyPatch, size: int, places: int
) -> None:
    _, want = alone("llava", "metaspace")
    monkeypatch.setattr(hf, "_PLACES", places)
    engine = load("llava", "metaspace")
    engine.batch_size = size
    assert engine.candidate_scores(PROMPTS).logits == pytest.approx(
        want.logits, abs=1e-4, nan_ok=True
    )


def planted(engine: hf.HuggingFace, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A model that is wrong in part of what it is asked."""
    whole = type(engine.model).forward

    @functools.wraps(whole)
    def faulty(self: Any, *args: Any, **given: Any) -> Any:
        behind = given.get("past_key_values") is not None and given["input_ids"].shape[1] > 1
        behind = behind and given["past_key_values"].get_seq_length() > 0
        if fault == "raises behind a cache" and behind:
            raise ValueError("no second part, please")
        out = whole(self, *args, **given)
        if fault == "behind a cache" and behind:
            out.logits = out.logits * 1.5
        if fault == "in batches" and len(given["input_ids"]) > 1 and not behind:
            out.logits = out.logits * 1.5
        return out

    monkeypatch.setattr(type(engine.model), "forward", faulty)


@pytest.mark.parametrize(
    ("fault", "size", "why"),
    [
        ("behind a cache", 8, "behind shared beginnings: log-probabilities differ by up to"),
        ("raises behind a cache", 8, "behind shared beginnings: ValueError: no second part"),
        ("in batches", 1, "in batches: log-probabilities differ by up to"),
    ],
)
def test_a_model_that_is_wrong_in_one_way_is_not_asked_so(
    load: Load,
    alone: Alone,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    size: int,
    why: str,
) -> None:
    _, want = alone("llava", "byte")
    engine = load("llava")
    planted(engine, monkeypatch, fault)
    found = decide(engine, PROMPTS)
    assert (found.batch_size, found.share_prefix) == (size, False) and why in found.line
    assert engine.candidate_scores(PROMPTS).logits == pytest.approx(
        want.logits, abs=1e-4, nan_ok=True
    )


def test_what_goes_wrong_at_run_time_is_not_swallowed(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load("llava")
    planted(engine, monkeypatch, "raises behind a cache")
    with pytest.raises(ValueError, match="no second part, please"):
        engine.candidate_scores(PROMPTS)


def test_a_picture_behind_the_question_is_no_common_beginning(load: Load) -> None:
    engine = load("llava")
    parts = "{% for p in m['content'] | reverse %}{{ p['text'] if p['text'] else '<image>' }}"
    engine.processor.chat_template = (
        "{% for m in messages %}" + parts + "{% endfor %}{% endfor %}ASSISTANT:"
    )
    with pytest.raises(ModelError, match="put the picture in front .* share_prefix: false"):
        engine.candidate_scores(PROMPTS)
