"""A model that is too long for one night on a simulated host of eight GPUs, and nights that are
killed."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.nightly import records
from sdgbias.scoring.scorer import COMMIT_EVERY
from tests.builders.commands import REPOSITORY, add_model
from tests.builders.processes import children, end
from tests.builders.slow_engine import asked, cached, slow_planted

#: `sdgbias` in a process where the time of a model ends on the prompt LAST ('': never), on which
#: its engine hangs: however fast the machine is, it comes that far and no further.
SDGBIAS = """
import os, subprocess, time
from pathlib import Path
from sdgbias import cli
from sdgbias.nightly import process

last, log, plain = os.environ["LAST"], Path(os.environ["PLANTED_LOG"]), process._watch

def watch(child, timeout_s, look):
    if not last or look is None:
        return plain(child, timeout_s, look)
    looks = 0
    while child.poll() is None and looks < 20:  # until its progress was written and seen
        look()
        looks += log.exists() and last in log.read_text()
        time.sleep(0.25)
    raise subprocess.TimeoutExpired("model", timeout_s)

process._watch = watch
cli.main()
"""


class Team:
    """The folder of a team, its command line, and its nights."""

    def __init__(self, home: Path, benchmark: Path) -> None:
        self.home, self.results = home, home / "results" / "r.duckdb"
        self.benchmark = benchmark

    def night(self, name: str, *more: str, last: str = "") -> subprocess.Popen[str]:
        paths = {"results": self.results, "report": self.home / "report", "night": name}
        options = [word for key, value in paths.items() for word in (f"--{key}", str(value))]
        command = ["nightly", *options, "--benchmark", str(self.benchmark), "--draws", "50"]
        environment = slow_planted(self.home, 0.1, hang=last) | {"LAST": last}
        return subprocess.Popen(
            [sys.executable, "-c", SDGBIAS, *command, *more],
            cwd=self.home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def killed(self, night: subprocess.Popen[str], when: Callable[[], bool]) -> None:
        """kill -9 as soon as ``when``; returns when its models' processes have ended, too."""
        deadline = time.monotonic() + 600
        while not when():
            assert night.poll() is None and time.monotonic() < deadline, night.stdout
            time.sleep(0.02)
        models = children(night.pid)
        os.kill(night.pid, signal.SIGKILL)
        night.communicate()
        assert end(models), "the night is dead, its model works on"

    def outcomes(self, night: str) -> dict[str, tuple[str, str]]:
        rows = records.history(self.results).query("night == @night")
        return {m: (o, k) for m, o, k in rows[["model", "outcome", "kind"]].values.tolist()}


def _asked(home: Path, point: int) -> bool:
    return len(asked(home)) >= point


@pytest.fixture
def team(tiny_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Nothing but a folder, a benchmark, and a host of eight GPUs."""
    (tmp_path / "registry" / "models").mkdir(parents=True)
    (tmp_path / "expectations").symlink_to(REPOSITORY / "expectations")
    for name, value in {
        "SDGBIAS_REGISTRY": str(tmp_path),
        "SDGBIAS_GPUS": "8x80",
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return Team(tmp_path, tiny_benchmark)


@pytest.mark.long
def test_a_model_longer_than_a_night_and_nights_that_are_killed(team: Team) -> None:
    """Killed twice while the model is at work, once while the night closes: the rows of an
    evaluation that nothing disturbed, and few prompts are asked a second time: those that were not
    committed when it was killed."""
    add_model(team.home, "long", batch_size=4)
    alone = team.home / "undisturbed"
    whole = alone / "r.duckdb"
    command = ["evaluate", "long", "--benchmark", team.benchmark, "--results", whole, "--draws", 50]
    subprocess.run(
        [sys.executable, "-m", "sdgbias.cli", *map(str, command)],
        env=slow_planted(alone, 0.0) | {"SDGBIAS_REGISTRY": str(team.home)},
        check=True,
        capture_output=True,
    )
    order = asked(alone).query("kind == 'score'")["prompt"].tolist()

    one, other = "2026-11-21T0130", "2026-11-22T0130"
    for point in sorted(random.Random(19).sample(range(len(order) // 10, len(order) // 3), 2)):
        reached = partial(_asked, team.home, point)
        team.killed(team.night(one), reached)
    closing = team.home / "results" / "nights" / one / "logs" / "_gate.log"
    team.killed(team.night(one, last=order[len(order) * 6 // 10]), closing.exists)
    assert records.starts_of(team.results, one) == 3

    last = team.night(other)
    told, _ = last.communicate()
    assert last.returncode == 0, told
    assert (records.status(team.results, one), records.status(team.results, other)) == (
        "interrupted",
        "done",
    )
    assert team.outcomes(one) == {"long": ("failed", "OutOfTime")}
    assert team.outcomes(other) == {"long": ("published", "")}
    [why] = records.history(team.results).query("night == @one")["message"]
    assert re.match(r"[4-6]\d% of prompts .*about [12]\.\d nights left", why), why
    page = (team.home / "report" / "night.html").read_text(encoding="utf-8")
    assert "long" in page and other in page

    for kind, rows in cached(team.results, "long").items():
        pd.testing.assert_frame_equal(rows, cached(whole, "long")[kind])
    for table in ("scores", "predictions"):
        sql = f"SELECT * FROM {table} ORDER BY ALL"  # the id of the run, too
        pd.testing.assert_frame_equal(store.query(team.results, sql), store.query(whole, sql))
    counts = asked(team.home)["prompt"].value_counts()
    batches = (2 * COMMIT_EVERY / 0.1 + 2) * 4  # a kill costs what came after the last commit
    assert int((counts - 1).sum()) <= 3 * batches < len(order)
