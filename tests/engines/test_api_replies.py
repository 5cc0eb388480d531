"""The API engine where an answer is none: refusals and failures of one prompt and of all, retries
and waits, and the habits of endpoints that differ from OpenAI's."""

from __future__ import annotations

import email.utils
import json
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.api.engine import Api
from sdgbias.engines.api.http import DOWN_AFTER, PromptRefused
from sdgbias.errors import InfrastructureError, KeyRefused, ModelError, NoScores
from sdgbias.methods.answers import read_letter
from tests.builders.endpoint import (
    KEY,
    Reply,
    Server,
    completion,
    ok,
    planted,
    prompts,
    question,
    refusal,
)


def error(status: int, body: object) -> Reply:
    return status, {}, json.dumps(body).encode()


def answer(message: dict[str, Any], reason: str = "stop") -> Reply:
    choice = {"message": message, "finish_reason": reason, "logprobs": None}
    return ok({"model": "tiny", "choices": [choice]})


def thought(scored: bool) -> Reply:
    """The thoughts of a reasoning model, with their log-probabilities or without."""
    reply = completion([("Okay", -0.01), ("A", -5.0)] if scored else None, text="")
    reply["choices"][0]["message"]["reasoning_content"] = "Okay"
    return ok(reply)


def in_two_hours() -> str:
    return email.utils.formatdate(time.time() + 7200, usegmt=True)


_PAIRS = [("A", -0.1), ("B", -3.0)]
_DELAY = [{"@type": "google.rpc.QuotaFailure"}, {"retryDelay": "7200.5s"}]
_TEMPERATURE = "Unsupported value: 'temperature' does not support 0 with this model."
_TO_ZERO = r"(?i)says.*log.*set options\.top_logprobs to 0"
_TO_FIVE = r"set options\.top_logprobs to 5"
#: Reply -> what ends all further requests: the error, and words of it.
STOPS: dict[str, tuple[Reply, type[Exception], str]] = {
    "401": (refusal(401, f"bad key {KEY}"), KeyRefused, "UNIT_KEY"),
    "403": (refusal(403), KeyRefused, "UNIT_KEY"),
    "404": (refusal(404, "no such model"), ModelError, r"options\.model"),
    "quota": (refusal(429, "pay", "insufficient_quota"), KeyRefused, "account behind UNIT_KEY"),
    "no pictures": (
        refusal(400, "This model does not support image inputs."),
        ModelError,
        "inputs; if it takes no pic.*q_",
    ),
    "redirect": ((307, {"Location": "http://127.0.0.1:9/v1"}, b""), ModelError, "not followed"),
    "positive": (ok(completion([("A", 2.5)])), ModelError, "no log-probability"),
    "nan": (ok(completion([("A", math.nan)])), ModelError, "no log-probability"),
    "beyond floats": (ok(completion([("A", -(10**400))])), ModelError, "no log-probability"),
    "numbers": (
        ok(completion([("token_id:32", -0.1), ("token_id:33", -3.0)])),
        ModelError,
        r"by number \('token_id:32'\).*--return-tokens-as-",
    ),
    "thinks": (thought(True), ModelError, r"thinks before it answers.*options\.body"),
    "temperature": (
        refusal(400, _TEMPERATURE, "unsupported_value"),
        ModelError,
        r"set options\.temperature to default in registry/models",
    ),
    "fewer: less": (
        refusal(400, "Invalid value for 'top_logprobs': must be less than or equal to 5."),
        ModelError,
        _TO_FIVE,
    ),
    "fewer: greater": (
        refusal(400, "Requested sample logprobs of 20, which is greater than max allowed: 5"),
        ModelError,
        _TO_FIVE,
    ),
    "fewer: between": (
        refusal(400, "top_logprobs must be between 0 and 5"),
        ModelError,
        _TO_FIVE,
    ),
    "delay of Gemini": (
        error(429, [{"error": {"code": 429, "message": "Quota exceeded", "details": _DELAY}}]),
        InfrastructureError,
        r"asks to wait 720\d s.*later",
    ),
    "delay as a date": (
        refusal(429, Retry_After=in_two_hours()),  # two hours from when the tests were collected
        InfrastructureError,
        r"asks to wait [4-7]\d\d\d s.*later",
    ),
}
#: Reply -> what a model is measured after by its answers alone.
NO_SCORES: dict[str, tuple[Reply, str]] = {
    "list": (
        error(400, [{"error": {"code": 400, "message": "Logprobs is not enabled for models/g"}}]),
        _TO_ZERO,
    ),
    "404": (refusal(404, "No endpoint supports these parameters: top_logprobs"), _TO_ZERO),
    "parameter": (
        error(400, {"error": {"message": "Unsupported parameter", "param": "logprobs"}}),
        _TO_ZERO,
    ),
    "detail": (
        error(422, {"detail": [{"loc": ["body", "logprobs"], "msg": "Extra inputs"}]}),
        _TO_ZERO,
    ),
    "message": (
        error(400, {"object": "error", "message": "log probabilities are not supported"}),
        _TO_ZERO,
    ),
    "501": (error(501, {"error": "log_probs: not implemented"}), _TO_ZERO),
    "none": (ok(completion(None)), "no log-probabilities"),
    "thoughts without": (thought(False), "no log-probabilities"),
    "no content": (answer({"content": ""}), "no log-probabilities"),
}
_AFTER_TRIES = (InfrastructureError, "after 2 tries")
#: Reply -> what concerns its prompt alone.
ONE_PROMPT: dict[str, tuple[Reply, type[Exception], str]] = {
    "flagged": (refusal(400, "flagged", "content_filter"), PromptRefused, "content_filter"),
    "long": (
        refusal(400, "This model's maximum context length is 512 tokens"),
        PromptRefused,
        "maximum context length",
    ),
    "413": (refusal(413, "too big"), PromptRefused, "too big"),
    "filtered": (answer({"content": ""}, "content_filter"), PromptRefused, "content filter"),
    "SAFETY": (answer({"content": None}, "SAFETY"), PromptRefused, "content filter"),
    "PROHIBITED": (answer({}, "PROHIBITED_CONTENT"), PromptRefused, "content filter"),
    "recitation": (answer({"content": None}, "recitation"), PromptRefused, "content filter"),
    "no token": (ok(completion([])), PromptRefused, "an empty answer"),
    "no choice": (ok({**completion(_PAIRS), "choices": []}), PromptRefused, "without a choice"),
    "gzip": ((200, {"Content-Encoding": "gzip"}, b"no gzip"), *_AFTER_TRIES),
    "deep": ((200, {}, b"[" * 100_000), *_AFTER_TRIES),
    "digits": ((200, {}, b'{"choices": [' + b"9" * 5000 + b"]}"), *_AFTER_TRIES),
}


