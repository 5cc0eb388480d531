"""The API engine against a real server on loopback: real sockets, real waits, real dropped
connections."""

from __future__ import annotations

import base64
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.api.engine import Api, first_token
from sdgbias.errors import ModelError, RegistryError
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
    spec,
)

# ------------------------------------------------------------------------------------------ what an
# answer means


def test_spellings_are_summed_and_the_rest_is_bounded() -> None:
    p = {"A": 0.5, " A": 0.2, "B": 0.1, "-": 0.02, "the": 0.01}
    one = first_token([(t, math.log(x)) for t, x in p.items()], "ABC")
    assert np.exp(one.logits[:2]) == pytest.approx([0.7, 0.1]) and one.logits[2] == -np.inf
    # A may have two more spellings below 0.01, B three, C all four; together they can't exceed the
    # 0.17 that is left
    assert np.exp(one.upper) == pytest.approx([0.72, 0.13, 0.04])
    assert np.exp(
        first_token([(t, math.log(x)) for t, x in p.items()], "ABC", spellings=2).upper
    ) == pytest.approx([0.7, 0.11, 0.02])
    assert (one.mass, np.exp(one.minus_logit), one.top_token) == (
        pytest.approx(0.8),
        pytest.approx(0.02),
        "A",
    )


def test_what_is_left_of_one_bounds_too() -> None:
    one = first_token([("A", math.log(0.6)), ("B", math.log(0.399))], "ABC")
    assert np.exp(one.upper[2]) == pytest.approx(0.001, abs=2e-5)
    assert np.exp(one.upper[0]) == pytest.approx(0.601, abs=2e-5)


def test_a_lone_space_may_still_become_a_digit_but_not_a_letter() -> None:
    named = [(" ", math.log(0.7)), ("4", math.log(0.2)), ("A", math.log(0.05))]
    assert np.exp(first_token(named, "4").upper[0]) == pytest.approx(0.95, abs=1e-3)
    assert np.exp(first_token(named, "A").upper[0]) == pytest.approx(0.10, abs=1e-3)


def test_minus_9999_is_no_score_and_ids_leave_no_slack() -> None:
    one = first_token([("A", -0.01), ("B", -9999.0)], "AB")
    assert one.logits[1] == -np.inf and one.upper[1] > -np.inf
    exact = first_token([("A", -0.5), (" A", -2.0), ("B", -3.0)], "AB", exact=True)
    assert (exact.upper == exact.logits).all()


def test_the_chosen_token_counts_where_the_likeliest_leave_it_out(
    server: Server, make: Callable[..., Api]
) -> None:
    likeliest = [("B", math.log(0.2)), ("C", math.log(0.1))]
    one = first_token(likeliest, "ABC", chosen=("A", math.log(0.6)))
    assert np.exp(one.logits) == pytest.approx([0.6, 0.2, 0.1]) and one.top_token == "A"
    # 0.1 is left, of which another spelling may have at most all
    assert np.exp(one.upper) == pytest.approx([0.7, 0.3, 0.2], abs=1e-4)
    answer = completion(likeliest)
    answer["choices"][0]["logprobs"]["content"][0] |= {"token": "A", "logprob": math.log(0.6)}
    server.script = lambda body, n: ok(answer)
    batch = make().candidate_scores([Prompt("q", "ABC")])
    assert np.exp(batch.logits[0]) == pytest.approx([0.6, 0.2, 0.1], rel=1e-5)
    assert (batch.upper[0] >= batch.logits[0]).all() and batch.top_token == ["A"]


def test_a_chosen_token_that_was_sampled_bounds_no_other() -> None:
    likeliest = [("A", math.log(0.5)), ("B", math.log(0.2))]
    one = first_token(likeliest, "ABC", chosen=("the", math.log(0.001)))
    assert np.exp(one.upper[2]) == pytest.approx(0.299, abs=1e-4)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 20])
def test_bounds_hold_whatever_the_vocabulary_hides(k: int) -> None:
    rng = np.random.default_rng(k)
    words = (
        [s + c for c in "0123" for s in ("", " ", "\n")] + [f"w{i}" for i in range(40)] + ["-", " "]
    )
    for _ in range(200):
        z = rng.normal(0, 3, len(words))
        p = np.exp(z) / np.exp(z).sum()
        order = np.argsort(-p)[:k]
        one = first_token([(words[i], float(np.log(p[i]))) for i in order], "0123")
        true = np.array(
            [
                np.log(sum(x for w, x in zip(words, p, strict=True) if w.lstrip() == c))
                for c in "0123"
            ]
        )
        assert (one.logits <= true + 1e-12).all() and (true <= one.upper + 1e-12).all()


