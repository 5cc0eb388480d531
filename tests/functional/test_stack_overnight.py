"""One local stack from `sdgbias stack up` to `stack down`: two late nights of a server that was
down for two days (or of a laptop that slept), and flow run, worker and server killed at work; a
second one whose flow run stops its heartbeat, and that was down when its night was due."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from sdgbias import store
from sdgbias.nightly import plan, records
from sdgbias.nightly.stack import processes
from tests.builders.commands import REPOSITORY, add_model, free_port, metrics, ok, refused, sdgbias
from tests.builders.slow_engine import asked, slow_planted


def wait_for(what: str, found: Callable[[], object], seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)  # each look asks the server


def ask(port: int, path: str, body: object = None) -> Any:
    """An answer of the server; [] while it does not answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/{path}", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except (OSError, ValueError, HTTPException) as error:
        if getattr(error, "code", 503) < 500:
            raise
        return []


def told(port: int, path: str, body: object = None) -> Any:
    """An answer of a server that may be busy: on SQLite it refuses some calls then."""
    found: list[Any] = []

    def answered() -> bool:
        found[:] = [ask(port, path, body)]
        return found[0] != []

    wait_for(path, answered)
    return found[0]


def new_run(port: int, deployment: str, **more: object) -> str:
    body = {"tags": ["nightly"], "idempotency_key": str(uuid.uuid4()), **more}
    return str(told(port, f"deployments/{deployment}/create_flow_run", body)["id"])


def runs(port: int) -> list[str]:
    """States of the nights' flow runs that are not waiting, sorted."""
    body = {"flow_runs": {"tags": {"all_": ["nightly"]}}}
    return sorted(
        run["state_name"]
        for run in ask(port, "flow_runs/filter", body)
        if run["state_name"] in ("Running", "Completed", "Crashed", "Cancelled", "Failed")
    )


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
    names = ("launcher", "server", "worker-cpu")
    return {name: there.pid for name in names if (there := processes.part(home, name))}


def kill(process: psutil.Process | None) -> None:
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


def late_night(port: int, deployment: str, due: datetime) -> None:
    """A run that the schedule created ahead, and that nothing started when it was due."""
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
    new_run(port, deployment, state=state, tags=["auto-scheduled", "nightly"])


def run_now(port: int) -> None:
    """As a person in Prefect's page: the run that is to follow a crash in five minutes begins."""
    body = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    following: list[str] = []

    def there() -> bool:
        found = ask(port, "flow_runs/filter", body)
        following[:] = [run["id"] for run in found if run["parameters"].get("catch_up")]
        return bool(following)

    wait_for("the run that follows a crash", there)
    told(port, f"flow_runs/{following[0]}/set_state", {"state": {"type": "SCHEDULED"}})


@dataclass(frozen=True)
class House:
    """A stack of one model whose nights were due six hours ago. command: its `stack up`."""

    port: int
    home: Path
    results: Path
    due: datetime
    command: list[object]

    @property
    def night(self) -> str:
        return f"{self.due:%Y-%m-%dT%H%M}"


@pytest.fixture
def house(tiny_benchmark: Path, tmp_path: Path) -> House:
    home, results = tmp_path / "home", tmp_path / "results" / "r.duckdb"
    add_model(tmp_path, "first")
    # so every run checks the benchmark first, and is at that while the server is gone
    (tmp_path / "expectations").unlink()
    port = free_port()
    due = (datetime.now(UTC) - timedelta(hours=6)).replace(second=0, microsecond=0)
    command = ["stack", "up", "--port", port, "--home", home]
    command += ["--cron", f"{due.minute} {due.hour} * * *", "--benchmark", tiny_benchmark]
    command += ["--results", results, "--report", tmp_path / "report", "--no-selfcheck"]
    command += ["--timezone", "UTC"]  # whatever SDGBIAS_TIMEZONE says here
    return House(port, home, results, due, [*command, "--passes", "none", "--draws", 100])


