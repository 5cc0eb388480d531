"""How many images per second and core the image store renders, beside plain Pillow, on the same
pictures in the same run.

    python bench/render.py [--clusters 240] [--runs 3]

Plain Pillow is the floor: one photo decoded, resized and pasted, a tile's array resized and pasted,
nightlights resized and pasted, PNG encoded, at the store's sizes, without choosing a photo,
checking, hashing or writing anything. The store is run at a quarter, half and all of the clusters,
and once more on its own output, where every picture is found unchanged. All on one core, in turn;
processor time is measured.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import summary
from PIL import Image

from sdgbias.raw.clusters import read_clusters
from sdgbias.raw.images.composite import tile_path
from sdgbias.raw.images.image_store import ImageReader, render_store
from sdgbias.raw.images.photos import index_photos
from sdgbias.raw.synthetic import write_sample


def plain(raw: Path, clusters: pd.DataFrame, photos: dict[str, str]) -> None:
    """The floor, picture by picture."""
    for cluster in clusters["cluster_id"]:
        with np.load(tile_path(raw, cluster)) as arrays:
            tile = arrays["x"]
        canvas = Image.new("RGB", (448, 448))
        with Image.open(raw / photos[cluster]) as photo:
            canvas.paste(photo.convert("RGB").resize((448, 224), Image.Resampling.LANCZOS), (0, 0))
        colours = (np.clip(tile[[2, 1, 0]] / 0.35, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
        lights = np.repeat(
            (np.clip(tile[7] / 100, 0, 1) * 255).astype(np.uint8)[:, :, None], 3, axis=2
        )
        for x, shown in ((0, colours), (224, lights)):
            canvas.paste(
                Image.fromarray(shown).resize((224, 224), Image.Resampling.BICUBIC), (x, 224)
            )
        canvas.save(io.BytesIO(), format="PNG", compress_level=6)


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of this process and its threads, so that a busy machine doesn't show."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=240)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="render-"))
    raw = folder / "raw"
    write_sample(raw, args.clusters, 0)
    index = index_photos(raw).rows.drop_duplicates("cluster_id")
    table = read_clusters(raw)[0].merge(index, on="cluster_id")
    table = table[[tile_path(raw, key).is_file() for key in table["cluster_id"]]].reset_index(
        drop=True
    )
    photos = dict(zip(table["cluster_id"], table["path"], strict=True))
    sizes = [len(table) // 4, len(table) // 2, len(table)]
    took: dict[tuple[str, int], list[float]] = {}
    for round_number in range(args.runs + 1):  # the first one warms the file cache and is left out
        for size in sizes:
            part, out = table.head(size), folder / f"out{size}"
            shutil.rmtree(out, ignore_errors=True)
            steps: dict[str, Callable[[], object]] = {
                "plain Pillow": lambda part=part: plain(raw, part, photos),
                "store, first run": lambda part=part, out=out: render_store(raw, part, out),
                "store, second run (all unchanged)": lambda part=part, out=out: render_store(
                    raw, part, out
                ),
            }
            for name, work in steps.items():
                value = seconds(work)
                if round_number:
                    took.setdefault((name, size), []).append(value)
    stored = render_store(raw, table, folder / "out")
    stored.index.to_parquet(folder / "out" / "images.parquet")
    keys = stored.index["image_id"].sample(frac=1, random_state=0)
    for name, limit in (("reader, random order, cold", 0), ("reader, cluster order, cold", 2**28)):
        order = keys if limit == 0 else stored.index["image_id"]
        took[name, sizes[-1]] = [
            seconds(lambda: [reader[key] for key in order])  # noqa: B023
            for reader in (ImageReader(folder / "out", limit) for _ in range(args.runs))
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{args.runs} runs each, {os.cpu_count()} CPUs, one used, load {os.getloadavg()[0]:.1f},"
        f" Python {sys.version.split()[0]}, ",
        end="",
    )
    print(
        f"peak memory {peak:.2f} GiB, {len(index)} clusters with photos of"
        f" {index_photos(raw).rows.shape[0]}\n"
    )
    print("| what | images | median CPU s | images per second and core |\n|---|---|---|---|")
    for (name, size), values in sorted(took.items()):
        middle = statistics.median(values)
        print(f"| {name} | {size} | {middle:.2f} | {size / middle:.1f} |")
    shutil.rmtree(folder)
    size = sizes[-1]
    rates = {name: size / statistics.median(took[name, size]) for name in steps}
    plain_rate = f"plain Pillow, which checks nothing: {rates.pop('plain Pillow'):.0f}"
    summary.record(
        "render",
        [
            summary.Row(
                f"pictures a second and core, {name}",
                f"{size} pictures, {args.runs} runs",
                f"{rate:.0f}",
                "none",
                plain_rate,
            )
            for name, rate in rates.items()
        ],
    )


if __name__ == "__main__":
    main()
