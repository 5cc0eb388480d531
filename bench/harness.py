"""What the harness adds to an engine: prompts through Scorer into a cache, beside the same calls in
a bare loop, and beside one commit per chunk, in turn.

    python bench/harness.py [--prompts 4000] [--delay 1] [--batch 32]

The engine sleeps `--delay` milliseconds a prompt, so that CPU seconds are those of the harness. In
per cent of the time that the engine takes by itself.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import summary

from sdgbias.engines import Backend
from sdgbias.scoring import scorer
from sdgbias.scoring.cache import ScoreCache
from sdgbias.types import Generated, ModelSpec, Prompt, ScoreBatch


class Sleeping(Backend):
    fingerprint = "sleeping"

    def __init__(self, delay: float) -> None:
        self.delay, self.calls = delay, list[Sequence[Prompt]]()

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        self.calls.append(prompts)
        time.sleep(self.delay * len(prompts))
        n = len(prompts)
        one = np.ones(n, dtype=np.float32)
        logits = np.ones((n, 3), dtype=np.float32)
        return ScoreBatch(logits, one, one, ["A"] * n, np.ones(n, dtype=np.int32))

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        return Generated.whole([["1" for _ in starts] for _ in prompts])


def took(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=4000)
    parser.add_argument("--delay", type=float, default=1.0, help="milliseconds a prompt")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    spec = ModelSpec("m", "m", "planted", "r", "1", "enabled", batch_size=args.batch)
    rows = pd.DataFrame(
        {
            "key": [f"{n:040d}" for n in range(args.prompts)],
            "text": [f"Question {n}: {'word ' * 60}" for n in range(args.prompts)],
            "image_id": "",
            "candidates": "ABC",
        }
    )
    load, added = os.getloadavg()[0], {}
    usual = scorer.COMMIT_EVERY
    with tempfile.TemporaryDirectory() as folder:  # what is imported at first use is no part of it
        first = ScoreCache(Path(folder), "m", "f")
        scorer.Scorer(Sleeping(0.0), first, {}, spec).score(rows[:64], lambda *_: None)
    for name, every in (("by time", usual), ("one commit a chunk", 0.0)):
        scorer.COMMIT_EVERY = every
        with tempfile.TemporaryDirectory() as folder:
            engine = Sleeping(args.delay / 1000)
            cache = ScoreCache(Path(folder), "m", "f")
            one = scorer.Scorer(engine, cache, {}, spec)
            ours = took(lambda one=one: one.score(rows, lambda what, done, total: None))
            calls = engine.calls.copy()
            bare = took(lambda e=engine, c=calls: [e.candidate_scores(prompts) for prompts in c])
        added[name] = [100 * (a - b) / bare[0] for a, b in zip(ours, bare, strict=True)]
        wall, cpu = added[name]
        print(
            f"{name:20} bare {bare[0]:.2f} s, ours {ours[0]:.2f} s: {wall:+.1f} %, CPU {cpu:+.1f} %"
        )
    if args.delay == 1 and args.prompts >= 4000:
        wall, cpu = added["by time"]
        other = added["one commit a chunk"]
        summary.record(
            "harness",
            [
                summary.Row(
                    f"harness on an engine of 1 ms a prompt, batches of {args.batch}",
                    f"{args.prompts:,} prompts",
                    f"{wall:+.1f} % of its time, {cpu:+.1f} % in CPU",
                    "5 %",
                    f"one commit a chunk: {other[0]:+.1f} %, {other[1]:+.1f} % in CPU",
                    load,
                )
            ],
        )


if __name__ == "__main__":
    main()