@pytest.mark.slow
def test_a_stack_lives_through_what_happens_at_night(house: House, tmp_path: Path) -> None:
    home, results, port, due = house.home, house.results, house.port, house.due
    night, command = house.night, house.command
    folder = plan.folder_of(results, night)
    try:
        said = ok(*command, registry=tmp_path)
        for part in ("server", "pools", "deployments", "workers"):
            assert f"  {part:<12} ready" in said
        assert "missed" not in said, "the schedule began after the last due time"
        before = parts(home)
        ok(*command, registry=tmp_path)
        assert len(before) == 3 and parts(home) == before, "twice is once"
        assert "sdgbias stack down" in refused(2, *command, "--jobs", 2, registry=tmp_path)
        assert "next night" in ok("stack", "status", "--home", home)
        assert who_may_ask(port, "https://elsewhere.example") is None, (
            "a page of another site can't start flows"
        )
        assert who_may_ask(port, f"http://127.0.0.1:{port}") is not None

        deployment = told(port, "deployments/name/nightly/nightly")["id"]
        for days in (1, 0):
            late_night(port, deployment, due - timedelta(days=days))
        wait_for("a model at work", lambda: list(folder.glob("logs/first-sdg.log")))
        for process in [p for p in processes.marked(home) if processes.runs_a_flow(p)]:
            kill(process)
        wait_for("its worker's word", lambda: "Crashed" in runs(port))
        run_now(port)
        wait_for("the crashed night's next run", lambda: "Running" in runs(port))
        kill(processes.part(home, "worker-cpu"))
        kill(processes.part(home, "server"))
        wait_for("the end of the night", lambda: records.status(results, night) == records.DONE)
        wait_for(
            "its end in the history, and what was before",
            lambda: runs(port) == ["Cancelled", "Completed", "Crashed"],
        )
        assert list(records.nights(results)["night"]) == [night], "the newest of the late nights"
        assert list(records.history(results)["outcome"]) == ["published"]
        assert set(metrics(results)["model"]) == {"first"}
        assert len(store.query(results, "SELECT * FROM runs")) == 1, "nothing twice"
        assert (tmp_path / "report" / "index.html").exists()
        said = ok("stack", "status", "--home", home)
        assert f"{night}: done; 1 published" in said
        assert "server had ended" in said and "worker-cpu had ended" in said
        check_what_is_shown(port)
    finally:
        down = sdgbias("stack", "down", "--home", home, registry=tmp_path)
    assert down.returncode == 0 and "processes ended" in down.stdout, down.stderr
    assert processes.marked(home) == []
    assert "no stack runs" in ok("stack", "down", "--home", home)
    assert sdgbias("stack", "status", "--home", home, cwd=REPOSITORY).returncode == 8


def check_what_is_shown(port: int) -> None:
    """Artifacts and tags of the finished night on the server's pages."""
    artifacts = {str(a["key"]): str(a["data"]) for a in told(port, "artifacts/latest/filter", {})}
    assert {"progress", "outcomes", "verdicts", "report", "wandb"} <= set(artifacts)
    assert float(artifacts["progress"]) == 100
    [row] = json.loads(artifacts["outcomes"])
    assert (row["model"], row["outcome"], row["failed prompts"]) == ("first", "published", 0)
    assert {row["verdict"] for row in json.loads(artifacts["verdicts"])} >= {"FIRST_RUN"}, (
        "a first night has nothing to compare with"
    )
    mine: list[Any] = []

    def written() -> bool:  # Prefect writes task runs from events, some seconds later
        tasks = ask(port, "task_runs/filter", {})
        mine[:] = [task for task in tasks if task["name"] == "evaluate first on sdg"]
        return bool(mine)

    wait_for("the task of the model", written)
    assert {"model:first", "suite:sdg"} <= set(mine[0]["tags"])