# ----------------------------------------------------------------------
# asking and scoring


def test_scores_bounds_and_counts(server: Server, make: Callable[..., Api]) -> None:
    server.script = planted
    api = make()
    asked = [Prompt("question 4", "AB", (PNG, b"\xff\xd8jpeg"), "x"), Prompt("question 9", "ABC")]
    batch = api.candidate_scores(asked)
    assert np.exp(batch.logits[0, :2]) == pytest.approx([0.05, 0.85], rel=1e-6)
    assert np.isnan(batch.logits[0, 2]) and np.isnan(batch.upper[0, 2])
    assert np.isneginf(batch.logits).tolist() == [[False] * 3, [False, False, True]]
    assert batch.upper[1, 2] == pytest.approx(np.log(0.1 + 1e-5), abs=1e-6)  # 1 - 0.1 - 0.8 is left
    assert (batch.upper[1, :2] >= batch.logits[1, :2]).all()
    assert batch.logits.dtype == batch.upper.dtype == np.float32 and batch.n_tokens.tolist() == [
        10,
        10,
    ]
    body = next(b for b in server.bodies if question(b) == "question 4")
    assert [part["type"] for part in body["messages"][0]["content"]] == [
        "image_url",
        "image_url",
        "text",
    ]
    urls = [part["image_url"]["url"] for part in body["messages"][0]["content"][:2]]
    assert urls[0] == "data:image/png;base64," + base64.b64encode(PNG).decode() and urls[
        1
    ].startswith("data:image/jpeg;base64,")
    assert (body["max_tokens"], body["temperature"], body["logprobs"], body["top_logprobs"]) == (
        1,
        0,
        True,
        20,
    )
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    counted = ("requests", "answers", "prompt_tokens", "completion_tokens")
    assert [api.counts[name] for name in counted] == [2, 2, 20, 2]


def test_order_does_not_matter_and_no_more_than_so_many_are_in_flight(
    server: Server, make: Callable[..., Api]
) -> None:
    def slow(body: dict[str, Any], n: int) -> Reply:
        time.sleep(0.02 + 0.03 * (int(question(body).split()[1]) % 3))
        return planted(body, n)

    server.script = slow
    api, asked = make(concurrency=4), prompts(24)
    batch = api.candidate_scores(asked)
    assert 2 <= server.most <= 4
    turned = api.candidate_scores(asked[::-1])
    assert (turned.logits[::-1] == batch.logits).all() and np.array_equal(
        turned.upper[::-1], batch.upper, equal_nan=True
    )
    assert len({float(x) for x in batch.logits[:, 0]}) == 24
    assert sum(server.asked.values()) == 48