def refuse_the_first(server: Server, reply: Reply) -> None:
    server.script = lambda body, n: reply if question(body) == "question 0" else planted(body, n)


@pytest.mark.parametrize(("reply", "kind", "words"), STOPS.values(), ids=STOPS)
def test_what_is_wrong_for_all_stops_at_once(
    server: Server, make: Callable[..., Api], reply: Reply, kind: type[Exception], words: str
) -> None:
    refuse_the_first(server, reply)
    api = make(concurrency=1)
    for _ in range(2):
        with pytest.raises(kind, match=words) as caught:
            api.candidate_scores(prompts(3))
        assert KEY not in str(caught.value) and "\n" not in str(caught.value)
        assert not isinstance(caught.value, NoScores)
    assert len(server.times) == 1


@pytest.mark.parametrize(("reply", "words"), NO_SCORES.values(), ids=NO_SCORES)
def test_an_endpoint_without_log_probabilities_is_still_asked_for_answers(
    server: Server, make: Callable[..., Api], reply: Reply, words: str
) -> None:
    server.script = lambda asked, n: (
        reply if "logprobs" in asked else ok(completion(None, text="The answer is B."))
    )
    api = make()
    with pytest.raises(NoScores, match=words):
        api.candidate_scores(prompts(3))
    api.transport.stop(NoScores("the answer to a prompt that was sent ahead, and comes late"))
    assert api.generate(prompts(3), [""], 16).texts == [["The answer is B."]] * 3


