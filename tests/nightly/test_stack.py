"""The parts of a local stack that need no server: settings, deployments as data, processes by their
mark, the launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sdgbias.errors import InfrastructureError, InputError, UsageError
from sdgbias.nightly import stack
from sdgbias.nightly.stack import launcher, processes, settings
from sdgbias.nightly.stack.settings import Stack

REPOSITORY = Path(__file__).resolve().parents[2]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def a_stack(folder: Path, **fields: object) -> Stack:
    return replace(Stack(home=str(folder / "home"), project=str(folder)), **fields)  # type: ignore[arg-type]


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
    assert settings.load(tmp_path / "home") is None
    (tmp_path / "home").mkdir()
    settings.save(made)
    assert settings.load(tmp_path / "home") == made


def test_settings_of_another_version_are_told(tmp_path: Path) -> None:
    for content, why in (('{"home": "x", "project": "y", "wings": 2}', "wings"), ("{", "line 1")):
        (tmp_path / "stack.json").write_text(content)
        with pytest.raises(InputError, match=f"{why}.*sdgbias stack down"):
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
    assert night["parameters"] == {"selfcheck": True, "jobs": 2}
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
    watching = settings.deployments(replace(wanted, watch=True), source)["deployments"]
    for one in watching:  # a run outlives its worker only if it doesn't print through its pipe
        assert one["work_pool"]["job_variables"]["stream_output"] is False, one["name"]
    [_, watch, *_] = watching
    [midnight] = watch["schedules"]
    assert (midnight["cron"], midnight["timezone"]) == ("0 0 * * *", "Africa/Nairobi")
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
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    processes.end(processes.marked(tmp_path / "home"), 5)


def spawn(home: Path, part: str, command: list[str], **more: str) -> subprocess.Popen[bytes]:
    marks = {processes.MARK: str(home), processes.PART: part, **more}
    return subprocess.Popen(command, env={**os.environ, **marks}, start_new_session=True)


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_part_is_known_by_its_mark_and_name_until_it_ends(home: Path) -> None:
    server = spawn(home, "server", SLEEP)
    until(lambda: processes.part(home, "server"))
    flow = spawn(home, "worker-cpu", SLEEP, **{processes.FLOW_RUN: "a run"})
    until(lambda: len(processes.marked(home)) == 2)
    found = processes.part(home, "server")
    assert found is not None and found.pid == server.pid
    assert processes.part(home, "worker-cpu") is None, "a flow run outlives its worker"
    assert processes.part(home.parent, "server") is None, "another stack's"
    server.kill()
    until(lambda: processes.part(home, "server") is None)
    home.mkdir()
    assert stack.down(home, print) == 1 and flow.poll() is not None


def test_what_a_killed_parent_left_behind_is_found_and_ended(home: Path) -> None:
    child = f"import subprocess, time; subprocess.Popen({SLEEP!r}); time.sleep(600)"
    parent = spawn(home, "worker-cpu", [sys.executable, "-c", child])
    until(lambda: len(processes.marked(home)) == 2)
    parent.kill()
    until(lambda: [p.pid != parent.pid for p in processes.marked(home)] == [True])
    home.mkdir()
    assert stack.down(home, print) == 1
    assert processes.marked(home) == []


# -- launcher


def test_what_ends_is_started_again_later_each_time(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that end at once. The server starts at 0, 2, 6 and 14 s; its worker not before the
    server answers at 4 s, then at 6 and 10 s."""
    begun: list[tuple[str, float]] = []
    now = [0.0]

    class Enough(Exception):
        pass

    def start(made: Stack, part: str) -> subprocess.Popen[bytes]:
        begun.append((part, now[0]))
        if len(begun) == 7:
            raise Enough
        ended = subprocess.Popen(["false"])
        ended.wait()
        return ended

    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(launcher, "time", clock)
    monkeypatch.setattr(launcher, "start", start)
    monkeypatch.setattr(launcher, "answers", lambda made: now[0] >= 4)
    with pytest.raises(Enough):
        launcher.keep(a_stack(home.parent), {})
    assert [at for part, at in begun if part == "server"] == [0, 2, 6, 14]
    assert [at for part, at in begun if part == "worker-cpu"] == [4, 6, 10]


def test_prefect_ends_with_the_launcher(home: Path) -> None:
    """The launcher is killed while `prefect version` would still be importing."""
    code = (
        "import sys, time; from pathlib import Path; from sdgbias.nightly.stack import launcher,"
        " settings;"
        " launcher.command = lambda *_: ['server', 'start', '--port', '1', '--host', '127.0.0.1'];"
        " made = settings.Stack(home=sys.argv[1], project=sys.argv[1]); launcher.start(made,"
        " 'server'); time.sleep(600)"
    )
    home.mkdir()
    parent = spawn(home, "launcher", [sys.executable, "-c", code, str(home)])
    until(lambda: processes.part(home, "server"))
    parent.kill()
    parent.wait()
    until(lambda: processes.marked(home) == [])


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / settings.SOURCE).write_text("deployments: []")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InfrastructureError, match=f"port {port}.*sdgbias stack up --port"):
            stack.up(a_stack(tmp_path, port=port), print)
    assert processes.marked(tmp_path / "home") == [] and settings.load(tmp_path / "home") is None


def test_up_outside_the_project_and_status_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the folder of the project"):
        stack.up(a_stack(tmp_path), print)
    well, said = stack.lines(tmp_path / "home")
    assert not well and "sdgbias stack up" in said[0]


def test_a_half_dead_stack_says_which_part_is_gone(home: Path) -> None:
    made = a_stack(home.parent)
    home.mkdir()
    settings.save(made)
    spawn(home, "launcher", SLEEP)
    until(lambda: processes.part(home, "launcher"))
    well, said = stack.lines(home)
    assert not well
    assert any("worker-cpu" in line and "NOT RUNNING" in line for line in said)
    (home.parent / "infra").mkdir()
    (home.parent / settings.SOURCE).write_text("deployments: []")
    with pytest.raises(UsageError, match="other settings.*sdgbias stack down"):
        stack.up(replace(made, port=4999), print)
