"""What the supervisor of a local stack makes of a server that does not answer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import supervisor
from sdgbias.nightly.stack import processes
from sdgbias.nightly.stack.settings import Stack
from tests.builders.commands import free_port


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[supervisor.Watch]:
    """A server that runs and says nothing."""
    home = tmp_path / "home"
    processes.spawn(
        home, "server", [sys.executable, "-c", "import time; time.sleep(600)"], os.environ, tmp_path
    )
    yield supervisor.Watch(Stack(home=str(home), project=str(tmp_path), port=free_port()))
    processes.end(processes.marked(home), 5)


@pytest.mark.parametrize(
    ("answered", "started", "ends"),
    [
        (0, None, False),
        (50, None, False),
        (70, None, True),
        (500, 200, False),
        (500, 310, True),
        (70, 200, True),
        (50, 200, False),
    ],
)
def test_a_silent_server_is_ended_after_a_minute_and_has_five_to_start(
    watch: supervisor.Watch, answered: float, started: float | None, ends: bool
) -> None:
    """Seconds since it last answered (or since the supervisor began), and since it was started by
    this supervisor."""
    watch.answered -= answered
    if started is not None:
        watch.starts["server"] = [time.monotonic() - started]
    assert not supervisor.healthy(watch)
    assert (processes.alive(watch.home, "server") is None) == ends
    assert ("is ended" in str(watch.said.get("happened"))) == ends
