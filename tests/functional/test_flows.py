"""The nightly as Prefect runs it: without a server, under a real local server, and with a model
that can't be evaluated; the daily look at the hub under the same server."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import alarm, score
from flows import nightly as night_flow
from sdgbias import store
from sdgbias.files import json_object
from sdgbias.nightly import attempt, records, schedule
from sdgbias.nightly.stack.settings import Stack
from tests.builders import night_stubs
from tests.builders.commands import REPOSITORY, add_model, environment, metrics
from tests.builders.hub import Hub, Repo, commit, weights
from tests.builders.prefect_server import prefect_server
from tests.builders.slow_engine import asked, cached, slow_planted


def nightly(
    folder: Path, benchmark: Path, *more: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "flows.nightly",
        "--benchmark",
        str(benchmark),
        "--results",
        str(folder / "results" / "r.duckdb"),
        "--report",
        str(folder / "report"),
        "--passes",
        "none",
        *more,
    ]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**environment(folder), "PREFECT_HOME": str(folder / "prefect"), **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.long
def test_ephemeral_night_goes_on_when_one_model_fails(tiny_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "good")
    absent = add_model(
        tmp_path, "absent", backend="hf", repo="path:/nowhere/at/all", notes="a folder that is gone"
    )
    add_model(tmp_path, "asleep", state="candidate", reason="not tonight")
    done = nightly(tmp_path, tiny_benchmark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "absent: failed" in done.stdout and "ModelError" in done.stdout
    assert "1 failed, 1 published" in done.stdout.splitlines()[-1]
    assert (
        "state: quarantined" in absent.read_text() and "reason: 'ModelError" in absent.read_text()
    )
    assert set(metrics(tmp_path / "results" / "r.duckdb")["model"]) == {"good"}
    assert (tmp_path / "report" / "index.html").exists()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@pytest.fixture
def told() -> Iterator[tuple[str, queue.Queue[str]]]:
    """(address of a webhook on loopback, the texts that it was sent)."""
    texts: queue.Queue[str] = queue.Queue()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.put(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{hook.server_port}/services/s3cret", texts
        hook.shutdown()


def ask(url: str, body: object = None) -> Any:
    """What the server answers; without a body to GET."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        # on SQLite the server answers some calls so while it is busy; Prefect's own client asks
        # again as well
        time.sleep(1)
    pytest.fail(f"{url}: busy for ten minutes")


