"""The processes of a local stack, found by a mark in their environment that every child inherits,
so that what a killed parent left behind is found as well."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

#: Environment variable with the home folder of the stack.
MARK = "SDGBIAS_STACK"
#: Name of the part (launcher, server, worker-cpu, ...) that a process is, or that started it.
PART = "SDGBIAS_STACK_PART"
#: Set by Prefect for the process of a flow run and inherited by its children.
FLOW_RUN = "PREFECT__FLOW_RUN_ID"


def log_of(home: Path, name: str) -> Path:
    return home / "logs" / f"{name}.log"


def start(
    home: str,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    project: str,
    passed: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a part of the stack in a session of its own, with its output in logs/NAME.log."""
    log = log_of(Path(home), name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            env={**environment, MARK: home, PART: name},
            pass_fds=passed,
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def marked(home: Path) -> list[psutil.Process]:
    """Every process that carries the mark of `home`, except this one and its parents."""
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in mine and variable(process, MARK) == str(home) and _lives(process)
    ]


def part(home: Path, name: str) -> psutil.Process | None:
    """The process that is this part of the stack: the oldest of those with its name."""
    there = [p for p in marked(home) if variable(p, PART) == name and not variable(p, FLOW_RUN)]
    return min(there, key=lambda p: (p.create_time(), p.pid), default=None)


def variable(process: psutil.Process, name: str) -> str:
    """An environment variable of another process; '' if it is not set, the process is gone, or it
    belongs to another user."""
    try:
        return str(process.environ().get(name, ""))
    except (psutil.Error, OSError):
        return ""


def runs_a_flow(process: psutil.Process) -> bool:
    """Whether the process is a flow run itself, not a child of one."""
    try:
        return bool(variable(process, FLOW_RUN)) and any(
            part.startswith("prefect.") for part in process.cmdline()[1:3]
        )
    except psutil.Error:
        return False


def end(processes: Iterable[psutil.Process], patience: float) -> int:
    """Send SIGTERM, wait up to `patience` seconds, then kill. Returns the number of processes."""
    there = [process for process in processes if _lives(process)]
    for process in there:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(there, patience)
    kill(alive)
    return len(there)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL, and wait until the processes are gone."""
    there = list(processes)
    for process in there:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(there, 5)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
