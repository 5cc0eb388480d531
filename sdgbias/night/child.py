"""The other side of a job: what `sdgbias evaluate --outcome FILE` tells the night that started it, and that it ends with it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdgbias.errors import OutOfMemory, SdgbiasError, StoreError

_PR_SET_PDEATHSIG = 1


@contextmanager
def told(path: Path | None) -> Iterator[dict[str, Any]]:
    """What the block puts into the mapping is written to ``path`` as JSON when it ends well; else the error: class, exit code, message.
    The error goes on its way. Without a path nothing is written. StoreError when the file can't be written."""
    found: dict[str, Any] = {}
    if path is None:
        yield found
        return
    _end_with_parent()
    try:
        yield found
    except SdgbiasError as error:
        write(path, {"error": type(error).__name__, "exit_code": error.exit_code, "message": str(error)})
        raise
    except MemoryError as error:
        message = f"out of memory: {error}".rstrip(": ")
        write(path, {"error": "OutOfMemory", "exit_code": OutOfMemory.exit_code, "message": message})
        raise OutOfMemory(message) from None
    except Exception as error:
        write(path, {"error": type(error).__name__, "exit_code": 1, "message": f"{type(error).__name__}: {error}"})
        raise
    write(path, found)


def read(path: Path) -> dict[str, Any]:
    """What a process told; {} when it told nothing, or nothing whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, found: dict[str, Any]) -> None:
    """Writes it whole or not at all. StoreError when it can't be written, except for an error, which has a way of its own."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        if "error" not in found:
            raise StoreError(f"{path}: can't be written ({error.strerror}); what was published stays") from None


def _end_with_parent() -> None:
    """Linux: this process is killed when the one that started it dies, so that a night that was killed leaves nobody at work."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died in between
            os.kill(os.getpid(), signal.SIGKILL)
