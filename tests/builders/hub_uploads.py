"""The part of a hub on loopback that takes uploads: a real HTTP server that speaks the endpoints
that HfApi.create_repo and upload_folder ask, every file sent in the commit itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import loopback


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
    with loopback.serving(_handler(hub)) as hub.url:
        monkeypatch.setenv("HF_TOKEN", sent)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        yield hub


def _handler(hub: Uploads) -> type[loopback.Handler]:
    class Handler(loopback.Handler):
        def do_GET(self) -> None:
            """What the client asks of its own accord; with a wrong token, whether the repository is
            there in spite of it."""
            wrong = self.path.startswith("/api/datasets/")
            self.reply_json(
                {"error": "Invalid username or password."} if wrong else {}, 401 if wrong else 200
            )

        def do_POST(self) -> None:
            body = self.body()
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.reply_json({"error": "Invalid username or password."}, 401)
            elif self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                assert asked["type"] == "dataset"
                hub.private[name] = asked["visibility"] == "private"
                self.reply_json({"url": f"{hub.url}/datasets/{name}", "name": name, "id": "1"})
            elif "/preupload/" in self.path:
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                self.reply_json({"files": files})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        hub.files[value["path"]] = base64.b64decode(value["content"])
                url = f"{hub.url}{self.path.removeprefix('/api').removesuffix('/main')}/1"
                self.reply_json({"commitUrl": url, "commitOid": "1", "success": True})
            else:  # api/validate-yaml
                self.reply_json({"errors": [], "warnings": []})

    return Handler
