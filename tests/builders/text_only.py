"""A real endpoint on loopback that gives text only, as closed models do: the answers of the planted
models, in sentences."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sdgbias.engines import load
from sdgbias.raw.images.shards import image_id
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Prompt

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ModelSpec("planted", "Planted", "planted", "planted", "planted-1", "enabled")
#: Answers about development instead of a letter, by the first digit of the picture's digest.
SAYS = {
    "0": "I'm sorry, but I can't assist with that.",
    "1": "That depends on many things.",
    "2": "Looking at the satellite image, the roofs and the",
}


#: A reply other than an answer: status and body.
Refusal = tuple[int, object]


class Endpoint:
    """Counts requests, and those that ask for log-probabilities, which it ignores. ``people``: the
    planted model of the other suite. ``refuses``: requests that get another reply. ``parts``: the
    content of an answer is a list of parts."""

    def __init__(self, people: Any = None) -> None:
        self.model, self.people = load(PLANTED, ROOT), people
        self.asked = self.scored = 0
        self.refuses: Callable[[dict[str, Any]], Refusal | None] = lambda body: None
        self.parts = False
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return None

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.asked += 1
                    outer.scored += bool(body.get("logprobs"))
                status, reply = outer.refuses(body) or (200, outer.answer(body))
                content = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/v1"
        threading.Thread(
            target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion of the model that was asked for."""
        *pictures, words = body["messages"][0]["content"]
        images = tuple(
            base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in pictures
        )
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        said, cut = self._says(words["text"], images, limit)
        halves = [{"type": "text", "text": half} for half in (said[:3], said[3:])]
        choice = {
            "message": {"role": "assistant", "content": halves if self.parts else said},
            "finish_reason": "length" if cut else "stop",
        }
        usage = {"prompt_tokens": 10, "completion_tokens": 4}
        return {"model": body["model"], "choices": [choice], "usage": usage}

    def _says(self, text: str, images: tuple[bytes, ...], limit: int) -> tuple[str, bool]:
        """(answer, whether the limit of tokens ended it)."""
        shown = image_id(images) if images else ""
        if self.people and (text, shown) in self.people.questions:
            return self.people.generate([Prompt(text, "", images, shown)], [""], 0).texts[0][
                0
            ], False
        letters = next((c for c in ("ABC", "AB") if f"VALID OPTIONS: {', '.join(c)}" in text), "")
        prompt = Prompt(text, letters or DIGITS, images, shown)
        said = self.model.generate([prompt], [""], limit).texts[0][0]
        if not letters:
            return said, False
        return SAYS.get(shown[:1], f"The answer is {said[0]}."), shown[:1] == "2"