@pytest.mark.parametrize(("reply", "kind", "words"), ONE_PROMPT.values(), ids=ONE_PROMPT)
def test_a_refusal_concerns_one_prompt(
    server: Server, make: Callable[..., Api], reply: Reply, kind: type[Exception], words: str
) -> None:
    refuse_the_first(server, reply)
    api, asked = make(retries=1), prompts(3)
    with pytest.raises(kind, match=words):
        api.candidate_scores(asked)
    assert np.isfinite(api.candidate_scores(asked[1:]).logits).all()
    assert server.asked["question 0"] == 1 + (kind is InfrastructureError)
    assert server.asked["question 1"] == server.asked["question 2"] == 1, "nothing is paid twice"


def test_an_empty_answer_after_a_scored_one_is_refused_alone(
    server: Server, make: Callable[..., Api]
) -> None:
    """An answer without a token has no log-probabilities, also where the endpoint gives them."""
    server.script = planted
    api = make()
    api.candidate_scores(prompts(1))
    server.script = lambda body, n: answer({"content": ""})
    with pytest.raises(PromptRefused, match="an empty answer"):
        api.candidate_scores(prompts(1, "ABC"))


def test_busy_and_broken_servers_are_asked_again(server: Server, make: Callable[..., Api]) -> None:
    faults: list[Reply | None] = [
        refusal(503),
        None,
        (200, {}, b"{not json"),
        (200, {}, b'{"choices": 5}'),
        refusal(200, "busy"),
    ]

    def flaky(body: dict[str, Any], n: int) -> Reply | None:
        i = int(question(body).split()[1])
        return faults[i] if n == 1 else planted(body, n)

    server.script = flaky
    api = make()
    assert np.exp(api.candidate_scores(prompts(5)).logits[:, 0]) == pytest.approx(
        [0.01, 0.02, 0.03, 0.04, 0.05], rel=1e-5
    )
    assert set(server.asked.values()) == {2}
    assert (api.counts["requests"], api.counts["retries"]) == (10, 5)


def test_retry_after_makes_everybody_wait(server: Server, make: Callable[..., Api]) -> None:
    first = threading.Lock()

    def busy_once(body: dict[str, Any], n: int) -> Reply:
        if first.acquire(blocking=False):
            return refusal(429, Retry_After="0.8")
        if time.monotonic() - min(server.times) < 0.8:
            time.sleep(
                0.6
            )  # those that are in flight take longer than the refusal, on a busy machine as well
        return planted(body, n)

    server.script = busy_once
    make(concurrency=3).candidate_scores(prompts(12))
    times = np.sort(server.times) - min(server.times)
    assert len(times) == 13 and (times < 0.8).sum() <= 3 and times[-1] < 60


def test_a_prompt_that_never_succeeds_fails_alone_and_nothing_is_asked_twice(
    server: Server, make: Callable[..., Api]
) -> None:
    server.script = lambda body, n: (
        refusal(500, "oops") if question(body) == "question 3" else planted(body, n)
    )
    api, asked = make(), prompts(8)
    with pytest.raises(InfrastructureError, match="after 4 tries, the last: HTTP 500: oops"):
        api.candidate_scores(asked)
    one_by_one = []
    for prompt in asked:  # what evaluate.Scorer does with a batch that failed
        try:
            one_by_one.append(float(np.exp(api.candidate_scores([prompt]).logits[0, 0])))
        except InfrastructureError:
            one_by_one.append(math.nan)
    assert np.isnan(one_by_one[3]) and np.nansum(one_by_one) == pytest.approx(0.32, rel=1e-5)
    assert server.asked["question 3"] == 4 and sum(server.asked.values()) == 11
    server.script = planted
    api.candidate_scores([asked[3]])  # what was kept is handed out once
    assert server.asked["question 3"] == 5


def test_timeouts_are_infrastructure(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: time.sleep(30) or planted(body, n)
    with pytest.raises(InfrastructureError, match=r"no answer within 0.7 s"):
        make(timeout=0.7, retries=1).candidate_scores(prompts(1))
    deadline = time.monotonic() + 60
    while len(server.times) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)  # until the server has read the second one
    assert len(server.times) == 2


