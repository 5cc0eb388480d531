"""What it costs to evaluate a model again that is evaluated already, at half a million distinct
prompts.

    python bench/finished.py [--clusters 32000] [--mcq 75000] [--folder DIR] [--workers 2] [--limit
    3] [--whole]

Builds a benchmark through the package's own stages (a sample without pictures, then a picture of 16
x 16 pixels a place, kept by images.shards.store_images), scores it with the planted engine and
publishes the run. Then, each in a process of its own: the same command again (the run is in the
results file), and the same prompts under other settings, where every score is there and nothing is
published yet, split into its steps. A folder that is kept is not built and scored again. Exit code
1 when the same command takes longer than the limit.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import summary
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SEEDS = "0", "1"


def picture(number: int) -> bytes:
    """A small picture of a colour of its own."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (16, 16), (number % 251, number // 251 % 251, number // 63001)).save(
        out, "PNG"
    )
    return out.getvalue()


def register(folder: Path) -> None:
    """A registry with one planted model."""
    (folder / "registry" / "models").mkdir(parents=True, exist_ok=True)
    entry = dict.fromkeys(("name", "title", "backend", "repo"), "planted")
    (folder / "registry" / "models" / "planted.yaml").write_text(
        yaml.safe_dump({**entry, "revision": "1", "state": "enabled", "batch_size": 1024})
    )
    (folder / "expectations").symlink_to(REPOSITORY / "expectations")


def build(
    folder: Path,
    clusters: int,
    mcq: int,
    regression: int,
    countries: Sequence[str] | None = None,
) -> Path:
    """The benchmark folder: every place has a picture of its own, so that nothing is shared that
    real places wouldn't share."""
    import pandas as pd

    from sdgbias.benchmark import build as stages
    from sdgbias.raw.images.shards import store_images
    from sdgbias.raw.synthetic import write_sample

    raw, out = folder / "raw", folder / "benchmark"
    write_sample(raw, clusters, 0, countries, images=False)
    stages.build_clusters(raw, out)
    stages.build_images(raw, out, None)
    places = sorted(pd.read_parquet(out / "clusters.parquet")["cluster_id"])
    index = store_images(
        out, ((place, "", [picture(number)]) for number, place in enumerate(places))
    )
    stages.write_table(out, "images", index.assign(image_group=index["image_id"]))
    stages.build_series(raw / "indicators", out)
    stages.build_items(out, stages.Draw(mcq, regression))
    stages.build_prompts(out)
    stages.build_card(out)
    return out


def evaluate(folder: Path, seed: str, *more: str) -> float:
    """Seconds of one `sdgbias evaluate` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "sdgbias.cli",
        "evaluate",
        "planted",
        "--benchmark",
        str(folder / "benchmark"),
    ]
    command += [
        "--results",
        str(folder / "r.duckdb"),
        "--draws",
        "100",
        "--passes",
        "none",
        "--seed",
        seed,
        *more,
    ]
    began = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        env={**os.environ, "SDGBIAS_REGISTRY": str(folder)},
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def steps(folder: Path) -> dict[str, float]:
    """Seconds of the steps of a run whose scores are all there, up to where CADE begins; and how
    many rows each had."""
    from sdgbias.engines import load
    from sdgbias.raw.images.shards import ImageReader
    from sdgbias.registry import entries
    from sdgbias.scoring.cache import ScoreCache
    from sdgbias.scoring.plan import make_plan
    from sdgbias.scoring.scorer import not_generated
    from sdgbias.suites import sdg, sdg_tables

    took: dict[str, float] = {}

    def step(name: str, began: float) -> float:
        took[name] = time.perf_counter() - began
        return time.perf_counter()

    spec = entries.load(folder, "planted")
    backend = load(spec, folder)
    now = time.perf_counter()
    prompts = sdg.load_prompts(folder / "benchmark")
    now = step("reading the prompts", now)
    plan = make_plan(prompts, backend.fingerprint)
    now = step("making the plan", now)
    images = ImageReader(folder / "benchmark")
    images.require(plan.distinct["image_id"])
    now = step("looking up the pictures", now)
    cache = ScoreCache(folder, spec.name, backend.fingerprint)
    with cache.exclusive():
        missing = plan.distinct[cache.lacks("scores", plan.distinct["key"])]
        now = step("finding no prompt missing", now)
        wanted = not_generated(
            sdg_tables.SUITE.to_decode(spec, plan.cells, plan.distinct), cache.decoded()
        )
        now = step("finding no number missing", now)
        rows = len(cache.read("scores")) + len(cache.read("generations"))
        step("reading the cache", now)
    assert missing.empty and wanted.empty, (len(missing), len(wanted))
    return {**took, "cells": plan.naive, "prompts": plan.planned, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=32_000)
    parser.add_argument("--mcq", type=int, default=75_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--whole",
        action="store_true",
        help="also the whole command with another seed: minutes of CADE",
    )
    parser.add_argument(
        "--limit", type=float, default=3.0, help="seconds that the same command may take"
    )
    parser.add_argument("--steps", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps:
        print(json.dumps(steps(args.steps)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        first = 0.0
        if not (folder / "r.duckdb").exists():
            register(folder)
            build(folder, args.clusters, args.mcq, args.mcq // 5)
            first = evaluate(folder, SEEDS[0], "--workers", str(args.workers))
        again = min(evaluate(folder, SEEDS[0]) for _ in range(3))
        command = [sys.executable, __file__, "--steps", str(folder)]
        took = json.loads(
            subprocess.run(
                command, check=True, capture_output=True, text=True, cwd=REPOSITORY
            ).stdout
        )
        other = evaluate(folder, str(time.time_ns() % 10**6)) if args.whole else 0.0
    cells, prompts, rows = (int(took.pop(name)) for name in ("cells", "prompts", "rows"))
    print(
        f"{cells:,} cells, {prompts:,} distinct prompts, {rows:,} rows in the cache;"
        f" {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| what | s |\n|---|---|")
    if first:
        print(
            f"| first run, {args.workers} workers, with CADE and the results file | {first:.1f} |"
        )
    print(f"| the same command again (least of three) | {again:.2f} |")
    for name, seconds in took.items():
        print(f"| nothing missing, not published: {name} | {seconds:.2f} |")
    print(f"| nothing missing, not published: these together | {sum(took.values()):.2f} |")
    if other:
        print(
            f"| the whole command with another seed, with CADE and the results file | {other:.1f} |"
        )
    if args.mcq >= 75_000:
        missing = f"finding that nothing is missing, not published: {sum(took.values()):.1f} s"
        n, what = f"{prompts:,} distinct prompts, least of 3", "a finished evaluation again"
        figure, aim = f"{again:.2f} s", f"{args.limit:g} s"
        summary.record("finished", [summary.Row(what, n, figure, aim, missing)])
    if again > args.limit:
        raise SystemExit(f"the same command took {again:.2f} s, more than {args.limit:g}")


if __name__ == "__main__":
    main()
