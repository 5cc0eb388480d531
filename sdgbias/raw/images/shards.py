"""The image store on disk: a benchmark's images in a few large Parquet files,
images/<CC>-<nnn>.parquet.

One row per picture: cluster_id, image_id, photo_id, n_photos,
n_parts, modalities (what it shows), tile_hash, photo_hash, parts (encoded bytes, one or several).
Row groups are small, so that one image can be read without its neighbours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.errors import InputError
from sdgbias.files import build_command, confine, writable
from sdgbias.raw.images.composite import SIDE, open_picture, panels
from sdgbias.raw.images.photos import perceptual_hash

FOLDER = "images"
RECORDS = ".inputs"  # beside the shards: what each was drawn from
PER_SHARD = 256
PER_GROUP = 16
BLANK = "blank.png"  # the blank picture of an imported release
PENDING = "pending:"  # image_id of a benchmark built without images
SCHEMA = pa.schema(
    [
        ("cluster_id", pa.string()),
        ("image_id", pa.string()),
        ("photo_id", pa.string()),
        ("n_photos", pa.int32()),
        ("n_parts", pa.int32()),
        ("modalities", pa.string()),
        ("tile_hash", pa.string()),
        ("photo_hash", pa.string()),
        ("parts", pa.list_(pa.binary())),
    ]
)
INDEX_COLUMNS = [*(name for name in SCHEMA.names if name != "parts"), "shard"]
#: One row of a shard: the fields of SCHEMA.
Row = dict[str, Any]


def image_id(parts: Sequence[bytes]) -> str:
    """sha256 of the picture; of the pictures' sha256 digests, one after the other, when there are
    several."""
    digests = [hashlib.sha256(part).digest() for part in parts]
    return digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()


def write_shard(path: Path, rows: Iterable[Row]) -> pd.DataFrame:
    """Write ``rows`` to a temporary file as they arrive, then rename; returns them without parts.

    Raises StoreError when the disk is full or read-only.
    """
    # an orphaned worker of a killed run may still be writing
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    kept: list[Row] = []
    source = iter(rows)
    try:
        with writable(path.parent, "free the disk or name another --out"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # pictures are compressed already; a dictionary or statistics over them only cost time
            small = [name for name in SCHEMA.names if name != "parts"]
            codec = dict.fromkeys(small, "zstd") | {"parts.list.element": "none"}
            kinds: dict[str, Any] = {"use_dictionary": small, "write_statistics": small}
            with pq.ParquetWriter(part, SCHEMA, compression=codec, **kinds) as writer:
                while group := list(islice(source, PER_GROUP)):
                    writer.write_table(pa.Table.from_pylist(group, SCHEMA), PER_GROUP)
                    kept += [{name: row[name] for name in small} for row in group]
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return pd.DataFrame(kept, columns=small)


def read_rows(path: Path) -> pd.DataFrame:
    """The rows of a shard without parts. Raises OSError, ValueError or ArrowException on a damaged
    file."""
    return pq.read_table(path, columns=[n for n in SCHEMA.names if n != "parts"]).to_pandas()


def staging(out: Path) -> Path:
    """The folder for new shards until all are finished, so that a reader never sees an incomplete
    store."""
    return out / FOLDER / ".next"


def publish(out: Path, names: Collection[str]) -> None:
    """Move staged shards and their records into place and remove those that are not among
    ``names``. A kill between two steps loses nothing: staged shards stay staged, and removed shards
    are no longer referenced."""
    records = out / FOLDER / RECORDS
    with writable(out / FOLDER, "check its permissions"):
        records.mkdir(parents=True, exist_ok=True)
        for path in sorted(staging(out).glob("*.parquet")):
            if path.stem in names:
                record = records / f"{path.stem}.json"
                record.unlink(missing_ok=True)  # a shard without one is drawn again
                path.replace(out / FOLDER / path.name)
                if (new_record := path.with_suffix(".json")).is_file():
                    new_record.replace(record)
        for path in [*(out / FOLDER).glob("[!.]*.parquet"), *records.glob("*.json")]:
            if path.stem not in names:
                path.unlink()
        shutil.rmtree(staging(out), ignore_errors=True)


def index_of(rows: pd.DataFrame, shard: str) -> pd.DataFrame:
    """The part of images.parquet that one shard's rows make (without image_group)."""
    return rows.assign(shard=shard)[INDEX_COLUMNS]


