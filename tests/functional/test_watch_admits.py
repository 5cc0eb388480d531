"""A release on the hub becomes a model of tonight's run without a person: registered, fetched,
asked in a process, enabled; announced in one message."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdgbias.cli.models import models_app
from sdgbias.registry import entries, seen
from tests.builders.commands import REPOSITORY
from tests.builders.hub import Hub, Repo, commit, folder


class Hook:
    """Takes messages as a web address that takes JSON does."""

    def __enter__(self) -> Hook:
        self.received: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                size = int(handler.headers["Content-Length"])
                self.received.append(handler.rfile.read(size).decode())
                handler.send_response(200)
                handler.end_headers()

            def log_message(handler, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


RULES = """
commits: true
owners: [{owner: lab}]
probe: {questions: 12, minutes: 30}
enable: when_admitted
"""


# tests/nightly/test_admit.py takes every turn of it without the process that asks
@pytest.mark.long
def test_a_release_is_asked_and_enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registry" / "models").mkdir(parents=True)
    (tmp_path / "registry" / "watch.yaml").write_text(RULES)
    (tmp_path / "expectations").symlink_to(REPOSITORY / "expectations")
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    files = folder(REPOSITORY / "registry" / "weights" / "tiny-llava")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with Hub({"lab/tiny": Repo([commit(files)])}) as hub:
        hub.into(monkeypatch, tmp_path / "hf")
        with Hook() as hook:
            monkeypatch.setenv("HOOK", hook.url)
            told = CliRunner().invoke(models_app, ["watch", "--webhook-env", "HOOK"])
            again = CliRunner().invoke(models_app, ["watch", "--webhook-env", "HOOK"])
    assert again.exit_code == 0 and "nothing new in 1" in again.output
    (message,) = hook.received
    assert "new repository" in message and "admitted" in message, "one message, and one alone"
    assert told.exit_code == 0, told.output
    assert "new repository" in told.output and "hours of one h100 for the full" in told.output
    assert "admitted        tiny: enabled: evaluated from tonight on" in told.output
    assert entries.load(tmp_path, "tiny").enabled
    row = seen.read(tmp_path)["lab/tiny"]
    assert (row.verdict, row.name) == ("admitted", "tiny") and row.versions["transformers"]
