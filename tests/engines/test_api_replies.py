"""What the API engine makes of a reply: one table of the habits of endpoints."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.api import Api
from sdgbias.engines.client import DOWN_AFTER, PromptRefused
from sdgbias.errors import (
    EndpointUnavailable,
    InfrastructureError,
    KeyRefused,
    ModelError,
    NoScores,
)
from sdgbias.methods.answers import read_letter
from tests.builders import loopback
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

Make = Callable[..., Api]


def error(status: int, body: object) -> Reply:
    return status, {}, json.dumps(body).encode()


def answer(content: object = None, reason: str = "stop", **fields: object) -> Reply:
    message = {"content": content, **fields}
    choice = {"message": message, "finish_reason": reason, "logprobs": None}
    return ok({"model": "tiny", "choices": [choice]})


def named(*tokens: tuple[str, Any], **fields: object) -> Reply:
    """Log-probabilities of a first token, beside the message's other fields."""
    reply = completion(list(tokens), text="" if fields else "A")
    reply["choices"][0]["message"] |= fields
    return ok(reply)


def tokens(n: float) -> Reply:
    return ok(completion([("A", -0.1)], prompt_tokens=n))


_DELAY = {"code": 429, "message": "Quota exceeded", "details": [{}, {"retryDelay": "7200.5s"}]}
_DATE = "Wed, 21 Oct 2099 07:28:00 GMT"
_TEMPERATURE = "Unsupported value: 'temperature' does not support 0 with this model."
_LIMIT = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
_TOO_MANY = "Requested sample logprobs of 20, which is greater than max allowed: 5"
_TO_ZERO = r"(?i)says.*log.*set options\.top_logprobs to 0"
_FEWER = r"(5|<= 5); set options\.top_logprobs to as many as"
_BY_NUMBER = r"by number \('token_id:32'\).*--return-tokens-as-"
#: Reply to the first request for scores -> what ends all further requests: the error, its words.
STOPS: dict[str, tuple[Reply, type[Exception], str]] = {
    "401": (refusal(401, f"bad key {KEY}"), KeyRefused, "UNIT_KEY"),
    "403": (refusal(403), KeyRefused, "UNIT_KEY"),
    "404": (refusal(404, "no such model"), ModelError, r"options\.model"),
    "quota": (refusal(429, "pay", "insufficient_quota"), KeyRefused, "UNIT_KEY"),
    "402": (refusal(402, "Insufficient credits"), KeyRefused, "UNIT_KEY, or the account"),
    "redirect": (
        (307, {"Location": f"http://me:pw@127.0.0.1:9/v2/chat?key={KEY}"}, b""),
        *(ModelError, r"307: moved to http://127\.0\.0\.1:9/v2/chat; set options\.base_url"),
    ),
    "numbers": (named(("token_id:32", -1), ("token_id:33", -3)), ModelError, _BY_NUMBER),
    "thinks": (named(("Okay", -1), reasoning_content="Okay"), ModelError, "thinks before it ans"),
    "temperature": (refusal(400, _TEMPERATURE), ModelError, "temperature to default, in registry"),
    "limit": (refusal(400, _LIMIT), ModelError, "limit_field to max_completion_tokens"),
    "at most 5": (refusal(400, "top_logprobs: must be <= 5."), ModelError, _FEWER),
    "20 > 5": (refusal(400, _TOO_MANY), ModelError, _FEWER),
    "date": (refusal(429, Retry_After=_DATE), InfrastructureError, r"to wait \d+ s.*later"),
    "Gemini": (error(429, [{"error": _DELAY}]), InfrastructureError, r"to wait 720\d s.*later"),
}
#: Reply -> why a model is measured by its answers alone.
NO_SCORES: dict[str, tuple[Reply, str]] = {
    "Gemini": (error(400, [{"error": {"message": "Logprobs is not enabled for g"}}]), _TO_ZERO),
    "OpenRouter": (refusal(404, "No endpoint supports: top_logprobs"), _TO_ZERO),
    "no maximum": (refusal(400, "logprobs aren't supported for max output tokens"), _TO_ZERO),
    "0 allowed": (refusal(400, _TOO_MANY.replace("5", "0")), _TO_ZERO),
    "parameter": (error(400, {"error": {"message": "No", "param": "logprobs"}}), _TO_ZERO),
    "detail": (error(422, {"detail": [{"loc": ["logprobs"], "msg": "Extra"}]}), _TO_ZERO),
    "501": (error(501, {"error": "log_probs: not implemented"}), _TO_ZERO),
    "none": (ok(completion(None)), "no log-probabilities"),
    "thoughts": (answer("", reasoning_content="Okay"), "no log-probabilities"),
    "no content": (answer(""), "no log-probabilities"),
}
_AFTER_TRIES = (InfrastructureError, "after 2 tries")
_UNREADABLE = (InfrastructureError, "after 2 tries, the last: an answer that is no chat completion")
#: Reply -> what concerns its prompt alone.
ONE_PROMPT: dict[str, tuple[Reply, type[Exception], str]] = {
    "flagged": (refusal(400, "flagged", "content_filter"), PromptRefused, "content_filter"),
    "picture": (refusal(400, "can't decode this image"), PromptRefused, "decode.*if it takes no"),
    "unclear": (refusal(422, "invalid request"), PromptRefused, "invalid request; fix the options"),
    "long": (refusal(400, "maximum context length is 512"), PromptRefused, "maximum context"),
    "filtered": (answer("", "content_filter"), PromptRefused, "content filter"),
    "SAFETY": (answer(None, "SAFETY"), PromptRefused, "content filter"),
    "recitation": (answer(None, "recitation"), PromptRefused, "content filter"),
    "no token": (ok(completion([])), PromptRefused, "an empty answer"),
    "no choice": (ok({"choices": []}), PromptRefused, "without a choice"),
    "500": (refusal(500, "oops"), *_AFTER_TRIES),
    "provider's 502": (answer("The ans", "error"), *_AFTER_TRIES),
    "gzip": ((200, {"Content-Encoding": "gzip"}, b"no gzip"), *_AFTER_TRIES),
    "a page": ((200, {}, b"<html>"), InfrastructureError, r"completion \(Invalid JSON"),
    "positive": (named(("A", 2.5)), *_UNREADABLE),
    "nan": (named(("A", math.nan)), *_UNREADABLE),
    "impossible tokens": (tokens(2**31), *_UNREADABLE),
    "deep": ((200, {}, b"[" * 100_000), *_UNREADABLE),
    "digits": ((200, {}, b'{"choices": [' + b"9" * 5000 + b"]}"), *_UNREADABLE),
}