@pytest.mark.long  # tests/functional/test_stack_overnight.py looks at a night in the same way
def test_under_a_real_server_a_night_is_seen_and_is_one(
    server: str, tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "good")
    due = ("--scheduled-for", "2026-11-21T01:30:00+00:00")
    done = nightly(tmp_path, tiny_benchmark, *due, PREFECT_API_URL=server)
    assert done.returncode == 0, done.stdout + done.stderr
    artifacts = {str(a["key"]): str(a["data"]) for a in ask(f"{server}/artifacts/filter", {})}
    assert {"progress", "outcomes", "verdicts", "report", "wandb"} <= set(artifacts)
    assert float(artifacts["progress"]) == 100
    [row] = json.loads(artifacts["outcomes"])
    assert (row["model"], row["outcome"], row["tries"], row["failed prompts"]) == (
        "good",
        "published",
        1,
        0,
    )
    assert {row["verdict"] for row in json.loads(artifacts["verdicts"])} >= {"FIRST_RUN"}, (
        "a first night has nothing to compare with"
    )
    assert (tmp_path / "report" / "night.html").resolve().as_uri() in artifacts["report"]
    again = nightly(tmp_path, tiny_benchmark, *due, PREFECT_API_URL=server)
    assert (
        again.returncode == 0
        and again.stdout.strip() == "night 2026-11-21T0130 is done already; nothing to do"
    )
    runs = ask(f"{server}/flow_runs/filter", {"flows": {"name": {"any_": ["nightly"]}}})
    assert [run["state_name"] for run in runs] == ["Completed", "Completed"]
    deadline = time.monotonic() + 600  # Prefect writes task runs from events, some seconds later
    while not (
        mine := [
            task
            for task in ask(f"{server}/task_runs/filter", {})
            if task["name"] == "evaluate good on sdg"
        ]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert {"model:good", "suite:sdg"} <= set(mine[0]["tags"])
    assert len(metrics(tmp_path / "results" / "r.duckdb")["run_id"].unique()) == 1


@pytest.mark.slow
def test_a_night_that_dies_is_told_by_the_server(
    server: str,
    tmp_path: Path,
    told: tuple[str, queue.Queue[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, texts = told
    add_model(tmp_path, "good")
    earlier = {
        "type": "event",
        "posture": "Reactive",
        "expect": ["prefect.flow-run.Failed"],
        "threshold": 1,
        "within": 0,
    }
    ask(
        f"{server}/automations/",
        {"name": "sdgbias-night-died", "trigger": earlier, "actions": [{"type": "do-nothing"}]},
    )
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    monkeypatch.setenv("SDGBIAS_WEBHOOK", address)
    monkeypatch.setenv("PREFECT_API_URL", server)
    monkeypatch.setattr("sys.argv", ["alarm"])
    with temporary_settings({PREFECT_API_URL: server}):
        alarm.main()
    said = capsys.readouterr().out
    assert said.startswith("sdgbias-night-died: ") and "s3cret" not in said
    monkeypatch.delenv("SDGBIAS_WEBHOOK")
    [automation] = ask(f"{server}/automations/filter", {})
    assert [action["type"] for action in automation["actions"]] == ["call-webhook"], (
        "in place of an earlier one"
    )

    assert nightly(tmp_path, tmp_path / "nothing", PREFECT_API_URL=server).returncode == 8
    assert "no benchmark here" in (said := texts.get(timeout=600)) and "Failed" in said
    flow = ask(f"{server}/flows/", {"name": "nightly"})["id"]
    for state in (
        "COMPLETED",
        "CRASHED",
    ):  # the second is what a worker or an automation notes of a process that is gone
        run = ask(
            f"{server}/flow_runs/",
            {"flow_id": flow, "name": f"night-{state}", "state": {"type": "RUNNING"}},
        )["id"]
        ask(
            f"{server}/flow_runs/{run}/set_state",
            {"state": {"type": state, "message": 'its "process" is gone'}, "force": True},
        )
    assert texts.get(timeout=600) == 'sdgbias: night-CRASHED: Crashed: its "process" is gone', (
        "a night that was done is not told"
    )


@pytest.mark.slow
def test_prefect_tries_a_model_again(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's first process is killed; the second finds no registry entry, which no further
    attempt would mend."""
    (tmp_path / "sitecustomize.py").write_text(DIES_ONCE.format(str(tmp_path / "died")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    mine = night_stubs.job(tmp_path)
    with temporary_settings({PREFECT_API_URL: server}):
        made = night_flow.ask(mine, tmp_path / "results" / "r.duckdb", None, False)
    assert (made.outcome, made.kind, made.attempts) == ("failed", "RegistryError", 2)
    assert made.seconds > attempt.WAITS[0], "with the wait"
    told = [json_object(attempt.outcome_file(mine, number))["error"] for number in (1, 2)]
    assert told == ["Killed", "RegistryError"]

    def states() -> list[str]:
        runs = ask(f"{server}/task_runs/filter", {"task_runs": {"name": {"like_": mine.name}}})
        every = [ask(f"{server}/task_run_states/?task_run_id={run['id']}") for run in runs]
        return [str(state["name"]) for found in every for state in found]

    deadline = time.monotonic() + 600  # Prefect writes task runs from events, some seconds later
    while "Failed" not in (found := states()):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    assert {"AwaitingRetry", "Retrying"} <= set(found)


VLM = {
    "config.json": {"model_type": "llava", "vision_config": {}, "dtype": "bfloat16"},
    "model.safetensors": weights(10),
}
#: Kills the first process that starts with it.
DIES_ONCE = """
import os, pathlib
died = pathlib.Path({!r})
if not died.exists():
    died.touch()
    os.kill(os.getpid(), 9)
"""
#: Two looks in one process; the second ends with an error.
TWO_LOOKS = """
from flows.watch import watch
print(watch(webhook_env="HOOK", return_state=True).message)
print(watch("nowhere.yaml", return_state=True).message)
"""


@pytest.mark.slow
def test_a_new_commit_becomes_a_candidate_and_an_error_is_the_flows(
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[str, queue.Queue[str]],
) -> None:
    first, second = (
        commit(VLM, "first"),
        commit({**VLM, "model.safetensors": weights(20)}, "second"),
    )
    add_model(tmp_path, "vlm", backend="hf", repo="lab/vlm", revision=first.sha)
    (tmp_path / "registry" / "watch.yaml").write_text("commits: true\n")
    with Hub({"lab/vlm": Repo([first, second], params=7_000_000_000)}) as hub:
        hub.into(monkeypatch, tmp_path / "hf")
        hook, texts = told
        mine = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": server, "HOOK": hook}
        done = subprocess.run(
            [sys.executable, "-c", TWO_LOOKS],
            cwd=REPOSITORY,
            env={**environment(tmp_path), **mine},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    first_look, second_look = done.stdout.splitlines()
    assert "1 of 1 new: vlm-" in first_look and "nowhere.yaml" in second_look
    assert "new commit" in texts.get_nowait() and texts.empty()
    made = sorted(path.name for path in (tmp_path / "registry" / "models").iterdir())
    assert made == [f"vlm-{second.sha[:8]}.yaml", "vlm.yaml"]
    entry = yaml.safe_load((tmp_path / "registry" / "models" / made[0]).read_text())
    assert entry["state"] == "candidate"


@pytest.mark.slow
def test_a_missed_night_is_started_once(server: str, tmp_path: Path) -> None:
    """As `sdgbias stack up` asks for it: a night that was due while no stack was there."""
    from prefect.client.orchestration import SyncPrefectClient

    from flows import deploy

    stack = Stack(str(tmp_path / "home"), str(tmp_path), cron="30 1 * * *", timezone="UTC")
    now = datetime.now(UTC)
    flow = ask(f"{server}/flows/", {"name": "nightly"})["id"]
    ask(f"{server}/deployments/", {"name": "nightly", "flow_id": flow})
    due = schedule.missed(stack.cron, stack.timezone, None, now + timedelta(days=3))
    assert due is not None
    night = schedule.night_id(due, stack.timezone, stack.cron)
    with SyncPrefectClient(api=server) as client:
        assert deploy.catch_up(client, stack, now) == "", "it was due before there was a stack"
        assert deploy.catch_up(client, stack, now + timedelta(days=3)) == night
        done = {"night": [night], "scheduled_for": [due.replace(tzinfo=None)], "status": ["done"]}
        store.upsert(stack.results, {"nights": pd.DataFrame(done)})
        assert deploy.catch_up(client, stack, now + timedelta(days=3)) == "", "it is done"
    asked = {"flow_runs": {"tags": {"all_": ["catch-up"]}}}
    [run] = ask(f"{server}/flow_runs/filter", asked)
    assert run["parameters"] == {"catch_up": True} and run["state_name"] == "Scheduled"


@pytest.mark.slow
def test_a_run_whose_heartbeat_stops_is_marked_as_crashed(server: str) -> None:
    """The automation of every stack, with ten seconds for its three minutes; a run that a person
    paused has none, and stays so."""
    [given, _] = yaml.safe_load((REPOSITORY / "infra/automations.yaml").read_text())["automations"]
    quick = {**given, "trigger": {**given["trigger"], "within": 10}}
    ask(f"{server}/automations/", quick)
    flow = ask(f"{server}/flows/", {"name": "beats"})["id"]
    running = {"flow_id": flow, "state": {"type": "RUNNING"}}
    gone, paused = (ask(f"{server}/flow_runs/", running)["id"] for _ in range(2))
    heartbeat = {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{paused}"},
    }
    ask(f"{server}/events", [heartbeat])  # before its next state; what a night sends isn't awaited
    suspended = {"type": "PAUSED", "name": "Suspended"}  # at once: its ten seconds have begun
    ask(f"{server}/flow_runs/{paused}/set_state", {"state": suspended, "force": True})
    with temporary_settings({PREFECT_API_URL: server}):
        score.heartbeat(UUID(gone))
    deadline = time.monotonic() + 600
    found: dict[str, str] = {}
    while found.get(gone) != "Crashed":
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
        mine = ask(f"{server}/flow_runs/filter", {"flow_runs": {"id": {"any_": [gone, paused]}}})
        found = {one["id"]: one["state_name"] for one in mine}
    assert found[paused] == "Suspended"


@pytest.mark.slow
def test_a_person_cancels_or_pauses_an_attempt(server: str, tmp_path: Path) -> None:
    """Each has a flow run that stands for it, with a deployment one that can be resumed; the
    requests are those of Prefect's page."""
    flow = ask(f"{server}/flows/", {"name": "score"})["id"]
    ask(f"{server}/deployments/", {"name": "score-h100", "flow_id": flow})

    def ended_by(state: dict[str, Any], gpu: str) -> tuple[attempt.JobOutcome, str]:
        mine = night_stubs.job(tmp_path, f"on-{gpu}", gpu=gpu)
        made: list[UUID] = []

        def run() -> UUID | None:
            if found := score.on_the_page(mine, tmp_path / "r.duckdb", 1):
                made.append(found)
                body = {"state": state, "force": True}
                ask(f"{server}/flow_runs/{found}/set_state", body)
            return found

        said: list[str] = []
        with temporary_settings({PREFECT_API_URL: server}):
            argv = night_stubs.stub("time.sleep(600)")
            outcome = score.attended(
                mine,
                said.append,
                run,
                lambda seen: attempt.attempt(mine, tmp_path / "r.duckdb", argv=argv, seen=seen),
                score.close_on_the_page,
            )
        assert said[0].endswith(f"/runs/flow-run/{made[0]}"), "its log says where"
        return outcome, f"{server}/flow_runs/{made[0]}"

    def state_of(run: str) -> str:
        return str(ask(run)["state"]["name"])

    cancelled, run = ended_by({"type": "CANCELLING", "name": "Cancelling"}, "cpu")
    assert (cancelled.outcome, cancelled.kind) == ("skipped", "Cancelled")
    assert cancelled.message.startswith("cancelled by a person") and state_of(run) == "Cancelled"
    details = {
        "pause_timeout": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        "pause_reschedule": True,
    }
    suspended = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    paused, run = ended_by(suspended, "h100")
    assert (paused.outcome, paused.kind) == ("skipped", "Cancelled")
    assert paused.message.startswith("paused by a person") and state_of(run) == "Suspended"
    assert ask(f"{run}/resume", {})["status"] == "ACCEPT"
    assert state_of(run) == "Resuming", "a worker of its pool takes it"


@pytest.mark.long  # the test before this one does the same with a stub for the model
def test_a_person_cancels_one_model_and_the_night_goes_on(
    server: str, tiny_benchmark: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results" / "r.duckdb"
    for name in ("first", "second", "third"):
        add_model(tmp_path, name)
    slow = slow_planted(tmp_path, 0.2) | {"PREFECT_API_URL": server}
    command = partial(nightly, tmp_path, tiny_benchmark, "--draws", "50", "--night")

    def at_work() -> str:
        asked_for = {"flow_runs": {"tags": {"all_": ["model:second"]}}}
        runs = ask(f"{server}/flow_runs/filter", asked_for)
        return str(runs[0]["id"]) if runs and cached_scores(results, "second") >= 16 else ""

    with ThreadPoolExecutor(1) as beside:
        night = beside.submit(command, "2026-11-21T0130", **slow)
        while not (run := at_work()):
            assert not night.done(), night.result().stdout
            time.sleep(0.5)
        cancelling = {"type": "CANCELLING", "name": "Cancelling"}
        ask(f"{server}/flow_runs/{run}/set_state", {"state": cancelling, "force": True})
        done = night.result()
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = records.history(results).set_index("model")
    assert outcomes["outcome"].to_dict() == {
        "first": "published",
        "second": "skipped",
        "third": "published",
    }
    assert outcomes["kind"]["second"] == "Cancelled"
    kept = cached_scores(results, "second")
    said = outcomes["message"]["second"]
    assert said.startswith("cancelled by a person in Prefect's page") and "prompts are kept" in said
    assert "state: enabled" in (tmp_path / "registry/models/second.yaml").read_text()
    assert "cancelled by a person" in (tmp_path / "report" / "night.html").read_text()
    [cancelled] = ask(f"{server}/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    assert cancelled["state_name"] == "Cancelled"

    before = len(asked(tmp_path))
    again = command("2026-11-22T0130", **(slow | {"PLANTED_DELAY": "0"}))
    assert again.returncode == 0, again.stdout + again.stderr
    outcomes = records.history(results).query("night == '2026-11-22T0130'").set_index("model")
    assert outcomes["outcome"]["second"] == "published"
    assert len(metrics(results, "model = 'second'"))
    rest, each = len(asked(tmp_path)) - before, asked(tmp_path)[["kind", "prompt"]]
    assert kept and rest == len(each.drop_duplicates()) - kept, "nothing kept was asked twice"


def cached_scores(results: Path, model: str) -> int:
    """Prompts whose scores are kept."""
    try:
        return len(cached(results, model)["scores"])
    except (OSError, ValueError):
        return 0
