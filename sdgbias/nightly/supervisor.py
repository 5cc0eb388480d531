"""A process that runs one command and leaves none of its descendants.

    python -I -S supervisor.py LOG LOG_BYTES GRACE_SECONDS COMMAND...

`process.beside` starts it as a script that needs the standard library alone, so that it is at work
within some 30 ms and can't be stopped by what it watches. It adopts every orphan among the
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
import io
import os
import resource
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
MARK = "SDGBIAS_SUPERVISOR"
#: Seconds for which it tries to end what can't be ended now (a process in uninterruptible sleep).
PATIENCE = 10.0


def main() -> None:
    log, log_bytes, grace, *command = sys.argv[1:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.environ[MARK] = f"{os.getpid()}:{started(os.getpid())}"
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a thread waits for it
    file = open(log, "ab", buffering=0)  # noqa: SIM115
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=_before_command,
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"error: {command[0]}: can't be started: {error}", file=sys.stderr)
        sys.exit(127)
    assert child.stdout is not None
    copying = threading.Thread(
        target=_copy, args=(child.stdout.fileno(), file, int(log_bytes)), daemon=True
    )
    copying.start()
    threading.Thread(target=_end_on_request, args=(child.pid, float(grace)), daemon=True).start()
    threading.Thread(target=_end_with_parent, args=(child.pid,), daemon=True).start()
    ended, status = os.wait()
    while ended != child.pid:  # an orphan that was adopted: without this it would stay a zombie
        ended, status = os.wait()
    _kill_all(child.pid)
    copying.join(PATIENCE)
    _end_as(os.waitstatus_to_exitcode(status))


def started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; '' if there is none of this id.
    It tells a process from a later one of the same id."""
    try:
        return _stat(pid)[19].decode()
    except OSError:
        return ""


def _stat(pid: int | str) -> list[bytes]:
    """What /proc says of a process: its state, its parent, ..."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _before_command() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _copy(output: int, file: io.FileIO, most: int) -> None:
    """The command's output into its log: at most twice ``most`` bytes are kept, the newest. A full
    disk loses lines, not the command."""
    while part := os.read(output, 1 << 20):
        with contextlib.suppress(OSError):
            if file.tell() + len(part) > most:
                os.replace(file.name, f"{file.name}.1")
                full, file = file, open(file.name, "ab", buffering=0)  # noqa: SIM115
                full.close()
            file.write(part)


def _end_on_request(group: int, grace: float) -> None:
    signal.sigwait([signal.SIGTERM])
    _signal_all(group, signal.SIGTERM)
    time.sleep(grace)
    _kill_all(group)


def _end_with_parent(group: int) -> None:
    os.read(0, 1)  # nothing is ever written to it
    _kill_all(group)


def _kill_all(group: int) -> None:
    """Kill until nothing is left: what is killed may have started more."""
    end = time.monotonic() + PATIENCE
    while _signal_all(group, signal.SIGKILL) and time.monotonic() < end:
        time.sleep(0.01)


def _signal_all(group: int, number: int) -> bool:
    """Signal all descendants (without /proc, the command's group); whether there were any."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not os.path.isdir("/proc/self"):
            os.killpg(group, number)
    descendants = _descendants()
    for pid in descendants:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return bool(descendants)


def _descendants() -> list[int]:
    """The descendants of this process, by /proc, but for those that have ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):
            state, above = _stat(name)[:2]
            children.setdefault(int(above), []).append(int(name))
            if state == b"Z":
                ended.add(int(name))
    below = list(children.get(os.getpid(), ()))
    for pid in below:  # it grows meanwhile
        below += children.get(pid, ())
    return [pid for pid in below if pid not in ended]


def _end_as(code: int) -> None:
    """End as the command did, without a core dump of this process."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
