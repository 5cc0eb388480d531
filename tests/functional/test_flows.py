"""The nightly as Prefect runs it: without a server, under a real local server, over two work pools
with their workers, and with a model that can't be evaluated; the daily look at the hub."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pandas as pd
import psutil
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

import flows.nightly
from flows import SETTINGS, score
from flows import night as night_flow
from flows.watch import watch
from sdgbias import store
from sdgbias.files import json_object
from sdgbias.nightly import attempt, process, records, schedule
from sdgbias.nightly.night_options import NightOptions
from tests.builders import night_stubs
from tests.builders.commands import REPOSITORY, add_model, environment
from tests.builders.hub import Hub, Repo, commit, weights
from tests.builders.prefect_server import Page, prefect_server, wait_for
from tests.builders.slow_engine import asked, slow_planted
from tests.builders.webhook import webhook


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        yield Page(address)
        # this process's log worker outlives the server: it would complain in a later test's output
        APILogWorker.drain_all()


@pytest.fixture
def hook() -> Iterator[tuple[str, queue.Queue[str]]]:
    with webhook() as answering:
        yield answering


def test_a_night_that_fails_before_its_end_is_told(
    server: Page, tmp_path: Path, hook: tuple[str, queue.Queue[str]]
) -> None:
    address, texts = hook
    add_model(tmp_path, "good")
    options = ["--benchmark", tmp_path / "nothing", "--results", tmp_path / "r.duckdb"]
    variables = {"PREFECT_API_URL": server.api, "PREFECT_HOME": str(tmp_path / "prefect")}
    done = subprocess.run(
        [sys.executable, "-m", "flows.nightly", *map(str, options), "--report", str(tmp_path)],
        cwd=REPOSITORY,
        env={**environment(tmp_path), **variables, "SDGBIAS_WEBHOOK": address},
        timeout=900,
    )
    assert done.returncode == 8
    text = texts.get(timeout=600)
    assert text.startswith("sdgbias: night, due ") and "no benchmark here" in text


def test_prefect_tries_a_model_again(
    server: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's first process is killed; the second finds no registry entry, which no further
    attempt would mend."""
    (tmp_path / "sitecustomize.py").write_text(DIES_ONCE.format(str(tmp_path / "died")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    job = night_stubs.job(tmp_path)
    with temporary_settings({PREFECT_API_URL: server.api}):
        outcome = night_flow.evaluated(job, tmp_path / "results" / "r.duckdb", None)
    assert (outcome.outcome, outcome.kind, outcome.attempts) == ("failed", "RegistryError", 2)
    kinds = [json_object(attempt.outcome_file(job, number))["kind"] for number in (1, 2)]
    assert kinds == ["Killed", "RegistryError"]

    def states() -> set[str]:
        runs = server.answer("task_runs/filter", {"task_runs": {"name": {"like_": job.name}}})
        every = [server.answer(f"task_run_states/?task_run_id={run['id']}") for run in runs]
        return {str(state["name"]) for of_run in every for state in of_run}

    # Prefect writes task runs from events, some seconds later
    wait_for("its states", lambda: {"AwaitingRetry", "Retrying", "Failed"} <= states())


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


def test_a_new_commit_becomes_a_candidate_and_an_error_is_the_flows(
    server: Page,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hook: tuple[str, queue.Queue[str]],
) -> None:
    first, second = (
        commit(VLM, "first"),
        commit({**VLM, "model.safetensors": weights(20)}, "second"),
    )
    add_model(tmp_path, "vlm", backend="hf", repo="lab/vlm", revision=first.sha)
    (tmp_path / "registry" / "watch.yaml").write_text("commits: true\n")
    address, texts = hook
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    monkeypatch.setenv("HOOK", address)
    with (
        Hub({"lab/vlm": Repo([first, second], params=7_000_000_000)}) as hub,
        temporary_settings({PREFECT_API_URL: server.api}),
    ):
        hub.into(monkeypatch, tmp_path / "hf")
        look = watch(webhook_env="HOOK", return_state=True)
        failed = watch("nowhere.yaml", return_state=True)
    assert look.is_completed() and "candidate vlm-" in str(look.message)
    assert failed.is_failed() and "nowhere.yaml" in str(failed.message)
    assert "new commit" in texts.get_nowait() and texts.empty()
    models = tmp_path / "registry" / "models"
    names = sorted(path.name for path in models.iterdir())
    assert names == [f"vlm-{second.sha[:8]}.yaml", "vlm.yaml"]
    assert yaml.safe_load((models / names[0]).read_text())["state"] == "candidate"


def test_a_missed_night_is_started_once(server: Page, tmp_path: Path) -> None:
    """A night that was due while nothing was served here."""
    options = NightOptions(results=tmp_path / "r.duckdb", cron="30 1 * * *", timezone="UTC")
    now = datetime.now(UTC)
    flow = server.ask("flows/", {"name": "nightly"})["id"]
    server.ask("deployments/", {"name": "nightly", "flow_id": flow})
    due = schedule.missed(options.cron, options.zone, None, now + timedelta(days=3))
    assert due is not None
    night = schedule.night_id(due, options.zone, options.cron)
    with SyncPrefectClient(api=server.api) as client:
        flows.nightly.catch_up(client, options, now)
        assert server.runs(["catch-up"]) == [], "it was due before there was a schedule"
        flows.nightly.catch_up(client, options, now + timedelta(days=3))
        done = {"night": [night], "scheduled_for": [due.replace(tzinfo=None)], "status": ["done"]}
        store.upsert(options.results, {"nights": pd.DataFrame(done)})
        flows.nightly.catch_up(client, options, now + timedelta(days=3))
    [run] = wait_for(
        "its run, and none for the night that is done", lambda: server.runs(["catch-up"])
    )
    assert run["parameters"] == {"catch_up": True} and run["state_name"] == "Scheduled"


def test_a_run_whose_heartbeat_stops_is_marked_as_crashed(server: Page) -> None:
    """The automation of every work pool, with ten seconds for its three minutes. A run that a
    person paused sends none, and stays so."""
    [given, _] = yaml.safe_load((REPOSITORY / "infra/automations.yaml").read_text())["automations"]
    assert {"prefect.flow-run.Paused", "prefect.flow-run.Suspended"} <= set(
        given["trigger"]["expect"]
    )
    server.ask("automations/", {**given, "trigger": {**given["trigger"], "within": 10}})
    flow = server.ask("flows/", {"name": "beats"})["id"]
    running = {"flow_id": flow, "state": {"type": "RUNNING"}, "tags": ["beats"]}
    gone = server.ask("flow_runs/", running)["id"]
    heartbeat = {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{gone}"},
    }
    server.ask("events", [heartbeat])
    wait_for("its state", lambda: server.runs(["beats"], "CRASHED"))


@contextmanager
def workers(server: Page, folder: Path, *kinds: str) -> Iterator[None]:
    """A worker for each of these pools, which are made before, with the nights' deployments."""
    env = slow_planted(folder, 0.5) | {
        **SETTINGS["flows"],
        **SETTINGS["quiet"],
        **SETTINGS["lively"],
        "PREFECT_API_URL": server.api,
        "PREFECT_HOME": str(folder / "prefect"),
        "SDGBIAS_HOME": str(REPOSITORY),
    }
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    deploy = ["sh", "infra/deploy.sh", *(f"{kind}=1" for kind in kinds)]
    for _ in ("first", "again, which changes nothing"):
        subprocess.run(deploy, cwd=REPOSITORY, env=env, check=True, timeout=900)
    with ExitStack() as running:
        for kind in kinds:
            pool = ["worker", "start", "--pool", f"sdgbias-{kind}", "--type", "process"]
            log = folder / f"worker-{kind}.log"
            command = [sys.executable, "-m", "prefect", *pool]
            running.enter_context(process.beside(command, log, env))
        yield


def evaluating(model: str) -> list[int]:
    """The processes that score a model."""
    return [
        one.info["pid"]
        for one in psutil.process_iter(["pid", "cmdline"])
        if (one.info["cmdline"] or [])[3:5] == ["evaluate", model]
    ]


@pytest.mark.long
def test_a_night_over_two_pools_goes_on_when_a_person_cancels_one_model(
    server: Page, tiny_benchmark: Path, tmp_path: Path
) -> None:
    """Two real workers. What the person does are the requests of Prefect's page."""
    results = tmp_path / "results" / "r.duckdb"
    add_model(tmp_path, "on-cpu")
    add_model(tmp_path, "on-gpu", options={"gpu": "h100"})
    parameters = {
        "score_deployment": "score/score-{gpu}",
        "benchmark": [str(tiny_benchmark)],
        "results": str(results),
        "report": str(tmp_path / "report"),
        "passes": "none",
        "draws": 50,
        "selfcheck": False,
        "night": "2026-11-21T0130",
    }
    with workers(server, tmp_path, "cpu", "h100"):
        night = server.start("nightly/nightly", parameters=parameters, tags=["two-pools"])
        wait_for("both models at work", lambda: evaluating("on-cpu") and len(asked(tmp_path)) > 8)
        [run] = wait_for("its run", lambda: server.runs(["model:on-cpu"], "RUNNING"))
        began = time.monotonic()
        server.set_state(run["id"], "CANCELLING", "Cancelling")
        wait_for("the end of its process", lambda: not evaluating("on-cpu"))
        seconds = time.monotonic() - began
        wait_for("the night", lambda: server.runs(["two-pools"], "COMPLETED"))
        outcomes = records.history(results).set_index("model")
        assert outcomes["outcome"].to_dict() == {"on-cpu": "skipped", "on-gpu": "published"}
        assert outcomes["kind"]["on-cpu"] == "Cancelled"
        assert outcomes["message"]["on-cpu"].startswith("cancelled by a person")
        assert "state: enabled" in (tmp_path / "registry/models/on-cpu.yaml").read_text()
        [other] = wait_for("the other", lambda: server.runs(["model:on-gpu"], "COMPLETED"))
        assert other["name"] == "on-gpu, night 2026-11-21T0130, try 1"
        wait_for("its state", lambda: server.runs(["model:on-cpu"], "CANCELLED"))
        assert server.ask(f"flow_runs/{night['id']}")["state_name"] == "Completed"
    print(f"{seconds:.1f} s from Cancel to the end of the model's process")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [("PAUSED", "Suspended", "paused by a"), ("CANCELLING", "Cancelling", "cancelled by a")],
)
def test_a_model_ends_where_prefect_does_not_end_its_run(
    server: Page, tmp_path: Path, kind: str, name: str, words: str
) -> None:
    """Of a run that is paused it ends no process, and none after its server was gone for a while:
    the run asks for its state."""
    job = night_stubs.job(tmp_path)
    flow = server.ask("flows/", {"name": "score"})["id"]
    run = server.ask("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}})["id"]

    def why() -> str:
        return score.reason_to_end(score.state_of(UUID(run)))

    with temporary_settings({PREFECT_API_URL: server.api}):
        assert why() == ""
        server.set_state(run, kind, name)
        look = score.follow(job, [].append, why)
        argv = night_stubs.stub("time.sleep(600)")
        outcome = attempt.attempt(job, tmp_path / "r.duckdb", argv=argv, look=look)
    assert (outcome.outcome, outcome.kind) == ("skipped", "Cancelled")
    assert outcome.message.startswith(words)


def test_a_model_whose_machine_is_gone_ends_with_that_reason(
    server: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that has no worker, or none any more: its run would wait without end."""
    monkeypatch.setattr(score, "PATIENCE", 1.0)
    monkeypatch.setattr(score, "LOOK", 0.2)
    server.ask("work_pools/", {"name": "sdgbias-gone", "type": "process"})
    flow = server.ask("flows/", {"name": "score"})["id"]
    deployment = {"name": "score-gone", "flow_id": flow, "work_pool_name": "sdgbias-gone"}
    server.ask("deployments/", deployment)
    job = night_stubs.job(tmp_path, "alone", gpu="gone")
    with temporary_settings({PREFECT_API_URL: server.api}):
        outcome = night_flow.evaluated(job, tmp_path / "r.duckdb", None, "score/score-{gpu}")
    assert (outcome.outcome, outcome.kind, outcome.attempts) == ("failed", "NoWorker", 1)
    assert outcome.message.startswith("no worker of the pool sdgbias-gone for 1 s")
    assert not attempt.failure(outcome.kind).model, "no model is put aside for it"
    wait_for("its state", lambda: server.runs(["model:alone"], "CANCELLED"))


def test_a_night_that_is_ended_cancels_its_models(server: Page, tmp_path: Path) -> None:
    flow = server.ask("flows/", {"name": "score"})["id"]
    server.ask("deployments/", {"name": "score-nobody", "flow_id": flow})
    job = night_stubs.job(tmp_path, "waiting", gpu="nobody")

    def end_the_night() -> None:
        wait_for("its run", lambda: server.runs(["model:waiting"], "SCHEDULED"))
        process.stop_all()

    ending = threading.Thread(target=end_the_night)
    ending.start()
    try:
        with temporary_settings({PREFECT_API_URL: server.api}), pytest.raises(process.Stopped):
            score.run_by_deployment("score/score-{gpu}", job, tmp_path / "r.duckdb", 1, None)
    finally:
        ending.join()
        process.begin()
    wait_for("its state", lambda: server.runs(["model:waiting"], "CANCELLED"))
