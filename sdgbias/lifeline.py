"""A process that ends when the one that started it does, however that happens.

The starter holds the writing end of a pipe for as long as it lives and gives the reading end to its
child before the child's first instruction; the end of the file is the end of the starter. So there
is no moment at which the child could miss it: asking for a parent's process id, or for a signal at
its death, comes too late where the parent dies during the child's imports.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Mapping

#: Environment variable: number and inode of the pipe. The inode tells a process further down,
#: which inherits the variable but not the pipe, that the number is something else there.
_NAME = "SDGBIAS_LIFELINE"
_LOCK = threading.Lock()
_PIPE: tuple[int, int] | None = None  # one for all children; never closed


def given(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[int, ...]]:
    """``environment`` and ``pass_fds`` of a subprocess.Popen whose process calls `watch`."""
    global _PIPE
    with _LOCK:
        if _PIPE is None:
            _PIPE = os.pipe()
        reading = _PIPE[0]
    return {**environment, _NAME: f"{reading}:{os.fstat(reading).st_ino}"}, (reading,)


def watch() -> None:
    """Kills this process as soon as the one that gave it a lifeline is gone, at once where it is
    gone already. Without one nothing happens: a person started it."""
    number, _, inode = os.environ.pop(_NAME, "").partition(":")
    if not (number.isdigit() and inode.isdigit()):
        return
    reading = int(number)
    try:
        found = os.fstat(reading)
    except OSError:
        return
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != int(inode):
        return
    os.set_inheritable(reading, False)
    threading.Thread(target=_end_with, args=(reading,), name="lifeline", daemon=True).start()


def _end_with(reading: int) -> None:
    os.read(reading, 1)  # nothing is ever written: this returns at the end of the file
    os.kill(os.getpid(), signal.SIGKILL)  # no handler, no thread and no exit hook delays it


def _forget() -> None:
    """A fork must not hold the pipe open for its parent."""
    global _PIPE, _LOCK
    _LOCK = threading.Lock()
    if _PIPE is not None:
        for end in _PIPE:
            os.close(end)
        _PIPE = None


os.register_at_fork(after_in_child=_forget)
