"""One specification, run on every engine: what `Backend` promises, whatever is behind it."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sdgbias.engines import Backend, load
from sdgbias.errors import ModelError, RegistryError
from sdgbias.types import DIGITS, ModelSpec, Prompt
from tests.builders.tiny_models import save_llava


def image(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


PROMPTS = [
    Prompt("Question: how high?\nOptions: A. low; B. high", "AB"),
    Prompt(
        "Question: how high is it in this place, all things considered?\nOptions: A. low; B. mid;"
        " C. high",
        "ABC",
    ),
    Prompt("Q", "ABC", (image(1),), "one"),
    Prompt(
        "Question: a longer text about asset_index=1.5 with a picture", "ABC", (image(2),), "two"
    ),
    Prompt("How many years?", DIGITS, (image(1),), "one"),
    Prompt("How many years of schooling?", DIGITS),
]
#: A street and a map, as the image layout `several` gives them; the second shares a picture with
#: the first.
PAIRS = [
    Prompt("Question: which of the two?", "AB", (image(4), image(5)), "four-five"),
    Prompt(
        "Question: which of the two, all things considered?",
        "ABC",
        (image(5), image(4)),
        "five-four",
    ),
    Prompt("How many years?", DIGITS, (image(4), image(6)), "four-six"),
]


def spec(backend: str, repo: str = "planted") -> ModelSpec:
    return ModelSpec(
        name="m", title="M", backend=backend, repo=repo, revision="local", state="enabled"
    )


@pytest.fixture(scope="module", params=["planted", "hf-byte", "hf-metaspace", "tiny-llava"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    kind = str(request.param)
    if kind == "planted":
        return load(spec("planted"), Path())
    if kind == "tiny-llava":
        from sdgbias.registry import entries

        root = entries.find_root()
        return load(entries.load(root, "tiny-llava"), root)
    folder = save_llava(tmp_path_factory.mktemp(kind), kind.removeprefix("hf-"))
    return load(spec("hf", f"path:{folder}"), Path())


def test_shapes_and_meaning(engine: Backend) -> None:
    batch = engine.candidate_scores(PROMPTS)
    assert batch.logits.shape == (len(PROMPTS), 10)
    assert batch.logits.dtype == np.float32
    for row, prompt in zip(batch.logits, PROMPTS, strict=True):
        k = len(prompt.candidates)
        assert np.isfinite(row[:k]).all()
        assert np.isnan(row[k:]).all()
    assert ((batch.mass > 0) & (batch.mass <= 1 + 1e-6)).all()
    assert (batch.n_tokens > 0).all()
    assert len(batch.top_token) == len(PROMPTS)


def test_neighbours_padding_and_order_never_change_a_score(engine: Backend) -> None:
    together = engine.candidate_scores(PROMPTS)
    alone = [engine.candidate_scores([p]) for p in PROMPTS]
    backward = engine.candidate_scores(PROMPTS[::-1])
    for i, (prompt, one) in enumerate(zip(PROMPTS, alone, strict=True)):
        k = len(prompt.candidates)
        assert together.logits[i, :k] == pytest.approx(one.logits[0, :k], abs=1e-4)
        assert together.logits[i, :k] == pytest.approx(backward.logits[-1 - i, :k], abs=1e-4)
        assert together.mass[i] == pytest.approx(one.mass[0], abs=1e-4)
        assert together.n_tokens[i] == one.n_tokens[0]


def test_the_image_and_the_text_matter(engine: Backend) -> None:
    p = PROMPTS[2]
    variants = [
        p,
        Prompt(p.text, p.candidates, (image(3),), "three"),
        Prompt(p.text + "?", p.candidates, p.images, p.image_id),
        Prompt(p.text, p.candidates),
    ]
    scores = engine.candidate_scores(variants).logits
    assert len({tuple(np.round(row, 3)) for row in scores}) == 4


def test_several_pictures_and_their_order_matter(engine: Backend) -> None:
    """The same promises for prompts of two pictures, alone, together and beside prompts of one or
    none."""
    mixed = [PROMPTS[0], PAIRS[0], PROMPTS[2], PAIRS[1], PAIRS[2]]
    together = engine.candidate_scores(mixed)
    for i, prompt in enumerate(mixed):
        alone = engine.candidate_scores([prompt])
        k = len(prompt.candidates)
        assert together.logits[i, :k] == pytest.approx(alone.logits[0, :k], abs=1e-4)
        assert together.n_tokens[i] == alone.n_tokens[0]
    p = PAIRS[1]
    variants = [
        p,
        Prompt(p.text, p.candidates, p.images[::-1], "four-five"),
        Prompt(p.text, p.candidates, p.images[:1], "five"),
    ]
    scores = engine.candidate_scores(variants).logits
    assert len({tuple(np.round(row, 3)) for row in scores}) == 3


def test_forced_starts(engine: Backend) -> None:
    prompts = PROMPTS[4:]
    starts = ["", "0", "7", "-3"]
    answers = engine.generate(prompts, starts, 4).texts
    assert [len(a) for a in answers] == [4, 4]
    for said in answers:
        for start, text in zip(starts, said, strict=True):
            assert text.startswith(start)
    assert engine.generate(prompts[:1], [""], 4).texts[0][0] == answers[0][0], (
        "neighbours don't change an answer"
    )


def test_fingerprint_is_stable_and_covers_the_weights(tmp_path: Path) -> None:
    one, same, other = (
        load(spec("hf", f"path:{save_llava(tmp_path / n, seed=s)}"), Path())
        for n, s in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize("kind", ["byte", "metaspace"])
def test_hf_equals_an_unbatched_unpadded_forward(tmp_path: Path, kind: str) -> None:
    """Against the model called by hand: no padding, no batch, candidate by candidate, the lone
    space spelled out."""
    engine = load(spec("hf", f"path:{save_llava(tmp_path, kind)}"), Path())
    model, processor = engine.model, engine.processor  # type: ignore[attr-defined]
    vocabulary = processor.tokenizer.get_vocab()
    prompts = [*PROMPTS, *PAIRS]
    scores = engine.candidate_scores(prompts)
    for i, prompt in enumerate(prompts):
        pictures = [Image.open(io.BytesIO(data)) for data in prompt.images] or None
        inputs = processor(images=pictures, text=engine.render(prompt), return_tensors="pt")  # type: ignore[attr-defined]
        with torch.inference_mode():
            log_p = torch.log_softmax(model(**inputs).logits[0, -1].double(), -1)
        want = []
        for c in prompt.candidates:
            p = sum(
                math.exp(log_p[vocabulary[t]])
                for t in (c, f"\u2581{c}", f"\u0120{c}")
                if t in vocabulary
            )
            if kind == "byte" or c in DIGITS:
                space = vocabulary["\u0120" if kind == "byte" else "\u2581"]
                longer = {
                    **inputs,
                    "input_ids": torch.cat([inputs["input_ids"], torch.tensor([[space]])], 1),
                }
                longer["attention_mask"] = torch.ones_like(longer["input_ids"])
                with torch.inference_mode():
                    after = torch.log_softmax(model(**longer).logits[0, -1].double(), -1)
                p += math.exp(log_p[space] + after[vocabulary[c]])
            want.append(math.log(p))
        got = scores.logits[i, : len(want)].astype(float)
        assert got - got.mean() == pytest.approx(np.array(want) - np.mean(want), abs=1e-4)
        assert scores.mass[i] == pytest.approx(sum(math.exp(w) for w in want), abs=1e-4)
        assert scores.n_tokens[i] == inputs["input_ids"].shape[1]


def test_greedy_answer_equals_the_library(tmp_path: Path) -> None:
    engine = load(spec("hf", f"path:{save_llava(tmp_path)}"), Path())
    model, processor = engine.model, engine.processor  # type: ignore[attr-defined]
    for prompt in PROMPTS[3:]:
        picture = [Image.open(io.BytesIO(data)) for data in prompt.images] or None
        for start in ("", "7"):
            inputs = processor(
                images=picture, text=engine.render(prompt) + start, return_tensors="pt"
            )  # type: ignore[attr-defined]
            ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)[
                0, inputs["input_ids"].shape[1] :
            ]
            want = start + processor.tokenizer.decode(ids, skip_special_tokens=True)
            assert engine.generate([prompt], [start], 6).texts[0][0] == want.strip()


def test_no_single_token_for_b(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no single token for 'B'"):
        load(spec("hf", f"path:{save_llava(tmp_path, 'no-b')}"), Path())


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(spec("hf", f"path:{tmp_path}"), Path())
    with pytest.raises(
        RegistryError,
        match=(
            "unknown backend 'tgi'; valid: api, clip-zero-shot, hf, planted, planted-people,"
            " vit-zero-shot, vllm"
        ),
    ):
        load(spec("tgi"), Path())
    folder = save_llava(tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="can't load"):
        load(spec("hf", f"path:{folder}"), Path())


def test_models_that_take_one_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_llava(tmp_path)
    one = dataclasses.replace(spec("hf", f"path:{folder}"), options={"max_images": 1})
    engine = load(one, Path())
    assert engine.candidate_scores(PROMPTS).logits.shape == (6, 10)
    with pytest.raises(
        ModelError, match=r"m: 2 pictures in one prompt, takes 1 at most; .*\(layout: composite\)"
    ):
        engine.candidate_scores(PAIRS)
    with pytest.raises(RegistryError, match="max_images is 'one'; valid: a whole number"):
        load(dataclasses.replace(one, options={"max_images": "one"}), Path())
    engine = load(spec("hf", f"path:{folder}"), Path())
    monkeypatch.setattr(type(engine.processor.image_processor), "__call__", only_one)  # type: ignore[attr-defined]
    with pytest.raises(
        ModelError,
        match=(
            "2 pictures in one prompt, its processor refuses: one image per prompt, please; build"
            " .*composite"
        ),
    ):
        engine.candidate_scores(PAIRS)


def only_one(*_: object, **__: object) -> None:
    raise ValueError("one image per prompt, please\nsecond line")
