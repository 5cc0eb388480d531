"""When the results of an evaluation are first there: the paper's views are published before extra
prompts are asked, and the whole run replaces them.

    python -m bench.first_publish [--model tiny-llava] [--clusters 40] [--mcq 120] [--runs 1]

Seconds from the call of `evaluate` to its first and to its last write into the results file. The
benchmark of the demo's size would be published once, as its extra prompts take less than two
minutes; here they wait however short they are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench import summary
from bench.views import benchmark
from sdgbias import store
from sdgbias.registry import entries
from sdgbias.scoring import session
from sdgbias.scoring.evaluate import evaluate
from sdgbias.suites.extra_prompts import choose
from sdgbias.suites.suite import EvalSettings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument("--clusters", type=int, default=40)
    parser.add_argument("--mcq", type=int, default=120)
    parser.add_argument("--runs", type=int, default=1)
    args = parser.parse_args()
    root = entries.find_root()
    spec = entries.load(root, args.model)
    published: list[float] = []
    publish = store.publish

    def note(*given: Any) -> None:
        publish(*given)
        published.append(time.perf_counter())

    session.FIRST_LOOK = 0.0
    first, whole = [], []
    with tempfile.TemporaryDirectory() as temporary, patch.object(store, "publish", note):
        folder = benchmark(Path(temporary), args.clusters, args.mcq)
        for run in range(args.runs):
            published.clear()
            began = time.perf_counter()
            outcome = evaluate(
                spec, root, folder, Path(temporary) / f"{run}" / "r.duckdb", settings()
            )
            first.append(published[0] - began)
            whole.append(published[-1] - began)
    share = statistics.median(a / b for a, b in zip(first, whole, strict=True))
    paper = outcome.planned - outcome.extra
    row = summary.Row(
        f"{args.model}: results of the paper's views are published",
        f"{paper} of {outcome.planned} prompts, {args.runs} runs",
        f"after {statistics.median(first):.1f} s, {share:.2f} of the time",
        "a fifth",
        f"the whole run: {statistics.median(whole):.1f} s",
        os.getloadavg()[0],
    )
    summary.record("first_publish", [row])


def settings() -> EvalSettings:
    return EvalSettings(passes=choose("all"))


if __name__ == "__main__":
    main()
