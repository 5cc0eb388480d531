"""Scoring together changes no score: every architecture against itself without sharing, and against
the model called by hand."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sdgbias.engines.hf import decoding
from sdgbias.engines.hf import engine as hf
from sdgbias.types import DIGITS, LETTERS, ModelSpec, Prompt, ScoreBatch
from tests.builders.tiny_models import save


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
#: Families whose beginnings depend on what follows, which their first group shows.
NOT_SHARING = ("mllama",)
PROMPTS = [
    Prompt(text, candidates, data, name)
    for name, data in PICTURES.items()
    for text, candidates in QUESTIONS
]

Load = Callable[..., hf.HuggingFace]
Alone = Callable[[str, str], tuple[hf.HuggingFace, ScoreBatch]]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """An engine around a random model, from the files of a hub repository."""
    saved = functools.cache(
        lambda family, kind: save(tmp_path_factory.mktemp(f"{family}-{kind}"), family, kind)
    )

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


def by_hand(engine: hf.HuggingFace, prompt: Prompt) -> list[float]:
    """Log-odds of the candidates up to a constant: one prompt, no padding, no cache, positions left
    to the model."""
    shown = [Image.open(io.BytesIO(data)).convert("RGB") for data in prompt.images] or None
    inputs = dict(engine.processor(images=shown, text=[engine.render(prompt)], return_tensors="pt"))
    model = engine.model if shown or not engine.needs_picture else engine.model.language_model
    vocabulary = engine.tokenizer.get_vocab()

    def log_p(token: str | None = None) -> torch.Tensor:
        given = engine.known_to(model.forward, inputs)
        if token is not None:
            longer = torch.cat([given["input_ids"], torch.tensor([[vocabulary[token]]])], 1)
            given = {**given, "input_ids": longer, "attention_mask": torch.ones_like(longer)}
            for name in {"token_type_ids", "mm_token_type_ids"} & set(given):
                given[name] = torch.nn.functional.pad(given[name], (0, 1))
            if "cross_attention_mask" in given:
                given["cross_attention_mask"] = torch.cat(
                    [given["cross_attention_mask"], given["cross_attention_mask"][:, -1:]], 1
                )
        return torch.log_softmax(model(**given).logits[0, -1].double(), -1)

    with torch.inference_mode():
        first = log_p()
        space = "\u2581" if "\u2581" in vocabulary else "\u0120"
        after = None if f"{space}{prompt.candidates[0]}" in vocabulary else log_p(space)
    found = []
    for c in prompt.candidates:
        p = sum(
            math.exp(first[vocabulary[t]])
            for t in (c, f"\u2581{c}", f"\u0120{c}")
            if t in vocabulary
        )
        if after is not None:
            p += math.exp(first[vocabulary[space]] + after[vocabulary[c]])
        found.append(math.log(p))
    return found


def centred(scores: Any) -> np.ndarray:
    return np.asarray(scores, dtype=float) - np.mean(scores)


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
@pytest.mark.parametrize(
    "family", ["llava", "onevision", "qwen", "internvl", "instructblip", "gemma3", "mllama"]
)
def test_together_alone_and_by_hand_are_the_same(
    load: Load, alone: Alone, family: str, kind: str
) -> None:
    engine, (plain, two) = load(family, kind), alone(family, kind)
    one = engine.candidate_scores(PROMPTS)
    assert one.n_tokens.tolist() == two.n_tokens.tolist()
    assert one.mass == pytest.approx(two.mass, abs=1e-4)
    assert one.top_token == two.top_token
    for i, prompt in enumerate(PROMPTS):
        k = len(prompt.candidates)
        want = centred(by_hand(plain, prompt))
        assert centred(two.logits[i, :k]) == pytest.approx(want, abs=1e-4)
        assert centred(one.logits[i, :k]) == pytest.approx(want, abs=1e-4)
    shown = [i for i, p in enumerate(PROMPTS) if p.images]
    assert (
        plain.counts["tokens_prefilled"] == plain.counts["tokens_of_prompts"] == one.n_tokens.sum()
    )
    assert plain.counts["images_encoded"] == len(shown)
    engine.counts.clear()
    engine.candidate_scores(PROMPTS)  # the first time each kind of group was scored both ways
    assert engine.counts["tokens_of_prompts"] == one.n_tokens.sum()
    if family == "instructblip":
        assert not engine.shares
        assert engine.counts["tokens_prefilled"] == one.n_tokens.sum()
        assert engine.counts["images_encoded"] == len(shown)
    elif family in NOT_SHARING:
        assert not engine.shares and engine.counts["tokens_prefilled"] == one.n_tokens.sum()
    else:
        assert engine.shares
        assert engine.proven == {True, False}
        assert engine.counts["tokens_prefilled"] < 0.7 * one.n_tokens.sum()
        assert engine.counts["images_encoded"] == 3


@pytest.mark.parametrize("family", ["gemma3", "mllama"])
def test_numbers_are_decoded_the_same_from_one_cache_and_one_by_one(
    load: Load, family: str
) -> None:
    engine, starts = load(family), ["", "1", "-"]
    shown = [PROMPTS[3], PROMPTS[9], PROMPTS[16]]
    with torch.inference_mode():
        one_by_one = decoding.by_prefix(engine, shown, starts, 6)
    assert engine.generate(shown, starts, 6) == one_by_one


def test_words_are_scored_without_a_picture_where_the_processor_asks_for_one(load: Load) -> None:
    """PaliGemma puts its first token and a line end around the words, with a picture or without."""
    engine = load("paligemma")
    assert engine.asks_for_picture
    scores = engine.candidate_scores(PROMPTS)
    assert np.isfinite(scores.logits[:, :2]).all() and not engine.shares
    for i in (0, 3):
        text = f"{engine.tokenizer.bos_token}{PROMPTS[i].text}\n"
        ids = engine.tokenizer([text], add_special_tokens=False, return_tensors="pt")["input_ids"]
        assert scores.n_tokens[i] == ids.shape[1] == scores.n_tokens[i + len(QUESTIONS)] - 4
        space = engine.tokenizer.convert_tokens_to_ids("\u0120")
        with torch.inference_mode():
            first, after = (
                engine.model(input_ids=own, token_type_ids=torch.zeros_like(own))
                .logits[0, -1]
                .double()
                .log_softmax(-1)
                for own in (ids, torch.nn.functional.pad(ids, (0, 1), value=space))
            )
        want = [
            float(torch.logaddexp(first[c], first[space] + after[c]))
            for c in engine.tokenizer.convert_tokens_to_ids(list(PROMPTS[i].candidates))
        ]
        assert centred(scores.logits[i, : len(want)]) == pytest.approx(centred(want), abs=1e-4)


@pytest.mark.parametrize("family", ["llava", "onevision", "qwen", "internvl", "instructblip"])
def test_a_picture_is_prepared_once(
    load: Load, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    engine = load(family)
    whole = type(engine.pixels.inner).__call__
    calls: list[int] = []

    def counted(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(images))
        return whole(self, images, *args, **options)

    monkeypatch.setattr(type(engine.pixels.inner), "__call__", counted)
    engine.candidate_scores(PROMPTS)
    assert engine.pixels.separable
    assert sum(calls) == 3 + 3, (
        "three pictures, and the first one once and twice to see whether pictures come apart"
    )


def test_beginnings_are_shared_only_where_the_model_takes_a_tree_and_reads_no_question(
    load: Load,
) -> None:
    engine = load("llava", "metaspace")
    assert hf.shared_prefix.possible(engine)
    engine.accepts = engine.accepts - {"past_key_values"}
    assert not hf.shared_prefix.possible(engine)


@pytest.mark.parametrize("limit", [1, 40])
@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_any_size_of_tree_and_batch_gives_the_same(
    load: Load, alone: Alone, monkeypatch: pytest.MonkeyPatch, family: str, limit: int
) -> None:
    _, want = alone(family, "metaspace")
    monkeypatch.setattr(hf.shared_prefix, "row_tokens", lambda *_: limit)
    monkeypatch.setattr(hf.shared_prefix, "BATCH_TOKENS", 150)
    engine = load(family, "metaspace")
    assert engine.candidate_scores(PROMPTS).logits == pytest.approx(
        want.logits, abs=1e-4, nan_ok=True
    )
    assert engine.shares


@pytest.mark.parametrize("family", ["qwen", "onevision", "internvl"])
def test_forced_starts_whatever_the_architecture(load: Load, family: str) -> None:
    engine = load(family)
    prompts = [p for p in PROMPTS if p.candidates == DIGITS][:4]
    together = engine.generate(prompts, ["", "7"], 3).texts
    assert [engine.generate([p], ["", "7"], 3).texts[0] for p in prompts] == together


@pytest.mark.parametrize("only", ["always", "behind a cache", "with a picture", "after a space"])
def test_a_model_that_does_not_read_the_mask_is_found_out(
    load: Load, alone: Alone, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    """A planted disagreement, in part of what is asked: every prompt is then scored by itself."""
    kind = "metaspace" if only == "after a space" else "byte"
    _, want = alone("llava", kind)
    engine = load("llava", kind)
    whole = type(engine.model).forward
    seen_picture: list[bool] = []

    def blind(self: Any, *args: Any, **given: Any) -> Any:
        mask = given.get("attention_mask")
        seen_picture.append(
            "pixel_values" in given or (bool(seen_picture) and mask.ndim == 4 and seen_picture[-1])
        )
        if mask.ndim == 4:
            if only == "always":
                given["attention_mask"] = None
            elif only == "behind a cache" and given.get("past_key_values") is not None:
                given["attention_mask"] = mask.clone()
                given["attention_mask"][..., :3] = torch.finfo(mask.dtype).min
            elif only == "with a picture" and seen_picture[-1]:
                given["attention_mask"] = torch.zeros_like(mask)
        out = whole(self, *args, **given)
        if mask.ndim == 4 and only == "after a space":
            space = given["input_ids"][:, -out.logits.shape[1] :] == engine.candidates.space
            out.logits = out.logits + 0.5 * space[..., None] * torch.arange(out.logits.shape[-1])
        return out

    monkeypatch.setattr(type(engine.model), "forward", blind)
    got = engine.candidate_scores(PROMPTS)
    assert got.logits == pytest.approx(want.logits, abs=1e-4, nan_ok=True)
    assert not engine.shares


def test_a_model_that_refuses_the_mask_is_scored_prompt_by_prompt(
    load: Load, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, want = alone("llava", "byte")
    engine = load("llava")
    whole = type(engine.model).forward

    def strict(self: Any, *args: Any, **given: Any) -> Any:
        if given["attention_mask"].ndim != 2:
            raise ValueError("attention_mask must have two dimensions")
        return whole(self, *args, **given)

    monkeypatch.setattr(type(engine.model), "forward", strict)
    assert engine.candidate_scores(PROMPTS).logits == pytest.approx(
        want.logits, abs=1e-4, nan_ok=True
    )
    assert not engine.shares
