"""Run a command that is ended with all its descendants at its end, at a timeout or when the night
ends, however that happens (supervisor.py); its output goes to a log of limited size.

Also the counterpart in the command: the outcome that `sdgbias evaluate --outcome FILE` reports to
the night that started it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sdgbias import credentials, exits
from sdgbias.errors import OutOfMemory, SdgbiasError, StoreError
from sdgbias.files import replacing
from sdgbias.nightly import supervisor

#: Seconds between SIGTERM and SIGKILL.
GRACE = 5.0
#: Seconds between two looks at the progress of a running process.
LOOK = 1.0
#: Maximum length of a stored message, in characters.
LONGEST = 500
#: Bytes of a command's log; as much again is kept before it, in NAME.log.1.
LOG_BYTES = 16 * 2**20
_MARK = re.compile(rb"(?:\A|\0)%s=(\d+):(\d+)" % supervisor.MARK.encode())
_STARTED = "== started "
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|webhook", re.IGNORECASE)
#: The last line of a traceback: an exception's name, at the beginning of a line.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\uffff]")
_RUNNING: set[subprocess.Popen[bytes]] = set()
_LOCK = threading.Lock()
_PIPE: list[int] = []  # one for all children; never closed
_STOPPING = threading.Event()


class Stopped(Exception):
    """The night is being ended by a user or a signal: interrupted work is not a failure."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended: exit code (negative: the signal), whether it timed out, its duration in
    seconds; ended: the reason for which `look` had it ended, '' if it did not."""

    code: int
    timed_out: bool
    seconds: float
    ended: str = ""


def run(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    look: Callable[[], str] = lambda: "",
) -> ProcessEnd:
    """Run a command to its end or to the timeout (0: none). ``look`` is called every second while
    it runs; a reason that it returns ('': none) ends it. The rest as of `beside`. Raises Stopped if
    `stop_all` ended it."""
    began, timed_out, reason = time.monotonic(), False, ""
    more = {"PYTHONUNBUFFERED": "1", **(environment or {})}
    with beside(command, log, more, without) as child, _running(child):
        try:
            reason = _watch(child, timeout_s, look)
        except subprocess.TimeoutExpired:
            timed_out = True
    if _STOPPING.is_set():
        raise Stopped
    return ProcessEnd(child.returncode, timed_out, time.monotonic() - began, reason)


@contextmanager
def beside(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside the block; its output is appended to ``log``. No descendant of it
    survives the command, the block, or this process. ``without``: environment variables that are
    not passed on. Yields its supervisor, which ends as the command does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        sink.write(f"{_STARTED}{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())
        sink.flush()
        passed_on = {name: value for name, value in os.environ.items() if name not in without}
        limits = (str(log), str(LOG_BYTES), str(GRACE))
        script = [sys.executable, "-I", "-S", supervisor.__file__, *limits]
        child = subprocess.Popen(
            [*script, *command],
            stdin=_lifeline(),
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,
            env={**passed_on, **(environment or {})},
        )
    try:
        yield child
    finally:
        _end([child])


@contextmanager
def _running(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Within the block `stop_all` ends it."""
    with _LOCK:
        _RUNNING.add(child)
    try:
        if _STOPPING.is_set():
            child.terminate()
        yield
    finally:
        with _LOCK:
            _RUNNING.discard(child)


def _lifeline() -> int:
    """The reading end of a pipe that supervisors have as standard input. Its end of file means that
    this process is gone, however it ended: they have it before their first instruction, and no
    child inherits the writing end."""
    with _LOCK:
        if not _PIPE:
            _PIPE.extend(os.pipe())
        return _PIPE[0]


def _forget() -> None:
    """A forked child must not hold its parent's pipe open."""
    while _PIPE:
        os.close(_PIPE.pop())


