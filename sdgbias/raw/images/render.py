"""One shard of the image store: unchanged images are reused, the others rendered.

An image's `source` is a digest over all its inputs: renderer, settings, the tile's bytes, the bytes
of every photo considered, and the sensor where it matters. For a cluster without an image or with a
broken photo the shard stores a note, its source and its quarantine rows, so that the failed
decoding isn't repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import PIL
import pyarrow as pa
from PIL import Image

from sdgbias.errors import UsageError, one_of
from sdgbias.files import FileError
from sdgbias.raw.images.composite import (
    SIDE,
    TileError,
    composite,
    encode_png,
    nightlights,
    photo_panel,
    read_tile,
    sensor,
    tile_bytes,
    tile_inside,
    tile_panel,
    tile_rgb,
)
from sdgbias.raw.images.photos import (
    PHOTO_CANDIDATES,
    Choice,
    choose_photos,
    locate,
    perceptual_hash,
    photo_digest,
)
from sdgbias.raw.images.shards import Row, image_id, index_of, read_parts, read_rows, write_shard
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
class Known:
    """One earlier outcome of a cluster: its row in a shard (None: no image) and its note."""

    path: Path
    row: int | None
    source: str
    note: Mapping[str, Any] | None


@dataclass(frozen=True)
class Cluster:
    """The input for rendering a cluster; photos: (photo_id, path) of all, sorted."""

    cluster_id: str
    year: int
    photos: list[tuple[str, str]]
    known: list[Known] = field(default_factory=list)


@dataclass(frozen=True)
class Shard:
    """One file to build, in the folder ``staging``."""

    raw: Path
    name: str
    settings: ImageSettings
    staging: Path
    clusters: list[Cluster]


@dataclass(frozen=True)
class Made:
    index: pd.DataFrame
    quarantine: list[list[str]]
    rendered: int
    reused: int


def make_shard(shard: Shard) -> Made:
    """Write one shard unless an identical one exists; known images are copied, the others
    rendered."""
    reused = {
        cluster.cluster_id: known
        for cluster in shard.clusters
        if (known := _reusable(shard, cluster)) is not None
    }
    notes = {key: dict(known.note) for key, known in reused.items() if known.note}
    rows_of = {cluster.cluster_id: len(cluster.photos) for cluster in shard.clusters}
    same = _already(shard, reused, rows_of)
    if same is not None:
        return Made(index_of(same, shard.name), _quarantine(notes), 0, len(reused))
    drawn = 0

    def rows() -> Iterator[Row]:
        nonlocal drawn
        for cluster in shard.clusters:
            known = reused.get(cluster.cluster_id)
            row = _copy(known) if known is not None and known.row is not None else None
            if row is None and (known is None or known.row is not None):
                notes.pop(cluster.cluster_id, None)
                row, note = _draw(shard, cluster)
                drawn += 1
                if note:
                    notes[cluster.cluster_id] = note
            if row is not None:
                yield {**row, "cluster_id": cluster.cluster_id, "n_photos": len(cluster.photos)}

    index = write_shard(shard.staging / f"{shard.name}.parquet", rows(), lambda: notes)
    return Made(index_of(index, shard.name), _quarantine(notes), drawn, len(shard.clusters) - drawn)


def _quarantine(notes: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    return [list(row) for note in notes.values() for row in note["quarantine"]]


def _already(
    shard: Shard, reused: Mapping[str, Known], n_photos: Mapping[str, int]
) -> pd.DataFrame | None:
    """The rows of the finished file of this name when it contains exactly these clusters'
    outcomes."""
    if len(reused) < len(shard.clusters) or len({known.path for known in reused.values()}) != 1:
        return None
    path = next(iter(reused.values())).path
    if path.stem != shard.name:
        return None
    rows, notes = read_rows(path)
    whole = (
        set(notes) | set(rows["cluster_id"]) == set(reused)
        and rows["cluster_id"].is_monotonic_increasing
    )
    counted = rows["n_photos"].tolist() == [n_photos.get(key) for key in rows["cluster_id"]]
    return rows if whole and counted else None


def _reusable(shard: Shard, cluster: Cluster) -> Known | None:
    """The earlier outcome for identical inputs, if any."""
    wanted = shard.settings.photos
    for known in cluster.known:
        if known.note is None:
            looked = min(PHOTO_CANDIDATES * wanted, len(cluster.photos))
        else:
            looked = int(known.note.get("looked_at", -1))
            there = len(cluster.photos)
            enough = looked == there if known.note.get("complete") else looked <= there
            if not enough or known.note.get("paths") != _paths(cluster, looked):
                continue
        try:
            tile = tile_bytes(tile_inside(shard.raw, cluster.cluster_id))
            seen = cluster.photos[:looked]
            photos = [(key, photo_digest(locate(shard.raw, path))) for key, path in seen]
        except FileError:
            continue
        if _source(shard, cluster, tile, photos) == known.source:
            return known
    return None


def _copy(known: Known) -> Row | None:
    """The row with its images; None when the file has been damaged or replaced in the meantime."""
    try:
        stat = known.path.stat()
        values = _rows_of(known.path, stat.st_size, stat.st_mtime_ns)[known.row or 0]
        parts = read_parts(known.path, known.row or 0)
    except (OSError, ValueError, LookupError, pa.ArrowException):
        return None
    intact = values["source"] == known.source and image_id(parts) == values["image_id"]
    return {**values, "parts": list(parts)} if intact else None


@lru_cache(maxsize=4)
def _rows_of(path: Path, _size: int, _changed: int) -> list[Row]:
    rows: list[Row] = read_rows(path)[0].to_dict("records")  # type: ignore[assignment]
    return rows


def _paths(cluster: Cluster, looked_at: int) -> str:
    """A note contains the path of a broken photo, so it is valid only while the photos are at the
    same paths."""
    paths = "\n".join(path for _, path in cluster.photos[:looked_at])
    return hashlib.sha256(paths.encode()).hexdigest()[:16]


def _source(shard: Shard, cluster: Cluster, tile: bytes, photos: list[tuple[str, str]]) -> str:
    s = shard.settings
    parts = [RENDERER, s.layout, str(s.photos), s.photo]
    parts += [hashlib.sha256(tile).hexdigest(), sensor(cluster.year)]
    parts += [f"{key} {digest}" for key, digest in photos]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _draw(shard: Shard, cluster: Cluster) -> tuple[Row | None, dict[str, Any] | None]:
    """(row or None, note or None) of one cluster: the images, or all reasons why there are none."""
    reasons: list[list[str]] = []
    choice, tile, data = Choice(), None, b""
    try:
        path = tile_inside(shard.raw, cluster.cluster_id)
        data = tile_bytes(path)
        tile = read_tile(path, data)
        # the most expensive step: reached only when the tile is readable
        choice = choose_photos(shard.raw, cluster.photos, shard.settings.photos)
    except TileError as error:
        reasons.append(["images", cluster.cluster_id, error.rule, _inside(shard.raw, error)])
    source = _source(shard, cluster, data, choice.looked_at)
    row = None
    if tile is not None and (choice.photos or shard.settings.photo != REQUIRED):
        reasons += [
            ["photos", f"{cluster.cluster_id}/{key}", error.rule, _inside(shard.raw, error)]
            for key, error in choice.broken
        ]
        row = {**_row(shard, cluster, tile, choice), "source": source}
    elif tile is not None:
        first = choice.broken[0][1]
        none = f"none of {len(cluster.photos)} photo(s) is readable; first: "
        detail = none + _inside(shard.raw, first)
        reasons.append(["images", cluster.cluster_id, first.rule, detail])
    if not reasons:
        return row, None
    looked_at, complete = len(choice.looked_at), choice.complete and tile is not None
    note = {"source": source, "looked_at": looked_at, "complete": complete}
    return row, {**note, "paths": _paths(cluster, looked_at), "quarantine": reasons}


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
    found = zip(MODALITIES, (photo, panel, night), strict=True)
    return {
        "cluster_id": cluster.cluster_id,
        "image_id": image_id(parts),
        "photo_id": ",".join(key for key, _ in choice.photos),
        "n_photos": len(cluster.photos),
        "n_parts": len(parts),
        "modalities": ", ".join(name for name, part in found if part is not None),
        "tile_hash": perceptual_hash(panel),
        "photo_hash": "" if photo is None else perceptual_hash(photo),
        "parts": parts,
    }


def _inside(raw: Path, error: FileError) -> str:
    """The message without absolute paths, so that the quarantine table doesn't depend on the
    location of the raw folder."""
    return str(error).replace(f"{raw}/", "")
