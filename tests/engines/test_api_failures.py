"""The API engine where requests fail: retries, waits, refusals, endpoints that are down."""

from __future__ import annotations

import email.utils
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
from sdgbias.errors import InfrastructureError, ModelError
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

# ----------------------------------------------------------------------
# failures


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
    assert (api.counters()["requests"], api.counters()["retries"]) == (10, 5)


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


def test_retry_after_as_a_date_and_beyond_patience(
    server: Server, make: Callable[..., Api]
) -> None:
    server.script = lambda body, n: refusal(
        429, Retry_After=email.utils.formatdate(time.time() + 7200, usegmt=True)
    )
    api = make()
    with pytest.raises(InfrastructureError, match=r"asks to wait 7\d\d\d s"):
        api.candidate_scores(prompts(1))
    with pytest.raises(InfrastructureError, match="later"):
        api.candidate_scores(prompts(1))
    assert len(server.times) == 1


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
    ("reply", "words"),
    [
        (refusal(401, f"bad key {KEY}"), "UNIT_KEY"),
        (refusal(403), "UNIT_KEY"),
        (refusal(404, "no such model"), "options.model"),
        (refusal(429, "pay first", "insufficient_quota"), "account behind UNIT_KEY"),
        (refusal(400, "logprobs are not supported"), "logprobs are not supported"),
        (
            refusal(400, "This model does not support image inputs."),
            "inputs; if it takes no pic.*q_",
        ),
        ((307, {"Location": "http://127.0.0.1:9/v1/chat/completions"}, b""), "not followed"),
        (ok(completion(None)), "no log-probabilities"),
        (ok(completion([("A", 2.5)])), "no log-probability"),
        (ok(completion([("A", float("nan"))])), "no log-probability"),
        (ok(completion([("A", -(10**400))])), "no log-probability"),
    ],
    ids=[
        "401",
        "403",
        "404",
        "quota",
        "400",
        "no pictures",
        "redirect",
        "no logprobs",
        "positive",
        "nan",
        "beyond floats",
    ],
)
def test_what_is_wrong_for_all_stops_at_once(
    server: Server, make: Callable[..., Api], reply: Reply, words: str
) -> None:
    server.script = lambda body, n: reply
    api = make(concurrency=1)
    with pytest.raises(ModelError, match=words) as caught:
        api.candidate_scores(prompts(20))
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)
    assert len(server.times) == 1


@pytest.mark.parametrize(
    "reply",
    [
        refusal(400, "flagged", "content_filter"),
        refusal(400, "This model's maximum context length is 512 tokens", None),
        refusal(413, "too big"),
        ok(
            {
                **completion([("A", -0.1)]),
                "choices": [
                    {
                        "message": {"content": ""},
                        "finish_reason": "content_filter",
                        "logprobs": None,
                    }
                ],
            }
        ),
        ok(completion([])),
        ok({**completion([("A", -0.1)]), "choices": []}),
    ],
    ids=["flagged", "long", "413", "filtered answer", "empty", "no choice"],
)
def test_a_refusal_concerns_one_prompt(
    server: Server, make: Callable[..., Api], reply: Reply
) -> None:
    server.script = lambda body, n: reply if question(body) == "question 1" else planted(body, n)
    api, asked = make(), prompts(3)
    with pytest.raises(PromptRefused):
        api.candidate_scores(asked)
    assert np.isfinite(api.candidate_scores([asked[2]]).logits).all()
    assert sum(server.asked.values()) == 3


@pytest.mark.parametrize(
    "reply",
    [
        (200, {"Content-Encoding": "gzip"}, b"no gzip"),
        (200, {}, b"[" * 100_000),
        (200, {}, b'{"choices": [' + b"9" * 5000 + b"]}"),
    ],
    ids=["gzip", "deep", "digits"],
)
def test_an_unreadable_answer_fails_one_prompt_and_keeps_the_others(
    server: Server, make: Callable[..., Api], reply: Reply
) -> None:
    server.script = lambda body, n: reply if question(body) == "question 1" else planted(body, n)
    api, asked = make(retries=1), prompts(3)
    with pytest.raises(InfrastructureError, match="after 2 tries"):
        api.candidate_scores(asked)
    assert np.isfinite(api.candidate_scores([asked[2]]).logits).all()
    assert server.asked["question 2"] == 1 and server.asked["question 1"] == 2


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
    assert api.counters()["prompt_tokens"] == 0


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
