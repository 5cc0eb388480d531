"""Settings of pictures: checked, and each changes the picture."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import UsageError
from sdgbias.raw.images.composite import open_picture
from sdgbias.raw.images.image_store import ImageSettings, StoredImages, render_store
from sdgbias.raw.images.shards import ImageReader
from tests.builders.raw_folder import ONE, jpeg, make_photo, make_tile, put_photo, put_tile


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"layout": "collage"}, "unknown image layout 'collage'; valid: composite, several"),
        ({"photos": 0}, "0 photos per cluster: give 1 to 4"),
        ({"photos": 5, "layout": "several"}, "5 photos per cluster: give 1 to 4"),
        ({"photos": 2}, "2 photos don't fit into one picture: choose the image layout several"),
    ],
)
def test_settings_are_checked(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ImageSettings(**bad)  # type: ignore[arg-type]


def pictures(out: Path, stored: StoredImages, cluster: str) -> tuple[bytes, ...]:
    stored.index.to_parquet(out / "images.parquet")
    ids = stored.index.set_index("cluster_id")["image_id"]
    return ImageReader(out)[ids[cluster]]


def rich(raw: Path) -> pd.DataFrame:
    """Two countries; the tile's bands differ and vary; three photos, two of them
    near-duplicates."""
    ids = [ONE, "ZW-2010-6#-00000001"]
    tile = make_tile() * np.linspace(0.5, 1.5, 255, dtype=np.float32)
    tile[:5] *= np.array([1, 1.2, 0.8, 2, 1.5], dtype=np.float32)[:, None, None]
    tile[6] *= 2.5
    for cluster in ids:
        put_tile(raw, cluster, tile)
        for photo_id, seed, quality in (("1", 1, 90), ("2", 1, 89), ("3", 3, 90)):
            put_photo(
                raw,
                cluster,
                photo_id,
                jpeg(make_photo(seed, (900, 600)).convert("RGB")) if quality == 90 else None,
            )
        put_photo(raw, cluster, "2", jpeg(make_photo(1, (900, 606))))
    return pd.DataFrame({"cluster_id": ids, "cname": ["AL", "ZW"], "year": [2008, 2015]})


def test_every_setting_changes_the_picture_and_no_hash(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = rich(raw)
    usual = ImageSettings()
    ids, hashes = set(), set()
    changes: list[dict[str, object]] = [
        {},
        {"layout": "several"},
        {"layout": "several", "photos": 3},
    ]
    for change in changes:
        stored = render_store(raw, clusters, out, dataclasses.replace(usual, **change))  # type: ignore[arg-type]
        assert stored.rendered == 2
        ids.add(stored.index["image_id"][0])
        hashes.add(tuple(stored.index["tile_hash"] + stored.index["photo_hash"]))
    assert len(ids) == len(changes)
    assert len(hashes) == 1
    assert len("".join(next(iter(hashes)))) == 64


def test_several_pictures(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = rich(raw)
    stored = render_store(raw, clusters, out, ImageSettings(layout="several", photos=4))
    parts = pictures(out, stored, ONE)
    assert stored.index["n_parts"].tolist() == [4, 4]
    assert set(stored.index["photo_id"][0].split(",")) in ({"1", "3"}, {"2", "3"})
    assert [open_picture(part).size for part in parts] == [
        (448, 299),
        (448, 299),
        (255, 255),
        (255, 255),
    ]
