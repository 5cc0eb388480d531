"""From tiles and photos to the image store, a shard at a time.

A shard whose inputs are unchanged is kept whole: beside it lies a record with the digest of its
inputs, its size, and the quarantine rows of its clusters, so that a killed run resumes with the
shards that it has finished. The others are drawn in parallel, staged, and moved into place together
at the end.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import PIL
import pyarrow as pa
from PIL import Image

from sdgbias.errors import InfrastructureError, InputError, UsageError, one_of
from sdgbias.files import FileError, write_json
from sdgbias.progress import Progress, silent
from sdgbias.raw.images.composite import (
    SIDE,
    TileError,
    composite,
    encode_png,
    nightlights,
    photo_panel,
    read_tile,
    sensor,
    tile_inside,
    tile_panel,
    tile_path,
    tile_rgb,
)
from sdgbias.raw.images.photos import (
    Choice,
    PhotoIndex,
    choose_photos,
    index_photos,
    perceptual_hash,
    split_path,
)
from sdgbias.raw.images.shards import (
    FOLDER,
    PER_SHARD,
    RECORDS,
    Row,
    image_id,
    index_of,
    join_index,
    publish,
    read_rows,
    shard_prefix,
    staging,
    write_shard,
)
from sdgbias.types import MODALITIES, QUARANTINE_COLUMNS

#: Incremented when the same inputs give another image. Pillow resamples and encodes, so its version
#: counts too.
RENDERER = f"2 pillow {PIL.__version__}"
LAYOUTS = ("composite", "several")
#: Whether a cluster needs a street photo: the paper shows one when available (Sec. 5.1).
WHEN_AVAILABLE, REQUIRED = "when_available", "required"
PHOTO = (WHEN_AVAILABLE, REQUIRED)
MAX_PHOTOS = 4


@dataclass(frozen=True)
class ImageSettings:
    """How images are rendered. Raises UsageError for unknown names and invalid numbers.

    layout: 'composite' (one image per cluster, for models that accept only one) or 'several'.
    photos: 1 to 4, more than one with 'several' only. photo: 'when_available' shows the tile alone
    where there is no readable photo, 'required' gives such a cluster no image.
    """

    layout: str = "composite"
    photos: int = 1
    photo: str = WHEN_AVAILABLE

    def __post_init__(self) -> None:
        checks = (("image layout", self.layout, LAYOUTS), ("photo", self.photo, PHOTO))
        for what, value, valid in checks:
            if value not in valid:
                raise UsageError(one_of(what, value, valid))
        if not 1 <= self.photos <= MAX_PHOTOS:
            raise UsageError(f"{self.photos} photos per cluster: give 1 to {MAX_PHOTOS}")
        if self.photos > 1 and self.layout == "composite":
            raise UsageError(
                f"{self.photos} photos don't fit into one picture: choose the image layout several,"
                " or 1 photo"
            )


@dataclass(frozen=True)
class StoredImages:
    """Of a shard, or of all of them. index: images.parquet without image_group. quarantine: table,
    key, rule, detail; table 'images' (the cluster has no picture: a row per missing or broken
    modality) or 'photos' (an unusable photo; the cluster is shown with another one or with its tile
    alone). rendered, reused: clusters whose tile and photos were decoded now, and those of shards
    that are kept."""

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


class Cluster(NamedTuple):
    """What a cluster is drawn from; photos: (photo_id, path) of all, sorted."""

    cluster_id: str
    year: int
    photos: list[tuple[str, str]]


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
    shards = _shards(drawable, photos.rows)
    total, done = len(table), len(table) - len(drawable)
    progress("rendering images", done, total)
    results: list[StoredImages] = []
    for result in run_shards(partial(make_shard, raw, out, settings), shards, workers):
        results.append(result)
        done += result.rendered + result.reused
        progress("rendering images", done, total)
    publish(out, set(shards))
    quarantine = pd.concat([missing, *(one.quarantine for one in results)])
    return StoredImages(
        join_index([one.index for one in results]),
        quarantine.sort_values(QUARANTINE_COLUMNS, ignore_index=True),
        sum(one.rendered for one in results),
        sum(one.reused for one in results),
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


def _shards(drawable: pd.DataFrame, photos: pd.DataFrame) -> dict[str, list[Cluster]]:
    """Shard name -> its clusters: a country's clusters in cluster_id order, 256 at a time; the
    fullest shards first, so that no worker starts a long one last."""
    listed: dict[str, list[tuple[str, str]]] = {}
    for key, photo_id, path in photos.itertuples(index=False, name=None):
        listed.setdefault(key, []).append((photo_id, path))
    shards: dict[str, list[Cluster]] = {}
    for prefix, part in drawable.groupby(drawable["cname"].map(shard_prefix), sort=True):
        clusters = [
            Cluster(key, int(year), listed.get(key, []))
            for key, year in zip(part["cluster_id"], part["year"], strict=True)
        ]
        for start in range(0, len(clusters), PER_SHARD):
            shards[f"{prefix}-{start // PER_SHARD:03d}"] = clusters[start : start + PER_SHARD]
    return dict(sorted(shards.items(), key=lambda pair: -len(pair[1])))


def run_shards(
    draw: Callable[[str, list[Cluster]], StoredImages],
    shards: dict[str, list[Cluster]],
    workers: int,
) -> Iterator[StoredImages]:
    """The results of the shards in order of completion; few of them are in flight, so that memory
    stays flat."""
    if workers <= 1:
        yield from (draw(*shard) for shard in shards.items())
        return
    rest = iter(shards.items())
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=_leave_with_parent
        ) as pool:
            pending: set[Future[StoredImages]] = set()
            try:
                while True:
                    waiting = islice(rest, 2 * workers - len(pending))
                    pending |= {pool.submit(draw, *shard) for shard in waiting}
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


def make_shard(
    raw: Path, out: Path, settings: ImageSettings, name: str, clusters: list[Cluster]
) -> StoredImages:
    """Draw one shard into the staging folder, unless a finished or a staged one was drawn from the
    same inputs."""
    digest = inputs_digest(raw, settings, clusters)
    finished, staged = out / FOLDER, staging(out)
    for folder, records in ((finished, finished / RECORDS), (staged, staged)):
        kept = _kept(folder / f"{name}.parquet", records / f"{name}.json", digest)
        if kept is not None:
            return StoredImages(*kept, 0, len(clusters))
    faults: list[list[str]] = []

    def rows() -> Iterator[Row]:
        for cluster in clusters:
            row, of_cluster = _draw(raw, settings, cluster)
            faults.extend(of_cluster)
            if row is not None:
                yield row

    path = staged / f"{name}.parquet"
    index = index_of(write_shard(path, rows()), name)
    record = {"inputs": digest, "bytes": path.stat().st_size, "quarantine": faults}
    write_json(path.with_suffix(".json"), record, "free the disk or name another --out")
    return StoredImages(index, _quarantine(faults), len(clusters), 0)


def _quarantine(faults: list[list[str]]) -> pd.DataFrame:
    return pd.DataFrame(faults, columns=QUARANTINE_COLUMNS, dtype="str")


def _kept(path: Path, record: Path, digest: str) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """(index, quarantine) of a shard that was drawn from inputs of this digest and is whole, as far
    as its size and its rows tell: the quality check compares every picture with its id."""
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
        if kept["inputs"] != digest or kept["bytes"] != path.stat().st_size:
            return None
        return index_of(read_rows(path), path.stem), _quarantine(kept["quarantine"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None


def inputs_digest(raw: Path, settings: ImageSettings, clusters: list[Cluster]) -> str:
    """SHA-256 over all that a shard is drawn from: renderer, settings, and of every cluster the
    sensor and path, size and time of its tile and photos."""
    lines, stamp = [RENDERER, repr(settings)], cache(_stamp)
    for key, year, photos in clusters:
        lines.append(f"{key} {sensor(year)} {_stamp(tile_path(raw, key))}")
        for photo_id, path in photos:
            lines.append(f"{photo_id} {path} {stamp(raw / split_path(path)[0])}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _stamp(path: Path) -> str:
    """Size and time of a file, '' where it leads nowhere."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _draw(
    raw: Path, settings: ImageSettings, cluster: Cluster
) -> tuple[Row | None, list[list[str]]]:
    """(row or None, quarantine rows) of one cluster: the images, or all reasons why there are
    none."""
    key, _, photos = cluster
    try:
        tile = read_tile(tile_inside(raw, key))
    except TileError as error:
        return None, [["images", key, error.rule, _inside(raw, error)]]
    # the most expensive step: reached only when the tile is readable
    choice = choose_photos(raw, photos, settings.photos)
    if choice.photos or settings.photo != REQUIRED:
        return _row(settings, cluster, tile, choice), [
            ["photos", f"{key}/{photo_id}", error.rule, _inside(raw, error)]
            for photo_id, error in choice.broken
        ]
    first = choice.broken[0][1]
    detail = f"none of {len(photos)} photo(s) is readable; first: {_inside(raw, first)}"
    return None, [["images", key, first.rule, detail]]


