"""The part of a hub on loopback that takes uploads: a real HTTP server that speaks the endpoints
that HfApi.create_repo and upload_folder ask, every file sent in the commit itself."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Uploads:
    """private: repository -> whether it was created private. files: path -> bytes of the commit.
    token: the only one it accepts."""

    token: str
    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def taking_uploads(monkeypatch: Any, home: Path, token: str, sent: str) -> Iterator[Uploads]:
    """A hub that accepts ``token``; this process's client asks it, with the token ``sent``."""
    from huggingface_hub import constants

    hub = Uploads(token)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_TOKEN", sent)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: Uploads) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

        def do_GET(self) -> None:
            """What the client asks of its own accord; with a wrong token, whether the repository is
            there in spite of it."""
            wrong = self.path.startswith("/api/datasets/")
            self.say({"error": "Invalid username or password."} if wrong else {}, 401 * wrong)

        def do_POST(self) -> None:
            body = self.read()
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.say({"error": "Invalid username or password."}, 401)
            elif self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                assert asked["type"] == "dataset"
                hub.private[name] = asked["visibility"] == "private"
                self.say({"url": f"{hub.url}/datasets/{name}", "name": name, "id": "1"})
            elif "/preupload/" in self.path:
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                self.say({"files": files})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        hub.files[value["path"]] = base64.b64decode(value["content"])
                url = f"{hub.url}{self.path.removeprefix('/api').removesuffix('/main')}/1"
                self.say({"commitUrl": url, "commitOid": "1", "success": True})
            else:  # api/validate-yaml
                self.say({"errors": [], "warnings": []})

        def read(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def say(self, found: object, status: int = 0) -> None:
            body = json.dumps(found).encode()
            self.send_response(status or 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
