"""The API engine against a real server on loopback: what a first token says, what is requested, and
how many requests are in flight."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines.api import Api, FirstToken, first_token
from sdgbias.engines.client import Completion
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import Scorer
from sdgbias.types import Prompt
from tests.builders.endpoint import (
    KEY,
    PNG,
    Reply,
    Server,
    completion,
    ok,
    planted,
    prompts,
    question,
    refusal,
    spec,
)

Make = Callable[..., Api]


def likely(**shares: float) -> list[tuple[str, float]]:
    """Tokens by name, a space in front of those that begin with _, and their log-probabilities."""
    return [(name.replace("_", " "), math.log(share)) for name, share in shares.items()]


#: Named tokens, candidates, options -> shares of the candidates, and their largest ones.
FIRST_TOKENS: dict[str, tuple[Any, str, dict[str, Any], list[float], list[float]]] = {
    # A may have two more spellings below 0.01, B three, C all four
    "spellings": (
        likely(A=0.5, _A=0.2, B=0.1, minus=0.02, the=0.01),
        *("ABC", {}, [0.7, 0.1, 0], [0.72, 0.13, 0.04]),
    ),
    "two spellings": (
        likely(A=0.5, _A=0.2, B=0.1, minus=0.02, the=0.01),
        *("ABC", {"spellings": 2}, [0.7, 0.1, 0], [0.7, 0.11, 0.02]),
    ),
    "what is left of one": (
        likely(A=0.6, B=0.399),
        *("ABC", {}, [0.6, 0.399, 0], [0.601, 0.4, 0.001]),
    ),
    "a lone space before a digit": (
        likely(_=0.7, **{"4": 0.2}, A=0.05),
        *("4A", {}, [0.2, 0.05], [0.95, 0.1]),
    ),
    "a placeholder": ([("A", -0.01), ("B", -9999.0)], "AB", {}, [0.99005, 0], [1.0, 0.00996]),
    "numbers of several digits": (
        likely(**{"8": 0.2, "87": 0.4, "_12": 0.1}, A=0.1),
        *("81A", {}, [0.6, 0.1, 0.1], [0.8, 0.3, 0.3]),
    ),
    "numbers by id": (
        likely(**{"8": 0.2, "87": 0.4}),
        *("81", {"exact": True}, [0.6, 0], [0.6, 0]),
    ),
    "by id": (likely(A=0.5, _A=0.2, B=0.1), "AB", {"exact": True}, [0.7, 0.1], [0.7, 0.1]),
    "a token listed twice, rounded": (
        [("A", -0.5), ("A", -0.50001), ("B", -1.5)],
        *("AB", {"spellings": 1}, [0.60653, 0.22313], [0.60653, 0.22313]),
    ),
    # 0.1 is left, of which another spelling may have at most all
    "chosen apart": (
        likely(B=0.2, C=0.1),
        *("ABC", {"chosen": ("A", math.log(0.6))}, [0.6, 0.2, 0.1], [0.7, 0.3, 0.2]),
    ),
    "chosen by sampling": (
        likely(A=0.5, B=0.2),
        *("ABC", {"chosen": ("the", math.log(0.001))}, [0.5, 0.2, 0], [0.799, 0.499, 0.299]),
    ),
}


@pytest.mark.parametrize(
    ("tokens", "candidates", "options", "shares", "most"), FIRST_TOKENS.values(), ids=FIRST_TOKENS
)
def test_named_tokens_give_scores_and_bounds(
    tokens: Any, candidates: str, options: dict[str, Any], shares: list[float], most: list[float]
) -> None:
    one = first_token(tokens, candidates, **options)
    assert np.exp(one.logits) == pytest.approx(shares, abs=2e-5)
    assert np.exp(one.upper) == pytest.approx(most, abs=2e-5)
    assert one.mass == pytest.approx(sum(shares), abs=2e-5)


def test_a_minus_and_the_likeliest_token_are_kept() -> None:
    one = first_token([(" the", math.log(0.6)), ("-", math.log(0.02))], "A")
    assert (np.exp(one.minus_logit), one.top_token) == (pytest.approx(0.02), "the")


@pytest.mark.parametrize("k", [1, 3, 20])
def test_bounds_hold_whatever_the_vocabulary_hides(k: int) -> None:
    rng = np.random.default_rng(k)
    words = [s + c for c in "0123" for s in ("", " ", "\n")]
    words += [*(f"w{i}" for i in range(40)), "-", " "]
    for _ in range(200):
        z = rng.normal(0, 3, len(words))
        p = np.exp(z) / np.exp(z).sum()
        one = first_token([(words[i], float(np.log(p[i]))) for i in np.argsort(-p)[:k]], "0123")
        shares = dict(zip(words, p, strict=True))
        true = np.log([sum(x for w, x in shares.items() if w.lstrip() == c) for c in "0123"])
        assert (one.logits <= true + 1e-12).all() and (true <= one.upper + 1e-12).all()


def test_scores_bounds_and_counts(server: Server, make: Make) -> None:
    server.script = planted
    api = make()
    asked = [Prompt("question 4", "AB", (PNG, b"\xff\xd8jpeg"), "x"), Prompt("question 9", "ABC")]
    batch = api.candidate_scores(asked)
    assert np.exp(batch.logits[0, :2]) == pytest.approx([0.05, 0.85], rel=1e-6)
    assert np.isnan(batch.logits[0, 2]) and np.isnan(batch.upper[0, 2])
    assert np.isneginf(batch.logits).tolist() == [[False] * 3, [False, False, True]]
    assert batch.upper[1, 2] == pytest.approx(np.log(0.1 + 1e-5), abs=1e-6)  # 1 - 0.1 - 0.8 is left
    assert (batch.upper[1, :2] >= batch.logits[1, :2]).all()
    assert batch.n_tokens.tolist() == [10, 10]
    [body] = (b for b in server.bodies if question(b) == "question 4")
    *pictures, text = body["messages"][0]["content"]
    urls = [picture["image_url"]["url"] for picture in pictures]
    assert urls[0] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert urls[1].startswith("data:image/jpeg;base64,") and text["type"] == "text"
    fixed = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 20}
    assert {name: body[name] for name in fixed} == fixed
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    counted = ("requests", "answers", "prompt_tokens", "completion_tokens")
    assert [api.counts[name] for name in counted] == [2, 2, 20, 2]


def test_the_chosen_token_counts_where_the_likeliest_leave_it_out(
    server: Server, make: Make
) -> None:
    """Also where a token is named twice, with a null, or with more than a float holds."""
    top = [("B", math.log(0.2)), ("B", math.log(0.2)), ("C", math.log(0.1)), ("x", None)]
    top.append(("y", -(10**400)))
    answer = completion(top)  # type: ignore[arg-type]
    answer["choices"][0]["logprobs"]["content"][0] |= {"token": "A", "logprob": math.log(0.6)}
    server.script = lambda body, n: ok(answer)
    batch = make().candidate_scores([Prompt("q", "ABC")])
    assert np.exp(batch.logits[0]) == pytest.approx([0.6, 0.2, 0.1], rel=1e-5)
    assert (batch.upper[0] >= batch.logits[0]).all() and batch.top_token == ["A"]


def test_order_does_not_matter_and_no_more_than_so_many_are_in_flight(
    server: Server, make: Make
) -> None:
    def slow(body: dict[str, Any], n: int) -> Reply:
        time.sleep(0.01 + 0.02 * (int(question(body).split()[1]) % 3))
        return planted(body, n)

    server.script = slow
    api, asked = make(concurrency=4), prompts(24)
    batch, turned = api.candidate_scores(asked), api.candidate_scores(asked[::-1])
    assert 2 <= server.most <= 4
    assert (turned.logits[::-1] == batch.logits).all()
    np.testing.assert_array_equal(turned.upper[::-1], batch.upper)
    assert len({float(x) for x in batch.logits[:, 0]}) == 24
    assert sum(server.asked.values()) == 48


def test_candidates_by_id_are_exact(server: Server, make: Make) -> None:
    """C has no ids, so a prompt with it is asked for its top k."""
    server.script = lambda body, n: ok(completion([("A", -0.5), ("B", -8.0)]))
    api = make(candidate_ids={"A": [5, 6], "B": [7]})
    batch = api.candidate_scores([Prompt("q", "AB"), Prompt("other", "ABC")])
    assert np.isfinite(batch.logits[0, :2]).all() and np.isnan(batch.upper[0]).all()
    assert batch.upper[1, 0] > batch.logits[1, 0] and batch.upper[1, 2] > -np.inf
    ids = {question(b): b.get("logprob_token_ids") for b in server.bodies}
    assert ids == {"q": [5, 6, 7], "other": None}
    server.script = lambda body, n: ok(completion([("The", -0.5), ("A", -1.5), ("B", -8.0)]))
    assert np.isnan(api.candidate_scores([Prompt("chosen", "AB")]).upper[0]).all()
    server.script = lambda body, n: ok(completion([("A", -0.5), ("The", -1.5), ("B", -8.0)]))
    unknown = api.candidate_scores([Prompt("field", "AB")])
    assert unknown.upper[0, 1] > unknown.logits[0, 1], "the server named its likeliest tokens"


def test_generate_and_forced_starts(server: Server, make: Make) -> None:
    server.script = lambda body, n: ok(
        completion(None, text=".5" if len(body["messages"]) > 1 else " 3.5 ")
    )
    api = make(prefill=True)
    assert api.generate(prompts(2), ["", "7"], 8).texts == [["3.5", "7.5"], ["3.5", "7.5"]]
    forced = next(b for b in server.bodies if len(b["messages"]) > 1)
    assert forced["messages"][1] == {"role": "assistant", "content": "7"}
    fixed = {"add_generation_prompt": False, "continue_final_message": True, "max_tokens": 8}
    assert {name: forced[name] for name in fixed} == fixed
    plain = make()
    assert api.forces_starts and not plain.forces_starts
    with pytest.raises(ModelError, match="--mode replace"):
        plain.generate(prompts(1), ["", "7"], 8)


def test_other_names_for_the_limit_and_more_fields(server: Server, make: Make) -> None:
    """Where an event loop runs already, as in a notebook."""
    options = {"limit_field": "max_completion_tokens", "body": {"seed": 1}, "detail": "low"}

    async def notebook() -> None:
        api = make(temperature="default", **options)
        api.candidate_scores([Prompt("q", "AB", (PNG,), "x")])

    asyncio.run(notebook())
    [body] = server.bodies
    assert body["max_completion_tokens"] == 1 and body["seed"] == 1
    assert "max_tokens" not in body and "temperature" not in body
    assert body["messages"][0]["content"][0]["image_url"]["detail"] == "low"


def test_the_key_appears_nowhere(
    server: Server, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api = make()
    api.candidate_scores(prompts(1))
    assert KEY not in f"{caplog.text}{api!r}{api.options!r}{api.counts!r}{vars(api)!r}"


@pytest.mark.parametrize("value", ["", "  ", "two words", "line\nbreak", "sch\u00f6n"])
def test_a_missing_or_broken_key_names_the_variable(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("UNIT_KEY", value)
    with pytest.raises(ModelError, match="UNIT_KEY") as caught:
        Api(spec(server), tmp_path)
    assert not value.strip() or value not in str(caught.value)


def test_the_fingerprint_follows_what_changes_scores(
    server: Server, make: Make, tmp_path: Path
) -> None:
    base = make().fingerprint
    same: list[dict[str, Any]] = [{"concurrency": 2}, {"limits": {"requests": 5}}, {"timeout": 9}]
    same += [{"base_url": "http://127.0.0.1:1/v1"}]
    other: list[dict[str, Any]] = [{"model": "x"}, {"top_logprobs": 5}, {"spellings": 2}]
    other += [{"detail": "low"}, {"temperature": "default"}, {"body": {"seed": 1}}]
    other += [{"base_url": "https://example.org/v1"}]
    assert {make(**o).fingerprint for o in same} == {base}
    dated = Api(replace(spec(server), revision="2025-01-01"), tmp_path).fingerprint
    assert len({base, dated, *(make(**o).fingerprint for o in other)}) == 2 + len(other)


def test_requests_of_the_next_chunk_are_sent_before_the_last_answer_of_one(
    server: Server, make: Make, tmp_path: Path
) -> None:
    """The first question is answered only once one of the second chunk was asked."""
    second_chunk = threading.Event()

    def script(body: dict[str, Any], n: int) -> Reply:
        if question(body) in ("question 4", "question 5"):
            second_chunk.set()
        if question(body) == "question 0":
            assert second_chunk.wait(60), "the second chunk waits for the first"
        return planted(body, n)

    server.script = script
    rows = pd.DataFrame({"text": [p.text for p in prompts(8)], "candidates": "AB", "image_id": ""})
    rows["key"] = [f"{n:032x}" for n in range(8)]
    scorer = Scorer(make(concurrency=8), ScoreCache(tmp_path, "m", "f"), {}, spec(server))
    scorer.size = 4

    scorer.score(rows, lambda *_: None)

    assert len(scorer.cache.compact("scores")) == 8 and not scorer.failures
    assert set(server.asked.values()) == {1}, "nothing is paid twice"


def test_a_failure_is_paid_for_once_and_is_that_of_its_own_chunk(
    server: Server, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that is halved, and chunks that were sent ahead; also of an unforeseen fault."""
    api, asked = make(retries=0), prompts(8)
    server.script = lambda body, n: (
        refusal(503) if question(body) == "question 7" else planted(body, n)
    )
    read = api.first_token

    def faulty(prompt: Prompt, answer: Completion) -> FirstToken:
        if prompt.text == "question 3":
            raise ZeroDivisionError("unforeseen")
        return read(prompt, answer)

    monkeypatch.setattr(api, "first_token", faulty)
    api.prefetch(asked[:4])
    api.prefetch(asked[4:])
    for part in (asked[:4], asked[2:4]):
        with pytest.raises(ZeroDivisionError):
            api.candidate_scores(part)
    with pytest.raises(InfrastructureError, match="503"):
        api.candidate_scores(asked[4:])
    assert np.isfinite(api.candidate_scores([*asked[:3], *asked[4:7]]).logits).all()
    assert set(server.asked.values()) == {1}
