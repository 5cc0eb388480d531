"""A model of the engine hf behind an OpenAI-compatible endpoint on loopback, with exact scores of
the tokens that a request names by id, as vLLM and SGLang give them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from sdgbias.engines import Backend
from sdgbias.types import DIGITS, OPTION_LETTERS
from tests.builders.endpoint import Reply, Server, completion, ok, prompt

#: Stand-ins for the ids of the tokens: the number of each candidate.
_IDS = {candidate: number for number, candidate in enumerate(DIGITS + OPTION_LETTERS)}
OPTIONS: dict[str, Any] = {
    "prefill": True,
    "candidate_ids": {candidate: [number] for candidate, number in _IDS.items()},
}


def serve(engine: Backend) -> Server:
    """A server that answers by the engine until it is shut down."""
    server, one_at_a_time = Server(), threading.Lock()

    def script(body: dict[str, Any], n: int) -> Reply:
        with one_at_a_time:
            if not body.get("logprobs"):
                return _answer(engine, body)
            return _score(engine, body)

    server.script = script
    return server


def _score(engine: Backend, body: dict[str, Any]) -> Reply:
    wanted = body["logprob_token_ids"]
    candidates = "".join(c for c, number in _IDS.items() if number in wanted)
    scores = engine.candidate_scores([prompt(body, candidates)])
    logits = scores.logits[0].astype(np.float64)
    # log-probabilities over the whole vocabulary: the candidates have ``mass`` of it
    log_p = logits - np.logaddexp.reduce(logits) + np.log(scores.mass[0])
    named = [(c, float(value)) for c, value in zip(candidates, log_p, strict=True)]
    return ok(completion(named, prompt_tokens=int(scores.n_tokens[0])))


def _answer(engine: Backend, body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    start = str(last["content"]) if last["role"] == "assistant" else ""
    answers = engine.generate([prompt(body, DIGITS)], [start], body["max_tokens"])
    [[text]], [[truncated]] = answers.texts, answers.truncated
    answer = completion(None, text.removeprefix(start))
    answer["choices"][0]["finish_reason"] = "length" if truncated else "stop"
    return ok(answer)
