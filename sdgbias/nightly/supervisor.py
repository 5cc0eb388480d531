"""A process that runs one command and leaves none of its descendants.

    python -I -S supervisor.py LOG LOG_BYTES GRACE_SECONDS COMMAND...

`process.run` starts it as a script that needs the standard library alone, so that it is at work
within some 20 ms and can't be stopped by what it watches. It adopts every orphan among the
descendants of its command (PR_SET_CHILD_SUBREAPER), so that neither a session of their own nor a
double fork takes them out of its sight; it needs none of them to co-operate, so a process that
holds its interpreter ends as well. It ends all of them when the command ends, on SIGTERM (first
politely, after GRACE_SECONDS for good), and at the end of its standard input, which means that the
process that started it is gone; then it ends as its command did, with the same exit code or by the
same signal. Should the supervisor itself be killed, the kernel kills the command
(PR_SET_PDEATHSIG), and `process.sweep` ends the rest by the mark that they inherited: the
supervisor's id and start.

The command's output goes to LOG, which is renamed to LOG.1 when it holds LOG_BYTES. Where
the system isn't Linux, what left the command's process group isn't found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PARENT = 0  # standard input: nothing is ever written to it
MARK = "SDGBIAS_SUPERVISOR"
#: Seconds for which it tries to end what can't be ended now (a process in uninterruptible sleep).
PATIENCE = 10.0


def main() -> None:
    log, log_bytes, grace, *command = sys.argv[1:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.environ[MARK] = f"{os.getpid()}:{started(os.getpid())}"
    wake, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # read from ``wake``
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    output, inner = os.pipe()
    pid = _start(command, inner)
    os.close(inner)
    status = _watch(pid, wake, _Log(log, int(log_bytes), output), float(grace))
    _end_as(status)


def started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; '' if there is none of this id.
    It tells a process from a later one of the same id."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: list[str], output: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), _PARENT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(command[0], command)
    except BaseException as error:
        print(f"error: {command[0]}: can't be started: {error}", file=sys.stderr, flush=True)
    os._exit(127)


class _Log:
    """The command's output: at most twice LOG_BYTES of it are kept, the newest. A full disk loses
    lines, not the command."""

    def __init__(self, path: str, most: int, source: int) -> None:
        self.path, self.most = path, most
        self.source: int | None = source  # None: the command closed its output
        os.set_blocking(source, False)
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.size = os.fstat(self.file).st_size

    def copy(self) -> None:
        """What there is to be read now."""
        while self.source is not None:
            try:
                part = os.read(self.source, 1 << 20)
            except BlockingIOError:
                return
            if not part:
                os.close(self.source)
                self.source = None
                return
            with contextlib.suppress(OSError):
                self._write(part)
            if self.size == 0:  # a round of the log: others are waiting, too
                return

    def _write(self, part: bytes) -> None:
        if self.size + len(part) > self.most:
            os.replace(self.path, f"{self.path}.1")
            os.close(self.file)
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
            self.size = 0
        self.size += os.write(self.file, part)


def _watch(pid: int, wake: int, log: _Log, grace: float) -> int:
    """Wait for the end of the command, of the parent, or SIGTERM; end all descendants; return the
    command's wait status."""
    status: int | None = None
    ending = gone = False
    deadline = float("inf")
    while status is None:
        sources = [source for source in (wake, _PARENT, log.source) if source is not None]
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], None if left == float("inf") else left)
        log.copy()
        if wake in ready:
            ending |= bytes([signal.SIGTERM]) in os.read(wake, 1024)
        gone |= _PARENT in ready
        if gone or time.monotonic() >= deadline:
            _signal_all(pid, signal.SIGKILL)
        elif ending and deadline == float("inf"):
            _signal_all(pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
        status = _reap(pid)
        if status is None and (gone or time.monotonic() >= deadline):
            time.sleep(0.01)  # it is being killed
    end = time.monotonic() + PATIENCE
    while _signal_all(pid, signal.SIGKILL) and time.monotonic() < end:
        log.copy()
        time.sleep(0.01)
        _reap(pid)
    log.copy()
    return status


def _reap(pid: int) -> int | None:
    """Collect every child that has ended; the status of ``pid`` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, code = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            status = code if ended == pid else status
    return status


def _signal_all(group: int, number: int) -> bool:
    """Signal all descendants (without /proc, the command's group); whether there were any."""
    descendants = list(_descendants())
    for pid in descendants:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    if not os.path.isdir("/proc/self"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    return bool(descendants)


def _descendants() -> Iterator[int]:
    """The descendants of this process, by /proc, but for those that have ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, above = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(above), []).append(int(name))
        if state == b"Z":
            ended.add(int(name))
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        todo += below
        yield from (pid for pid in below if pid not in ended)


def _end_as(status: int) -> None:
    """End as the command did, without a core dump of this process."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
