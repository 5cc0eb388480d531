"""What a whole evaluation at the paper's size costs: 100,000 MCQs x T1-T5 and 50,000 regression
questions of a planted model, from the benchmark folder to the published run.

    python -m bench.full_size [--part 10] [--folder DIR]

--part 10: a tenth of the clusters and questions. The benchmark is built through the package's own
stages: a sample without pictures, then a picture of 16 x 16 pixels a place, so that nothing is
shared that real places wouldn't share. `sdgbias evaluate` runs in a process of its own, then once
more as it is (the run is there already). Beside them, in the same run: DuckDB alone writing the
run's Parquet files again, and pandas' mean accuracy by test, method, pillar and indicator, without
intervals. A folder that is kept is not built again, and its scores are used again.
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
from pathlib import Path

from bench import measure
from bench.build import PAPER
from tests.builders.commands import add_model

REPOSITORY = Path(__file__).resolve().parents[1]


def picture(number: int) -> bytes:
    """A small picture of a colour of its own."""
    from PIL import Image

    png = io.BytesIO()
    color = (number % 251, number // 251 % 251, number // 63001)
    Image.new("RGB", (16, 16), color).save(png, "PNG")
    return png.getvalue()


def build(folder: Path, clusters: int, mcq: int, regression: int) -> None:
    """The benchmark, in which every place has a picture of its own."""
    import pandas as pd

    from sdgbias.benchmark import build as stages
    from sdgbias.benchmark import card
    from sdgbias.raw.images.shards import store_images
    from sdgbias.raw.synthetic import write_sample
    from sdgbias.raw.synthetic.latent import COUNTRIES

    raw, out = folder / "raw", folder / "benchmark"
    write_sample(raw, clusters, 0, sorted(COUNTRIES), images=False)
    stages.build_clusters(raw, out)
    stages.build_images(raw, out, None)
    cluster_ids = sorted(pd.read_parquet(out / "clusters.parquet")["cluster_id"])
    pictures = ((key, "", [picture(number)]) for number, key in enumerate(cluster_ids))
    index = store_images(out, pictures)
    stages.write_table(out, "images", index.assign(image_group=index["image_id"]))
    stages.build_series(raw / "indicators", out)
    stages.build_items(out, stages.Draw(mcq, regression))
    stages.build_prompts(out)
    card.build_card(out)


def evaluate(folder: Path) -> measure.Cost:
    """Cost of one `sdgbias evaluate` in a process of its own."""
    options = ["--benchmark", folder / "benchmark", "--results", folder / "r.duckdb"]
    command = ["-m", "sdgbias.cli", "evaluate", "planted", *options, "--passes", "none"]
    environment = {**os.environ, "SDGBIAS_REGISTRY": str(folder)}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], env=environment, cwd=REPOSITORY, stdout=sys.stderr
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"sdgbias evaluate ended with status {status}")
    cpu = used.ru_utime + used.ru_stime
    return measure.Cost(time.perf_counter() - began, cpu, used.ru_maxrss / 2**20)


def floors(folder: Path) -> dict[str, float]:
    """CPU seconds of the alternatives, on the files of the run."""
    import duckdb

    from sdgbias import store

    stages, results = measure.Stages(), folder / "r.duckdb"
    files = sorted(folder.glob("r.runs/**/*.parquet"))
    with stages("write"), tempfile.TemporaryDirectory(dir=folder) as to, duckdb.connect() as con:
        for number, path in enumerate(files):
            con.execute(
                f"COPY (FROM read_parquet('{path}')) TO '{to}/{number}.parquet' (COMPRESSION zstd)"
            )
    answers = store.query(results, "SELECT test, method, correct FROM predictions")
    with stages("pandas"):
        answers.groupby(["test", "method"])["correct"].mean()
        answers.groupby("method")["correct"].mean()
    return {name: cost.cpu for name, cost in stages.took.items()}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--part", type=int, default=1, help="divide the paper's numbers by this")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--floors", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.floors:
        print(json.dumps(floors(args.floors)))
        return
    from bench import summary

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "benchmark" / "benchmark.json").exists():
            add_model(folder, "planted", batch_size=1024)
            build(folder, *(n // args.part for n in PAPER.values()))
        load = os.getloadavg()[0]
        first, again = evaluate(folder), evaluate(folder)
        least = measure.in_a_process("bench.full_size", "--floors", folder)
        load = (load + os.getloadavg()[0]) / 2
    print("| what | s | CPU s | peak GiB |\n|---|---|---|---|")
    for name, cost in (("evaluate", first), ("the same command again", again)):
        print(f"| {name} | {cost.wall:.1f} | {cost.cpu:.1f} | {cost.peak:.2f} |")
    beside = (
        f"DuckDB writing the run's files: {least['write']:.1f} CPU s; pandas' mean accuracy by"
        f" group: {least['pandas']:.1f} CPU s"
    )
    print(f"\n{beside}; load {load:.1f}")
    if args.part == 1:
        questions = f"{PAPER['mcq']:,} x 5 and {PAPER['regression']:,} questions, once"
        figure = f"{first.wall:.0f} s, {first.cpu:.0f} CPU s, {first.peak:.2f} GiB"
        row = summary.Row("evaluate, planted model", questions, figure, "3 GiB", beside, load)
        summary.record("full_size", [row])


if __name__ == "__main__":
    main()
