"""A complete local stack on 127.0.0.1: Prefect's server, a worker per work pool, the schedule, and
a supervisor that keeps them running.

    sdgbias stack up  ->  supervisor (flows/supervisor.py)  ->  server, workers  ->  flow runs  ->
    sdgbias evaluate ...

This package starts and ends processes and reads the supervisor's state file; it never imports
prefect. All files are in one home folder: stack.json (settings), state.json (the supervisor's
state), run/ (pids), logs/, prefect.yaml, prefect/ (SQLite database).
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from sdgbias import progress
from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.nightly.stack import processes
from sdgbias.nightly.stack.settings import (
    SOURCE,
    Stack,
    environment,
    load,
    save,
    write_deployments,
)

SUPERVISOR = "supervisor"
#: Stages that `up` waits for, in the order in which the supervisor completes them.
STEPS = ("server", "pools", "deployments", "workers", "schedule")


def up(wanted: Stack, say: Callable[[str], None], now: datetime, patience: float = 300) -> Stack:
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
        before = load(home)
        if before is not None:
            wanted = replace(wanted, since=before.since)
        wanted = replace(wanted, since=wanted.since or now.astimezone(UTC).isoformat())
        running = processes.alive(home, SUPERVISOR) is not None
        if before is not None and not before.same_as(wanted) and processes.marked(home):
            raise UsageError(
                f"a stack with other settings runs in {home} ({before.page}); first: sdgbias"
                " stack down"
                f" --home {home}"
            )
        if not running:
            if processes.alive(home, "server") is None:
                _require_free(wanted.port)
            save(wanted)
            write_deployments(wanted)
            processes.write(home / "state.json", {})
            command = [sys.executable, "-m", "flows.supervisor", "--home", str(home)]
            processes.spawn(home, SUPERVISOR, command, environment(wanted), Path(wanted.project))
        _wait(wanted, say, patience)
    return wanted


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


def _wait(stack: Stack, say: Callable[[str], None], patience: float) -> None:
    home, began = Path(stack.home), time.monotonic()
    told: set[str] = set()
    while len(told) < len(STEPS):
        state = processes.read(home / "state.json")
        for step in STEPS:
            if step not in told and step in state:
                say(f"  {step:<12} {state[step]}")
                told.add(step)
        late = time.monotonic() - began > patience
        if waiting := [step for step in STEPS if step not in told]:
            progress.update(f"waiting for {waiting[0]}")
        if len(told) < len(STEPS) and (late or processes.alive(home, SUPERVISOR) is None):
            why = f"not ready after {patience:.0f} s" if late else "the supervisor ended"
            said = state.get("trouble") or _last_line(processes.log_of(home, SUPERVISOR))
            raise InfrastructureError(
                f"{waiting[0]}: {why}: {said}; logs in {home / 'logs'}; try again: sdgbias"
                " stack down; sdgbias stack up"
            )
        time.sleep(0.1)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "no log"


def down(home: Path, say: Callable[[str], None]) -> int:
    """End every process that carries the mark of `home`: the supervisor first, then flow runs
    (while the server can still record how they end), the processes they started, workers and
    server. Returns the number of processes found; 0 if nothing ran."""
    if not home.is_dir():
        return 0
    with _alone(home):
        ended = 0
        supervisor = processes.alive(home, SUPERVISOR)
        ended += _end("supervisor", [supervisor] if supervisor else [], 10, say)
        there = processes.marked(home)
        server = [p for p in there if processes.variable(p, processes.PART) == "server"]
        flows = [p for p in there if p not in server and processes.runs_a_flow(p)]
        ended += _end("flow runs", flows, 15, say)
        ended += _end("workers", [p for p in processes.marked(home) if p not in server], 10, say)
        ended += _end("server", server, 20, say)
        ended += _end("left over", processes.marked(home), 5, say)
        for name in processes.names(home):
            (home / "run" / f"{name}.json").unlink(missing_ok=True)
        (home / "state.json").unlink(missing_ok=True)
    return ended


def _end(
    what: str, found: list[psutil.Process], patience: float, say: Callable[[str], None]
) -> int:
    count = processes.end(found, patience)
    if count:
        say(f"  {what:<12} ended ({count} process{'es' if count > 1 else ''})")
    return count


def lines(home: Path) -> tuple[bool, list[str]]:
    """(whether every part of the stack in `home` runs, its status lines: parts, addresses,
    restarts)."""
    stack = load(home)
    there = {
        name: processes.alive(home, name) for name in (SUPERVISOR, *(stack.parts if stack else []))
    }
    if stack is None or not any(there.values()):
        return False, [f"no stack runs in {home}. Next: sdgbias stack up"]
    said = [
        f"  {name:<12} {f'runs, pid {process.pid}' if process else 'NOT RUNNING'}   log:"
        f" {processes.log_of(home, name)}"
        for name, process in there.items()
    ]
    state = processes.read(home / "state.json")
    if trouble := state.get("trouble"):
        said.append(f"  {'trouble':<12} {trouble}")
    happened = state.get("happened", [])
    said += [f"  {line}" for line in (happened[-5:] if isinstance(happened, list) else [])]
    if there[SUPERVISOR] is None:
        said.append("  no supervisor is running. Next: sdgbias stack up")
    return all(there.values()), [f"stack in {home}: {stack.page}", *said]


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One `up` or `down` at a time; the second waits for the first."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InfrastructureError(
            f"{home}: {error.strerror}; choose another folder: --home DIR"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