@pytest.mark.long  # tests/functional/test_flows.py asks the same of a server and of flows.deploy
def test_a_run_without_heartbeat_and_a_night_that_was_missed(house: House, tmp_path: Path) -> None:
    home, results, port, due = house.home, house.results, house.port, house.due
    command = house.command
    try:
        ok(*command, registry=tmp_path)
        deployment = told(port, "deployments/name/nightly/nightly")["id"]
        late_night(port, deployment, due)
        wait_for("the night", lambda: runs(port) == ["Completed"])
        # a run whose machine is gone; the house's automation, with ten seconds for three minutes
        zombies = yaml.safe_load((REPOSITORY / "infra/automations.yaml").read_text())["automations"]
        quick = {**zombies[0], "name": "quick", "trigger": {**zombies[0]["trigger"], "within": 10}}
        told(port, "automations/", quick)
        gone = new_run(port, deployment, state={"type": "RUNNING"})
        heartbeat = {
            "id": str(uuid.uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": "prefect.flow-run.heartbeat",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{gone}"},
        }
        told(port, "events", [heartbeat])
        wait_for("a run without heartbeat", lambda: runs(port) == ["Completed", "Crashed"])
        run_now(port)
        wait_for("what follows", lambda: runs(port) == ["Completed", "Completed", "Crashed"])
        assert len(records.nights(results)) == 1, "a night that is done is not started again"
    finally:
        sdgbias("stack", "down", "--home", home, registry=tmp_path)
    # a stack that was deployed three days ago and went down in the middle of its last night
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        database.execute(
            "UPDATE deployment SET created = ?", [str(due - timedelta(days=3))[:19] + ".000000"]
        )
    store.upsert(results, {"nights": records.nights(results).assign(status="interrupted")})
    try:
        assert f"night {house.night} is started now" in ok(*command, registry=tmp_path)
    finally:
        sdgbias("stack", "down", "--home", home, registry=tmp_path)
    assert processes.marked(home) == []


@pytest.mark.long  # tests/functional/test_flows.py: the same requests, with a stub for the model
@pytest.mark.parametrize(("spread", "state"), [(0, "CANCELLING"), (1, "CANCELLING"), (1, "PAUSED")])
def test_a_person_ends_one_model_and_a_worker_goes_on_with_it(
    house: House, tmp_path: Path, spread: int, state: str
) -> None:
    """Cancel and Retry, or Pause and Resume, with the requests of Prefect's page: the night goes on
    with the other model, and a worker scores this one from what is stored."""
    add_model(tmp_path, "second")
    home, results, port = house.home, house.results, house.port
    details = {
        "pause_timeout": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        "pause_reschedule": True,
    }
    wanted = {
        "CANCELLING": {"type": "CANCELLING", "name": "Cancelling"},
        "PAUSED": {"type": "PAUSED", "name": "Suspended", "state_details": details},
    }
    try:
        command = [*map(str, house.command), *["--spread"] * spread]
        subprocess.run(
            [sys.executable, "-m", "sdgbias.cli", *command],
            env=slow_planted(tmp_path, 0.3),
            cwd=REPOSITORY,
            check=True,
        )
        deployment = told(port, "deployments/name/nightly/nightly")["id"]
        late_night(port, deployment, house.due)
        mine: dict[str, Any] = {}

        def at_work() -> bool:
            body = {"flow_runs": {"tags": {"all_": ["model:first"]}}}
            mine.update((ask(port, "flow_runs/filter", body) or [{}])[0])
            return mine.get("state_name") == "Running" and len(asked(tmp_path)) > 8

        wait_for("the first model at work", at_work)
        run = f"flow_runs/{mine['id']}"
        told(port, f"{run}/set_state", {"state": wanted[state], "force": True})
        wait_for(
            "the end of the night", lambda: records.status(results, house.night) == records.DONE
        )
        rows = records.history(results).set_index("model")
        assert rows["outcome"].to_dict() == {"first": "skipped", "second": "published"}
        assert rows["kind"]["first"] == "Cancelled" and "by a person" in rows["message"]["first"]
        after = {"CANCELLING": "Cancelled", "PAUSED": "Suspended"}[state]
        wait_for("its state", lambda: told(port, run)["state_name"] == after)
        if state == "PAUSED":
            assert told(port, f"{run}/resume", {})["status"] == "ACCEPT"
        else:
            retry = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
            told(port, f"{run}/set_state", {"state": retry, "force": True})
        wait_for("its end", lambda: told(port, run)["state_name"] == "Completed")
        assert set(metrics(results)["model"]) == {"first", "second"}
        scored = asked(tmp_path).query("kind == 'score'")["prompt"].value_counts()
        assert (scored <= 2).mean() > 0.9, "two models; what was in flight is asked again"
    finally:
        sdgbias("stack", "down", "--home", home, registry=tmp_path)
    assert processes.marked(home) == []