def join_index(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """INDEX_COLUMNS of all shards, sorted by cluster_id, with the same types however many rows
    there are."""
    index = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=INDEX_COLUMNS)
    types = {name: "int32" if name in ("n_photos", "n_parts") else "str" for name in INDEX_COLUMNS}
    return index.astype(types).sort_values("cluster_id", ignore_index=True)


def shard_prefix(country: str) -> str:
    """A country code for use in a file name; anything else becomes XX."""
    return country if country.isascii() and country.isalnum() and len(country) <= 8 else "XX"


def picture_hashes(parts: Sequence[bytes]) -> tuple[str, str]:
    """(tile_hash, photo_hash) of finished pictures: of the panels of a composite, else of the last
    and the first picture. '' where one of them can't be decoded; the image rules of the quality
    check report them."""
    try:
        images = [open_picture(part) for part in parts]
    except Exception:
        return "", ""
    photo, tile = images[0], images[-1]
    if len(parts) == 1 and photo.size == (SIDE, SIDE):
        photo, tile = panels(photo)["photo"], panels(photo)["tile"]
    return perceptual_hash(tile), perceptual_hash(photo)


def store_images(
    out: Path,
    rows: Iterable[tuple[str, str, Sequence[bytes]]],
    skip_undecodable: bool = False,
) -> pd.DataFrame:
    """Store finished pictures, (cluster_id, photo_id, parts) in cluster_id order, replacing the
    contents of out/images. ``skip_undecodable``: pictures that can't be decoded aren't stored.

    Returns INDEX_COLUMNS (images.parquet without image_group; modalities unknown, ''). Memory stays
    flat. Raises InputError
    when a cluster is repeated or out of order: the order must not determine an image's shard.
    """
    parts: list[pd.DataFrame] = []
    counts: Counter[str] = Counter()
    last = ""
    shutil.rmtree(staging(out), ignore_errors=True)

    def row_of(cluster_id: str, photo_id: str, pictures: Sequence[bytes]) -> Row | None:
        nonlocal last
        if cluster_id <= last:
            raise InputError(
                f"{out}: image of cluster {cluster_id!r} comes after {last!r}; sort the images by"
                " cluster, one each"
            )
        last, identity, hashes = cluster_id, image_id(pictures), picture_hashes(pictures)
        if skip_undecodable and not all(hashes):
            return None
        about = (photo_id, 1, len(pictures), "", *hashes)
        values = (cluster_id, identity, *about, list(pictures))
        return dict(zip(SCHEMA.names, values, strict=True))

    def prefix_of(row: tuple[str, str, Sequence[bytes]]) -> str:
        code = row[0][:2]
        return code if code.isalpha() and code.isupper() and code.isascii() else "XX"

    for prefix, group in groupby(rows, prefix_of):
        for _, chunk in groupby(enumerate(group), lambda numbered: numbered[0] // PER_SHARD):
            name = f"{prefix}-{counts[prefix]:03d}"
            counts[prefix] += 1
            shard_rows = filter(None, (row_of(*row) for _, row in chunk))
            written = write_shard(staging(out) / f"{name}.parquet", shard_rows)
            parts.append(index_of(written, name))
    index = join_index(parts)
    publish(out, set(index["shard"]))
    return index


def pending_index(clusters: pd.DataFrame) -> pd.DataFrame:
    """images.parquet of a benchmark without pictures (`--no-images`): a placeholder per cluster,
    image_group included."""
    ids = clusters["cluster_id"].sort_values(ignore_index=True).astype("str")
    index = pd.DataFrame(dict.fromkeys(INDEX_COLUMNS, ""), index=ids.index, dtype="str")
    index["cluster_id"] = ids
    index["image_id"] = [PENDING + hashlib.sha256(key.encode()).hexdigest()[:32] for key in ids]
    return join_index([index.assign(n_photos=0, n_parts=0)]).assign(
        image_group=lambda t: t["image_id"]
    )


class ImageReader(Mapping[str, tuple[bytes, ...]]):
    """image_id -> its images (encoded bytes). Row groups are read on demand; at most
    ``limit_bytes`` are cached, so reading in cluster_id order reads every file once. Raises
    InputError when images.parquet or a shard is missing or damaged, or the benchmark was built
    without images."""

    def __init__(self, benchmark: Path, limit_bytes: int = 256 * 2**20) -> None:
        self.benchmark, self.limit_bytes = benchmark, limit_bytes
        self._again = build_command(benchmark)
        path = benchmark / "images.parquet"
        try:
            table = pd.read_parquet(path, columns=["image_id", "shard"])
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(
                f"{path}: no readable table of images ({_cause(error)}); build it: {self._again}"
            ) from error
        self._shard: dict[str, str] = dict(zip(table["image_id"], table["shard"], strict=True))
        self._blank: dict[str, tuple[bytes, ...]] = {}
        if (benchmark / BLANK).is_file():  # of an imported release
            parts = ((benchmark / BLANK).read_bytes(),)
            self._blank = {image_id(parts): parts}
        # shard -> (first row of each group, image_id -> row)
        self._rows: dict[str, tuple[np.ndarray, dict[str, int]]] = {}
        self.blocks: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._shard)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard)

    def __contains__(self, key: object) -> bool:
        return key in self._shard

    def require(self, wanted: Iterable[str]) -> None:
        """Raise InputError unless every id of ``wanted`` (except '') exists with its images."""
        ids = {key for key in wanted if key}
        path = self.benchmark / "images.parquet"
        if any(key.startswith(PENDING) for key in ids):
            raise InputError(
                f"{path}: built with --no-images, so there is nothing to show a model; build it"
                f" with images: {self._again}"
            )
        lost = sorted(ids - set(self._shard) - set(self._blank))
        if lost:
            raise InputError(
                f"{path}: no image {lost[0]} ({len(lost)} missing); build the benchmark again:"
                f" {self._again}"
            )

    def __getitem__(self, key: str) -> tuple[bytes, ...]:
        if key in self._blank:
            return self._blank[key]
        shard = self._shard[key]
        if key.startswith(PENDING):
            self.require([key])
        path = confine(self.benchmark / FOLDER, f"{shard}.parquet")
        again = f"delete that file and build the images again: {self._again}"
        try:
            parts = self._parts(path, shard, key)
        except FileNotFoundError as error:
            raise InputError(f"{path}: not there; build the images again: {self._again}") from error
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise InputError(f"{path}: damaged ({_cause(error)}); {again}") from error
        if image_id(parts) != key:
            raise InputError(f"{path}: image {key} has other bytes than its name states; {again}")
        return parts

    def _parts(self, path: Path, shard: str, key: str) -> tuple[bytes, ...]:
        if shard not in self._rows:
            with pq.ParquetFile(path) as file:
                names = file.read(["image_id"])["image_id"].to_pylist()
                self._rows[shard] = _starts(file), {name: row for row, name in enumerate(names)}
        starts, rows = self._rows[shard]
        row = rows[key]
        group = int(np.searchsorted(starts, row, side="right")) - 1
        if (shard, group) not in self.blocks:
            with pq.ParquetFile(path) as file:
                block = file.read_row_group(group, columns=["parts"])["parts"]
            self.blocks[shard, group] = block
            self._size += block.nbytes
            while self._size > self.limit_bytes and len(self.blocks) > 1:
                self._size -= self.blocks.popitem(last=False)[1].nbytes
        self.blocks.move_to_end((shard, group))
        return tuple(self.blocks[shard, group][row - int(starts[group])].as_py())


def _starts(file: Any) -> np.ndarray:
    """First row of each row group, and the number of rows."""
    rows = (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
    return np.cumsum([0, *rows])


def _cause(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
