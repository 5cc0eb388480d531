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


def nightly(folder: Path, benchmark: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "flows.nightly",
        "--benchmark",
        str(benchmark),
        "--results",
        str(folder / "r.duckdb"),
        "--report",
        str(folder / "report"),
    ]
    return subprocess.run(
        command, cwd=REPOSITORY, env={**environment(folder), "PREFECT_HOME": str(folder / "prefect"), **variables},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_ephemeral_night_goes_on_when_one_model_fails(small_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "good")
    add_model(tmp_path, "absent", backend="hf", repo="path:/nowhere/at/all", notes="a folder that is gone")
    add_model(tmp_path, "asleep", enabled=False, disabled_reason="not tonight")
    done = nightly(tmp_path, small_benchmark)
    assert done.returncode == 0, done.stderr
    assert "left out tonight: absent" in done.stderr
    assert set(metrics(tmp_path / "r.duckdb")["model"]) == {"good"}
    assert (tmp_path / "report" / "index.html").exists()
    assert list((tmp_path / "report" / "wandb").rglob("*.wandb")), "an offline W&B run"


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
def test_under_a_real_server(server: str, small_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "good")
    done = nightly(tmp_path, small_benchmark, PREFECT_API_URL=server)
    assert done.returncode == 0, done.stderr
    runs = post(f"{server}/flow_runs/filter", {})
    assert [run["state_name"] for run in runs] == ["Completed"]
    artifacts = post(f"{server}/artifacts/filter", {})
    assert any("| good | done |" in str(a["data"]) for a in artifacts)
    assert set(metrics(tmp_path / "r.duckdb")["model"]) == {"good"}
