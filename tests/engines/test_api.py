"""The API engine against a real server on loopback: real sockets, real waits, real dropped
connections."""

from __future__ import annotations

import base64
import email.utils
import json
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.api.engine import Api, first_token
from sdgbias.engines.api.http import DOWN_AFTER, BudgetSpent, PromptRefused
from sdgbias.errors import InfrastructureError, ModelError, RegistryError, StoreError
from sdgbias.registry import changes, entries
from sdgbias.types import ModelSpec, Prompt

KEY = "unit-test-key-0123456789abcdef"
PNG = b"\x89PNG\r\n\x1a\n-not-looked-at"
Reply = tuple[int, dict[str, str], bytes]


def completion(
    named: list[tuple[str, float]] | None, text: str = "A", prompt_tokens: int = 10, **more: Any
) -> dict[str, Any]:
    """A chat completion whose first token has these alternatives."""
    top = (
        None
        if named is None
        else [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in named]
    )
    logprobs = (
        None if top is None else {"content": [{**top[0], "top_logprobs": top}] if top else []}
    )
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": logprobs,
        "finish_reason": "length",
    }
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 1,
        "total_tokens": prompt_tokens + 1,
    }
    return {
        "model": "tiny",
        "system_fingerprint": "fp1",
        "choices": [choice],
        "usage": usage,
    } | more


def ok(answer: dict[str, Any]) -> Reply:
    return 200, {}, json.dumps(answer).encode()


def refusal(status: int, message: str = "no", code: str | None = None, **headers: str) -> Reply:
    return (
        status,
        {k.replace("_", "-"): v for k, v in headers.items()},
        json.dumps({"error": {"message": message, "code": code}}).encode(),
    )


