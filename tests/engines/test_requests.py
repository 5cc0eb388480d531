"""An endpoint is never without requests at the end of a chunk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines.api.engine import Api
from sdgbias.errors import InfrastructureError
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import Scorer
from tests.builders.endpoint import KEY, Reply, Server, planted, prompts, question, refusal, spec


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("UNIT_KEY", KEY)
    server = Server()
    server.script = planted
    yield server
    server.httpd.shutdown()


def test_requests_of_the_next_chunk_are_sent_before_the_last_answer_of_one(
    server: Server, tmp_path: Path
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
    api = Api(spec(server, concurrency=8), Path())
    scorer = Scorer(api, ScoreCache(tmp_path, "m", "f"), {}, spec(server))
    scorer.size = 4

    scorer.score(rows, lambda *_: None)

    assert len(scorer.cache.compact("scores")) == 8 and not scorer.failures
    assert set(server.asked.values()) == {1}, "nothing is paid twice"


def test_a_chunk_that_is_halved_pays_for_no_answer_twice(server: Server) -> None:
    server.script = lambda body, n: (
        refusal(400, "no", "content_filter") if question(body) == "question 3" else planted(body, n)
    )
    api, asked = Api(spec(server), Path()), prompts(8)
    with pytest.raises(Exception, match="content_filter"):
        api.candidate_scores(asked)
    with pytest.raises(Exception, match="content_filter"):
        api.candidate_scores(asked[:4])
    assert np.isfinite(api.candidate_scores(asked[4:]).logits).all()
    assert np.isfinite(api.candidate_scores(asked[:3]).logits).all()
    assert set(server.asked.values()) == {1}


def test_what_was_sent_ahead_and_failed_fails_its_own_chunk(server: Server) -> None:
    server.script = lambda body, n: (
        refusal(503) if question(body) == "question 9" else planted(body, n)
    )
    api = Api(spec(server, retries=0), Path())
    api.prefetch(prompts(4))
    api.prefetch(prompts(10)[4:])
    assert np.isfinite(api.candidate_scores(prompts(4)).logits).all()
    with pytest.raises(InfrastructureError, match="503"):
        api.candidate_scores(prompts(10)[4:])
