"""Families of the engine hf: each gives the scores and answers of the model called by hand, alone,
together, behind one beginning and in half precision; and what admission decides about it.

The whole table of families: bench/families.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import families as bench
from sdgbias.engines.agreement import TOLERANCES, compare, score
from sdgbias.engines.hf import engine as hf
from sdgbias.engines.hf.model import attention
from sdgbias.engines.hf.ways import decide
from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, Prompt, ScoreBatch
from tests.builders import families
from tests.builders.bare_model import Bare, four_views, largest_difference, longer
from tests.builders.pictures import noise

#: A square, a wide and a tall picture: as many tokens each as its shape asks for.
PICTURES = {
    "": (),
    "square": (noise(1),),
    "wide": (noise(2, 84, 42),),
    "tall": (noise(3, 42, 84),),
}
QUESTIONS = [
    ("Question: how high is it?\nOptions: A. low; B. high", "AB"),
    ("Question: how high is it?\nContext: asset=1.5\nOptions: A. low; B. mid; C. high", LETTERS),
    ("Question: how high is it?\nContext: asset=2\nOptions: A. low; B. mid; C. high", LETTERS),
    ("Question: how many years, all things considered?", DIGITS),
    ("Question: how many years?", DIGITS),
    ("Q", LETTERS),
]
PROMPTS = [
    Prompt(text, candidates, data, name)
    for name, data in PICTURES.items()
    for text, candidates in QUESTIONS
]
#: Two pictures in one prompt, which not every family takes as its documentation shows it.
PAIRS = [
    Prompt("Which of the two?", "AB", (noise(4), noise(5)), "four-five"),
    Prompt("How many years?", DIGITS, (noise(5), noise(4)), "five-four"),
]
#: With a picture and without, of different lengths.
NUMBERS = [*PROMPTS[9:11], *PROMPTS[3:5]]
ONE_PICTURE = ("instructblip", "llava_onevision")
#: Families whose beginnings depend on what follows, or that can't go on behind them.
NOT_SHARING = ("instructblip", "mllama", "paligemma")
#: Where a neighbour changes a score, so that admission has to find it out.
ALONE = ("paligemma",)
#: Those of the papers' models: a decoder behind a tower; crops of a picture; positions in space;
#: tiles; a Q-Former that reads the question.
FIVE = ("llava", "llava_onevision", "qwen2_5_vl", "internvl", "instructblip")
#: A candidate is looked up in the tokenizer alone, so its second kind is tried in one family.
KINDS = [*((name, "byte") for name in FIVE), ("llava", "metaspace")]
#: Largest difference of a log-score, by dtype: rounding of 24, 11 and 8 bits, through two layers.
NEAR = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.1}
Load = Callable[..., hf.HuggingFace]
Alone = Callable[..., tuple[hf.HuggingFace, ScoreBatch]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A random model in the files of a hub repository."""

    def save(family: str, kind: str = "byte") -> Path:
        return families.write_small(tmp_path_factory.mktemp(f"{family}-{kind}"), family, kind)

    return functools.cache(save)


def opened(folder: Path, share: bool = False, dtype: str = "float32") -> hf.HuggingFace:
    options = {"share_prefix": share}
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", options=options)
    return hf.HuggingFace(replace(spec, dtype=dtype), Path())


@pytest.fixture(scope="module")
def load(saved: Callable[..., Path]) -> Load:
    """An engine around such a model."""

    def open_engine(family: str, kind: str = "byte", **options: Any) -> hf.HuggingFace:
        return opened(saved(family, kind), **options)

    return open_engine


@pytest.fixture(scope="module")
def alone(load: Load) -> Alone:
    """An engine that shares nothing, and what it once gave for all prompts."""

    def score_alone(family: str, kind: str = "byte") -> tuple[hf.HuggingFace, ScoreBatch]:
        engine = load(family, kind)
        return engine, engine.candidate_scores(PROMPTS)

    return functools.cache(score_alone)


def close(one: ScoreBatch, two: ScoreBatch) -> bool:
    return bool(one.logits == pytest.approx(two.logits, abs=1e-4, nan_ok=True))


# ----------------------------------------------------------------------
# five families, four properties


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_scores_and_answers_equal_those_of_the_bare_model(
    saved: Callable[..., Path], alone: Alone, family: str, kind: str
) -> None:
    """A space alone or in one token with a candidate; no picture, one and two; forced starts."""
    bare, (engine, scores) = Bare(saved(family, kind)), alone(family, kind)
    computed = {name: engine.counts[name] for name in ("tokens_of_prompts", "tokens_prefilled")}
    assert set(computed.values()) == {scores.n_tokens.sum()}
    assert engine.counts["images_encoded"] == sum(bool(prompt.images) for prompt in PROMPTS)

    asked = PROMPTS if family in ONE_PICTURE else PROMPTS + PAIRS
    assert largest_difference(bare, engine, asked) <= NEAR["float32"]
    shown = PROMPTS[:2] + PROMPTS[6:8]
    mass = [np.exp(bare.log_probabilities(prompt)).sum() for prompt in shown]
    assert [scores.mass[PROMPTS.index(prompt)] for prompt in shown] == pytest.approx(mass, abs=1e-4)
    for start in ("", "7"):
        answers = [one[0] for one in engine.generate(NUMBERS, [start], 4).texts]
        assert answers == [bare.answer(prompt, 4, start) for prompt in NUMBERS]


