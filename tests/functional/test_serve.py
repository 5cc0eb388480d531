"""`python -m flows.nightly serve` through what happens at night: a flow run and the server are
killed at work, and at last the command itself; then a second one goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sdgbias import store
from sdgbias.nightly import records
from tests.builders.commands import REPOSITORY, add_model, free_port, metrics
from tests.builders.prefect_server import Page, wait_for
from tests.builders.processes import below, end
from tests.builders.slow_engine import asked, slow_planted
from tests.builders.webhook import webhook

DUE = (datetime.now(UTC) - timedelta(hours=6)).replace(second=0, microsecond=0)


@contextmanager
def served(folder: Path, benchmark: Path, port: int, hook: str) -> Iterator[subprocess.Popen[str]]:
    """The command, whose nights were due six hours ago."""
    options = {
        "--port": port,
        "--cron": f"{DUE.minute} {DUE.hour} * * *",
        "--timezone": "UTC",
        "--benchmark": benchmark,
        "--results": folder / "results" / "r.duckdb",
        "--report": folder / "report",
        "--passes": "none",
        "--draws": 50,
    }
    words = [str(word) for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "flows.nightly", "serve", "--no-selfcheck", *words]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=slow_planted(folder, 0.5) | {"SDGBIAS_WEBHOOK": hook},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def allowed_origin(page: Page, origin: str) -> str | None:
    """What the server answers a browser that asks whether a page of ``origin`` may call it."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    request = urllib.request.Request(
        f"{page.api}/flow_runs/filter", headers=headers, method="OPTIONS"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.headers.get("access-control-allow-origin"))
    except urllib.error.HTTPError:
        return None


def test_nights_are_served_through_what_happens(tiny_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "first")
    port, results = free_port(), tmp_path / "results" / "r.duckdb"
    page, night = Page(f"http://127.0.0.1:{port}/api"), f"{DUE:%Y-%m-%dT%H%M}"
    with webhook() as (hook, texts), served(tmp_path, tiny_benchmark, port, hook) as command:
        wait_for("the schedule", lambda: page.answer("deployments/name/nightly/nightly"))
        assert allowed_origin(page, "https://elsewhere.example") is None
        assert allowed_origin(page, f"http://127.0.0.1:{port}") is not None
        with served(tmp_path, tiny_benchmark, port, hook) as second:
            refusal = second.communicate(timeout=600)[1]
        assert second.returncode == 8 and "served already, by process" in refusal

        page.late_run("nightly/nightly", DUE)
        wait_for("a model at work", lambda: len(asked(tmp_path)) > 8)
        [run] = wait_for("its night", lambda: page.runs(["nightly"], "RUNNING"))
        [flow] = below(command.pid, "prefect.engine", PREFECT__FLOW_RUN_ID=run["id"])
        flow.kill()
        wait_for("its state", lambda: page.runs(["nightly"], "CRASHED"))
        assert ": Crashed: Process exited with status code: -9" in texts.get(timeout=600)
        [following] = wait_for(
            "the run that follows", lambda: page.runs(["nightly"], "SCHEDULED", catch_up=True)
        )
        page.ask(f"flow_runs/{following['id']}/set_state", {"state": {"type": "SCHEDULED"}})
        wait_for("its work", lambda: page.runs(["nightly"], "RUNNING"))
        _, server = below(command.pid, "prefect", "server", "start")  # below its supervisor
        server.kill()
        wait_for("the end of the night", lambda: records.status(results, night) == records.DONE)
        wait_for("its state", lambda: page.runs(["nightly"], "COMPLETED"))
        assert list(records.history(results)["outcome"]) == ["published"]
        assert set(metrics(results)["model"]) == {"first"}
        assert len(store.query(results, "SELECT * FROM runs")) == 1, "nothing twice"
        [night_run] = page.runs(["nightly"], "COMPLETED")
        of_run = {"logs": {"flow_run_id": {"any_": [night_run["id"]]}}}
        logged = lambda: str(page.answer("logs/filter", of_run))  # noqa: E731
        wait_for("what it prints", lambda: "report: done" in logged(), seconds=60)
        artifacts = {a["key"]: str(a["data"]) for a in page.ask("artifacts/latest/filter", {})}
        assert json.loads(artifacts["outcomes"])[0]["run_id"] in artifacts["outcome"]
        assert (tmp_path / "report" / "night.html").resolve().as_uri() in artifacts["report"]
        assert (tmp_path / "report" / "night.html").exists()
        everything = [one.pid for one in below(command.pid)]
        os.kill(command.pid, signal.SIGKILL)
        assert end(everything, 30), "nothing outlives the command"
