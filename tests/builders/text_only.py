"""A real endpoint on loopback that gives text only, as closed models do: the answers of the planted
models, in sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sdgbias.engines import load
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS
from tests.builders.endpoint import Reply, Server, completion, ok, prompt

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ModelSpec("planted", "Planted", "planted", "planted", "planted-1", "enabled")
#: Answers about development instead of a letter, by the first digit of the picture's digest.
SAYS = {
    "0": "I'm sorry, but I can't assist with that.",
    "1": "That depends on many things.",
    "2": "Looking at the satellite image, the roofs and the",
}


class Endpoint(Server):
    """Counts requests, and those that ask for log-probabilities, which it ignores. ``people``: the
    planted model of the other suite."""

    def __init__(self, people: Any = None) -> None:
        super().__init__()
        self.model, self.people = load(PLANTED, ROOT), people
        self.requests = self.scored = 0
        self.script = self.answer

    def answer(self, body: dict[str, Any], n: int) -> Reply:
        """A chat completion of the model that was asked for."""
        with self.lock:
            self.requests += 1
            self.scored += bool(body.get("logprobs"))
            self.bodies.clear()  # a whole run's pictures
        text, cut = self._says(body)
        reply = completion(None, text, model=body["model"])
        reply["choices"][0]["finish_reason"] = "length" if cut else "stop"
        return ok(reply)

    def _says(self, body: dict[str, Any]) -> tuple[str, bool]:
        """(answer, whether the limit of tokens ended it)."""
        asked = prompt(body, "")
        if self.people and (asked.text, asked.image_id) in self.people.behaviour.questions:
            return self.people.generate([asked], [""], 0).texts[0][0], False
        letters = letters_of(asked.text)
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        numbered = replace(asked, candidates=letters or DIGITS)
        text = self.model.generate([numbered], [""], limit).texts[0][0]
        if not letters:
            return text, False
        first = asked.image_id[:1]
        return SAYS.get(first, f"The answer is {text[0]}."), first == "2"


def letters_of(text: str) -> str:
    """The letters of a prompt's options; '' of one that asks for a number."""
    return next((c for c in ("ABC", "AB") if f"VALID OPTIONS: {', '.join(c)}" in text), "")
