"""A real Prefect server on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders.commands import free_port


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Its address, while it runs with its database in ``home``."""
    port = free_port()
    env = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_ENABLED": "false",
    }
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}/api"
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10)
            break
        except OSError:
            time.sleep(0.5)
    else:
        process.kill()
        pytest.fail("the Prefect server did not come up within ten minutes")
    # it loads its automations now, and hangs where one is made meanwhile: see flows/deploy.py; ten
    # seconds were too few on a machine that four other processes used
    time.sleep(30)
    yield url
    process.terminate()
    process.wait(timeout=300)
