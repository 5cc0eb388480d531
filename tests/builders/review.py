"""A small benchmark for the tests of human review: real items and a real image store over made-up
clusters."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from sdgbias.raw.images.shards import pending_index, store_images
from tests.builders.item_tables import CODES, build_items, make_clusters, make_series


def picture(name: str) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(list(name.encode())).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


def write_benchmark(
    folder: Path,
    codes: tuple[str, ...] = CODES,
    each: int = 12,
    images: bool = True,
    parts: int = 1,
    content: bytes = b"",
) -> Path:
    """items_mcq, items_regression, images and its shards, as `sdgbias build` leaves them.
    ``content``: of every picture, followed by the place's name; default: noise."""
    folder.mkdir(parents=True, exist_ok=True)
    clusters = make_clusters(codes, each)
    index = pending_index(clusters)
    if images:
        shown = {
            name: [content + name.encode()]
            if content
            else [picture(f"{name}|{k}") for k in range(parts)]
            for name in sorted(clusters["cluster_id"])
        }
        index = store_images(folder, ((name, "42", data) for name, data in shown.items()))
        index["image_group"] = index["image_id"]
    made = build_items(clusters, index, make_series(codes), mcq=None, regression=None, seed=0)
    made.items_mcq.to_parquet(folder / "items_mcq.parquet")
    made.items_regression.to_parquet(folder / "items_regression.parquet")
    index.to_parquet(folder / "images.parquet")
    (folder / "benchmark.json").write_text('{"benchmark_id": "0123456789abcdef"}\n')
    return folder
