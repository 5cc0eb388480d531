"""A complete local stack on 127.0.0.1: Prefect's server, a worker per work pool, the schedule.

    sdgbias stack up  ->  launcher  ->  server, workers  ->  flow runs  ->  sdgbias evaluate ...

The launcher (launcher.py) keeps the processes running and ends them together; everything else is
Prefect's: schedule, late runs, concurrency limits and the automations of infra/automations.yaml,
which flows/deploy.py puts on the server. This package never imports prefect. All files are in one
home folder: stack.json (settings), logs/, prefect.yaml, prefect/ (SQLite database).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from sdgbias import progress
from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.nightly.stack import launcher, processes
from sdgbias.nightly.stack.settings import (
    SOURCE,
    Stack,
    environment,
    load,
    save,
    write_deployments,
)

LAUNCHER = "launcher"


def up(wanted: Stack, say: Callable[[str], None], patience: float = 300) -> None:
    """Start the stack, or find it running with the same settings, and wait until every part is
    ready.

    `say` is called with one line per part. Raises UsageError (not the project's folder, or a stack
    with other settings is running), InfrastructureError (the port is taken, or a part was not ready
    within `patience` seconds).
    """
    home = Path(wanted.home)
    if not (Path(wanted.project) / SOURCE).is_file():
        raise UsageError(
            f"{wanted.project}: no {SOURCE}; run `sdgbias stack up` in the folder of the project"
        )
    with _alone(home):
        before, running = load(home), processes.part(home, LAUNCHER)
        if before is not None and before != wanted and running:
            raise UsageError(
                f"a stack with other settings runs in {home} ({before.page}); first: sdgbias"
                f" stack down --home {home}"
            )
        if not running:
            _require_free(wanted.port)
            save(wanted)
            write_deployments(wanted)
            command = [sys.executable, "-m", __name__, wanted.home]
            its = environment(wanted)
            started = processes.start(wanted.home, LAUNCHER, command, its, wanted.project)
        _wait_for_server(wanted, patience, lambda: running is None and started.poll() is not None)
        say(f"  server       ready: {wanted.page}")
        _deploy(wanted, say, [] if running else ["--catch-up"])


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise InfrastructureError(
                f"port {port} on 127.0.0.1: {error}; choose a free one: sdgbias stack up --port"
                f" {port + 1}"
            ) from error


def _wait_for_server(stack: Stack, patience: float, ended: Callable[[], bool]) -> None:
    progress.update("waiting for server")
    deadline = time.monotonic() + patience
    while not launcher.answers(stack):
        if ended():
            raise _not_ready(stack, LAUNCHER, "it ended")
        if time.monotonic() > deadline:
            raise _not_ready(stack, "server", f"not ready after {patience:.0f} s")
        time.sleep(0.2)


def _deploy(stack: Stack, say: Callable[[str], None], more: list[str]) -> None:
    progress.update("waiting for deployments and workers")
    log = processes.log_of(Path(stack.home), "deploy")
    command = [sys.executable, "-m", "flows.deploy", "--home", stack.home, *more]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            env=environment(stack),
            cwd=stack.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            say(f"  {line.rstrip()}")
    if process.returncode:
        raise _not_ready(stack, "deploy", f"exit code {process.returncode}")


def _not_ready(stack: Stack, name: str, why: str) -> InfrastructureError:
    home = Path(stack.home)
    return InfrastructureError(
        f"{name}: {why}: {(tail(processes.log_of(home, name), 1) or ['no log'])[-1]}; logs in"
        f" {home / 'logs'}; try again: sdgbias stack down; sdgbias stack up"
    )


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log; [] if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-lines:]
    except OSError:
        return []


def down(home: Path, say: Callable[[str], None]) -> int:
    """End the stack in `home`: the launcher ends all of it; then whatever carries its mark and is
    left. Returns the number of processes found; 0 if nothing ran."""
    if not home.is_dir():
        return 0
    with _alone(home):
        there = len(processes.marked(home))
        if running := processes.part(home, LAUNCHER):
            processes.end([running], 60)
        processes.end(processes.marked(home), 15)
        if there:
            say(f"  ended        {there} processes")
    return there


def lines(home: Path) -> tuple[bool, list[str]]:
    """(whether every part of the stack in `home` runs, its status lines: parts, addresses,
    restarts)."""
    stack = load(home)
    there = {
        name: processes.part(home, name) for name in (LAUNCHER, *(stack.parts if stack else []))
    }
    if stack is None or not any(there.values()):
        return False, [f"no stack runs in {home}. Next: sdgbias stack up"]
    said = [
        f"  {name:<12} {f'runs, pid {process.pid}' if process else 'NOT RUNNING'}   log:"
        f" {processes.log_of(home, name)}"
        for name, process in there.items()
    ]
    said += [f"  {line}" for line in tail(processes.log_of(home, LAUNCHER), 5)]
    return all(there.values()), [f"stack in {home}: {stack.page}", *said]


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One `up` or `down` at a time; the second waits for the first."""
    lock = FileLock(home / "lock", mode=0o600)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise InfrastructureError(
            f"{home}: {error.strerror}; choose another folder: --home DIR"
        ) from error
    try:
        yield
    finally:
        lock.release()
