"""A team's webhook on loopback."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.builders import loopback


class Receiver:
    """answers: HTTP codes in turn, the last one for good; bodies, texts, paths: what was sent."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.paths = list(answers), []  # type: ignore[var-annotated]
        self.bodies: list[dict[str, Any]] = []
        self.texts: queue.Queue[str] = queue.Queue()
        outer = self

        class Webhook(loopback.Handler):
            def do_POST(self) -> None:
                body = json.loads(self.body())
                outer.paths.append(self.path)
                outer.bodies.append(body)
                outer.texts.put(body.get("text", ""))
                code = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                where = {"Location": "http://127.0.0.1:1/elsewhere"} if code == 302 else {}
                self.reply(code, headers=where)

        self.server, address = loopback.start(Webhook)
        self.url = f"{address}/services/T0/s3cret"


@contextmanager
def receiving(*answers: int) -> Iterator[Receiver]:
    receiver = Receiver(*answers)
    try:
        yield receiver
    finally:
        loopback.stop(receiver.server)


@contextmanager
def webhook() -> Iterator[tuple[str, queue.Queue[str]]]:
    """(its address, the texts that it is sent)."""
    with receiving(200) as receiver:
        yield receiver.url, receiver.texts
