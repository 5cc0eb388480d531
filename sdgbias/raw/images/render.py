"""One shard of the image store: reused whole where nothing that it is drawn from has changed, else
drawn.

Beside a shard lies a record with the digest of its inputs, its size, and the quarantine rows of its
clusters. A killed run resumes with the shards that it has finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import PIL
import pyarrow as pa
from PIL import Image

from sdgbias.errors import UsageError, one_of
from sdgbias.files import FileError, write_json
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
from sdgbias.raw.images.photos import Choice, choose_photos, perceptual_hash
from sdgbias.raw.images.shards import (
    FOLDER,
    RECORDS,
    Row,
    image_id,
    index_of,
    read_rows,
    staging,
    write_shard,
)
from sdgbias.types import MODALITIES

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
class Cluster:
    """The input for rendering a cluster; photos: (photo_id, path) of all, sorted."""

    cluster_id: str
    year: int
    photos: list[tuple[str, str]]


@dataclass(frozen=True)
class Shard:
    """One file to build below the benchmark folder ``out``."""

    raw: Path
    name: str
    settings: ImageSettings
    out: Path
    clusters: list[Cluster]


@dataclass(frozen=True)
class ShardResult:
    """index: the shard's part of images.parquet; quarantine: table, key, rule, detail."""

    index: pd.DataFrame
    quarantine: list[list[str]]
    rendered: int
    reused: int


def make_shard(shard: Shard) -> ShardResult:
    """Draw one shard into the staging folder, unless a finished or a staged one was drawn from the
    same inputs."""
    digest = inputs_digest(shard)
    finished, staged = shard.out / FOLDER, staging(shard.out)
    for folder, records in ((finished, finished / RECORDS), (staged, staged)):
        kept = _kept(folder / f"{shard.name}.parquet", records / f"{shard.name}.json", digest)
        if kept is not None:
            index, quarantine = kept
            return ShardResult(index, quarantine, 0, len(shard.clusters))
    reasons: list[list[str]] = []

    def rows() -> Iterator[Row]:
        for cluster in shard.clusters:
            row, faults = _draw(shard, cluster)
            reasons.extend(faults)
            if row is not None:
                yield row

    path = staged / f"{shard.name}.parquet"
    index = index_of(write_shard(path, rows()), shard.name)
    record = {"inputs": digest, "bytes": path.stat().st_size, "quarantine": reasons}
    write_json(path.with_suffix(".json"), record, "free the disk or name another --out")
    return ShardResult(index, reasons, len(shard.clusters), 0)


def _kept(path: Path, record: Path, digest: str) -> tuple[pd.DataFrame, list[list[str]]] | None:
    """(index, quarantine) of a shard that was drawn from inputs of this digest and is whole, as far
    as its size and its rows tell: the quality check compares every picture with its id."""
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
        if kept["inputs"] != digest or kept["bytes"] != path.stat().st_size:
            return None
        return index_of(read_rows(path), path.stem), [list(row) for row in kept["quarantine"]]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None


def inputs_digest(shard: Shard) -> str:
    """SHA-256 over all that a shard is drawn from: renderer, settings, and of every cluster the
    sensor and path, size and time of its tile and photos."""
    lines, stamp = [RENDERER, repr(shard.settings)], cache(_stamp)
    for cluster in shard.clusters:
        tile = tile_path(shard.raw, cluster.cluster_id)
        lines.append(f"{cluster.cluster_id} {sensor(cluster.year)} {_stamp(tile)}")
        for key, path in cluster.photos:
            archive, member, _ = path.partition(".zip::")
            lines.append(
                f"{key} {path} {stamp(shard.raw / (f'{archive}.zip' if member else path))}"
            )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _stamp(path: Path) -> str:
    """Size and time of a file, '' where it leads nowhere."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _draw(shard: Shard, cluster: Cluster) -> tuple[Row | None, list[list[str]]]:
    """(row or None, quarantine rows) of one cluster: the images, or all reasons why there are
    none."""
    choice, tile = Choice(), None
    reasons: list[list[str]] = []
    try:
        path = tile_inside(shard.raw, cluster.cluster_id)
        tile = read_tile(path)
        # the most expensive step: reached only when the tile is readable
        choice = choose_photos(shard.raw, cluster.photos, shard.settings.photos)
    except TileError as error:
        reasons.append(["images", cluster.cluster_id, error.rule, _inside(shard.raw, error)])
    if tile is not None and (choice.photos or shard.settings.photo != REQUIRED):
        reasons += [
            ["photos", f"{cluster.cluster_id}/{key}", error.rule, _inside(shard.raw, error)]
            for key, error in choice.broken
        ]
        return _row(shard, cluster, tile, choice), reasons
    if tile is not None:
        first = choice.broken[0][1]
        none = f"none of {len(cluster.photos)} photo(s) is readable; first: "
        detail = none + _inside(shard.raw, first)
        reasons.append(["images", cluster.cluster_id, first.rule, detail])
    return None, reasons


def _row(shard: Shard, cluster: Cluster, tile: Any, choice: Choice) -> Row:
    """Images and hashes; the hashes are those of the panels, whatever the layout."""
    s = shard.settings
    photo = photo_panel(choice.photos[0][1]) if choice.photos else None
    panel, night = tile_panel(tile), nightlights(tile, cluster.year)
    if s.layout == "composite":
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