@pytest.mark.parametrize(("family", "kind"), [kind for kind in KINDS if kind[0] not in NOT_SHARING])
def test_what_is_shared_gives_the_same_and_is_computed_once(
    load: Load, alone: Alone, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture's beginning for all prompts about it, a prompt for all starts of its answers."""
    plain, expected = alone(family, kind)
    engine = load(family, kind, share=True)
    images = type(engine.processor.image_processor)
    prepare, calls = images.__call__, list[int]()

    def counted(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(images))
        return prepare(self, images, *args, **options)

    monkeypatch.setattr(images, "__call__", counted)
    found = engine.candidate_scores(PROMPTS)
    assert calls == [1, 1, 1] and engine.counts["images_encoded"] == 3
    assert found.n_tokens.tolist() == expected.n_tokens.tolist() and close(found, expected)
    assert found.mass == pytest.approx(expected.mass, abs=1e-4)
    assert found.top_token == expected.top_token
    assert engine.counts["tokens_of_prompts"] == expected.n_tokens.sum()
    assert engine.counts["tokens_prefilled"] < 0.95 * expected.n_tokens.sum()

    widths: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    starts = ["", *DIGITS]
    assert engine.generate(NUMBERS, starts, 3) == plain.generate(NUMBERS, starts, 3)
    assert engine.counts["decode_prefills"] == len(NUMBERS), "one a question, for eleven answers"
    assert sum(width > 1 for width in widths) == 2, "two kinds, each prefilled as one batch"


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((name, "bfloat16" if name in NOT_SHARING else "float32") for name in families.SMALL),
        ("llava", "bfloat16"),
    ],
)
def test_admission_decides_once_which_ways_are_right(load: Load, family: str, dtype: str) -> None:
    """In bfloat16 a difference must not pass for rounding, nor in float32 rounding for one."""
    engine = load(family, dtype=dtype)
    found = decide(engine, PROMPTS)
    assert found.batch_size == engine.batch_size == (1 if family in ALONE else 8), found.line
    assert found.share_prefix == engine.share_prefix == (family not in NOT_SHARING), found.line
    refused = "beginnings aren't shared: behind shared beginnings:" in found.line
    assert refused == (family in NOT_SHARING and family not in ALONE)


@pytest.mark.parametrize(
    ("family", "dtype"), [*((name, "bfloat16") for name in FIVE), ("mllama", "float16")]
)
def test_half_precision_only_rounds(
    saved: Callable[..., Path], load: Load, family: str, dtype: str
) -> None:
    """The head's logits are in float32, whatever kind of head it is."""
    bare, engine = Bare(saved(family)), load(family, dtype=dtype)
    assert largest_difference(bare, engine, PROMPTS) <= NEAR[dtype]
    for prompt in (PROMPTS[0], PROMPTS[6]):
        with torch.inference_mode():
            assert engine.forward(**engine.inputs([prompt])).logits.dtype == torch.float32
    answers = engine.generate(NUMBERS[:2], ["", "3"], 4).texts
    assert [one[1][0] for one in answers] == ["3", "3"]


# ----------------------------------------------------------------------
# one family


def test_pictures_of_a_familys_own_size_give_what_the_bare_model_gives(tmp_path: Path) -> None:
    """Also the logits of a branch, behind positions in space."""
    folder = families.write(tmp_path / "m", "qwen2_5_vl")
    engine, bare, prompts = opened(folder), Bare(folder), four_views()
    assert largest_difference(bare, engine, prompts) <= NEAR["float32"]
    answers = [answers[0] for answers in engine.generate(prompts[-2:], [""], 3).texts]
    assert answers == [bare.answer(prompt, 3) for prompt in prompts[-2:]]
    pair, token = [prompts[0], prompts[5]], engine.tokenizer.convert_tokens_to_ids("4")
    branches = engine.behind(pair, token, branches=2)
    with torch.inference_mode():
        for row, prompt in enumerate(pair):
            expected = bare.model(**longer(bare.inputs(prompt), [token])).logits[0, -1]
            assert float((branches[2 * row : 2 * row + 2] - expected).abs().max()) <= 1e-4


def test_words_are_scored_without_a_picture_where_the_processor_asks_for_one(load: Load) -> None:
    engine = load("paligemma")
    assert not engine.maker.reads_text
    assert np.isfinite(engine.candidate_scores(PROMPTS).logits[:, :2]).all()


