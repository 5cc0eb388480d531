"""A real Prefect server on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from tests.builders.commands import free_port

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found], seconds: float = 600) -> Found:
    """What ``look`` finds, as soon as it finds anything."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)  # each look asks the server
    return found


@dataclass(frozen=True)
class Page:
    """What a person does in Prefect's page, as the requests that the page makes."""

    api: str

    def answer(self, path: str, body: object = None) -> Any:
        """An answer of the server; without a body to GET. [] while it doesn't answer, or not yet:
        on SQLite it refuses some calls while it is busy."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.api}/{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code in (404, 503) or error.code >= 500:
                return []
            raise
        except (OSError, ValueError, HTTPException):
            return []

    def ask(self, path: str, body: object = None) -> Any:
        """An answer, once there is one."""
        answers: list[Any] = []

        def answered() -> bool:
            answers[:] = [self.answer(path, body)]
            return answers[0] != []

        wait_for(path, answered)
        return answers[0]

    def runs(
        self, tags: list[str], state: str = "", catch_up: bool | None = None
    ) -> list[dict[str, Any]]:
        """Flow runs with these tags, in states of this type."""
        wanted: dict[str, object] = {"tags": {"all_": tags}}
        if state:
            wanted["state"] = {"type": {"any_": [state]}}
        runs = self.answer("flow_runs/filter", {"flow_runs": wanted})
        return [
            run for run in runs if catch_up is None or run["parameters"].get("catch_up") == catch_up
        ]

    def start(self, deployment: str, **more: object) -> dict[str, Any]:
        """Make a run of a deployment."""
        where = self.ask(f"deployments/name/{deployment}")["id"]
        run: dict[str, Any] = self.ask(f"deployments/{where}/create_flow_run", more)
        return run

    def late_run(self, deployment: str, due: datetime) -> None:
        """A run that the schedule created ahead, and that nothing started when it was due."""
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
        self.start(deployment, state=state, tags=["auto-scheduled", "nightly"])

    def set_state(self, run: str, kind: str, name: str, **more: object) -> None:
        state = {"type": kind, "name": name, **more}
        self.ask(f"flow_runs/{run}/set_state", {"state": state, "force": True})


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Its address, while it runs with its database in ``home``. It has loaded its automations:
    where one is made meanwhile, it hangs (infra/deploy.sh)."""
    port, log = free_port(), home / "server.log"
    env = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "DEBUG",
    }
    command = ["server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *command], env=env, stdout=output, stderr=output
        )
    try:
        wait_for("its automations", lambda: b"Loaded 0 automations" in log.read_bytes())
        api = f"http://127.0.0.1:{port}/api"
        wait_for("its answer", lambda: Page(api).answer("health"))
        yield api
    finally:
        process.terminate()
        process.wait(timeout=300)
