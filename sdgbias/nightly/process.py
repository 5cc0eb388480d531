"""Run a command that is ended with all its descendants at its end, at a timeout or when the night
ends, however that happens (supervisor.py); its output goes to a log of limited size.

Also the counterpart in the command: the outcome that `sdgbias evaluate --outcome FILE` reports to
the night that started it.
"""

from __future__ import annotations

import json
import math
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

from sdgbias import credentials, errors, exits
from sdgbias.files import replacing
from sdgbias.nightly import supervisor

#: Seconds between SIGTERM and SIGKILL.
GRACE = 5.0
#: Seconds between two looks at a running command.
LOOK = 1.0
#: Maximum length of a stored message, in characters.
LONGEST = 500
#: Bytes of a command's log; as much again is kept before it, in NAME.log.1.
LOG_BYTES = 16 * 2**20
#: Kinds of end beside the classes of errors. CANCELLED: by a person.
TIMED_OUT, KILLED, CANCELLED, UNEXPECTED = "TimedOut", "Killed", "Cancelled", "Unexpected"
_BY_CODE = {
    error.exit_code: error.__name__
    for error in errors.SdgbiasError.__subclasses__()
    if error.exit_code != errors.SdgbiasError.exit_code
}
_MARK = re.compile(rb"(?:\A|\0)%s=(\d+):(\d+)" % supervisor.MARK.encode())
_STARTED = "== started "
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|webhook", re.IGNORECASE)
#: The last line of a traceback: an exception's name, at the beginning of a line.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\uffff]")
_STOPPING = threading.Event()
#: The reading end of a pipe, which supervisors have as standard input. Its end of file means that
#: this process is gone, however it ended: they have it before their first instruction, and no child
#: inherits the writing end.
_LIFELINE, *_WRITING_ENDS = os.pipe()


def _forget() -> None:
    """A forked child must not hold its parent's pipe open."""
    while _WRITING_ENDS:
        os.close(_WRITING_ENDS.pop())


os.register_at_fork(after_in_child=_forget)


class Stopped(Exception):
    """The night is being ended by a user or a signal: interrupted work is not a failure."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a command ended. code: its exit code (negative: the signal). kind: '' of a success,
    CANCELLED where `look` had it ended, TIMED_OUT, KILLED, else the class of error that its exit
    code stands for. message: why, in one line without secrets, in its own words if it had any."""

    code: int
    seconds: float
    kind: str
    message: str


def run(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    look: Callable[[], str] = lambda: "",
) -> ProcessEnd:
    """Run a command to its end or to the timeout (0: none). ``look`` is called every second while
    it runs; a reason that it returns ('': none) ends it. The rest as of `beside`. Raises Stopped
    after `stop_all`."""
    began = now = time.monotonic()
    deadline, reason = began + (timeout_s or math.inf), ""
    more = {"PYTHONUNBUFFERED": "1", **(environment or {})}
    with beside(command, log, more, without) as child:
        while child.poll() is None and not (reason or now >= deadline or _STOPPING.is_set()):
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, min(LOOK, deadline - now)))
            now, reason = time.monotonic(), look()
        late = child.poll() is None and now >= deadline
    if _STOPPING.is_set():
        raise Stopped
    kind, message = CANCELLED, reason
    if late and not reason:
        kind, message = TIMED_OUT, f"not done within {timeout_s:.0f} s"
    elif not reason:
        kind, message = _verdict(child.returncode, last_error(log))
    return ProcessEnd(child.returncode, time.monotonic() - began, kind, message)


def _verdict(code: int, words: str) -> tuple[str, str]:
    """(kind, message) of a command that ended by itself, and what it said last."""
    if code < 0:
        name = exits.died_of(code)
        perhaps = " (perhaps for want of memory)" if name == "SIGKILL" else ""
        last = f"; its last words: {words}" if words else ""
        return KILLED, redact(f"ended by {name}{perhaps}{last}")
    kind = _BY_CODE.get(code, UNEXPECTED) if code else ""
    return kind, words or f"ended with exit code {code}"


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
            stdin=_LIFELINE,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,
            env={**passed_on, **(environment or {})},
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(GRACE + 2 * supervisor.PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        sweep()


def sweep() -> None:
    """Kill what descends from supervisors that were killed."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mark = _MARK.search((folder / "environ").read_bytes())
            if mark and supervisor.started(int(mark[1])) != mark[2].decode():
                os.kill(int(folder.name), signal.SIGKILL)


def begin() -> None:
    """Allow commands to be run (again after `stop_all`)."""
    _STOPPING.clear()


def pause(seconds: float) -> None:
    """Wait; raises Stopped at once if everything is being ended."""
    if _STOPPING.wait(seconds):
        raise Stopped


def stop_all() -> None:
    """Have every `run` of this process end its command, within a second, and raise Stopped; so does
    each further one until `begin`."""
    _STOPPING.set()


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
    except OSError:
        return ""
    begun = max((i for i, line in enumerate(lines) if line.startswith(_STARTED)), default=-1)
    lines = [line for line in lines[begun + 1 :] if line.strip()]
    reported = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    crashed = [line] if (line := exits.crash(lines)) else []
    raised = [line for line in lines if _RAISED.match(line)]
    return redact((reported or crashed or raised or lines or [""])[-1])


@contextmanager
def report_outcome(path: Path | None) -> Iterator[dict[str, Any]]:
    """Write the mapping filled by the block to ``path`` as JSON when the block succeeds; on an
    error write its kind and message, and re-raise. The names are columns of ``night_outcomes``.
    Without a path nothing is written. Raises StoreError if the file can't be written."""
    outcome: dict[str, Any] = {}
    try:
        yield outcome
    except Exception as error:
        if path:
            lack = isinstance(error, MemoryError)
            kind = errors.OutOfMemory.__name__ if lack else type(error).__name__
            message = str(error)
            if not isinstance(error, errors.SdgbiasError):
                message = f"{'out of memory' if lack else kind}: {error}".rstrip(": ")
            write_outcome(path, {"outcome": "failed", "kind": kind, "message": message})
        raise
    if path:
        write_outcome(path, outcome)


def write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome atomically. Raises StoreError where it can't be written; an error that
    can't be (the disk is full) is known by its exit code and by the log."""
    try:
        with replacing(path) as part:
            part.write_text(json.dumps(outcome, default=str), encoding="utf-8")
    except OSError as error:
        if not outcome.get("kind"):
            raise errors.StoreError(
                f"{path}: can't be written ({error.strerror}); what was published stays"
            ) from None
