"""The API engine's limits: requests and tokens per minute, spaced by what is used."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sdgbias.engines.api.engine import Api
from tests.builders.endpoint import Server, completion, ok, planted, prompts


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
