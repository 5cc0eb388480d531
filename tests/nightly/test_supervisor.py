"""No descendant of a model's process outlives its end, its time limit, its night or its supervisor,
whatever it did to stay; its log has a limit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sdgbias.nightly import process
from tests.builders.commands import REPOSITORY
from tests.builders.prefect_server import wait_for
from tests.builders.processes import alive, end

DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid())
        os.execvp('sleep', ['sleep', '600'])
    os._exit(0)
"""
#: Code of a model that leaves a process behind, whose id it prints.
STAYS = {
    "a child": "print(subprocess.Popen(['sleep', '600']).pid)",
    "a session of its own": "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)",
    "a forked daemon": DAEMON,
    "a held interpreter": (
        "print(subprocess.Popen([sys.executable, '-c', '9**9**9'], start_new_session=True).pid)"
    ),
}
NIGHT = """
import sys
from pathlib import Path
from sdgbias.nightly import process
process.run([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), 0)
"""
stays = pytest.mark.parametrize("code", STAYS.values(), ids=STAYS)


def model(code: str, then: str = "time.sleep(600)") -> list[str]:
    head = "import os, signal, subprocess, sys, time\n"
    return [sys.executable, "-u", "-c", f"{head}{code}\ntime.sleep(0.2)\n{then}"]


def printed(log: Path) -> int:
    """The number in the log, as soon as it is there."""

    def lines() -> list[str]:
        ended = log.read_text().split("\n")[1:-1] if log.exists() else []
        return [line for line in ended if line.isdigit()]

    return int(wait_for("a number in the log", lines)[0])


@stays
def test_given_a_command_that_ends_then_nothing_of_it_is_left(code: str, tmp_path: Path) -> None:
    ended = process.run(model(code, "sys.exit(3)"), tmp_path / "log", 0)
    assert ended.code == 3 and not alive(printed(tmp_path / "log"))


@stays
def test_given_a_time_limit_then_nothing_is_left_after_it(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    log = tmp_path / "log"
    enough = lambda: "enough" if log.read_text().count("\n") > 1 else ""  # noqa: E731
    assert process.run(model(code), log, 120, look=enough).message == "enough"
    assert not alive(printed(log))


@stays
def test_given_a_killed_night_then_nothing_is_left(code: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", NIGHT, model(code)[-1], str(log)]
    night = subprocess.Popen(command, cwd=REPOSITORY)
    left = printed(log)
    night.kill()
    night.wait()
    assert end([left])


@stays
def test_given_a_killed_supervisor_then_the_night_ends_what_it_left(
    code: str, tmp_path: Path
) -> None:
    kill = "os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)"
    ended = process.run(model(code, kill), tmp_path / "log", 0)
    assert ended.code == -signal.SIGKILL and end([printed(tmp_path / "log")])


def test_given_an_adopted_orphan_that_ends_then_it_is_no_zombie(tmp_path: Path) -> None:
    orphan = (
        "if os.fork() == 0:\n    if os.fork() == 0:\n        print(os.getpid())\n    os._exit(0)"
    )
    with process.beside(model(f"{orphan}\nos.wait()"), tmp_path / "log") as supervisor:
        pid = printed(tmp_path / "log")
        wait_for("the end of the orphan", lambda: not Path(f"/proc/{pid}").exists())
        assert supervisor.poll() is None


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (model(f"os.kill(os.getpid(), {int(signal.SIGKILL)})"), -signal.SIGKILL, ""),
        (model(f"os.kill(os.getpid(), {int(signal.SIGSEGV)})"), -signal.SIGSEGV, ""),
        (model(f"os.kill(os.getpid(), {int(signal.SIGTERM)})"), -signal.SIGTERM, ""),
        (["/nowhere/at/all"], 127, "/nowhere/at/all: can't be started"),
        # the supervisor's own input stays open for as long as the night lives
        ([sys.executable, "-c", "input()"], 1, "EOFError"),
    ],
    ids=["SIGKILL", "SIGSEGV", "SIGTERM", "no such command", "no input"],
)
def test_given_an_end_then_the_supervisor_ends_by_it_too(
    command: list[str], code: int, words: str, tmp_path: Path
) -> None:
    assert process.run(command, tmp_path / "log", 120).code == code
    assert words in process.last_error(tmp_path / "log")


def test_given_gigabytes_of_output_then_the_log_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 100_000)
    code = "for n in range(100_000): print('line', n)\nsys.exit('error: the last line')"
    ended = process.run(model("", code), tmp_path / "log", 0)
    sizes = [path.stat().st_size for path in (tmp_path / "log", tmp_path / "log.1")]
    assert ended.code == 1 and max(sizes) <= 100_000
    assert process.last_error(tmp_path / "log") == "the last line"
