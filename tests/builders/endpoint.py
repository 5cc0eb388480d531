"""A real endpoint on loopback that a test scripts: what it answers, when it drops a connection."""

from __future__ import annotations

import base64
import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sdgbias.raw.images.shards import image_id
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Prompt
from tests.builders import loopback

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


def prompt(body: dict[str, Any], candidates: str) -> Prompt:
    """What a request asks about its pictures, with the id of the picture."""
    pictures = body["messages"][0]["content"][:-1]
    urls = [part["image_url"]["url"] for part in pictures]
    images = tuple(base64.b64decode(url.partition(",")[2]) for url in urls)
    return Prompt(question(body), candidates, images, image_id(images) if images else "")


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
        self.lock = lock = threading.Lock()
        outer = self

        class Handler(loopback.Handler):
            def do_POST(self) -> None:
                body = json.loads(self.body())
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
                with suppress(ConnectionError):  # a client that waited no longer
                    self.reply(status, content, {"Content-Type": "application/json", **headers})

        self.httpd, address = loopback.start(Handler)
        self.url = f"{address}/v1"

    def close(self) -> None:
        loopback.stop(self.httpd)


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
