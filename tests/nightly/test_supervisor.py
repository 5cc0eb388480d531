"""No descendant of a model's process outlives its end, its time limit, its night or its supervisor,
whatever it did to stay; its log has a limit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sdgbias.nightly import process
from tests.builders.commands import REPOSITORY
from tests.builders.processes import alive, end

#: Code of a model that leaves a process behind, whose id it prints.
STAYS = {
    "a child": "p = subprocess.Popen(['sleep', '600']); print(p.pid)",
    "a session of its own": (
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True); print(p.pid)"
    ),
    "a forked daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid())
        os.execvp('sleep', ['sleep', '600'])
    os._exit(0)
""",
    "a held interpreter": (
        "p = subprocess.Popen([sys.executable, '-c', '9**9**9'], start_new_session=True);"
        " print(p.pid)"
    ),
}
HEAD = "import os, signal, subprocess, sys, time\n"
NIGHT = """
import sys
from pathlib import Path
from sdgbias.nightly import process
process.run([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), 0)
"""
stays = pytest.mark.parametrize("code", STAYS.values(), ids=STAYS)


def model(code: str, then: str = "time.sleep(600)") -> list[str]:
    return [sys.executable, "-u", "-c", f"{HEAD}{code}\ntime.sleep(0.2)\n{then}"]


def printed(log: Path, patience: float = 120.0) -> int:
    """The number in the log, as soon as it is there."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        lines = log.read_text().split("\n")[1:] if log.exists() else []
        if len(lines) > 1 and lines[0].isdigit():
            return int(lines[0])
        time.sleep(0.02)
    raise AssertionError(f"no number in {log}")


@stays
def test_given_a_command_that_ends_then_nothing_of_it_is_left(code: str, tmp_path: Path) -> None:
    ended = process.run(model(code, "sys.exit(3)"), tmp_path / "log", 0)
    assert ended.code == 3
    assert not alive(printed(tmp_path / "log"))


@stays
def test_given_a_time_limit_then_nothing_is_left_after_it(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    ended = process.run(
        model(code),
        tmp_path / "log",
        120,
        look=lambda: "enough" if (tmp_path / "log").read_text().count("\n") > 1 else "",
    )
    assert ended.ended == "enough"
    assert not alive(printed(tmp_path / "log"))


@stays
def test_given_a_killed_night_then_nothing_is_left(code: str, tmp_path: Path) -> None:
    script = model(code)[-1]
    night = subprocess.Popen(
        [sys.executable, "-c", NIGHT, script, str(tmp_path / "log")], cwd=REPOSITORY
    )
    left = printed(tmp_path / "log")
    night.kill()
    night.wait()
    assert end([left])


@stays
def test_given_a_killed_supervisor_then_the_night_ends_what_it_left(
    code: str, tmp_path: Path
) -> None:
    kill = "os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)"
    ended = process.run(model(code, kill), tmp_path / "log", 0)
    assert ended.code == -signal.SIGKILL
    assert end([printed(tmp_path / "log")])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_given_a_signal_then_the_supervisor_ends_by_it_too(number: int, tmp_path: Path) -> None:
    ended = process.run(model(f"os.kill(os.getpid(), {int(number)})"), tmp_path / "log", 0)
    assert ended.code == -number


def test_given_gigabytes_of_output_then_the_log_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 100_000)
    code = "for n in range(100_000): print('line', n)\nsys.exit('error: the last line')"
    ended = process.run(model("", code), tmp_path / "log", 0)
    sizes = [path.stat().st_size for path in (tmp_path / "log", tmp_path / "log.1")]
    assert ended.code == 1 and max(sizes) <= 100_000
    assert process.last_error(tmp_path / "log") == "the last line"


def test_given_a_command_that_cannot_be_started_then_its_log_says_so(tmp_path: Path) -> None:
    ended = process.run([str(tmp_path / "nowhere")], tmp_path / "log", 0)
    assert ended.code == 127
    assert "nowhere: can't be started" in process.last_error(tmp_path / "log")


def test_given_a_command_that_reads_its_input_then_there_is_none(tmp_path: Path) -> None:
    """The supervisor's own input stays open for as long as the night lives."""
    ended = process.run([sys.executable, "-c", "input()"], tmp_path / "log", 120)
    assert not ended.timed_out and "EOFError" in process.last_error(tmp_path / "log")
