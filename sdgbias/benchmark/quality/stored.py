"""images.parquet beside the stored images. Shards are read a few rows at a time to keep memory
flat."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.errors import InputError
from sdgbias.files import build_command, confine
from sdgbias.raw.images import shards

#: Facts about each row of images.parquet that are read from the shards, see stored_facts.
STORED = ("stored", "id_is_sha256", "is_whole")
_ROWS = 16  # images held in memory at once
_INDEXED = ["image_id", "photo_id", "n_photos", "n_parts", "tile_hash", "photo_hash"]


def stored_facts(benchmark: Path, index: pd.DataFrame) -> pd.DataFrame:
    """``index`` (images.parquet) with a bool column for each of STORED: the shard contains the row
    as indexed; image_id is the digest of the bytes; every part is a complete PNG or JPEG.

    Header and trailer are checked, pixels aren't decoded. A row that isn't stored breaks only the
    first. Rows without images ('pending:') are skipped. Raises InputError for an unreadable shard
    or a name that leads out of the folder.
    """
    is_pending = index["image_id"].fillna("").astype("str").str.startswith(shards.PENDING)
    names = sorted(index.loc[~is_pending, "shard"].fillna("").astype(str).unique())
    rows = [row for name in names for row in _shard(benchmark, name)]
    stored = pd.DataFrame(rows, columns=["shard", "cluster_id", *_INDEXED, *STORED[1:]])
    both = index[["shard", "cluster_id", *_INDEXED]].merge(
        stored.drop_duplicates(["shard", "cluster_id"]),
        on=["shard", "cluster_id"],
        how="left",
        suffixes=("", "_stored"),
    )
    same = [both[name] == both[f"{name}_stored"] for name in _INDEXED]
    facts = {"stored": pd.concat(same, axis=1).all(axis=1)}
    facts |= {name: both[name].fillna(True) for name in STORED[1:]}
    return index.assign(**{name: fact.to_numpy(dtype=bool) for name, fact in facts.items()})


def _shard(benchmark: Path, name: str) -> Iterator[tuple[Any, ...]]:
    """What one shard says of each of its rows; nothing when there's no such file."""
    path = confine(benchmark / shards.FOLDER, f"{name}.parquet")
    if not path.is_file():
        return
    columns = ["cluster_id", *_INDEXED]
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=[*columns, "parts"]):
                for row in batch.to_pylist():
                    parts = row["parts"] or []
                    is_named = bool(parts) and shards.image_id(parts) == row["image_id"]
                    indexed = (row[column] for column in columns)
                    yield (name, *indexed, is_named, bool(parts) and is_whole(parts))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise InputError(
            f"{path}: can't be read ({type(error).__name__}); delete it and build the images again:"
            f" {build_command(benchmark)}"
        ) from None


def is_whole(parts: Sequence[bytes]) -> bool:
    """Every part begins and ends as a PNG with at least one pixel, or as a JPEG."""
    return all(
        _is_whole_png(part) or (part.startswith(b"\xff\xd8\xff") and part.endswith(b"\xff\xd9"))
        for part in parts
    )


def _is_whole_png(part: bytes) -> bool:
    start, end = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
    if len(part) < 45 or not part.startswith(start) or not part.endswith(end):
        return False
    return part[12:16] == b"IHDR" and min(struct.unpack(">II", part[16:24])) > 0