@pytest.mark.parametrize(("size", "places"), [(1, 512), (32, 1), (3, 6)])
def test_any_size_of_batch_behind_a_beginning_gives_the_same(
    load: Load, alone: Alone, monkeypatch: pytest.MonkeyPatch, size: int, places: int
) -> None:
    monkeypatch.setattr(hf, "PLACES", places)
    engine = load("llava", "metaspace", share=True)
    engine.batch_size = size
    assert close(engine.candidate_scores(PROMPTS), alone("llava", "metaspace")[1])


def plant(engine: hf.HuggingFace, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A model that is wrong in part of what it is asked."""
    whole = type(engine.model).forward

    @functools.wraps(whole)
    def faulty(self: Any, *args: Any, **given: Any) -> Any:
        cache, width = given.get("past_key_values"), given["input_ids"].shape[1]
        behind = cache is not None and cache.get_seq_length() > 0
        if fault == "raises behind a cache" and behind and width > 1:
            raise ValueError("no second part, please")
        out = whole(self, *args, **given)
        wrong = {
            "behind a cache": behind and width > 1,
            "in branches": behind and width == 1 and len(given["input_ids"]) == 4,
            "in batches": len(given["input_ids"]) > 1 and not behind,
        }
        if wrong.get(fault):
            out.logits = out.logits * 1.5
        return out

    monkeypatch.setattr(type(engine.model), "forward", faulty)


@pytest.mark.parametrize(
    ("fault", "size", "why"),
    [
        ("behind a cache", 8, "behind shared beginnings: log-probabilities differ by up to"),
        ("raises behind a cache", 8, "behind shared beginnings: ValueError: no second part"),
        ("in branches", 8, "branches: log-probabilities behind a digit differ by up to"),
        ("in batches", 1, "in batches: log-probabilities differ by up to"),
    ],
)
def test_a_model_that_is_wrong_in_one_way_is_not_asked_so(
    load: Load, alone: Alone, monkeypatch: pytest.MonkeyPatch, fault: str, size: int, why: str
) -> None:
    engine = load("llava", share=True)
    plant(engine, monkeypatch, fault)
    if fault == "raises behind a cache":  # and at run time nothing is swallowed
        with pytest.raises(ValueError, match="no second part, please"):
            engine.candidate_scores(PROMPTS)
    found = decide(engine, PROMPTS)
    assert (found.batch_size, found.share_prefix) == (size, False) and why in found.line
    assert close(engine.candidate_scores(PROMPTS), alone("llava")[1])


def test_rounding_in_half_precision_is_no_reason_to_score_each_prompt_alone(
    saved: Callable[..., Path],
) -> None:
    """With logits 10 times as large, a shared beginning moves a score by 0.18 nats in bfloat16, as
    a model of 7B does on a GPU: no more than other kernels of attention do to a prompt alone."""
    engine = opened(saved("llava"), dtype="bfloat16")
    engine.model.get_output_embeddings().weight.data.mul_(10)
    kernels, each = attention(engine.model.config), range(len(PROMPTS))
    before = score(engine, PROMPTS, each, 1).scores
    found = decide(engine, PROMPTS)
    behind = score(engine, PROMPTS, each, len(PROMPTS)).scores
    apart = compare("", PROMPTS, before, behind, found.limit)["logp_max"]
    assert TOLERANCES["bfloat16"] < apart <= found.limit, "the rounding that is meant"
    assert (found.batch_size, found.share_prefix) == (engine.batch_size, True), found.line
    engine.share_prefix = False
    after = score(engine, PROMPTS, each, 1).scores
    assert attention(engine.model.config) == kernels, "the model's own kernels are back"
    np.testing.assert_array_equal(after.logits, before.logits)


def test_a_picture_behind_the_question_is_no_common_beginning(load: Load) -> None:
    engine = load("llava", share=True)
    parts = "{% for p in m['content'] | reverse %}{{ p['text'] if p['text'] else '<image>' }}"
    engine.processor.chat_template = (
        "{% for m in messages %}" + parts + "{% endfor %}{% endfor %}ASSISTANT:"
    )
    with pytest.raises(ModelError, match="put the picture in front .* share_prefix: false"):
        engine.candidate_scores(PROMPTS)


def test_the_page_counts_what_its_rows_say() -> None:
    good = {"name": "llava", "built": True, "loads": True, "scores": True, "batches": True}
    good |= {"shares": True, "tokens": 576, "why": "", "seconds": 1.6}
    bad = {**good, "name": "a", "scores": False, "batches": None, "shares": None, "tokens": None}
    page = Path(bench.__file__).parents[1] / "docs" / "reference" / "models.md"
    lines = bench.page(page.read_text("utf-8"), [good, {**bad, "why": "x | y"}]).splitlines()
    assert "2 were tried, 2 load and 1 score as the bare model does." in lines[2]
    assert lines[-2:] == [
        "| `a` | yes | no |  |  | ? |  | 2 | x \\| y |",
        "| `llava` | yes | yes | yes | yes | yes | 576 | 2 |  |",
    ]
