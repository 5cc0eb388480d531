"""From tiles and photos to the image store.

A shard whose inputs are unchanged is kept whole, also one that a killed run has finished
(render.py); the others are built in parallel, staged, and moved into place together at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd

from sdgbias.errors import InfrastructureError, InputError
from sdgbias.progress import Progress, silent
from sdgbias.raw.images.photos import PhotoIndex, index_photos
from sdgbias.raw.images.render import (
    REQUIRED,
    Cluster,
    ImageSettings,
    Shard,
    ShardResult,
    make_shard,
)
from sdgbias.raw.images.shards import (
    PER_SHARD,
    ImageReader,
    clear_store,
    join_index,
    pending_index,
    publish,
    shard_prefix,
    store_images,
)
from sdgbias.types import QUARANTINE_COLUMNS

__all__ = [
    "ImageReader",
    "ImageSettings",
    "StoredImages",
    "clear_store",
    "pending_index",
    "render_store",
    "store_images",
]


@dataclass(frozen=True)
class StoredImages:
    """index: images.parquet without image_group. quarantine: table, key, rule, detail; table
    'images' (the cluster has no picture: a row per missing or broken modality) or 'photos' (an
    unusable photo; the cluster is shown with another one or with its tile alone). rendered, reused:
    clusters whose tile and photos were decoded now, and those of shards that are kept."""

    index: pd.DataFrame
    quarantine: pd.DataFrame
    rendered: int
    reused: int

    def lines(self) -> list[str]:
        shards = self.index["shard"].nunique()
        return [
            f"{len(self.index):,} clusters with pictures in {shards:,} shards; {self.rendered:,}"
            f" rendered, {self.reused:,} unchanged"
        ]


def render_store(
    raw: Path,
    clusters: pd.DataFrame,
    out: Path,
    settings: ImageSettings | None = None,
    workers: int = 1,
    progress: Progress = silent,
) -> StoredImages:
    """Draw ``clusters`` (needs cluster_id, cname, year) of a raw folder into out/images;
    images.parquet is the caller's.

    The same inputs give the same bytes whatever the number of workers, the order of the rows, or
    the previous contents of the folder. A cluster without a usable tile gets no image, nor one
    without a readable photo where the settings require it. ``progress`` counts
    clusters. Raises InputError when a folder is missing or a path leads out of ``raw``, StoreError
    when ``out`` can't be written.
    """
    raw, settings = Path(raw), settings or ImageSettings()
    if not (raw / "dhs_npzs").is_dir():
        raise InputError(
            f"no folder {raw / 'dhs_npzs'}; unpack SustainBench's tiles (dhs_*.tar.gz) there"
        )
    photos = index_photos(raw)
    table = clusters[["cluster_id", "cname", "year"]].sort_values("cluster_id", ignore_index=True)
    missing, drawable = _without(raw, table, photos, settings)
    plan = _plan(drawable)
    total, done = len(table), len(table) - len(drawable)
    progress("rendering images", done, total)
    results: list[ShardResult] = []
    by_cluster = photos.rows.set_index("cluster_id")
    shards = (
        Shard(raw, name, settings, out, tasks)
        for name, part in plan.items()
        if (tasks := _tasks(part, by_cluster))
    )
    for result in _run(shards, workers):
        results.append(result)
        done += result.rendered + result.reused
        progress("rendering images", done, total)
    publish(out, set(plan))
    misplaced = photos.misplaced[
        photos.misplaced["key"].str.replace("/[^/]*$", "", regex=True).isin(table["cluster_id"])
    ]
    faults = pd.DataFrame(
        [row for one in results for row in one.quarantine], columns=QUARANTINE_COLUMNS, dtype="str"
    )
    quarantine = pd.concat([missing, misplaced, faults]).sort_values(
        QUARANTINE_COLUMNS, ignore_index=True
    )
    index = join_index([one.index for one in results])
    return StoredImages(
        index, quarantine, sum(one.rendered for one in results), sum(one.reused for one in results)
    )


def _without(
    raw: Path, table: pd.DataFrame, photos: PhotoIndex, settings: ImageSettings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(quarantine rows of clusters that lack a modality, the clusters to draw). Nothing is decoded
    for clusters without an image. A photo that isn't required is reported only where metadata names
    one."""
    tiles = {
        file.name.removesuffix(".npz")
        for folder in os.scandir(raw / "dhs_npzs")
        if folder.is_dir()
        for file in os.scandir(folder)
        if file.name.endswith(".npz") and file.name.startswith(folder.name)
    }
    ids = table["cluster_id"]
    has_tile, has_photo = ids.isin(tiles), ids.isin(set(photos.rows["cluster_id"]))
    required = settings.photo == REQUIRED
    no_tile, no_photo = ids[~has_tile], ids[~has_photo]
    if not required:
        no_photo = no_photo[no_photo.isin(photos.named)]
    is_named = no_photo.isin(photos.named)
    rule = is_named.map({True: "photo-missing-file", False: "missing-photo"})
    details = {True: "metadata names photos, but no file is there", False: "no street photo"}
    path = "no file dhs_npzs/" + no_tile.str[:10] + "/" + no_tile + ".npz"
    where = "images" if required else "photos"
    rows = (
        {"table": "images", "key": no_tile, "rule": "missing-tile", "detail": path},
        {"table": where, "key": no_photo, "rule": rule, "detail": is_named.map(details)},
    )
    drawable = table[has_tile & has_photo if required else has_tile]
    return pd.concat(map(pd.DataFrame, rows), ignore_index=True).astype("str"), drawable


def _plan(drawable: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Shard name -> its clusters: a country's clusters in cluster_id order, 256 at a time; the
    fullest shards first, so that no worker starts a long one last."""
    plan: dict[str, pd.DataFrame] = {}
    for prefix, part in drawable.groupby(drawable["cname"].map(shard_prefix), sort=True):
        for number, start in enumerate(range(0, len(part), PER_SHARD)):
            plan[f"{prefix}-{number:03d}"] = part.iloc[start : start + PER_SHARD]
    return dict(sorted(plan.items(), key=lambda pair: -len(pair[1])))


def _tasks(part: pd.DataFrame, photos: pd.DataFrame) -> list[Cluster]:
    """photos: indexed by cluster_id, sorted, so that a shard's share is a slice."""
    listed = photos.loc[part["cluster_id"].iloc[0] : part["cluster_id"].iloc[-1]]
    groups = {
        str(key): list(zip(g["photo_id"], g["path"], strict=True))
        for key, g in listed.groupby(level=0)
    }
    rows = part[["cluster_id", "year"]].itertuples(index=False, name=None)
    return [Cluster(key, int(year), groups.get(key, [])) for key, year in rows]


def _run(shards: Iterator[Shard], workers: int) -> Iterator[ShardResult]:
    """The results of the shards in order of completion; few shards are in flight, so that memory
    stays flat."""
    if workers <= 1:
        yield from map(make_shard, shards)
        return
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=_leave_with_parent
        ) as pool:
            pending: set[Future[ShardResult]] = set()
            try:
                while True:
                    waiting = islice(shards, 2 * workers - len(pending))
                    pending |= {pool.submit(make_shard, shard) for shard in waiting}
                    if not pending:
                        return
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)  # also when the caller stops early
    except BrokenProcessPool as error:
        message = (
            "a worker process died while drawing images, most likely out of memory; run again with"
            " --workers 1"
        )
        raise InfrastructureError(message) from error


def _leave_with_parent() -> None:
    """End this worker when the main process is killed; otherwise it would wait for work forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
