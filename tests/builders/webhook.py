"""A team's webhook on loopback."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """answers: HTTP codes in turn, the last one for good; bodies, texts, paths: what was sent."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.paths = list(answers), []  # type: ignore[var-annotated]
        self.bodies: list[dict[str, Any]] = []
        self.texts: queue.Queue[str] = queue.Queue()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.paths.append(self.path)
                outer.bodies.append(body)
                outer.texts.put(body.get("text", ""))
                code = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/T0/s3cret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextmanager
def receiving(*answers: int) -> Iterator[Receiver]:
    receiver = Receiver(*answers)
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()


@contextmanager
def webhook() -> Iterator[tuple[str, queue.Queue[str]]]:
    """(its address, the texts that it is sent)."""
    with receiving(200) as receiver:
        yield receiver.url, receiver.texts
