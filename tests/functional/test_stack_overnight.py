"""One local stack from `sdgbias stack up` to `stack down`: a night by its schedule, every model a
flow run of its own; worker, flow runs and the server are killed while it is at work."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from sdgbias import store
from sdgbias.nightly import ledger, plan
from sdgbias.nightly.stack import processes
from tests.builders.commands import REPOSITORY, add_model, free_port, metrics, ok, refused, sdgbias


def wait_for(what: str, found: Callable[[], object], seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


def runs(port: int, tag: str) -> list[str]:
    """States of the flow runs with a tag that were due, oldest first; [] while the server does not
    answer."""
    wanted = {"tags": {"all_": [tag]}, "state": {"type": {"not_any_": ["SCHEDULED"]}}}
    body = json.dumps({"sort": "START_TIME_ASC", "flow_runs": wanted}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/flow_runs/filter", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return [run["state_name"] for run in json.load(answer)]
    except (OSError, ValueError, HTTPException):
        return []


def who_may_ask(port: int, origin: str) -> str | None:
    """What the server answers a browser that asks whether a page of `origin` may call it."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/flow_runs/filter", headers=headers, method="OPTIONS"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.headers.get("access-control-allow-origin"))
    except urllib.error.HTTPError:
        return None


def parts(home: Path) -> dict[str, int]:
    """Process ids of the parts of a stack, without the flow runs: on a slow machine the night has
    begun before the second `up`."""
    there = {name: processes.alive(home, name) for name in processes.names(home)}
    return {name: process.pid for name, process in there.items() if process is not None}


def kill(process: psutil.Process | None) -> None:
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_stack_lives_through_what_happens_at_night(small_benchmark: Path, tmp_path: Path) -> None:
    home, results = tmp_path / "home", tmp_path / "results" / "r.duckdb"
    for name in ("first", "second"):
        add_model(tmp_path, name)
    port = free_port()
    due = (datetime.now(UTC) + timedelta(seconds=95)).replace(second=0, microsecond=0)
    command = [
        "stack",
        "up",
        "--port",
        port,
        "--home",
        home,
        "--cron",
        f"{due.minute} {due.hour} * * *",
        "--benchmark",
        small_benchmark,
        "--results",
        results,
        "--report",
        tmp_path / "report",
        "--no-selfcheck",
        "--spread",
    ]
    try:
        said = ok(*command, registry=tmp_path)
        in_time = datetime.now(UTC) < due - timedelta(seconds=5)
        for part in (
            "server       ready",
            "pools        ready",
            "deployments  ready",
            "workers      ready",
            "schedule     ready",
        ):
            assert part in said
        before = parts(home)
        ok(*command, registry=tmp_path)
        assert len(before) >= 3 and parts(home) == before, "twice is once"
        assert "sdgbias stack down" in refused(2, *command, "--jobs", 2, registry=tmp_path)
        assert "next night" in ok("stack", "status", "--home", home)
        assert who_may_ask(port, "https://elsewhere.example") is None, (
            "a page of another site can't start flows"
        )
        assert who_may_ask(port, f"http://127.0.0.1:{port}") is not None

        night = f"{due:%Y-%m-%dT%H%M}"
        folder = plan.folder_of(results, night)

        def one_is_done_and_one_at_work() -> bool:
            outcomes = folder / ledger.OUTCOMES
            return (
                outcomes.exists()
                and len(outcomes.read_text().splitlines()) == 1
                and len(list(folder.glob("logs/*-sdg.log"))) == 2
            )

        wait_for("the second model of a night", one_is_done_and_one_at_work)
        tags = (
            ["auto-scheduled"] if in_time else ["auto-scheduled", "catch-up"]
        )  # a machine too slow for the schedule catches the night up
        wait_for(
            "the night's flow run",
            lambda: [state for tag in tags for state in runs(port, tag)] == ["Running"],
        )
        kill(processes.alive(home, "worker-cpu"))
        for process in [p for p in processes.marked(home) if processes.runs_a_flow(p)]:
            kill(process)
        wait_for("a new worker", lambda: processes.alive(home, "worker-cpu"))
        wait_for(
            "the night to be caught up", lambda: runs(port, "nightly") == ["Crashed", "Running"]
        )
        kill(processes.alive(home, "server"))
        wait_for("the end of the night", lambda: ledger.status(results, night) == ledger.DONE)
        wait_for(
            "its end in the history, and what was before",
            lambda: runs(port, "nightly") == ["Crashed", "Completed"],
        )
        wait_for(
            "the history of the models",
            lambda: runs(port, "score") == ["Completed", "Crashed", "Completed"],
        )
        asked = ledger.history(results).sort_values("model")
        assert list(asked["outcome"]) == ["published", "published"] and set(
            metrics(results)["model"]
        ) == {"first", "second"}
        assert len(store.query(results, "SELECT * FROM runs")) == 2, "nothing twice"
        assert (tmp_path / "report" / "index.html").exists()
        said = ok("stack", "status", "--home", home)
        assert (
            f"{night}: done; 2 published" in said
            and "server had ended" in said
            and "worker-cpu had ended" in said
        )
    finally:
        down = sdgbias("stack", "down", "--home", home, registry=tmp_path)
    assert down.returncode == 0 and "processes ended" in down.stdout, down.stderr
    assert processes.marked(home) == []
    assert "no stack runs" in ok("stack", "down", "--home", home)
    assert sdgbias("stack", "status", "--home", home, cwd=REPOSITORY).returncode == 8
