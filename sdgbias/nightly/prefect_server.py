"""Prefect's server on this machine, as a process beside a night (flows/nightly.py) or the demo."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from sdgbias.errors import InfrastructureError
from sdgbias.nightly import process

ENV_API = "PREFECT_API_URL"
PATIENCE = 300.0  # seconds for a server to answer


def keep_files(variables: MutableMapping[str, str], home: Path) -> Path:
    """Where these variables don't say it, Prefect's files lie in ``home``: not in the user's own
    folder, which other projects share or nobody may write. The folder that they name."""
    home = Path(variables.setdefault("PREFECT_HOME", str(home)))
    # Prefect looks for it in the user's own folder otherwise, and warns where there is none
    variables.setdefault("PREFECT_SERVER_MEMO_STORE_PATH", str(home / "memo_store.toml"))
    return home


def free_port(port: int = 0) -> int:
    """This port of 127.0.0.1, or any free one for 0. Raises InfrastructureError if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InfrastructureError(
                f"port {port} on 127.0.0.1: {error.strerror}; choose a free one: --port {port + 1}"
            ) from None
        return int(probe.getsockname()[1])


def server(
    port: int, log: Path, environment: Mapping[str, str]
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Prefect's server on 127.0.0.1, until the end of the block; it may not answer yet."""
    prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    return process.beside([*prefect, "--port", str(port)], log, environment)


def wait_for(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers. Raises InfrastructureError when it has ended, or doesn't."""
    deadline = time.monotonic() + PATIENCE
    while running.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
            return
        time.sleep(0.1)
    why = process.last_error(log)
    raise InfrastructureError(f"Prefect's server is not ready: {why}; see {log}")
