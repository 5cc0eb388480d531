"""How long a full build takes: 117,644 clusters in, 100,000 MCQs x T1-T5 and 50,000 regression
questions out, no pictures.

    python bench/build.py [--clusters 117644] [--runs 3] [--keep DIR]

Each build is a process of its own and is measured stage by stage, at a quarter, half and the full
size; "peak" is the largest resident set of the process. "GE" is the part of the total that the row
rules of Great Expectations take, its import included; the gate over the finished tables is not in
it (bench/quality.py). Median of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ALL = (
    "AL AM AO BD BF BJ BO BU CD CI CM CO DR EG ET GA GH GN GU GY HN HT IA ID JO KE KH KM KY LB LS"
    " MA MB MD MM ML MW MZ NG NI NM NP PE PH PK RW SL SN SZ TD TG TJ TZ UG ZM ZW"
)
PAPER = {"clusters": 117_644, "mcq": 100_000, "regression": 50_000}


def one(raw: Path, out: Path, mcq: int, regression: int) -> dict[str, float]:
    """Seconds per stage, in this process."""
    import pandas as pd

    from sdgbias.benchmark import build

    took: dict[str, float] = {"ge": 0.0}
    plain = build.quality.sift

    def sift(*given: object, **named: object) -> object:
        began = time.perf_counter()
        try:
            return plain(*given, **named)  # type: ignore[arg-type]
        finally:
            took["ge"] += time.perf_counter() - began

    build.quality.sift = sift  # type: ignore[assignment]

    def timed(name: str, work: object) -> None:
        began = time.perf_counter()
        work()  # type: ignore[operator]
        took[name] = time.perf_counter() - began

    timed("clusters", lambda: build.build_clusters(raw, out))
    timed("images", lambda: build.build_images(raw, out, None))
    timed("series", lambda: build.build_series(raw / "indicators", out))
    timed("items", lambda: build.build_items(out, build.Draw(mcq, regression)))
    timed("prompts", lambda: build.build_prompts(out))
    timed("card", lambda: build.build_card(out))
    took["total"] = sum(seconds for name, seconds in took.items() if name != "ge")
    took["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took["rows"] = len(pd.read_parquet(out / "prompts.parquet", columns=["task"]))
    took["mb"] = sum(path.stat().st_size for path in out.glob("*.parquet")) / 1e6
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=PAPER["clusters"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, help="folder for the samples and benchmarks (default: a temporary one)"
    )
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(
            json.dumps(
                one(Path(args.one[0]), Path(args.one[1]), int(args.one[2]), int(args.one[3]))
            )
        )
        return
    from sdgbias.raw.synthetic import write_sample

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        rows = []
        for part in (4, 2, 1):
            clusters = args.clusters // part
            mcq, regression = (
                PAPER[name] * clusters // PAPER["clusters"] for name in ("mcq", "regression")
            )
            raw, out = folder / f"raw-{clusters}", folder / f"benchmark-{clusters}"
            write_sample(raw, clusters, 0, ALL.split(), images=False)
            took = []
            for _ in range(args.runs):
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    str(raw),
                    str(out),
                    str(mcq),
                    str(regression),
                ]
                took.append(
                    json.loads(
                        subprocess.run(
                            command, check=True, capture_output=True, text=True
                        ).stdout.splitlines()[-1]
                    )
                )
            rows.append(
                (
                    clusters,
                    mcq,
                    regression,
                    {name: statistics.median(t[name] for t in took) for name in took[0]},
                )
            )
    stages = ("clusters", "images", "series", "items", "prompts", "card")
    print(
        f"{args.runs} runs each, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python"
        f" {sys.version.split()[0]}\n"
    )
    print(
        f"| clusters | MCQ x 5 + regression | prompt rows | {' | '.join(stages)} | total s | of it"
        " GE s | peak GiB | MB on disk |"
    )
    print("|" + "---|" * (len(stages) + 7))
    for clusters, mcq, regression, m in rows:
        seconds = " | ".join(f"{m[s]:.2f}" for s in stages)
        print(
            f"| {clusters:,} | {5 * mcq + regression:,} | {int(m['rows']):,} | {seconds} |"
            f" {m['total']:.1f} | {m['ge']:.1f} | {m['peak_gib']:.2f} | {m['mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
