"""The API engine's limits: requests and tokens per minute, the budget and its ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sdgbias.engines.api.engine import Api
from sdgbias.engines.api.http import BudgetSpent
from sdgbias.errors import InfrastructureError, StoreError
from tests.builders.endpoint import Reply, Server, completion, ok, planted, prompts

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