def refuse_the_first(server: Server, reply: Reply) -> None:
    server.script = lambda body, n: reply if question(body) == "question 0" else planted(body, n)


@pytest.mark.parametrize(("reply", "kind", "words"), STOPS.values(), ids=STOPS)
def test_what_is_wrong_for_all_stops_at_once(
    server: Server, make: Make, reply: Reply, kind: type[Exception], words: str
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
    server: Server, make: Make, reply: Reply, words: str
) -> None:
    server.script = lambda asked, n: reply if "logprobs" in asked else answer("The answer is B.")
    api = make()
    with pytest.raises(NoScores, match=words):
        api.candidate_scores(prompts(3))
    late = NoScores("the answer to a prompt that was sent ahead, and comes late")
    api.client.stopped.append(late)
    assert api.generate(prompts(3), [""], 16).texts == [["The answer is B."]] * 3


@pytest.mark.parametrize(("reply", "kind", "words"), ONE_PROMPT.values(), ids=ONE_PROMPT)
def test_a_refusal_concerns_one_prompt(
    server: Server, make: Make, reply: Reply, kind: type[Exception], words: str
) -> None:
    refuse_the_first(server, reply)
    api, asked = make(retries=1), prompts(3)
    with pytest.raises(kind, match=words):
        api.candidate_scores(asked)
    assert np.isfinite(api.candidate_scores(asked[1:]).logits).all()
    assert server.asked["question 0"] == 1 + (kind is InfrastructureError)
    assert server.asked["question 1"] == server.asked["question 2"] == 1, "nothing is paid twice"
    server.script = planted
    with pytest.raises(kind, match=words):
        api.candidate_scores(asked[:1])
    assert np.isfinite(api.candidate_scores(asked[:1]).logits).all(), "what was kept goes out once"


@pytest.mark.parametrize("pictures", [True, False])
def test_an_endpoint_that_refuses_all_is_left_alone(
    server: Server, make: Make, pictures: bool
) -> None:
    """After as many pictures as count as all; of one picture that all questions show, never."""
    server.script = lambda body, n: refusal(400, "no image inputs")
    shown = [
        replace(prompt, images=(b"picture %d" % (i * pictures),))
        for i, prompt in enumerate(prompts(3 * DOWN_AFTER))
    ]
    api = make(concurrency=1)
    with pytest.raises(ModelError if pictures else PromptRefused, match="inputs; if it takes no"):
        api.candidate_scores(shown)
    assert len(server.times) == (DOWN_AFTER if pictures else len(shown))


