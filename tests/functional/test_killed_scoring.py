"""kill -9 at random moments again and again, with another chunk size each time: the rows of an
uninterrupted run, each scored once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import COMMIT_EVERY
from tests.builders.commands import REPOSITORY

SCORE = textwrap.dedent("""
    import sys, time
    from dataclasses import replace
    from pathlib import Path
    import pandas as pd
    from sdgbias.engines.planted import Planted
    from sdgbias.scoring.plan import make_plan
    from sdgbias.scoring.cache import ScoreCache
    from sdgbias.scoring.scorer import Scorer
    from sdgbias.types import ModelSpec

    class Slow(Planted):
        def candidate_scores(self, prompts):
            time.sleep(0.02)
            with open(sys.argv[3], "a") as log:
                log.write("".join(p.text + "\\\\n" for p in prompts))
            return super().candidate_scores(prompts)

    spec = ModelSpec(
        name="p", title="p", backend="planted", repo="planted/planted", revision="local",
        state="enabled", batch_size=int(sys.argv[2]),
    )
    rows = [("mcq", n, "T5", "q_only", f"question {n:04d}", "", "ABC") for n in range(1500)]
    columns = ["task", "item_id", "test", "view", "text", "image_id", "candidates"]
    plan = make_plan(pd.DataFrame(rows, columns=columns), "f").distinct
    cache = ScoreCache(Path(sys.argv[1]), "p", "f")
    with cache.exclusive():
        missing = plan[~plan["key"].isin(cache.read("scores")["key"])]
        Scorer(Slow(spec), cache, {}, spec).score(missing, lambda *a: None)
        cache.compact("scores")
""").replace("\\\\n", "\\n")


def start(folder: Path, size: int, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-c", SCORE, str(folder), str(size), str(log)],
        env=environment,
        cwd=REPOSITORY,
    )


@pytest.mark.slow
@pytest.mark.parametrize("most", [5, pytest.param(20, marks=pytest.mark.long)])
def test_kills_end_with_the_rows_of_an_uninterrupted_run(most: int, tmp_path: Path) -> None:
    whole, torn, log = tmp_path / "whole", tmp_path / "torn", tmp_path / "log"
    assert start(whole, 16, tmp_path / "other").wait(900) == 0
    chance = random.Random(7)
    kills, before = 0, 0
    while kills < most:
        process = start(torn, chance.choice((1, 3, 5, 8)), log)
        seen = log.stat().st_size if log.exists() else 0
        deadline = time.monotonic() + 600
        while (
            process.poll() is None
            and time.monotonic() < deadline
            and (log.stat().st_size if log.exists() else 0) == seen
        ):
            time.sleep(0.005)  # until it scores
        time.sleep(chance.uniform(0, 2.4 * COMMIT_EVERY))
        process.send_signal(signal.SIGKILL)
        process.wait(600)
        kills += 1
        kept = len(ScoreCache(torn, "p", "f").read("scores"))
        assert kept >= before  # what is finished stays finished
        before = kept
    assert 0 < before < 1500
    assert start(torn, 64, log).wait(900) == 0
    one, two = (ScoreCache(folder, "p", "f").read("scores") for folder in (whole, torn))
    pd.testing.assert_frame_equal(one, two)
    asked = pd.Series(log.read_text().splitlines())
    again = int((asked.value_counts() - 1).sum())
    # a chunk of up to eight prompts takes 20 ms; the one in flight counts, too
    waiting = int(COMMIT_EVERY / 0.02) + 2
    assert again <= most * 8 * waiting, "only what was not committed yet is asked again"
    assert not list((torn / "scores/p/f").glob("*.part"))
