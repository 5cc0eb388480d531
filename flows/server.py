"""Prefect's server in a process beside this one, with which it ends.

Nothing here imports Prefect: a night by hand starts its server first, and imports Prefect while
that starts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flows import SETTINGS
from sdgbias import progress
from sdgbias.errors import InfrastructureError
from sdgbias.nightly import process

ENV_API = "PREFECT_API_URL"
PATIENCE = 300.0  # seconds for a server to answer


@contextmanager
def beside(
    port: int, log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The server on 127.0.0.1, until the end of the block; it may not answer yet."""
    prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    with process.beside([*prefect, "--port", str(port)], log, environment) as server:
        yield server


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it answers. Raises InfrastructureError when it has ended, or doesn't."""
    progress.update("waiting for Prefect's server")
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
            return
        time.sleep(0.1)
    why = process.last_error(log)
    raise InfrastructureError(f"Prefect's server is not ready: {why}; see {log}")


@contextmanager
def of_one_night(log: Path) -> Iterator[Callable[[], None]]:
    """A server of what one night on one machine needs, for this process and those that it starts,
    and a function that waits until it answers; nothing where the environment names a server. Import
    Prefect in the block: it reads its environment when it is imported."""
    progress.update("starting Prefect")
    if ENV_API in os.environ:
        yield lambda: None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {name: os.environ.get(name, value) for name, value in SETTINGS["by_hand"].items()}
    with beside(port, log, settings) as server:
        os.environ[ENV_API] = f"http://127.0.0.1:{port}/api"
        try:
            yield lambda: wait_for(port, server, log)
        finally:
            del os.environ[ENV_API]
