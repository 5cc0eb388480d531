"""The real vLLM engine against the transformers engine, on the same weights and prompts."""

from __future__ import annotations

from dataclasses import replace

import httpx
import numpy as np
import pytest

from sdgbias.engines.agreement import log_shares
from sdgbias.engines.client import PromptRefused
from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import admission
from sdgbias.types import Prompt, ScoreBatch
from tests.builders.sample_prompts import picture, prompts_of
from tests.vllm.conftest import REPOSITORY

TOLERANCE = 1e-4


def assert_same(found: ScoreBatch, wanted: ScoreBatch) -> None:
    np.testing.assert_array_equal(np.isnan(found.logits), np.isnan(wanted.logits))
    apart = log_shares(found.logits) - log_shares(wanted.logits)
    assert np.nanmax(np.abs(apart)) <= TOLERANCE
    np.testing.assert_array_equal(np.nanargmax(found.logits, 1), np.nanargmax(wanted.logits, 1))
    np.testing.assert_allclose(found.mass, wanted.mass, atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(found.n_tokens, wanted.n_tokens)
    assert found.top_token == wanted.top_token
    # '-' against the first candidate: both engines leave one number per prompt open
    np.testing.assert_allclose(
        found.minus_logit - found.logits[:, 0],
        wanted.minus_logit - wanted.logits[:, 0],
        atol=10 * TOLERANCE,
        rtol=0,
    )


def counters(engine) -> dict[str, float]:
    """The engine's counts, and those that the server publishes of its cache of pictures."""
    page = httpx.get(f"{engine.server.url.removesuffix('/v1')}/metrics").text
    counts = dict(engine.counts)
    for line in page.splitlines():
        if line.startswith(("vllm:mm_cache_hits_total", "vllm:mm_cache_queries_total")):
            name = line.split("{")[0].removeprefix("vllm:").removesuffix("_total")
            counts[name] = counts.get(name, 0) + float(line.split()[-1])
    return counts


def change(engine, work) -> dict[str, float]:
    """How far each counter moved."""
    before = counters(engine)
    work()
    return {name: count - before.get(name, 0) for name, count in counters(engine).items()}


def test_scores_equal_those_of_transformers_prompt_by_prompt(
    engine, reference, prompts: list[Prompt]
) -> None:
    with_picture = [p for p in prompts if p.images]
    assert len(with_picture) >= 60 and len(prompts) - len(with_picture) >= 30
    assert {p.candidates for p in prompts} == {"ABC", "0123456789"}
    found = engine.candidate_scores(prompts)
    assert_same(found, reference.candidate_scores(prompts))
    assert engine.fingerprint != reference.fingerprint
    spread = found.logits[[p.candidates == "ABC" for p in prompts]][:, :3].std(axis=0)
    assert (spread > 0.1).all()  # else it would agree with anything


def test_pictures_are_encoded_once_and_prefixes_kept(engine) -> None:
    fresh = [p for place in (50, 51, 52) for p in prompts_of(place) if p.images]
    first = change(engine, lambda: engine.candidate_scores(fresh))
    # each prompt once as it is, and once with the space that may come before a candidate
    asked = 2 * len(fresh)
    assert first["requests"] == first["mm_cache_queries"] == asked == 84
    assert first["mm_cache_hits"] == asked - 3
    # the picture and the words before it fill at least one block of 32 tokens, which all but the
    # first prompt of a place find
    assert first["tokens_of_prompts"] - first["tokens_prefilled"] >= (asked - 3) * 32
    again = change(engine, lambda: engine.candidate_scores(fresh))
    assert again["tokens_prefilled"] < 0.2 * again["tokens_of_prompts"]


def test_several_pictures_in_one_prompt(engine, reference) -> None:
    asked = Prompt(prompts_of(1)[0].text, "ABC", (picture(80), picture(81)), "several")
    found, wanted = engine.candidate_scores([asked]), reference.candidate_scores([asked])
    assert_same(found, wanted)
    other = replace(asked, images=asked.images[::-1])  # under the same id
    assert np.abs(engine.candidate_scores([other]).logits - found.logits).max() > 10 * TOLERANCE


def test_candidates_after_a_lone_space(
    engine, reference, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer whose digits carry no space, as Llama's: the model may say the space first. A
    stand-in takes its place."""
    space = reference.tokenizer("e")["input_ids"][-1]
    for backend in (engine, reference):
        monkeypatch.setattr(
            backend,
            "candidates",
            replace(backend.candidates, space=space, needs_space=frozenset("0123456789")),
        )
    some = [p for p in prompts if p.images][8:16]
    assert {p.candidates for p in some} == {"ABC", "0123456789"}
    found = change(engine, lambda: engine.candidate_scores(some))
    assert found["requests"] == len(some) + sum(p.candidates != "ABC" for p in some)
    assert_same(engine.candidate_scores(some), reference.candidate_scores(some))


def test_answers_equal_the_greedy_ones_of_transformers(
    engine, reference, prompts: list[Prompt]
) -> None:
    numbers = [p for p in prompts if p.candidates != "ABC"][:6]
    letters = [p for p in prompts if p.candidates == "ABC"][:4]
    starts = ["", "1", "7", "-2"]
    for asked in (numbers, letters):
        found = engine.generate(asked, starts, 8)
        assert found == reference.generate(asked, starts, 8)
    assert engine.generate(numbers[:1], [""], 2) == reference.generate(numbers[:1], [""], 2)
    with pytest.raises(ModelError, match="digits and a leading '-' only"):
        engine.generate(numbers[:1], ["A7x"], 8)


def test_a_forced_start_is_the_likeliest_number_that_begins_with_it(
    engine, reference, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that writes 71 and 72 as one token. Two others stand for them."""
    spelled = reference.candidates.ids
    numbers = {spelled["7"][0]: "7", spelled["1"][0]: "71", spelled["2"][0]: "72"}
    for backend in (engine, reference):
        monkeypatch.setattr(backend, "candidates", replace(backend.candidates, numbers=numbers))
    asked = [p for p in prompts if p.candidates != "ABC"][:6]
    found = engine.generate(asked, ["7", "-7", "1"], 4).texts
    assert found == reference.generate(asked, ["7", "-7", "1"], 4).texts
    assert any(text[0] in "12" for text, *_ in found)


def test_a_prompt_that_is_too_long_fails_alone(engine, prompts: list[Prompt]) -> None:
    wanted = engine.candidate_scores(prompts[:2])
    text_only = Prompt("12 " * 600, "ABC")
    words = prompts[0].text
    while len(engine.tokenizer(words)["input_ids"]) < 490:
        words += " 7"
    with_picture = replace(prompts[0], text=words)  # its 36 tokens of picture are what is too much
    for bad in (text_only, with_picture):
        with pytest.raises(PromptRefused, match="tiny-llava: .*512"):
            engine.candidate_scores([prompts[0], bad, prompts[1]])
        np.testing.assert_allclose(
            engine.candidate_scores(prompts[:2]).logits, wanted.logits, atol=TOLERANCE, rtol=0
        )


def test_too_many_pictures_fail_alone(engine) -> None:
    pictures = tuple(picture(n) for n in range(3))
    with pytest.raises(PromptRefused, match="tiny-llava: .*At most 2 image"):
        engine.candidate_scores([Prompt("x", "ABC", pictures, "three")])


def test_admission_asks_the_same_of_both_engines(
    engine, reference, prompts: list[Prompt], tiny: ModelSpec
) -> None:
    """The questions of `register-model` and `models enable`: the same mass, first tokens and
    verdict."""
    asked = prompts[:40]
    views = ["full" if p.images else "q_only" for p in asked]
    items = [str(at % 10) for at in range(len(asked))]
    ours, theirs = (admission.ask(one, asked, views, items) for one in (engine, reference))
    assert ours.mass == pytest.approx(theirs.mass, abs=TOLERANCE)
    assert ours.by_view == pytest.approx(theirs.by_view, abs=TOLERANCE)
    assert (ours.first, ours.ties, ours.thinks) == (theirs.first, theirs.ties, theirs.thinks)
    assert ours.questions == 10 and ours.prompts == 40 and ours.seconds > 0
    assert admission.refusal(ours, tiny, REPOSITORY) == ""
    doubted = admission.refusal(ours, tiny, REPOSITORY, floor=1.01)
    assert "candidate mass" in doubted and "registry/models/tiny-llava.yaml" in doubted
