"""The parts of a local stack that need no server: settings, deployments as data, processes by name
and mark, missed nights."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from sdgbias import store
from sdgbias.errors import InfrastructureError, InputError, UsageError
from sdgbias.nightly import stack
from sdgbias.nightly.stack import catch_up, processes, settings
from sdgbias.nightly.stack.settings import Stack

REPOSITORY = Path(__file__).resolve().parents[2]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def a_stack(folder: Path, **fields: object) -> Stack:
    made = Stack(home=str(folder / "home"), project=str(folder), since="2026-11-20T00:00:00+00:00")
    return replace(made, **fields)  # type: ignore[arg-type]


# -- settings


def test_pools_are_kinds_with_a_number_and_cpu_is_always_there() -> None:
    assert settings.pools_of("h100=8, cpu=2") == {"cpu": 2, "h100": 8}
    assert settings.pools_of("h100=8") == {"cpu": 1, "h100": 8}
    for wrong in ("h100", "h100=0", "h100=x", "H100=1", "cpu=1,cpu=2", "a b=1"):
        with pytest.raises(UsageError, match="--pools"):
            settings.pools_of(wrong)


def test_one_worker_for_cpu_models_and_one_per_accelerator(tmp_path: Path) -> None:
    made = a_stack(tmp_path, pools={"cpu": 3, "h100": 2})
    assert made.workers == {"worker-cpu": "cpu", "worker-h100-0": "h100", "worker-h100-1": "h100"}


def test_settings_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    made = a_stack(tmp_path, pools={"cpu": 3}, parameters={"jobs": 2})
    settings.save(made)
    assert settings.load(tmp_path / "home") == made
    assert made.same_as(replace(made, since="later")) and not made.same_as(replace(made, port=4201))


def test_settings_of_another_version_are_told(tmp_path: Path) -> None:
    processes.write(tmp_path / "stack.json", {"home": "x", "project": "y", "wings": 2})
    with pytest.raises(InputError, match="wings.*sdgbias stack down"):
        settings.load(tmp_path)


def test_the_stack_decides_where_the_server_is_and_the_shell_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "https://elsewhere.example/api")
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "of the shell")
    env = settings.environment(a_stack(tmp_path, port=4321))
    assert (
        env["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
        and env["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    )
    assert "PREFECT__FLOW_RUN_ID" not in env


# -- deployments


def test_deployments_are_the_files_own_with_schedule_parameters_and_pools(tmp_path: Path) -> None:
    source = yaml.safe_load((REPOSITORY / settings.SOURCE).read_text(encoding="utf-8"))
    wanted = a_stack(
        tmp_path,
        cron="5 4 * * *",
        timezone="Africa/Nairobi",
        pools={"cpu": 1, "a100": 2},
        parameters={"jobs": 2},
    )
    made = settings.deployments(wanted, source)
    night, *scores = made["deployments"]
    assert night["schedules"] == [
        {"cron": "5 4 * * *", "timezone": "Africa/Nairobi", "slug": "every-night", "active": True}
    ]
    assert night["parameters"]["jobs"] == 2 and night["parameters"]["report"] == "reports/latest"
    assert night["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert [(entry["name"], entry["work_pool"]["name"]) for entry in scores] == [
        ("score-cpu", "sdgbias-cpu"),
        ("score-a100", "sdgbias-a100"),
    ]
    assert (
        settings.deployments(replace(wanted, schedule=False), source)["deployments"][0]["schedules"]
        == []
    )
    assert "watch" not in {one["name"] for one in made["deployments"]}
    [_, watch, *_] = settings.deployments(replace(wanted, watch=True), source)["deployments"]
    assert (watch["entrypoint"], watch["work_pool"]["job_variables"]["env"]["HF_HUB_OFFLINE"]) == (
        "flows/watch.py:watch",
        "0",
    )


def test_a_broken_file_of_deployments_is_told(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / settings.SOURCE).write_text("deployments: [{name: nightly}]")
    with pytest.raises(InputError, match=r"prefect\.yaml.*score-cpu"):
        settings.write_deployments(a_stack(tmp_path))


# -- processes


@pytest.fixture
def home(tmp_path: Path):  # type: ignore[no-untyped-def]
    yield tmp_path / "home"
    processes.end(processes.marked(tmp_path / "home"), 5)


def test_a_process_is_known_by_name_until_it_ends(home: Path) -> None:
    pid = processes.spawn(home, "server", SLEEP, os.environ, home.parent)
    there = processes.alive(home, "server")
    assert there is not None and there.pid == pid
    assert processes.variable(there, processes.PART) == "server"
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 600
    while processes.alive(home, "server") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes.alive(home, "server") is None


def test_a_pid_that_another_process_has_by_now_is_not_ours(home: Path) -> None:
    stranger = subprocess.Popen(SLEEP)
    try:
        processes.write(home / "run" / "server.json", {"pid": stranger.pid, "command": SLEEP})
        assert processes.alive(home, "server") is None
        assert stack.down(home, print) == 0 and stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "many"}', '{"pid": -1}'])
def test_a_pid_file_that_says_nothing_is_nobody(home: Path, content: str) -> None:
    (home / "run").mkdir(parents=True)
    (home / "run" / "server.json").write_text(content)
    assert processes.alive(home, "server") is None


def test_what_a_killed_parent_left_behind_is_found_and_ended(home: Path) -> None:
    child = (
        f"import subprocess, time; subprocess.Popen({SLEEP!r}); print('both', flush=True);"
        " time.sleep(600)"
    )
    pid = processes.spawn(
        home, "worker-cpu", [sys.executable, "-c", child], os.environ, home.parent
    )
    deadline = time.monotonic() + 600
    while not (
        "both" in processes.log_of(home, "worker-cpu").read_text()
        and len(processes.marked(home)) == 2
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    psutil.Process(pid).wait(120)  # a killed process is still to be seen for a moment
    assert [p.pid != pid for p in processes.marked(home)] == [True]
    assert stack.down(home, print) == 1
    assert processes.marked(home) == [] and processes.names(home) == []


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / settings.SOURCE).write_text("deployments: []")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InfrastructureError, match=f"port {port}.*sdgbias stack up --port"):
            stack.up(a_stack(tmp_path, port=port), print, datetime.now(UTC))
    assert processes.marked(tmp_path / "home") == [] and settings.load(tmp_path / "home") is None


def test_up_outside_the_project_and_status_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the folder of the project"):
        stack.up(a_stack(tmp_path), print, datetime.now(UTC))
    well, said = stack.lines(tmp_path / "home")
    assert not well and "sdgbias stack up" in said[0]


def test_a_half_dead_stack_says_which_part_is_gone(home: Path) -> None:
    made = a_stack(home.parent)
    settings.save(made)
    processes.spawn(home, "server", SLEEP, os.environ, home.parent)
    well, said = stack.lines(home)
    assert not well
    assert any("worker-cpu" in line and "NOT RUNNING" in line for line in said) and any(
        "no supervisor is running" in line for line in said
    )
    (home.parent / "infra").mkdir()
    (home.parent / settings.SOURCE).write_text("deployments: []")
    with pytest.raises(UsageError, match="other settings.*sdgbias stack down"):
        stack.up(replace(made, port=4999), print, datetime.now(UTC))


# -- missed nights

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def nights(results: Path, **status: str) -> None:
    rows = pd.DataFrame(
        [{"night": f"2026-11-{day[1:]}T0130", "status": said} for day, said in status.items()]
    )
    store.upsert(results, {"nights": rows})


def test_a_night_is_overdue_until_it_is_in_the_results_as_done(tmp_path: Path) -> None:
    made = a_stack(tmp_path, parameters={"results": "r.duckdb"})
    due = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
    assert catch_up.overdue(made, NOON) == due
    nights(tmp_path / "r.duckdb", d20="done", d21="interrupted")
    assert catch_up.overdue(made, NOON) == due
    nights(tmp_path / "r.duckdb", d21="done")
    assert catch_up.overdue(made, NOON) is None


def test_what_was_due_before_the_schedule_began_is_not_caught_up(tmp_path: Path) -> None:
    made = a_stack(tmp_path, since="2026-11-21T11:00:00+00:00")
    assert catch_up.overdue(made, NOON) is None
    assert catch_up.overdue(made, NOON + timedelta(days=1)) == datetime(
        2026, 11, 22, 1, 30, tzinfo=UTC
    )


def test_of_a_week_of_missed_nights_the_newest_counts(tmp_path: Path) -> None:
    made = a_stack(tmp_path)
    assert catch_up.overdue(made, NOON + timedelta(days=7)) == datetime(
        2026, 11, 28, 1, 30, tzinfo=UTC
    )


def test_a_due_night_gets_a_moment_to_start_by_itself(tmp_path: Path) -> None:
    made = a_stack(tmp_path, since="2026-11-21T01:00:00+00:00")
    due = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
    assert catch_up.overdue(made, due + catch_up.GRACE / 2) is None
    assert catch_up.overdue(made, due + catch_up.GRACE) == due


def test_tries_of_one_night_wait_longer_and_end() -> None:
    assert catch_up.may_retry([], NOON) and catch_up.may_retry([NOON], NOON)
    assert not catch_up.may_retry([NOON, NOON], NOON + timedelta(minutes=4))
    assert catch_up.may_retry([NOON, NOON], NOON + timedelta(minutes=5))
    assert not catch_up.may_retry([NOON] * 4, NOON + timedelta(days=1))


def test_a_run_means_the_night_for_which_it_was_scheduled_or_told() -> None:
    due = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
    assert catch_up.is_run_of({}, due, due) and catch_up.is_run_of(
        {"scheduled_for": due.isoformat()}, NOON, due
    )
    assert not catch_up.is_run_of({}, NOON, due) and not catch_up.is_run_of(
        {"scheduled_for": NOON.isoformat()}, due, due
    )


def test_the_next_night_in_the_schedules_own_time(tmp_path: Path) -> None:
    made = a_stack(tmp_path, timezone="Africa/Nairobi")
    assert catch_up.next_due(made, NOON) == "2026-11-22 01:30 EAT"
    assert catch_up.next_due(replace(made, cron="0 0 29 2 *"), NOON) == "none within 400 days"


def test_the_last_night_in_one_line(tmp_path: Path) -> None:
    assert catch_up.last_night(tmp_path / "none.duckdb") == "none yet"
    results = tmp_path / "r.duckdb"
    rows = pd.DataFrame(
        [
            {"night": "2026-11-21T0130", "model": m, "suite": "sdg", "outcome": o}
            for m, o in (("a", "published"), ("b", "failed"))
        ]
    )
    store.upsert(
        results,
        {
            "nights": pd.DataFrame(
                [{"night": "2026-11-21T0130", "status": "done", "report": "reports/latest"}]
            ),
            "night_models": rows,
        },
    )
    assert (
        catch_up.last_night(results)
        == "2026-11-21T0130: done; 1 failed, 1 published; report: reports/latest/night.html"
    )