def test_an_empty_answer_after_a_scored_one_is_refused_alone(server: Server, make: Make) -> None:
    """An answer without a token has no log-probabilities, also where the endpoint gives them."""
    server.script = planted
    api = make()
    api.candidate_scores(prompts(1))
    server.script = lambda body, n: answer("")
    with pytest.raises(PromptRefused, match="an empty answer"):
        api.candidate_scores(prompts(1, "ABC"))


def test_answers_without_log_probabilities_among_others_fail_alone(
    server: Server, make: Make
) -> None:
    """Gateways send some requests to a provider that gives none, be it the first one."""

    def reply(body: dict[str, Any], n: int) -> Reply:
        if question(body) == "question 0" and n == 1:
            return answer("B")
        time.sleep(0.1)
        return planted(body, n)

    server.script = reply
    api = make()
    assert np.isfinite(api.candidate_scores(prompts(3)).logits).all()
    server.script = lambda body, n: answer("B")
    for prompt in prompts(DOWN_AFTER - 1, "ABC"):
        with pytest.raises(PromptRefused, match="which others have"):
            api.candidate_scores([prompt])
    with pytest.raises(NoScores):
        api.candidate_scores(prompts(1, "ABCD"))


def test_busy_and_broken_servers_are_asked_again(server: Server, make: Make) -> None:
    faults: list[Reply | None] = [
        refusal(503),
        None,
        (200, {}, b"{not json"),
        (200, {}, b'{"choices": 5}'),
        refusal(200, "busy"),
    ]
    server.script = lambda body, n: (
        faults[int(question(body).split()[1])] if n == 1 else planted(body, n)
    )
    api = make()
    logits = api.candidate_scores(prompts(5)).logits[:, 0]
    assert np.exp(logits) == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05], rel=1e-5)
    assert set(server.asked.values()) == {2}
    assert (api.counts["requests"], api.counts["retries"]) == (10, 5)


def test_no_more_requests_than_allowed_are_paid(server: Server, make: Make) -> None:
    server.script = lambda body, n: refusal(503) if n == 1 else planted(body, n)
    api = make(max_requests=5, concurrency=1)
    with pytest.raises(InfrastructureError, match=r"options\.max_requests \(5\) is used up"):
        api.candidate_scores(prompts(4))
    assert len(server.times) == 5
    assert np.isfinite(api.candidate_scores(prompts(2)).logits).all(), "what was paid is kept"


def test_retry_after_makes_everybody_wait(server: Server, make: Make) -> None:
    server.script = lambda body, n: (
        refusal(429, Retry_After="0.8") if len(server.times) == 1 else planted(body, n)
    )
    make(concurrency=1).candidate_scores(prompts(4))
    assert len(server.times) == 5 and server.times[1] - server.times[0] >= 0.8


class _Drips(loopback.Handler):
    """A piece every 0.1 s, for 3 s."""

    def do_POST(self) -> None:
        self.body()
        with suppress(ConnectionError):
            self.reply(200, headers={"Content-Length": "30"})
            for _ in range(30):
                self.wfile.write(b"{")
                time.sleep(0.1)


def test_no_answer_in_time_is_infrastructure(server: Server, make: Make) -> None:
    server.script = lambda body, n: time.sleep(30) or planted(body, n)
    with pytest.raises(InfrastructureError, match=r"no answer within 0.3 s"):
        make(timeout=0.3, retries=0).candidate_scores(prompts(1))
    with loopback.serving(_Drips) as address, pytest.raises(InfrastructureError, match="0.3 s"):
        make(base_url=address, timeout=0.3, retries=0).candidate_scores(prompts(1))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(InfrastructureError, match="no connection"):
            make(base_url=url, retries=1).candidate_scores(prompts(1))


def test_an_endpoint_that_is_down_is_left_alone(server: Server, make: Make) -> None:
    server.script = lambda body, n: refusal(503)
    api = make(retries=0, concurrency=1)
    for start in range(0, 40, 10):
        with pytest.raises(EndpointUnavailable):
            api.candidate_scores(prompts(40)[start : start + 10])
    assert len(server.times) == DOWN_AFTER
    with pytest.raises(EndpointUnavailable, match="down"):
        api.candidate_scores(prompts(41)[40:])


def test_another_model_behind_the_same_name_is_noticed(server: Server, make: Make) -> None:
    server.script = lambda body, n: ok(
        completion([("A", -0.1)], model="tiny" if question(body) == "question 0" else "tiny-2")
    )
    api = make()
    api.candidate_scores(prompts(1))
    with pytest.raises(ModelError, match="'tiny-2', not from 'tiny'"):
        api.candidate_scores([prompts(2)[1]])
    with pytest.raises(ModelError, match="not from 'tiny-2024'"):
        make(served_model="tiny-2024").candidate_scores(prompts(1))


