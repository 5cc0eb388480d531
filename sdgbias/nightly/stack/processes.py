"""Processes that outlive the command that started them: each is identified by a file, and all are
marked by an environment variable.

A pid alone is not enough, because the system reuses numbers: a process is identified by its pid,
command line and mark. The variable ``MARK`` holds the home folder of a stack; every child inherits
it, so processes left behind by a killed parent are found as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

MARK = "SDGBIAS_STACK"
#: Name of the part (server, worker-cpu, ...) that a process is, or that started it.
PART = "SDGBIAS_STACK_PART"
#: Set by Prefect for the process of a flow run and inherited by its children.
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
_LOG_LIMIT = 10_000_000  # bytes; an older log is kept once, as NAME.log.1


def spawn(home: Path, name: str, command: list[str], env: Mapping[str, str], cwd: Path) -> int:
    """Start `command` in a new session, with its output in logs/NAME.log, and write run/NAME.json.
    Returns the pid."""
    log = log_of(home, name)
    for folder in (log.parent, home / "run"):
        folder.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            env={**env, MARK: str(home), PART: name},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    _wait_for_name(process)
    write(home / "run" / f"{name}.json", {"pid": process.pid, "command": command})
    return process.pid


def _wait_for_name(process: subprocess.Popen[bytes]) -> None:
    """Wait until a new process has a command line and environment; for a moment after its start it
    has neither and could not be identified."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.Error):
        while (
            not psutil.Process(process.pid).cmdline()
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)


def log_of(home: Path, name: str) -> Path:
    return home / "logs" / f"{name}.log"


def write(path: Path, content: object) -> None:
    """Write JSON to a temporary file and rename it: a reader sees the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def read(path: Path) -> dict[str, object]:
    """Read JSON written by `write`; {} if there is none (no file, or truncated by a full disk)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def alive(home: Path, name: str) -> psutil.Process | None:
    """The process of run/NAME.json while it runs; None if it ended or its pid now belongs to
    another process."""
    said = read(home / "run" / f"{name}.json")
    try:
        process = psutil.Process(int(str(said.get("pid", "none"))))
        return (
            process if process.cmdline() == said.get("command") and _marked(process, home) else None
        )
    except (ValueError, psutil.Error):
        return None


def names(home: Path) -> list[str]:
    """Names of processes with a file in run/, alive or not."""
    return sorted(path.stem for path in (home / "run").glob("[!.]*.json"))


def marked(home: Path) -> list[psutil.Process]:
    """Every process that carries the mark of `home`, except this one and its parents."""
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in mine and _marked(process, home)
    ]


def _marked(process: psutil.Process, home: Path) -> bool:
    return variable(process, MARK) == str(home) and _lives(process)


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


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end(processes: Iterable[psutil.Process], patience: float) -> int:
    """Send SIGTERM, wait up to `patience` seconds, then kill. Returns the number of processes."""
    asked = [process for process in processes if _lives(process)]
    for process in asked:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _wait(asked, patience)
    for process in asked:
        if _lives(process):
            with contextlib.suppress(psutil.Error):
                process.kill()
    _wait(asked, 5)
    return len(asked)


def _wait(processes: list[psutil.Process], patience: float) -> None:
    deadline = time.monotonic() + patience
    while any(_lives(process) for process in processes) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):  # our own children would stay as zombies
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.05)
