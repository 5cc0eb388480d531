"""Prefect's settings in a flow that is started by hand."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.builders.commands import REPOSITORY

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
