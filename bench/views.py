"""What CADE's twenty cells per question cost: the naive protocol, plain Full-only inference and the
plan, in one run on one backend.

    python -m bench.views [--model tiny-llava] [--clusters 30] [--mcq 120] [--runs 3] [--skip-naive]

naive: 20 plain passes over the questions (T1-T5 x four views), batched, nothing shared. full: the
Full view of T1-T5, plain, batched: what plain inference costs. plan: the distinct prompts, those
about one picture together. The three take turns, in turning order; medians of the runs. Last, what
the harness (cache, shards, watchdog) adds to a bare loop over the same calls of the engine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench import summary
from sdgbias.benchmark.build import Draw, build
from sdgbias.engines import Backend
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.synthetic import write_sample
from sdgbias.registry import entries
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.plan import chunk_end, make_plan
from sdgbias.scoring.scorer import Scorer
from sdgbias.suites import sdg
from sdgbias.types import Prompt


def benchmark(folder: Path, clusters: int, mcq: int) -> Path:
    raw, out = folder / "raw", folder / "benchmark"
    write_sample(raw, clusters, 0, workers=1)
    build(raw, raw / "indicators", out, Draw(mcq, 20))
    return out


def batches(prompts: list[Prompt], images: pd.Series, size: int) -> list[list[Prompt]]:
    """Whole pictures together, as a run does it."""
    image_ids, parts, start = list(images), [], 0
    while start < len(prompts):
        end = chunk_end(image_ids, start, size)
        parts.append(prompts[start:end])
        start = end
    return parts


def in_turn(works: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Median seconds; each run starts with another of them."""
    took: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for run in range(runs):
        for name in names[run % len(names) :] + names[: run % len(names)]:
            began = time.perf_counter()
            works[name]()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument("--clusters", type=int, default=30)
    parser.add_argument("--mcq", type=int, default=120)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--skip-naive", action="store_true")
    args = parser.parse_args()
    root = entries.find_root()
    spec = entries.load(root, args.model)
    plain = HuggingFace(replace(spec, options={**spec.options, "share_prefix": False}), root)
    shared = HuggingFace(spec, root)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        benchmark_folder = benchmark(folder, args.clusters, args.mcq)
        reader = ImageReader(benchmark_folder)
        cells = sdg.load_prompts(benchmark_folder)
        cells = cells[cells["task"] == "mcq"]
        plan = make_plan(cells, shared.fingerprint)

        def prompts(rows: pd.DataFrame) -> list[Prompt]:
            columns = (rows["text"], rows["candidates"], rows["image_id"])
            return [
                Prompt(t, c, tuple(reader[i]) if i else (), i)
                for t, c, i in zip(*columns, strict=True)
            ]

        passes = [prompts(rows) for _, rows in cells.groupby(["test", "view"], sort=True)]
        full = [
            prompts(rows) for _, rows in cells[cells["view"] == "full"].groupby("test", sort=True)
        ]
        planned = batches(prompts(plan.distinct), plan.distinct["image_id"], spec.batch_size)

        tokens: dict[int, int] = {}

        def score(engine: HuggingFace, work: list[list[Prompt]]) -> None:
            engine.counts.clear()
            for part in work:
                for start in range(0, len(part), spec.batch_size) if engine is plain else [0]:
                    engine.candidate_scores(
                        part[start : start + spec.batch_size] if engine is plain else part
                    )
            tokens[id(work)] = engine.counts["tokens_prefilled"]

        score(plain, full[:1])
        score(shared, [planned[0], planned[-1]])  # what is imported at first use is not timed
        works = {"full": lambda: score(plain, full), "plan": lambda: score(shared, planned)}
        if not args.skip_naive:
            works["naive"] = lambda: score(plain, passes)
        seconds = in_turn(works, args.runs)
        harness = {
            "bare": lambda: score(shared, planned),
            "run": lambda: through_harness(shared, reader, spec, plan.distinct, folder),
        }
        around = in_turn(harness, args.runs)
        done = {"full": full, "plan": planned, "naive": passes}
    items = cells["item_id"].nunique()
    print(
        f"{args.model}, {items} questions on {args.clusters} clusters, {args.runs} runs,"
        f" {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n"
    )
    print(
        "| protocol | prompts | tokens prefilled | tokens/question | s | s/question"
        " |\n|---|---|---|---|---|---|"
    )
    for name in sorted(seconds):
        n, t = sum(map(len, done[name])), tokens[id(done[name])]
        print(
            f"| {name} | {n:,} | {t:,} | {t / items:,.0f} | {seconds[name]:.2f} |"
            f" {seconds[name] / items:.4f} |"
        )
    measured = f"{items} questions, {args.runs} runs"
    ratio, cost = (
        (f"{ours:.2f} s, {ours / other:.2f} times", f"{what}: {other:.2f} s")
        for ours, what, other in (
            (seconds["plan"], "plain Full alone", seconds["full"]),
            (around["run"], "the same calls bare", around["bare"]),
        )
    )
    rows = [
        summary.Row(
            f"{args.model}: the plan of all views", measured, ratio[0], "1.1 times", ratio[1]
        ),
        summary.Row(
            f"{args.model}: the plan with its harness", measured, cost[0], "1.05 times", cost[1]
        ),
    ]
    summary.record("views", rows)
    if not args.skip_naive:
        print(f"\nnaive / plan: {seconds['naive'] / seconds['plan']:.2f} (aim 3 or more)")
    print(
        f"plan / full: {seconds['plan'] / seconds['full']:.2f} (aim 1.1 or less; the paper pays"
        " 2.25)"
    )
    print(
        f"harness: {around['run']:.2f} s against {around['bare']:.2f} s bare,"
        f" {100 * (around['run'] / around['bare'] - 1):+.1f} % (aim 5 or less)"
    )


def through_harness(
    engine: Backend,
    reader: Mapping[str, tuple[bytes, ...]],
    spec: Any,
    distinct: pd.DataFrame,
    folder: Path,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as results:
        Scorer(
            engine, ScoreCache(Path(results), spec.name, engine.fingerprint), reader, spec
        ).score(distinct, lambda *_: None)


if __name__ == "__main__":
    main()
