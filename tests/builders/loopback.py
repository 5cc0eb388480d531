"""Real HTTP servers on loopback, which stand-ins answer with."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

    def body(self) -> bytes:
        """What the request holds, in one piece or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, status: int, content: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def reply_json(self, value: object, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def log_message(self, *_: object) -> None:
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that was ended or waits no longer
            super().handle_error(request, client_address)


def start(handler: type[Handler]) -> tuple[ThreadingHTTPServer, str]:
    """A server that answers until it is stopped, and its address."""
    server = _Server(("127.0.0.1", 0), handler)
    often = {"poll_interval": 0.02}
    threading.Thread(target=server.serve_forever, kwargs=often, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


def stop(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """The address of a server, while it answers."""
    server, address = start(handler)
    try:
        yield address
    finally:
        stop(server)