def test_an_answer_that_names_no_model_is_no_other_model(server: Server, make: Make) -> None:
    server.script = lambda body, n: ok(
        completion([("A", -0.1)], model="tiny" if question(body) == "question 0" else None)
    )
    api = make(concurrency=1)
    assert np.isfinite(api.candidate_scores(prompts(3)).logits[:, 0]).all()
    with pytest.raises(ModelError, match="names no model.*'tiny'.*options.served_model"):
        make(served_model="tiny", concurrency=1).candidate_scores(prompts(3))


def test_tokens_that_are_named_by_their_byte_are_read(server: Server, make: Make) -> None:
    server.script = lambda body, n: named(("<0x41>", -0.5), ("B", -1.5), ("<0xE2>", -3.0))
    batch = make(concurrency=1).candidate_scores(prompts(1, "AB"))
    assert batch.logits[0].tolist() == [-0.5, -1.5] and batch.top_token[0] == "A"


@pytest.mark.parametrize(
    ("content", "reason", "fields", "how"),
    [
        (None, "stop", {"refusal": "I'm sorry, I can't help with that."}, "refusal"),
        (None, "content_filter: SAFETY", {}, "refusal"),
        (None, "SAFETY", {}, "refusal"),
        ("", "stop", {}, "empty"),
        (None, "length", {}, "truncated"),
        ("The roofs", "MAX_TOKENS", {}, "truncated"),
        ("The roofs", "model_length", {}, "truncated"),
        ("B. The roofs", "length", {}, "option"),
        ("B. Roofs \ud83d", "length", {}, "option"),  # half of a surrogate pair
        ([{"type": "text", "text": "The answer "}, {"text": "is C."}], "stop", {}, "option"),
        ("<think>B?</think>\nC", "stop", {}, "option"),
        ("<think>B, or 5", "length", {}, "truncated"),
    ],
)
def test_what_is_no_letter_is_an_answer_that_counts(
    server: Server, make: Make, content: object, reason: str, fields: dict[str, Any], how: str
) -> None:
    """Neither a failure nor a reason to ask again."""
    server.script = lambda body, n: answer(content, reason, **fields)
    found = make().generate(prompts(2), [""], 16)
    assert read_letter(found.texts[0][0], "ABC", found.truncated[0][0])[1] == how
    assert len(server.bodies) == 2


@pytest.mark.parametrize("mark", ["<think>", "<|channel|>", "[THINK]"])
def test_most_of_the_first_answers_must_not_begin_with_a_thought(
    server: Server, make: Make, mark: str
) -> None:
    server.script = lambda body, n: named((mark, -0.01), ("A", -5.0))
    with pytest.raises(ModelError, match=r"begins its answers with .*options\.body"):
        make(concurrency=1).candidate_scores(prompts(20))
    assert len(server.bodies) == 8
    server.script = lambda body, n: (  # now and then
        named((mark, -0.01), ("A", -5.0))
        if int(question(body).split()[1]) % 2
        else planted(body, n)
    )
    assert np.isfinite(make().candidate_scores(prompts(20)).logits[:, 0]).all()


def test_what_was_chosen_at_temperature_0_is_no_score(server: Server, make: Make) -> None:
    """As of servers that return the log-probabilities behind the choice of the likeliest token."""
    server.script = lambda body, n: named(("A", 0.0), *[("A", 0.0)] * (n % 2), ("B", -9999.0))
    with pytest.raises(ModelError, match=r"no other token any.*temperature to default.*to 0 in"):
        make(concurrency=1).candidate_scores(prompts(20))
    assert len(server.bodies) == 8
    assert make(top_logprobs=1).candidate_scores(prompts(20)).mass.min() == 1, "one was requested"


@pytest.mark.parametrize(
    ("limits", "used"), [({"requests": 600}, 10), ({"tokens": 60_000}, 100)], ids=str
)
def test_requests_are_spaced_by_the_limits_of_a_minute(
    server: Server, make: Make, limits: dict[str, int], used: int
) -> None:
    """Of ten a second, once it is known what one uses."""
    server.script = lambda body, n: ok(completion([("A", -0.1)], prompt_tokens=used - 1))
    make(limits=limits, image_tokens=100, concurrency=1).candidate_scores(prompts(8))
    assert 0.5 <= server.times[-1] - server.times[1] < 60  # six gaps of 0.1 s
