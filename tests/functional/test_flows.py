"""The nightly as Prefect runs it: without a server, under a real local server, and with a model that can't be evaluated."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from person import REPOSITORY, add_model, environment, metrics


def nightly(folder: Path, benchmark: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "flows.nightly", "--benchmark", str(benchmark), "--people", str(folder / "none"),
        "--results", str(folder / "results" / "r.duckdb"), "--report", str(folder / "report"), *more,
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=REPOSITORY, env={**environment(folder), "PREFECT_HOME": str(folder / "prefect"), **variables},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_ephemeral_night_goes_on_when_one_model_fails(small_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "good")
    absent = add_model(tmp_path, "absent", backend="hf", repo="path:/nowhere/at/all", notes="a folder that is gone")
    add_model(tmp_path, "asleep", state="candidate", reason="not tonight")
    done = nightly(tmp_path, small_benchmark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "absent: failed" in done.stdout and "ModelError" in done.stdout
    assert "1 failed, 1 published" in done.stdout.splitlines()[-1]
    assert "state: quarantined" in absent.read_text() and "reason: 'ModelError" in absent.read_text()
    assert set(metrics(tmp_path / "results" / "r.duckdb")["model"]) == {"good"}
    assert (tmp_path / "report" / "index.html").exists()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("prefect")
    env = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_UI_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/api"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1)
            break
        except OSError:
            time.sleep(0.5)
    else:
        process.kill()
        pytest.fail("the Prefect server did not come up within two minutes")
    yield url
    process.terminate()
    process.wait(timeout=60)


def post(url: str, body: dict[str, object]) -> list[dict[str, object]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return list(json.load(answer))


@pytest.mark.slow
def test_under_a_real_server_a_night_is_seen_and_is_one(server: str, small_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "good")
    due = ("--scheduled-for", "2026-11-21T01:30:00+00:00")
    done = nightly(tmp_path, small_benchmark, *due, PREFECT_API_URL=server)
    assert done.returncode == 0, done.stdout + done.stderr
    artifacts = {str(a["key"]): str(a["data"]) for a in post(f"{server}/artifacts/filter", {})}
    assert set(artifacts) == {"progress", "outcomes", "verdicts", "report", "wandb"}
    assert float(artifacts["progress"]) == 100
    [row] = json.loads(artifacts["outcomes"])
    assert (row["model"], row["outcome"], row["tries"], row["failed prompts"]) == ("good", "published", 1, 0)
    assert {row["verdict"] for row in json.loads(artifacts["verdicts"])} >= {"MISSING"}, "a first night has nothing to compare with"
    assert (tmp_path / "report" / "night.html").resolve().as_uri() in artifacts["report"]
    again = nightly(tmp_path, small_benchmark, *due, PREFECT_API_URL=server)
    assert again.returncode == 0 and again.stdout.strip() == "night 2026-11-21T0130 is done already; nothing to do"
    runs = post(f"{server}/flow_runs/filter", {})
    assert [run["state_name"] for run in runs] == ["Completed", "Completed"]
    deadline = time.monotonic() + 60  # Prefect writes task runs from events, some seconds later
    while "evaluate good on sdg (try 1)" not in (names := {str(t["name"]) for t in post(f"{server}/task_runs/filter", {})}):
        assert time.monotonic() < deadline, names
        time.sleep(0.5)
    assert len(metrics(tmp_path / "results" / "r.duckdb")["run_id"].unique()) == 1
