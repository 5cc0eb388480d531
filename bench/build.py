"""How long a full build takes, its quality gate included: 117,644 clusters in, no pictures; the
paper's 100,000 MCQs x T1-T5 and 50,000 regression questions, and every possible question (--all).

    python bench/build.py [--clusters 117644] [--parts 4 2 1] [--all] [--keep DIR]

Each build is a process of its own and is measured stage by stage: wall seconds, its CPU seconds,
and the largest resident set of the process. "Floor" is DuckDB alone writing the same tables again
from the finished files, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ALL = (
    "AL AM AO BD BF BJ BO BU CD CI CM CO DR EG ET GA GH GN GU GY HN HT IA ID JO KE KH KM KY LB LS"
    " MA MB MD MM ML MW MZ NG NI NM NP PE PH PK RW SL SN SZ TD TG TJ TZ UG ZM ZW"
)
PAPER = {"clusters": 117_644, "mcq": 100_000, "regression": 50_000}
STAGES = ("clusters", "images", "series", "items", "prompts", "card", "gate")


def clock() -> tuple[float, float]:
    """(wall, CPU) seconds."""
    return time.perf_counter(), time.process_time()


def one(raw: Path, out: Path, part: int) -> dict[str, Any]:
    """Seconds per stage, in this process. part: 0 for every question, else the paper's numbers
    divided by it."""
    from sdgbias.benchmark import build, quality

    if part:
        draw = build.Draw(PAPER["mcq"] // part, PAPER["regression"] // part)
    else:
        draw = build.Draw(every=True)
    work = {
        "clusters": lambda: build.build_clusters(raw, out),
        "images": lambda: build.build_images(raw, out, None),
        "series": lambda: build.build_series(raw / "indicators", out),
        "items": lambda: build.build_items(out, draw),
        "prompts": lambda: build.build_prompts(out),
        "card": lambda: build.build_card(out),
        "gate": lambda: quality.run_gate(out, docs=True),
    }
    took: dict[str, Any] = {}
    began = clock()
    for stage in STAGES:
        before = clock()
        work[stage]()
        took[stage] = [after - start for after, start in zip(clock(), before, strict=True)]
    took["total"] = [after - start for after, start in zip(clock(), began, strict=True)]
    took["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    counts = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))["counts"]
    took["questions"] = 5 * counts["items_mcq"] + counts["items_regression"]
    took["rows"] = counts["prompts"]
    return took


def floor(out: Path) -> dict[str, Any]:
    """DuckDB alone writes the tables again."""
    import duckdb

    began = clock()
    with tempfile.TemporaryDirectory(dir=out) as folder, duckdb.connect() as connection:
        for path in sorted(out.glob("*.parquet")):
            connection.execute(
                f"COPY (FROM read_parquet('{path}')) TO '{folder}/{path.name}' (COMPRESSION zstd)"
            )
    took = [after - start for after, start in zip(clock(), began, strict=True)]
    return {"total": took, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def in_a_process(*given: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", *map(str, given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=PAPER["clusters"])
    parser.add_argument("--parts", type=int, nargs="*", default=[4, 2, 1])
    parser.add_argument("--all", action="store_true", help="also every possible question")
    parser.add_argument(
        "--keep", type=Path, help="folder for the samples and benchmarks (default: a temporary one)"
    )
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        what, *given = args.one
        if what == "floor":
            print(json.dumps(floor(Path(given[0]))))
        else:
            print(json.dumps(one(Path(given[0]), Path(given[1]), int(given[2]))))
        return
    import summary

    from sdgbias.raw.synthetic import write_sample

    print(
        f"| questions | prompt rows | {' | '.join(STAGES)} | wall s | CPU s | peak GiB | floor CPU"
        " s | load |"
    )
    print("|" + "---|" * (len(STAGES) + 7))
    headlines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        for part in [*args.parts, *([0] if args.all else [])]:
            clusters = args.clusters // (part or 1)
            raw, out = folder / f"raw-{clusters}", folder / f"benchmark-{clusters}-{part}"
            if not raw.is_dir():
                write_sample(raw, clusters, 0, ALL.split(), images=False)
            load = os.getloadavg()[0]
            took = in_a_process("build", raw, out, part)
            least = in_a_process("floor", out)
            load = (load + os.getloadavg()[0]) / 2
            stages = " | ".join(f"{took[stage][1]:.1f}" for stage in STAGES)
            wall, cpu = took["total"]
            print(
                f"| {took['questions']:,} | {took['rows']:,} | {stages} | {wall:.0f} | {cpu:.1f} |"
                f" {took['peak']:.2f} | {least['total'][1]:.1f} | {load:.1f} |",
                flush=True,
            )
            if part <= 1:
                headlines.append(
                    {
                        "what": f"build of {took['rows']:,} prompt rows with its gate",
                        "figure": f"{cpu:.1f} CPU s, {wall:.0f} s, {took['peak']:.2f} GiB",
                        "aim": "40 s, 2 GiB" if part else "8 min, 2 GiB",
                        "beside it, in the same run": (
                            "DuckDB alone writing the same tables:"
                            f" {least['total'][1]:.1f} CPU s, {least['total'][0]:.0f} s"
                        ),
                        "load": f"{load:.1f}",
                    }
                )
    if headlines:
        summary.record("bench/build.py", headlines)
        summary.main()


if __name__ == "__main__":
    main()
