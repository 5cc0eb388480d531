"""How long a full build takes, its quality gate included: 117,644 clusters in, no pictures; the
paper's 100,000 MCQs x T1-T5 and 50,000 regression questions, and every possible question (--all).

    python -m bench.build [--clusters 117644] [--parts 4 2 1] [--all] [--keep DIR]

Each build is a process of its own, measured stage by stage: its CPU seconds and, in brackets, the
largest resident set meanwhile in GiB. "Floor" is DuckDB alone writing the same tables again
from the finished files, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench import measure

PAPER = {"clusters": 117_644, "mcq": 100_000, "regression": 50_000}
STAGES = ("clusters", "images", "series", "items", "prompts", "card", "gate")


def one(raw: Path, out: Path, part: int) -> dict[str, Any]:
    """Seconds per stage, in this process. part: 0 for every question, else the paper's numbers
    divided by it."""
    from sdgbias.benchmark import build, card, quality

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
        "card": lambda: card.build_card(out),
        "gate": lambda: quality.run_gate(out),
    }
    stages = measure.Stages()
    for stage in STAGES:
        with stages(stage):
            work[stage]()
    total = stages.total()
    took: dict[str, Any] = {name: vars(cost) for name, cost in stages.took.items()}
    took["total"] = vars(total)
    counts = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))["counts"]
    took["questions"] = 5 * counts["items_mcq"] + counts["items_regression"]
    took["rows"] = counts["prompts"]
    return took


def floor(out: Path) -> dict[str, Any]:
    """DuckDB alone writes the tables again."""
    import duckdb

    stages = measure.Stages()
    with tempfile.TemporaryDirectory(dir=out) as folder, duckdb.connect() as connection:
        for path in sorted(out.glob("*.parquet")):
            connection.execute(
                f"COPY (FROM read_parquet('{path}')) TO '{folder}/{path.name}' (COMPRESSION zstd)"
            )
    return vars(stages.total())


def main() -> None:
    parser = measure.parser(__doc__)
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
    from bench import summary
    from sdgbias.raw.synthetic import write_sample
    from sdgbias.raw.synthetic.latent import COUNTRIES

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
                write_sample(raw, clusters, 0, sorted(COUNTRIES), images=False)
            load = os.getloadavg()[0]
            took = measure.in_a_process("bench.build", "--one", "build", raw, out, part)
            least = measure.in_a_process("bench.build", "--one", "floor", out)
            load = (load + os.getloadavg()[0]) / 2
            stages = " | ".join(
                f"{took[stage]['cpu']:.1f} ({took[stage]['peak']:.2f})" for stage in STAGES
            )
            wall, cpu, peak = took["total"].values()
            print(
                f"| {took['questions']:,} | {took['rows']:,} | {stages} | {wall:.0f} | {cpu:.1f} |"
                f" {peak:.2f} | {least['cpu']:.1f} ({least['peak']:.2f}) | {load:.1f} |",
                flush=True,
            )
            if part <= 1:
                headlines.append(
                    summary.Row(
                        f"build of {took['rows']:,} prompt rows with its gate",
                        f"{took['questions']:,} questions, once",
                        f"{cpu:.1f} CPU s, {wall:.0f} s, {peak:.2f} GiB",
                        "40 s, 2 GiB" if part else "8 min, 2 GiB",
                        "DuckDB alone writing the same tables:"
                        f" {least['cpu']:.1f} CPU s, {least['peak']:.2f} GiB",
                        load,
                    )
                )
    if headlines:
        summary.record("build", headlines)


if __name__ == "__main__":
    main()
