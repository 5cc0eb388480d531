"""Prefect's settings in a flow that is started by hand, and a flow whose worker is killed."""

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

import os
from prefect.logging.configuration import setup_logging
from prefect.logging.loggers import get_logger
from flows import pages
setup_logging()
pages.outlive_the_worker()
reading, writing = os.pipe()
os.dup2(writing, 2)
os.close(reading)
get_logger("night").error("nobody reads this")
print("goes on")
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what is buffered for the pipe must go somewhere
"""


def test_prefect_reads_the_defaults_and_a_log_that_nobody_reads_ends_nothing() -> None:
    """A process of its own, because Prefect reads its environment once; what the user set stays.
    300 s: on a busy machine the temporary server was not up within Prefect's own 20 s, and the flow
    died. The log's pipe closes when the worker of a flow run is killed: a night that was at work
    ended with "Execution was aborted by Python system exit call"."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    found = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        cwd=REPOSITORY,
        env=given | {"PREFECT_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == ["300 False ERROR", "goes on"]