def question(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"][-1]["text"])


class Server:
    """Answers by `script(body, time it was asked this question)`; None drops the connection. Counts
    what a test asks about."""

    def __init__(self) -> None:
        self.script: Callable[[dict[str, Any], int], Reply | None] = lambda body, n: ok(
            completion([("A", -0.1), ("B", -3.0)])
        )
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.now = self.most = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return None

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.now += 1
                    outer.most = max(outer.most, outer.now)
                    outer.asked[question(body)] += 1
                    n = outer.asked[question(body)]
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                    outer.times.append(time.monotonic())
                try:
                    reply = outer.script(body, n)
                finally:
                    with lock:
                        outer.now -= 1
                if reply is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                status, headers, content = reply
                self.send_response(status)
                for name, value in {
                    "Content-Type": "application/json",
                    "Content-Length": str(len(content)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                with suppress(ConnectionError):  # a client that waited no longer
                    self.end_headers()
                    self.wfile.write(content)

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/v1"
        threading.Thread(
            target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()


@pytest.fixture
def server() -> Iterator[Server]:
    s = Server()
    yield s
    s.httpd.shutdown()
    s.httpd.server_close()


@pytest.fixture
def make(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Callable[..., Api]]:
    monkeypatch.setenv("UNIT_KEY", KEY)
    made: list[Api] = []

    def api(**options: Any) -> Api:
        made.append(Api(spec(server, **options), tmp_path))
        return made[-1]

    yield api
    for one in made:
        one.close()


def spec(server: Server, **options: Any) -> ModelSpec:
    base = {
        "api_key_env": "UNIT_KEY",
        "base_url": server.url,
        "model": "tiny",
        "backoff": 0.01,
        "retries": 3,
        "timeout": 60,
    }
    return ModelSpec(
        "closed",
        "Closed",
        "api",
        "someone/closed",
        "2024-08-06",
        "candidate",
        reason="test",
        options={**base, **options},
    )


def prompts(n: int, candidates: str = "AB") -> list[Prompt]:
    return [Prompt(f"question {i}", candidates) for i in range(n)]


def planted(body: dict[str, Any], n: int) -> Reply:
    """Scores that depend on the question alone."""
    i = int(question(body).split()[1])
    p = (i + 1) / 100
    return ok(completion([("A", math.log(p)), ("B", math.log(0.9 - p))]))


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
    api = make(prices={"input": 2.0, "output": 8.0})
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
    counted = api.counters()
    assert (
        counted["requests"],
        counted["answers"],
        counted["prompt_tokens"],
        counted["completion_tokens"],
    ) == (2, 2, 20, 2)
    assert counted["cost"] == pytest.approx((20 * 2 + 2 * 8) / 1e6) and counted["served"] == [
        "tiny fp1"
    ]


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
    make(limit_field="max_completion_tokens", body={"seed": 1}, detail="low").candidate_scores(
        [Prompt("q", "AB", (PNG,), "x")]
    )
    body = server.bodies[0]
    assert body["max_completion_tokens"] == 1 and "max_tokens" not in body and body["seed"] == 1
    assert body["messages"][0]["content"][0]["image_url"]["detail"] == "low"


# ----------------------------------------------------------------------
# failures


def test_busy_and_broken_servers_are_asked_again(server: Server, make: Callable[..., Api]) -> None:
    faults: list[Reply | None] = [
        refusal(503),
        None,
        (200, {}, b"{not json"),
        (200, {}, b'{"choices": []}'),
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
        api.candidate_scores(prompts(1))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refusal(401, f"bad key {KEY}"), "UNIT_KEY"),
        (refusal(403), "UNIT_KEY"),
        (refusal(404, "no such model"), "options.model"),
        (refusal(429, "pay first", "insufficient_quota"), "account behind UNIT_KEY"),
        (refusal(400, "logprobs are not supported"), "logprobs are not supported"),
        ((307, {"Location": "http://127.0.0.1:9/v1/chat/completions"}, b""), "not followed"),
        (ok(completion(None)), "no log-probabilities"),
        (ok(completion([("A", 2.5)])), "no log-probability"),
        (ok(completion([("A", float("nan"))])), "no log-probability"),
    ],
    ids=["401", "403", "404", "quota", "400", "redirect", "no logprobs", "positive", "nan"],
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
    ],
    ids=["flagged", "long", "413", "filtered answer", "empty"],
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


# ------------------------------------------------------------------------------------------- limits
# and money


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


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_budget_is_never_exceeded_and_what_was_paid_is_kept(
    server: Server, make: Callable[..., Api], concurrency: int
) -> None:
    server.script = planted
    api, asked = (
        make(prices={"input": 100.0, "output": 0.0}, budget=0.025, concurrency=concurrency),
        prompts(40),
    )
    with pytest.raises(BudgetSpent, match="raise options.budget"):
        api.candidate_scores(asked)
    cost = api.counters()["cost"]
    # 10 tokens a prompt cost 0.001; the next one might cost (10 + 64 + 10 bytes) * 1e-4
    assert 0.025 - 0.0085 < cost <= 0.025
    paid = 0
    for prompt in asked:
        try:
            api.candidate_scores([prompt])
            paid += 1
        except BudgetSpent:
            pass
    assert paid == len(server.times) == round(cost / 0.001)
    assert isinstance(BudgetSpent("x"), InfrastructureError)


def test_the_budget_is_that_of_a_run_over_all_starts(
    server: Server, make: Callable[..., Api], tmp_path: Path
) -> None:
    server.script = planted
    money = {
        "prices": {"input": 100.0},
        "budget": 0.025,
        "concurrency": 3,
    }  # 10 tokens a prompt cost 0.001
    ledger, asked = tmp_path / "spent.json", prompts(40)

    def start(run: str) -> float:
        api = make(**money)
        api.use_ledger(ledger, run)
        with pytest.raises(BudgetSpent):
            api.candidate_scores(asked)
        return float(str(api.counters()["cost"]))

    first = start("one")
    assert 0.025 - 0.0085 < first <= 0.025
    assert start("one") <= 0.0085 and json.loads(ledger.read_text())["one"] <= 0.025
    before = len(server.times)
    assert (
        start("one") == 0.0 and len(server.times) == before
    )  # nothing is left, so nothing is asked
    assert start("two") == first  # another benchmark has a budget of its own
    assert set(json.loads(ledger.read_text())) == {"one", "two"}
    with pytest.raises(BudgetSpent, match="0.025 is spent"):
        api = make(**money)
        api.use_ledger(ledger, "one")
        api.candidate_scores(asked[:1])


def test_what_was_in_flight_when_a_process_died_counts_as_paid(
    server: Server, make: Callable[..., Api], tmp_path: Path
) -> None:
    ledger = tmp_path / "spent.json"
    seen: list[float] = []

    def look(body: dict[str, Any], n: int) -> Reply:
        seen.append(
            json.loads(ledger.read_text())["run"]
        )  # what a start after a kill at this moment would find
        return planted(body, n)

    server.script = look
    api = make(prices={"input": 100.0}, concurrency=1)
    api.use_ledger(ledger, "run")
    api.candidate_scores(prompts(2))
    most = (10 + 64) * 1e-4  # bytes of the question and what a template adds
    assert seen == pytest.approx([most, 0.001 + most]) and json.loads(ledger.read_text())[
        "run"
    ] == pytest.approx(0.002)


@pytest.mark.parametrize("text", ["{", "[1]", '{"run": "much"}', '{"run": null}'])
def test_a_ledger_that_cant_be_read_stops_before_anything_is_sent(
    server: Server, make: Callable[..., Api], tmp_path: Path, text: str
) -> None:
    (tmp_path / "spent.json").write_text(text)
    with pytest.raises(StoreError, match="spent.json"):
        make(prices={"input": 1.0}, budget=1.0).use_ledger(tmp_path / "spent.json", "run")
    assert not server.times


def test_an_estimate_that_was_too_small_is_raised(server: Server, make: Callable[..., Api]) -> None:
    server.script = lambda body, n: ok(
        completion([("A", -0.1)], prompt_tokens=200)
    )  # 0.02 each, where 0.0074 was expected
    api = make(prices={"input": 100.0}, budget=0.05, concurrency=1)
    with pytest.raises(BudgetSpent):
        api.candidate_scores(prompts(9))
    assert len(server.times) == 2 and api.counters()["cost"] == pytest.approx(0.04)


def test_work_that_may_be_billed_without_an_answer_counts(
    server: Server, make: Callable[..., Api]
) -> None:
    server.script = lambda body, n: None if n == 1 else planted(body, n)
    api = make(prices={"input": 100.0}, budget=1.0)
    api.candidate_scores(prompts(1))
    assert api.counters()["cost"] == pytest.approx(0.001 + (10 + 64) * 1e-4)


# ------------------------------------------------------------------------------------------- entry,
# key, identity


def test_the_key_appears_nowhere(
    server: Server, make: Callable[..., Api], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api = make()
    api.candidate_scores(prompts(1))
    assert KEY not in caplog.text and KEY not in repr(api) + repr(api.options) + repr(
        api.counters()
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
        ({"base_url": ""}, "base_url is missing"),
        ({"top_logprobs": 0}, "top_logprobs is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"limits": {"requests": -1}}, "limits is"),
        ({"limits": {"images": 1}}, "limits is"),
        ({"budget": 3}, "without prices"),
        ({"candidate_ids": {"AB": [1]}}, "candidate_ids is"),
        ({"body": {"temperature": 1}}, "body is"),
        ({"topk": 5}, "unknown option 'topk'; valid: api_key_env"),
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


def test_the_registry_takes_every_option(server: Server) -> None:
    full = spec(
        server,
        served_model="tiny",
        candidate_ids={"A": [1]},
        prefill=True,
        limits={"requests": 500, "tokens": 30000},
        prices={"input": 2.5, "cached": 1.25, "output": 10},
        budget=5,
        image_tokens=1100,
        patience=60,
        body={"seed": 1},
    )
    assert entries.parse(changes.to_dict(full), "closed.yaml").options == full.options


def test_the_fingerprint_follows_what_changes_scores(
    server: Server, make: Callable[..., Api], tmp_path
) -> None:
    base = make().fingerprint
    same = [
        {"concurrency": 2},
        {"budget": 1, "prices": {"input": 1}},
        {"timeout": 9},
        {"base_url": "http://127.0.0.1:1/v1"},
    ]
    other = [
        {"model": "x"},
        {"top_logprobs": 5},
        {"spellings": 2},
        {"detail": "low"},
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
