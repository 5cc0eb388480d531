"""Prefect's settings in a flow that is started by hand, and what is shown while it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from sdgbias import progress
from tests.builders.commands import REPOSITORY, free_port

SETTINGS = """
import flows
from prefect.settings import get_current_settings
now = get_current_settings()
print(now.server.ephemeral.startup_timeout_seconds, now.server.analytics_enabled, now.logging.level)
"""


def test_prefect_reads_the_defaults() -> None:
    """A process of its own, because Prefect reads its environment once; what the user set stays.
    300 s: on a busy machine the temporary server was not up within Prefect's own 20 s, and the flow
    died."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    found = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        cwd=REPOSITORY,
        env=given | {"PREFECT_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == ["300 False ERROR"]


def test_given_a_command_above_then_its_line_says_that_prefect_starts() -> None:
    """`sdgbias demo` was silent from its step to the first model's start."""
    nobody = {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}
    with progress.listening():
        command = [sys.executable, "-m", "flows.nightly"]
        night = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **nobody})
        try:
            deadline = time.monotonic() + 300
            while "starting Prefect" not in [record.what for record in progress.records()]:
                assert night.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            night.kill()
            night.wait()