def test_candidates_by_id_are_exact(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: ok(completion([("A", -0.5), ("B", -8.0)]))
    batch = make(candidate_ids={"A": [5, 6], "B": [7]}).candidate_scores(
        [Prompt("q", "AB"), Prompt("other", "ABC")]
    )
    assert np.isfinite(batch.logits[0, :2]).all() and np.isnan(batch.upper[0]).all()
    assert (
        batch.upper[1, 0] > batch.logits[1, 0] and batch.upper[1, 2] > -np.inf
    )  # C has no ids, so that prompt is asked for its top k
    by_question = {question(b): b for b in server.bodies}
    assert (
        by_question["q"]["logprob_token_ids"] == [5, 6, 7]
        and "logprob_token_ids" not in by_question["other"]
    )


def test_generate_and_forced_starts(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: ok(
        completion(None, text=".5" if len(body["messages"]) > 1 else " 3.5 ")
    )
    api = make(prefill=True)
    assert api.forces_starts
    assert api.generate(prompts(2), ["", "7"], 8).texts == [["3.5", "7.5"], ["3.5", "7.5"]]
    forced = next(b for b in server.bodies if len(b["messages"]) > 1)
    assert forced["messages"][1] == {"role": "assistant", "content": "7"}
    assert (
        forced["add_generation_prompt"],
        forced["continue_final_message"],
        forced["max_tokens"],
    ) == (False, True, 8)
    plain = make()
    assert not plain.forces_starts and plain.generate(prompts(1), [""], 8).texts == [["3.5"]]
    with pytest.raises(ModelError, match="--mode replace"):
        plain.generate(prompts(1), ["", "7"], 8)


def test_other_names_for_the_limit_and_more_fields(
    server: Server, make: Callable[..., Api]
) -> None:
    make(
        limit_field="max_completion_tokens", body={"seed": 1}, detail="low", temperature="default"
    ).candidate_scores([Prompt("q", "AB", (PNG,), "x")])
    body = server.bodies[0]
    assert body["max_completion_tokens"] == 1 and body["seed"] == 1
    assert "max_tokens" not in body and "temperature" not in body
    assert body["messages"][0]["content"][0]["image_url"]["detail"] == "low"


# ------------------------------------------------------------------------------------------- entry,
# key, identity


def test_the_key_appears_nowhere(
    server: Server, make: Callable[..., Api], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api = make()
    api.candidate_scores(prompts(1))
    assert KEY not in caplog.text and KEY not in repr(api) + repr(api.options) + repr(
        api.counts
    ) + repr(vars(api))


@pytest.mark.parametrize("value", [None, "", "  ", "two words", "line\nbreak", "sch\u00f6n"])
def test_a_missing_or_broken_key_names_the_variable(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path, value: str | None
) -> None:
    monkeypatch.delenv("UNIT_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("UNIT_KEY", value)
    with pytest.raises(ModelError, match="UNIT_KEY") as caught:
        Api(spec(server), tmp_path)
    assert not value or not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "http://example.org/v1"}, "https://HOST"),
        ({"base_url": "ftp://127.0.0.1/v1"}, "https://HOST"),
        ({"base_url": "http://127.0.0.1.example.org/v1"}, "https://HOST"),
        ({"base_url": "https://user:word@example.org/v1"}, "user name"),
        ({"base_url": "https://example.org/v1?x=1"}, "query"),
        ({"base_url": "https://[bad/v1"}, "https://HOST"),
        ({"base_url": "https://example.org/v1/chat/completions"}, "what stands before"),
        ({"base_url": ""}, "base_url is ''; valid: text such as https://HOST/v1"),
        ({"top_logprobs": -1}, "top_logprobs is -1"),
        ({"concurrency": True}, "concurrency is True"),
        ({"limits": {"requests": -1}}, "limits is"),
        ({"limits": {"images": 1}}, "limits is"),
        ({"candidate_ids": {"AB": [1]}}, "candidate_ids is"),
        ({"candidate_ids": {0: [1]}}, "candidate_ids is"),
        ({"retries": 6.0}, "retries is 6.0; valid: a whole number"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"body": {"temperature": 1}}, "body is"),
    ],
)
def test_bad_options_name_themselves(
    server: Server, make: Callable[..., Api], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RegistryError) as caught:
        make(**options)
    assert words in str(caught.value) and str(caught.value).startswith(
        "registry/models/closed.yaml: "
    )


def test_https_and_loopback_are_taken(server: Server, make: Callable[..., Api]) -> None:
    for url in ("https://example.org/v1", "http://localhost:1/v1", "http://[::1]:1/v1"):
        assert make(base_url=url).options.base_url == url


def test_the_fingerprint_follows_what_changes_scores(
    server: Server, make: Callable[..., Api], tmp_path
) -> None:
    base = make().fingerprint
    same = [
        {"concurrency": 2},
        {"limits": {"requests": 5}},
        {"timeout": 9},
        {"temperature": 0},
        {"base_url": "http://127.0.0.1:1/v1"},
    ]
    other = [
        {"model": "x"},
        {"top_logprobs": 5},
        {"spellings": 2},
        {"detail": "low"},
        {"temperature": "default"},
        {"base_url": "https://example.org/v1"},
        {"body": {"seed": 1}},
    ]
    assert {make(**o).fingerprint for o in same} == {base}
    assert len({base, *(make(**o).fingerprint for o in other)}) == 1 + len(other)
    dated = Api(replace(spec(server), revision="2025-01-01"), tmp_path)
    assert dated.fingerprint != base and len(base) == 16
    dated.close()


def test_works_where_an_event_loop_is_running(server: Server, make: Callable[..., Api]) -> None:
    import asyncio

    async def notebook() -> float:
        return float(make().candidate_scores(prompts(1)).mass[0])

    assert asyncio.run(notebook()) == pytest.approx(math.exp(-0.1) + math.exp(-3.0), rel=1e-5)
