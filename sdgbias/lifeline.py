"""How processes end: a child as soon as its parent ends, however that happens; and a program
without taking apart what it imported.

The parent holds the writing end of a pipe for as long as it lives and passes the reading end to its
child before the child's first instruction; end-of-file means that the parent is gone. So the child
can never miss it: polling the parent's process id, or requesting a signal at its death, comes too
late where the parent dies during the child's imports.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn

#: Environment variable: number and inode of the pipe. The inode lets a grandchild, which inherits
#: the variable but not the pipe, detect that the number is another file there.
_NAME = "SDGBIAS_LIFELINE"
#: Why an output can't be written, apart from a reader that is gone.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
_LOCK = threading.Lock()
_PIPE: tuple[int, int] | None = None  # one for all children; never closed


#: How the runtimes of Python, C and C++ begin what they say of a crash.
_CRASH = re.compile(
    r"Fatal Python error: |terminate called |double free|free\(\): |malloc\(\): |munmap_chunk\(\): "
    r"|corrupted |\*\*\* \w|\S.*: Assertion .* failed"
)


def crash(lines: Iterable[str]) -> str:
    """The line that names a native crash, '' for none. It is the first one of its report, which
    goes on with a stack and ends with a list of modules."""
    return next((line for line in lines if _CRASH.match(line)), "")


def unwritable(error: OSError) -> str:
    """The message for an output of this process that can't be written."""
    return f"standard output can't be written ({error.strerror}); redirect it to a place with room"


def died_of(code: int) -> str:
    """'SIGSEGV' of the exit code -11 of a subprocess; 'signal 99' where the system has no name."""
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def given(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[int, ...]]:
    """``environment`` and ``pass_fds`` of a subprocess.Popen whose process calls `watch`."""
    global _PIPE
    with _LOCK:
        if _PIPE is None:
            _PIPE = os.pipe()
        reading = _PIPE[0]
    return {**environment, _NAME: f"{reading}:{os.fstat(reading).st_ino}"}, (reading,)


def watch() -> None:
    """Kills this process as soon as its parent's lifeline closes, at once if it is closed already.
    Does nothing without a lifeline: the process was started by hand."""
    number, _, inode = os.environ.pop(_NAME, "").partition(":")
    if not (number.isdigit() and inode.isdigit()):
        return
    reading = int(number)
    try:
        inherited = os.fstat(reading)
    except OSError:
        return
    if not stat.S_ISFIFO(inherited.st_mode) or inherited.st_ino != int(inode):
        return
    os.set_inheritable(reading, False)
    threading.Thread(target=_end_with, args=(reading,), name="lifeline", daemon=True).start()


def _end_with(reading: int) -> None:
    os.read(reading, 1)  # nothing is ever written: this returns at end-of-file
    os.kill(os.getpid(), signal.SIGKILL)  # no handler, no thread and no exit hook delays it


@contextmanager
def quick_exit() -> Iterator[None]:
    """Around a whole program: it ends with the same exit code and after the same clean-up (threads
    are waited for, functions that were registered meanwhile run, output is flushed), but its
    modules aren't taken apart, which takes a second of CPU with torch or Great Expectations."""
    code = 1  # of an exception, whose traceback is printed by then

    def leave() -> NoReturn:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError as error:
            if code == 0 and error.errno in UNWRITABLE:  # else it is reported already
                with suppress(OSError):
                    os.write(2, f"error: {unwritable(error)}\n".encode())
            os._exit(code or 1)
        os._exit(code)

    atexit.register(leave)  # what is registered first runs last
    try:
        yield
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise


def _forget() -> None:
    """A forked child must not hold its parent's pipe open."""
    global _PIPE, _LOCK
    _LOCK = threading.Lock()
    if _PIPE is not None:
        for end in _PIPE:
            os.close(end)
        _PIPE = None


os.register_at_fork(after_in_child=_forget)
