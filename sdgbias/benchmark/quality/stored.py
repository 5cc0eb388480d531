"""images.parquet beside the stored images. Shards are read a few rows at a time to keep memory
flat."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.errors import InputError
from sdgbias.files import confine
from sdgbias.raw.images import shards

#: Facts about each row of images.parquet that are read from the shards, see stored_facts.
STORED = ("stored", "id_is_sha256", "is_whole")
_ROWS = 16  # images held in memory at once
_SAME = ("photo_id", "n_photos", "n_parts", "tile_hash", "photo_hash")
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"


def stored_facts(benchmark: Path, index: pd.DataFrame) -> pd.DataFrame:
    """``index`` (images.parquet) with a bool column for each of STORED: the shard contains the row
    as indexed; image_id is the digest of the bytes; every part is a complete PNG or JPEG.

    Header and trailer are checked, pixels aren't decoded. A row that isn't stored breaks only the
    first. Rows without images ('pending:') are skipped. Raises InputError for an unreadable shard
    or a name that leads out of the folder.
    """
    wanted = index.loc[~index["image_id"].fillna("").astype("str").str.startswith(shards.PENDING)]
    parts = [_shard(benchmark, str(name)) for name in sorted(wanted["shard"].fillna("").unique())]
    table = pd.concat(parts, ignore_index=True) if parts else _facts([])
    rows = index.merge(
        table.drop_duplicates(["shard", "cluster_id"]),
        on=["shard", "cluster_id"],
        how="left",
        suffixes=("", "_stored"),
    )
    same = rows["image_id"] == rows["image_id_stored"]
    for name in _SAME:
        same &= rows[name] == rows[f"{name}_stored"]
    is_stored = rows["image_id_stored"].notna()
    facts = {
        "stored": same & is_stored,
        **{name: (rows[name] == True) | ~is_stored for name in STORED[1:]},  # noqa: E712
    }
    return index.assign(**{name: fact.to_numpy(dtype=bool) for name, fact in facts.items()})


def _facts(rows: list[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["shard", "cluster_id", "image_id", *_SAME, *STORED[1:]])


def _shard(benchmark: Path, name: str) -> pd.DataFrame:
    """The rows of one shard, without their images; none when there's no such file."""
    path = confine(benchmark / shards.FOLDER, f"{name}.parquet")
    if not path.is_file():
        return _facts([])
    columns = ["cluster_id", "image_id", *_SAME]
    rows: list[tuple[object, ...]] = []
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=[*columns, "parts"]):
                for row in batch.to_pylist():
                    parts = row["parts"] or []
                    named = bool(parts) and shards.image_id(parts) == row["image_id"]
                    rows.append(
                        (name, *(row[c] for c in columns), named, bool(parts) and is_whole(parts))
                    )
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        again = (
            f"delete it and build the images again: sdgbias build --stage images --out {benchmark}"
        )
        raise InputError(f"{path}: can't be read ({type(error).__name__}); {again}") from None
    return _facts(rows)


def is_whole(parts: Sequence[bytes]) -> bool:
    """Every part begins and ends as a PNG with at least one pixel, or as a JPEG."""
    return all(
        _whole_png(part) or (part.startswith(_JPEG_START) and part.endswith(_JPEG_END))
        for part in parts
    )


def _whole_png(part: bytes) -> bool:
    if len(part) < 45 or not part.startswith(_PNG_START) or not part.endswith(_PNG_END):
        return False
    return part[12:16] == b"IHDR" and min(struct.unpack(">II", part[16:24])) > 0