os.register_at_fork(after_in_child=_forget)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End these supervisors with all that they look after; what a killed one left is ended, too."""
    for child in children:
        child.terminate()
    end = time.monotonic() + GRACE + 2 * supervisor.PATIENCE
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    sweep()


def sweep() -> int:
    """Kill what descends from supervisors that were killed; the number of processes."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mark = _MARK.search((folder / "environ").read_bytes())
            if mark and supervisor.started(int(mark[1])) != mark[2].decode():
                os.kill(int(folder.name), signal.SIGKILL)
                count += 1
    return count


def _watch(child: subprocess.Popen[bytes], timeout_s: float, look: Callable[[], str]) -> str:
    """Wait for the end, or for a reason of ``look``, which is returned; raises TimeoutExpired after
    ``timeout_s`` seconds (0: never)."""
    deadline = time.monotonic() + (timeout_s or float("inf"))
    while child.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(LOOK, max(0.0, deadline - time.monotonic())))
        if reason := look():
            return reason
        if child.poll() is None and time.monotonic() >= deadline:
            raise subprocess.TimeoutExpired(child.args, timeout_s)
    return ""


def begin() -> None:
    """Allow processes to be started (again after `stop_all`)."""
    _STOPPING.clear()


def pause(seconds: float) -> None:
    """Wait; raises Stopped at once if everything is being ended."""
    if _STOPPING.wait(seconds):
        raise Stopped


def stop_all() -> None:
    """End every process that ``run`` is waiting for, with its children; none can be started until
    `begin`."""
    _STOPPING.set()
    with _LOCK:
        running = list(_RUNNING)
    _end(running)


def redact(text: str) -> str:
    """Sanitize a message for the results: one line of at most ``LONGEST`` characters, with
    everything that looks like a token, and every value of an environment variable with a
    secret-sounding name, replaced by ***."""
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= 8:
            text = text.replace(value, "***")
    line = _UNPRINTABLE.sub("?", " ".join(credentials.hide(text).split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def last_error(log: Path) -> str:
    """The last error message in the log since the command was last started ('' if none): its last
    `error:` line, else the first line of a native crash, else the last line of a traceback, else
    the last line."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - 20_000))
            lines = re.split(r"[\r\n]+", source.read().decode("utf-8", "replace"))
        begun = max((i for i, line in enumerate(lines) if line.startswith(_STARTED)), default=-1)
    except OSError:
        return ""
    lines = lines[begun + 1 :]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    raised = [line for line in lines if _RAISED.match(line)]
    spoken = [line for line in lines if line.strip()]
    crashed = [line] if (line := exits.crash(lines)) else []
    return redact((errors or crashed or raised or spoken or [""])[-1])


@contextmanager
def report_outcome(path: Path | None) -> Iterator[dict[str, Any]]:
    """Write the mapping filled by the block to ``path`` as JSON when the block succeeds; on an
    error write its kind and message, and re-raise. The names are columns of ``night_outcomes``.
    Without a path nothing is written. Raises StoreError if the file can't be written."""
    outcome: dict[str, Any] = {}
    if path is None:
        yield outcome
        return

    def failed(error: Exception) -> None:
        kind, expected = type(error).__name__, isinstance(error, SdgbiasError)
        message = str(error) if expected else f"{kind}: {error}"
        write_outcome(path, {"outcome": "failed", "kind": kind, "message": message})

    try:
        yield outcome
    except MemoryError as error:
        failed(lack := OutOfMemory(f"out of memory: {error}".rstrip(": ")))
        raise lack from None
    except Exception as error:
        failed(error)
        raise
    write_outcome(path, outcome)


def write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome atomically. Raises StoreError where it can't be written; an error that
    can't be (the disk is full) is known by its exit code and by the log."""
    try:
        with replacing(path) as part:
            part.write_text(json.dumps(outcome, default=str), encoding="utf-8")
    except OSError as error:
        if not outcome.get("kind"):
            raise StoreError(
                f"{path}: can't be written ({error.strerror}); what was published stays"
            ) from None
