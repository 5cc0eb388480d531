"""How processes end: what is said of one that a signal or a native crash ended, and a program that
ends without taking apart what it imported."""

from __future__ import annotations

import atexit
import errno
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

#: Why an output can't be written, apart from a reader that is gone.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
#: The exit code of a shell for a tool whose reader (`| head`) is gone: as SIGPIPE would end it.
READER_GONE = 128 + signal.SIGPIPE
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
            os._exit(code or (READER_GONE if error.errno == errno.EPIPE else 1))
        os._exit(code)

    atexit.register(leave)  # what is registered first runs last
    try:
        yield
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
