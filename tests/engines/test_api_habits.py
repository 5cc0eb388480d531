"""The API engine at endpoints that differ from OpenAI's: Gemini's lists of errors, models that know
the limit of tokens by another name or take no temperature, answers in parts, filtered answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.api.engine import Api
from sdgbias.engines.api.http import PromptRefused
from sdgbias.errors import InfrastructureError, ModelError, NoScores
from sdgbias.methods.answers import read_letter
from tests.builders.endpoint import Reply, Server, completion, ok, planted, prompts, refusal


def answer(message: dict[str, Any], finish_reason: str = "stop") -> Reply:
    choice = {"message": message, "finish_reason": finish_reason, "logprobs": None}
    return ok({"model": "tiny", "choices": [choice]})


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, [{"error": {"code": 400, "message": "Logprobs is not enabled for models/g"}}]),
        (404, {"error": {"message": "No endpoint supports these parameters: top_logprobs"}}),
        (400, {"error": {"message": "Unsupported parameter", "param": "logprobs"}}),
        (422, {"detail": [{"loc": ["body", "logprobs"], "msg": "Extra inputs not permitted"}]}),
        (400, {"object": "error", "message": "log probabilities are not supported"}),
        (501, {"error": "log_probs: not implemented"}),
    ],
    ids=["list", "404", "parameter", "detail", "message", "501"],
)
def test_log_probabilities_are_refused_in_many_words(
    server: Server, make: Callable[..., Api], status: int, body: object
) -> None:
    server.script = lambda asked, n: (
        (status, {}, json.dumps(body).encode())
        if "logprobs" in asked
        else ok(completion(None, text="The answer is B."))
    )
    api = make()
    with pytest.raises(NoScores, match=r"set options\.top_logprobs to 0") as caught:
        api.candidate_scores(prompts(3))
    assert "log" in str(caught.value).partition("says")[2].lower()
    assert api.generate(prompts(3), [""], 16).texts == [["The answer is B."]] * 3


@pytest.mark.parametrize(
    "words",
    [
        "Invalid value for 'top_logprobs': must be less than or equal to 5.",
        "Requested sample logprobs of 20, which is greater than max allowed: 5",
        "top_logprobs must be between 0 and 5",
    ],
)
def test_an_endpoint_that_names_fewer_is_not_taken_for_one_without(
    server: Server, make: Callable[..., Api], words: str
) -> None:
    server.script = lambda body, n: refusal(400, words)
    with pytest.raises(ModelError, match=r"set options\.top_logprobs to 5") as caught:
        make(top_logprobs=20).candidate_scores(prompts(3))
    assert not isinstance(caught.value, NoScores)


def test_the_limit_of_tokens_gets_its_other_name(server: Server, make: Callable[..., Api]) -> None:
    words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server.script = lambda body, n: (
        refusal(400, words, "unsupported_parameter") if "max_tokens" in body else planted(body, n)
    )
    api = make(retries=0, concurrency=1)
    got = api.candidate_scores(prompts(4)).logits[:, 0]
    assert np.exp(got) == pytest.approx([0.01, 0.02, 0.03, 0.04], rel=1e-5)
    names = [{k for k in body if k.startswith("max_")} for body in server.bodies]
    assert names == [{"max_tokens"}, *[{"max_completion_tokens"}] * 4]
    assert api.counters()["requests"] == 5


def test_a_model_without_a_temperature_needs_the_entry_to_say_so(
    server: Server, make: Callable[..., Api]
) -> None:
    words = "Unsupported value: 'temperature' does not support 0 with this model."
    server.script = lambda body, n: (
        refusal(400, words, "unsupported_value") if "temperature" in body else planted(body, n)
    )
    strict = make()
    with pytest.raises(ModelError, match=r"set options\.temperature to default in registry/models"):
        strict.candidate_scores(prompts(2))
    free = make(temperature="default")
    assert np.isfinite(free.candidate_scores(prompts(2)).logits).all()
    assert free.fingerprint != strict.fingerprint == make(temperature=0).fingerprint


def test_an_answer_in_parts_is_one_text(server: Server, make: Callable[..., Api]) -> None:
    parts = [{"type": "text", "text": "The answer "}, {"type": "text", "text": "is C."}]
    server.script = lambda body, n: answer({"content": parts})
    assert make().generate(prompts(1), [""], 16).texts == [["The answer is C."]]


@pytest.mark.parametrize(
    ("message", "reason", "how"),
    [
        ({"content": None, "refusal": "I'm sorry, I can't help with that."}, "stop", "refusal"),
        ({"content": None}, "content_filter: SAFETY", "refusal"),
        ({"content": None}, "SAFETY", "refusal"),
        ({"content": ""}, "stop", "empty"),
        ({}, "length", "truncated"),
        ({"content": "B. The roofs"}, "length", "option"),
        ({"content": "<think>B?</think>\nC"}, "stop", "option"),
        ({"content": "<think>B, or 5"}, "length", "truncated"),
    ],
    ids=[
        *(
            "refusal field",
            "filtered",
            "Gemini's filter",
            "empty",
            "no content",
            "cut after the letter",
        ),
        *("thought", "cut inside a thought"),
    ],
)
def test_what_is_no_letter_is_an_answer_that_counts(
    server: Server, make: Callable[..., Api], message: dict[str, Any], reason: str, how: str
) -> None:
    """Neither a failure nor a reason to ask again."""
    server.script = lambda body, n: answer(message, reason)
    api = make()
    found = api.generate(prompts(2), [""], 16)
    assert read_letter(found.texts[0][0], "ABC", found.truncated[0][0])[1] == how
    assert len(server.bodies) == 2


def test_one_empty_answer_is_no_reason_to_do_without_scores(
    server: Server, make: Callable[..., Api]
) -> None:
    """An answer without a token has no log-probabilities, also where the endpoint gives them."""
    server.script = planted
    api = make()
    api.candidate_scores(prompts(1))
    server.script = lambda body, n: answer({"content": ""})
    with pytest.raises(PromptRefused, match="an empty answer"):
        api.candidate_scores(prompts(1, "ABC"))
    with pytest.raises(NoScores):
        make().candidate_scores(prompts(1))


def test_thoughts_are_no_first_token_of_an_answer(server: Server, make: Callable[..., Api]) -> None:
    """Where they come with log-probabilities, these are of the first token thought."""
    said = completion([("Okay", -0.01), ("A", -5.0)], text="")
    said["choices"][0]["message"]["reasoning_content"] = "Okay"
    server.script = lambda body, n: ok(said)
    with pytest.raises(ModelError, match=r"thinks before it answers.*options\.body"):
        make().candidate_scores(prompts(1))
    said["choices"][0]["logprobs"] = None  # nothing to score by: asked for its answers instead
    with pytest.raises(NoScores):
        make().candidate_scores(prompts(1))


def test_a_token_named_twice_counts_once_and_null_is_nothing(
    server: Server, make: Callable[..., Api]
) -> None:
    said = completion([("A", -0.1), ("A", -0.1), ("B", -3.0), ("C", None)])  # type: ignore[list-item]
    server.script = lambda body, n: ok(said)
    scores = make().candidate_scores(prompts(1))
    assert np.allclose(scores.logits, [[-0.1, -3.0]])


@pytest.mark.parametrize("reason", ["SAFETY", "PROHIBITED_CONTENT", "recitation"])
def test_a_first_answer_taken_by_geminis_filter_is_no_lack_of_scores(
    server: Server, make: Callable[..., Api], reason: str
) -> None:
    server.script = lambda body, n: answer({"content": None}, reason)
    api = make()
    with pytest.raises(PromptRefused, match="content filter"):
        api.candidate_scores(prompts(1))
    server.script = planted
    assert np.isfinite(api.candidate_scores(prompts(1, "AB")).logits).all()


def test_geminis_delay_is_waited_for(server: Server, make: Callable[..., Api]) -> None:
    details = [{"@type": "google.rpc.QuotaFailure"}, {"retryDelay": "7200.5s"}]
    body = [{"error": {"code": 429, "message": "Quota exceeded", "details": details}}]
    server.script = lambda asked, n: (429, {}, json.dumps(body).encode())
    with pytest.raises(InfrastructureError, match=r"asks to wait 720\d s"):
        make().candidate_scores(prompts(1))
    assert len(server.bodies) == 1


def test_tokens_named_by_number_are_said(server: Server, make: Callable[..., Api]) -> None:
    named = [("token_id:32", -0.1), ("token_id:33", -3.0)]
    server.script = lambda body, n: ok(completion(named))
    with pytest.raises(ModelError, match=r"by number \('token_id:32'\).*--return-tokens-as-"):
        make().candidate_scores(prompts(1))


@pytest.mark.parametrize("mark", ["<think>", "<|channel|>", "[THINK]", "<|channel>"])
def test_most_of_the_first_answers_must_not_begin_with_a_thought(
    server: Server, make: Callable[..., Api], mark: str
) -> None:
    server.script = lambda body, n: ok(completion([(mark, -0.01), ("A", -5.0)]))
    with pytest.raises(ModelError, match=r"begins its answers with .*options\.body"):
        make(concurrency=1).candidate_scores(prompts(20))
    assert len(server.bodies) == 8


def test_a_thought_now_and_then_stops_nothing(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: (
        ok(completion([("<think>", -0.01), ("A", -5.0)]))
        if int(body["messages"][0]["content"][-1]["text"].split()[1]) % 2
        else planted(body, n)
    )
    assert np.isfinite(make().candidate_scores(prompts(20)).logits[:, 0]).all()