def test_nobody_listens(server: Server, make: Callable[..., Api]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(InfrastructureError, match="no connection"):
            make(base_url=url, retries=1).candidate_scores(prompts(1))


def test_an_endpoint_that_is_down_is_left_alone(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: refusal(503)
    api = make(retries=0, concurrency=1)
    for start in range(0, 40, 10):
        with pytest.raises(InfrastructureError):
            api.candidate_scores(prompts(40)[start : start + 10])
    assert len(server.times) == DOWN_AFTER
    with pytest.raises(InfrastructureError, match="down"):
        api.candidate_scores(prompts(41)[40:])


@pytest.mark.parametrize(
    "tokens",
    [10**400, 2**31, -1, True, 7.5],
    ids=["400 digits", "too many", "negative", "boolean", "fraction"],
)
def test_a_number_of_tokens_that_cannot_be_is_not_counted(
    server: Server, make: Callable[..., Api], tokens: float
) -> None:
    server.script = lambda body, n: ok(completion([("A", -0.1), ("B", -3.0)], prompt_tokens=tokens))
    api = make(limits={"tokens": 10**9})
    assert api.candidate_scores(prompts(1)).n_tokens.tolist() == [0]
    assert api.counts["prompt_tokens"] == 0


def test_an_unforeseen_fault_keeps_the_other_answers(
    server: Server, make: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, asked = make(), prompts(3)
    whole = api._scored

    def faulty(answer: dict[str, Any]) -> dict[str, Any]:
        if answer["usage"]["prompt_tokens"] == 4711:
            raise ZeroDivisionError("unforeseen")
        return whole(answer)

    monkeypatch.setattr(api, "_scored", faulty)
    server.script = lambda body, n: (
        ok(completion([("A", -0.1)], prompt_tokens=4711))
        if question(body) == "question 1"
        else planted(body, n)
    )
    with pytest.raises(ZeroDivisionError):
        api.candidate_scores(asked)
    assert np.isfinite(api.candidate_scores([asked[2]]).logits).all()
    assert server.asked["question 2"] == 1


def test_another_model_behind_the_same_name_is_noticed(
    server: Server, make: Callable[..., Api]
) -> None:
    server.script = lambda body, n: ok(
        {
            **completion([("A", -0.1)]),
            "model": "tiny" if question(body) == "question 0" else "tiny-2",
        }
    )
    api = make()
    api.candidate_scores(prompts(1))
    with pytest.raises(ModelError, match="'tiny-2', not from 'tiny'"):
        api.candidate_scores([prompts(2)[1]])
    with pytest.raises(ModelError, match="not from 'tiny-2024'"):
        make(served_model="tiny-2024").candidate_scores(prompts(1))


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
    assert api.counts["requests"] == 5


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


def test_a_token_named_twice_counts_once_and_null_is_nothing(
    server: Server, make: Callable[..., Api]
) -> None:
    said = completion([("A", -0.1), ("A", -0.1), ("B", -3.0), ("C", None)])  # type: ignore[list-item]
    server.script = lambda body, n: ok(said)
    scores = make().candidate_scores(prompts(1))
    assert np.allclose(scores.logits, [[-0.1, -3.0]])


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


def test_requests_per_minute_are_spaced(server: Server, make: Callable[..., Api]) -> None:
    server.script = planted
    api, began = make(limits={"requests": 600}), time.monotonic()
    api.candidate_scores(prompts(8))
    assert 0.7 <= max(server.times) - began < 60  # seven gaps of 0.1 s


@pytest.mark.parametrize(
    ("used", "limit"), [(199, 60_000), (10, 3_300)], ids=["more than thought", "less than thought"]
)
def test_tokens_per_minute_are_spaced_by_what_was_used(
    server: Server, make: Callable[..., Api], used: int, limit: int
) -> None:
    """The estimate is 74 + 1 tokens: 0.075 s and 1.4 s a request; what is used makes 0.2 s, five
    times."""
    server.script = lambda body, n: ok(
        {**completion([("A", -0.1)]), "usage": {"prompt_tokens": used, "completion_tokens": 1}}
    )
    make(limits={"tokens": limit}, concurrency=1).candidate_scores(prompts(6))
    assert 0.6 < max(server.times) - min(server.times) < 6.5


def test_an_estimate_that_was_too_small_is_raised(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: ok(completion([("A", -0.1)], prompt_tokens=200))
    api = make(limits={"tokens": 10**9}, concurrency=1)

    api.candidate_scores(prompts(2))

    # bytes of the question and what a template adds
    assert api.transport._factor == pytest.approx(200 / (10 + 64))