def _row(settings: ImageSettings, cluster: Cluster, tile: np.ndarray, choice: Choice) -> Row:
    """Images and hashes; the hashes are those of the panels, whatever the layout."""
    photo = photo_panel(choice.photos[0][1]) if choice.photos else None
    panel, night = tile_panel(tile), nightlights(tile, cluster.year)
    if settings.layout == "composite":
        shown = [composite(photo, panel, night)]
    else:
        shown = [image for _, image in choice.photos]
        for image in shown:
            image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        shown += [Image.fromarray(tile_rgb(tile)), Image.fromarray(night)]
    parts = [encode_png(image) for image in shown]
    shown_parts = zip(MODALITIES, (photo, panel, night), strict=True)
    return {
        "cluster_id": cluster.cluster_id,
        "image_id": image_id(parts),
        "photo_id": ",".join(key for key, _ in choice.photos),
        "n_photos": len(cluster.photos),
        "n_parts": len(parts),
        "modalities": ", ".join(name for name, part in shown_parts if part is not None),
        "tile_hash": perceptual_hash(panel),
        "photo_hash": "" if photo is None else perceptual_hash(photo),
        "parts": parts,
    }


def _inside(raw: Path, error: FileError) -> str:
    """The message without absolute paths, so that the quarantine table doesn't depend on the
    location of the raw folder."""
    return str(error).replace(f"{raw}/", "")
