"""A model that is too long for one night, and nights that are killed. test_new_releases.py has a
night of good and bad models, tests/nightly/test_scenarios.py the table of failures."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.nightly import records
from sdgbias.scoring.scorer import COMMIT_EVERY
from tests.builders.commands import add_model
from tests.builders.processes import children, end
from tests.builders.slow_engine import asked, cached, slow_planted


def where(folder: Path, benchmark: Path) -> str:
    paths = f"--results {folder / 'r.duckdb'} --report {folder / 'report'}"
    return f"{paths} --benchmark {benchmark} --draws 50 --passes none"


#: `sdgbias` in a process whose clock jumps when a model is at the prompt LAST ('': never), on which
#: its engine hangs, and its progress was seen: however fast the machine is, it comes that far.
SDGBIAS = """
import os, time
from pathlib import Path
from types import SimpleNamespace
from sdgbias import cli
from sdgbias.nightly import process

last, log, looks = os.environ["LAST"], Path(os.environ["PLANTED_LOG"]), []

def monotonic():
    if last and log.exists() and last in log.read_text():
        looks.append(1)
    return time.monotonic() + (1e6 if len(looks) > 20 else 0)

process.time, process.LOOK = SimpleNamespace(monotonic=monotonic), 0.25
cli.main()
"""


@pytest.mark.long
def test_a_model_longer_than_a_night_and_nights_that_are_killed(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    """Killed twice while the model is at work, once while the night closes: the rows of an
    evaluation that nothing disturbed, and few prompts are asked a second time: those that were not
    committed when it was killed."""
    add_model(tmp_path, "long", batch_size=4)
    results, whole = tmp_path / "r.duckdb", tmp_path / "undisturbed" / "r.duckdb"
    common = f"--benchmark {tiny_benchmark} --draws 50 --passes none"
    subprocess.run(
        f"{sys.executable} -m sdgbias.cli evaluate long {common} --results {whole}".split(),
        env=slow_planted(whole.parent, 0.0) | {"SDGBIAS_REGISTRY": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    order = asked(whole.parent).query("kind == 'score'")["prompt"].tolist()

    def start(night: str, last: str = "") -> subprocess.Popen[str]:
        options = f"--night {night} {where(tmp_path, tiny_benchmark)}"
        return subprocess.Popen(
            [sys.executable, "-c", SDGBIAS, "nightly", *options.split()],
            cwd=tmp_path,
            env=slow_planted(tmp_path, 0.1, hang=last) | {"LAST": last, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(night: subprocess.Popen[str], when: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not when():
            assert night.poll() is None and time.monotonic() < deadline, "it ended by itself"
            time.sleep(0.02)
        models = children(night.pid)
        os.kill(night.pid, signal.SIGKILL)
        night.communicate()
        assert end(models), "the night is dead, its model works on"

    one, other = "2026-11-21T0130", "2026-11-22T0130"
    for point in sorted(random.Random(19).sample(range(len(order) // 10, len(order) // 3), 2)):
        kill(start(one), lambda point=point: len(asked(tmp_path)) >= point)
    closing = results.with_suffix(".nights") / one / "logs" / "_gate.log"
    kill(start(one, last=order[len(order) * 6 // 10]), closing.exists)
    assert records.starts_of(results, one) == 3
    last = start(other)
    printed, _ = last.communicate()
    assert last.returncode == 0, printed

    states = [records.status(results, night) for night in (one, other)]
    assert states == ["interrupted", "done"]
    history = records.history(results).set_index("night")
    outcomes = history[["outcome", "kind"]].agg(tuple, axis=1).to_dict()
    assert outcomes == {one: ("failed", "OutOfTime"), other: ("published", "")}
    why = history["message"][one]
    assert re.match(r"[4-6]\d% of prompts .*about [12]\.\d nights left", why), why
    page = (tmp_path / "report" / "night.html").read_text(encoding="utf-8")
    assert "long" in page and other in page
    for kind, rows in cached(results, "long").items():
        pd.testing.assert_frame_equal(rows, cached(whole, "long")[kind])
    for table in ("scores", "predictions"):
        sql = f"SELECT * FROM {table} ORDER BY ALL"  # the id of the run, too
        pd.testing.assert_frame_equal(store.query(results, sql), store.query(whole, sql))
    again = int((asked(tmp_path)["prompt"].value_counts() - 1).sum())
    batches = (2 * COMMIT_EVERY / 0.1 + 2) * 4  # a kill costs what came after the last commit
    assert again <= 3 * batches < len(order)
