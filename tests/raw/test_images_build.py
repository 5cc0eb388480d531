"""From tiles and photos to shards: what is left out and why, and what is drawn again."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import InputError, UsageError
from sdgbias.raw.clusters import read_clusters
from sdgbias.raw.images import image_store
from sdgbias.raw.images.composite import MASKED, open_picture, panels
from sdgbias.raw.images.image_store import ImageSettings, StoredImages, render_store
from sdgbias.raw.images.shards import RECORDS, ImageReader, store_images
from tests.builders.processes import children, end
from tests.builders.raw_folder import (
    ONE,
    THREE,
    TWO,
    clusters_of,
    jpeg,
    make_photo,
    make_tile,
    put_metadata,
    put_photo,
    put_tile,
    raw_folder,
    zipped,
)

REALPACK = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "realpack"
REQUIRED = ImageSettings(photo="required")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and RECORDS not in path.parts
    }


def same(one: StoredImages, other: StoredImages) -> None:
    pd.testing.assert_frame_equal(one.index, other.index)
    pd.testing.assert_frame_equal(one.quarantine, other.quarantine)


def pictures(out: Path, stored: StoredImages) -> dict[str, tuple[bytes, ...]]:
    """cluster_id -> pictures"""
    stored.index.to_parquet(out / "images.parquet")
    reader, index = ImageReader(out), stored.index
    keys = zip(index["cluster_id"], index["image_id"], strict=True)
    return {cluster: reader[key] for cluster, key in keys}


def left_out(stored: StoredImages) -> set[tuple[str, str, str]]:
    """Table, end of the key and rule of what was left out."""
    rows = stored.quarantine[["table", "key", "rule"]].itertuples(index=False, name=None)
    return {(table, key[-4:], rule) for table, key, rule in rows}


def few(raw: Path, *numbers: int) -> pd.DataFrame:
    """Clusters of a tile and two photos each."""
    ids = [f"AL-2008-5#-{n:08d}" for n in numbers]
    for number, cluster in zip(numbers, ids, strict=True):
        put_tile(raw, cluster, make_tile(number / 200))
        for photo in range(2):
            put_photo(raw, cluster, str(10 * number + photo))
    return clusters_of(*ids)


def fresh(raw: Path, clusters: pd.DataFrame, out: Path) -> dict[str, bytes]:
    render_store(raw, clusters, out)
    return files(out)


ALWAYS_LEFT_OUT = {
    ("images", "0003", "missing-tile"),
    ("images", "0005", "tile-all-zero"),
    ("photos", "/130", "photo-corrupt"),
    ("images", "0017", "tile-truncated"),
}


def test_every_fault_and_no_other_cluster_is_left_out(tmp_path: Path) -> None:
    raw, out, calls = tmp_path / "raw", tmp_path / "a", []
    clusters = raw_folder(raw)
    metadata = "".join(
        f"{10 * n + photo},{key}\n"
        for n, key in enumerate(clusters["cluster_id"], start=1)
        for photo in range(2)
    )
    put_metadata(raw, "id,DHSID_EA\n" + metadata)
    stored = render_store(raw, clusters, out, progress=lambda what, *at: calls.append(at))
    photos = {("photos", photo, "photo-corrupt") for photo in ("/110", "/111")}
    missed = {("photos", n, "photo-missing-file") for n in ("0003", "0007")}
    assert left_out(stored) == ALWAYS_LEFT_OUT | photos | missed
    assert len(stored.index) == 15
    alone = stored.index[stored.index["modalities"] == "tile, nightlights"]
    assert alone["cluster_id"].str[-4:].tolist() == ["0007", "0011"]
    assert alone[["photo_id", "photo_hash"]].eq("").all(axis=None)
    assert alone["n_photos"].tolist() == [0, 2]
    others = stored.index.drop(alone.index)
    assert set(others["modalities"]) == {"photo, tile, nightlights"}
    assert set(others["n_photos"]) == {2}
    assert set(stored.index["shard"]) == {"AL-000"}
    assert stored.index["cluster_id"].is_monotonic_increasing
    assert calls == [(1, 18), (18, 18)]
    assert stored.lines() == ["15 clusters with pictures in 1 shards; 17 rendered, 0 unchanged"]
    details = stored.quarantine["detail"]  # the same wherever the folder lies
    assert not details.str.contains(str(tmp_path), regex=False).any()
    tile_alone = panels(open_picture(pictures(out, stored)["AL-2008-5#-00000007"][0]))
    assert tile_alone["photo"].getcolors() == [(448 * 224, (MASKED, MASKED, MASKED))]
    assert len(tile_alone["tile"].getcolors() or []) < 448 * 224

    (raw / "mapillary" / "metadata" / "AL.csv").unlink()
    required = render_store(raw, clusters, out, REQUIRED)
    assert left_out(required) == ALWAYS_LEFT_OUT | {
        ("images", "0003", "missing-photo"),
        ("images", "0007", "missing-photo"),
        ("images", "0011", "photo-corrupt"),
    }
    assert set(required.index["modalities"]) == {"photo, tile, nightlights"}
    assert len(required.index) == 13


def test_neither_order_nor_workers_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "raw"
    clusters = few(raw, 1, 2, 3, 4, 5)
    monkeypatch.setattr(image_store, "PER_SHARD", 2)
    one = render_store(raw, clusters, tmp_path / "a")
    two = render_store(raw, clusters[::-1], tmp_path / "b", workers=2)
    same(one, two)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert len(files(tmp_path / "a")) == 3


def test_unchanged_shards_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken photos and tiles included; then with other shards and from an archive."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = few(raw, 1, 2, 3, 4, 5)
    put_tile(raw, TWO).write_bytes(b"PK")
    put_photo(raw, THREE, "30", b"broken")
    first = render_store(raw, clusters, out)
    before = {path: path.stat().st_mtime_ns for path in (out / "images").glob("*.parquet")}
    again = render_store(raw, clusters, out)
    same(first, again)
    assert len(first.quarantine) == 2 and (again.rendered, again.reused) == (0, 5)
    assert {path: path.stat().st_mtime_ns for path in (out / "images").glob("*.parquet")} == before
    monkeypatch.setattr(image_store, "PER_SHARD", 2)
    for part, expected in ((clusters, (5, 0)), (clusters[:3], (1, 2))):
        stored = render_store(raw, part, out)
        assert (stored.rendered, stored.reused) == expected
        assert files(out) == fresh(raw, part, tmp_path / f"fresh{len(part)}")
    zipped(raw)
    assert [render_store(raw, clusters[:3], out).rendered for _ in range(2)] == [3, 0]


def test_a_shard_with_a_change_is_drawn_again_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_store, "PER_SHARD", 2)
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = few(raw, 1, 2, 3, 4, 5)
    (raw / "dhs_npzs" / ONE[:10] / f"{THREE}.npz").unlink()
    photo = raw / f"mapillary/imagery/AL/{ONE}/10.jpeg"
    render_store(raw, clusters, out)
    changes: list[tuple[Callable[[], object], int]] = [
        (lambda: put_tile(raw, ONE, make_tile(0.3)), 2),
        (lambda: put_photo(raw, ONE, "10", jpeg(make_photo(77))), 2),
        (lambda: put_photo(raw, ONE, "99"), 2),  # a third photo
        (photo.unlink, 2),
        (lambda: os.utime(put_tile(raw, TWO).with_suffix(".npz"), (1, 1)), 2),
        (lambda: put_tile(raw, THREE), 3),  # a missing tile appears: every later cluster moves up
        (lambda: None, 0),
    ]
    for number, (change, redrawn) in enumerate(changes):
        change()
        stored = render_store(raw, clusters, out)
        assert (number, stored.rendered) == (number, redrawn)
        if number in (3, 5):
            same(stored, render_store(raw, clusters, tmp_path / f"fresh{number}"))
            assert files(out) == files(tmp_path / f"fresh{number}")


def test_photos_beyond_the_eighth_are_counted(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    put_tile(raw, ONE)
    for number in range(10, 20):
        put_photo(raw, ONE, str(number), b"broken" if number == 11 else None)
    render_store(raw, clusters_of(ONE), out)
    put_photo(raw, ONE, "20")
    assert render_store(raw, clusters_of(ONE), out).index["n_photos"].tolist() == [11]
    put_photo(raw, ONE, "18", jpeg(make_photo(18, contrast=120)))  # the eighth readable one
    assert render_store(raw, clusters_of(ONE), out).index["photo_id"].tolist() == ["18"]


def test_the_sensor_counts_and_the_year_does_not(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    few(raw, 1)
    for year, rendered in ((2008, 1), (2011, 0), (2012, 1)):
        assert render_store(raw, clusters_of(ONE, year=year), out).rendered == rendered


def test_two_clusters_of_the_same_bytes_keep_their_own_rows(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    for cluster in (ONE, TWO):
        put_tile(raw, cluster)
        put_photo(raw, cluster, "1")
    first = render_store(raw, clusters_of(ONE, TWO), out)
    assert first.index["image_id"].nunique() == 1
    render_store(raw, clusters_of(TWO), out)
    same(render_store(raw, clusters_of(ONE, TWO), out), first)


@pytest.mark.parametrize("damage", ["cut", "without a record", "of another run"])
def test_damaged_shards_are_drawn_again(tmp_path: Path, damage: str) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = few(raw, 1, 2)
    whole, path = fresh(raw, clusters, out), out / "images" / "AL-000.parquet"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "without a record":
        (out / "images" / RECORDS / "AL-000.json").unlink()
    else:
        store_images(out, iter([(ONE, "1", [jpeg(make_photo(1))])]))
    assert render_store(raw, clusters, out).rendered == 2
    assert files(out) == whole


DRIVER = """
import sys, time
from pathlib import Path
import pandas as pd
from sdgbias.raw.images import image_store

def stop(what, done, total):  # once something is finished: the test never comes too late
    if list((out / "images" / ".next").glob("[A-Z]*.json")):
        time.sleep(600)

if __name__ == "__main__":
    image_store.PER_SHARD = 4
    raw, out, table = map(Path, sys.argv[1:])
    image_store.render_store(raw, pd.read_parquet(table), out, workers=2, progress=stop)
"""


def test_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 as soon as the first shard is there: the workers leave too, the next run takes over
    what is finished."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = few(raw, *range(1, 29))
    clusters.to_parquet(tmp_path / "clusters.parquet")
    (tmp_path / "driver.py").write_text(DRIVER)
    paths = (tmp_path / "driver.py", raw, out, tmp_path / "clusters.parquet")
    running = subprocess.Popen([sys.executable, *map(str, paths)])
    waiting = out / "images" / ".next"
    while not list(waiting.glob("[A-Z]*.json")):
        assert running.poll() is None
        time.sleep(0.01)
    workers = children(running.pid)
    assert len(workers) >= 2
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert end(workers)
    assert not list((out / "images").glob("*.parquet")), "a reader never meets half a store"
    monkeypatch.setattr(image_store, "PER_SHARD", 4)
    stored = render_store(raw, clusters, out)
    assert 0 < stored.rendered < 28 and stored.reused > 0
    assert files(out) == fresh(raw, clusters, tmp_path / "fresh")


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    """A photo's stops the build; a tile's leaves its cluster out, unopened."""
    raw, secret = tmp_path / "raw", tmp_path / "elsewhere.npz"
    clusters = few(raw, 1, 2)
    photo = raw / "mapillary" / "imagery" / "AL" / ONE / "0.jpeg"
    photo.symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="climbs out of"):
        render_store(raw, clusters, tmp_path / "out")
    assert not list((tmp_path / "out" / "images").glob("*.parquet"))
    photo.unlink()
    tile = raw / "dhs_npzs" / ONE[:10] / f"{ONE}.npz"
    tile.rename(secret)
    tile.symlink_to(secret)
    first = render_store(raw, clusters, tmp_path / "out")
    [[table, key, rule, detail]] = first.quarantine.values.tolist()
    assert (table, key, rule) == ("images", ONE, "tile-outside-folder")
    assert "links out of the folder of the tiles" in detail and str(tmp_path) not in detail
    assert first.index["cluster_id"].tolist() == [TWO]
    # the folder of the tiles itself may be a link: big folders often lie on another disk
    tile.unlink()
    put_tile(raw, ONE)
    (raw / "dhs_npzs").rename(tmp_path / "disk")
    (raw / "dhs_npzs").symlink_to(tmp_path / "disk")
    linked = render_store(raw, clusters, tmp_path / "linked")
    assert linked.quarantine.empty and len(linked.index) == 2


def test_a_photo_elsewhere_is_missing_and_an_empty_store_has_its_types(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    put_tile(raw, ONE)
    put_photo(raw, TWO, "5")
    put_metadata(raw, f"id,DHSID_EA\n5,{TWO}\n6,{ONE}\n7,{TWO}\n5,{ONE}\n")
    stored = render_store(raw, clusters_of(ONE), tmp_path / "out", REQUIRED)
    other = render_store(raw, clusters_of(TWO), tmp_path / "two")
    assert stored.index.empty and stored.index.dtypes.equals(other.index.dtypes)
    assert left_out(stored) == {("images", "0001", "photo-missing-file")}


@pytest.mark.parametrize("missing", ["dhs_npzs", "mapillary/imagery"])
def test_missing_folders(tmp_path: Path, missing: str) -> None:
    for name in {"dhs_npzs", "mapillary/imagery"} - {missing}:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(InputError, match=f"no folder .*{missing}; "):
        render_store(tmp_path, clusters_of(ONE), tmp_path / "out")


def test_realpack(tmp_path: Path) -> None:
    """Real bytes. The expectation is counted from the folder: a cluster stays iff it has a tile,
    and with a photo where photos are required."""
    if not REALPACK.exists():
        pytest.skip("needs the shared realpack folder")
    clusters, _ = read_clusters(REALPACK)
    ids = set(clusters["cluster_id"])
    tiles = ids & {path.stem for path in REALPACK.glob("dhs_npzs/*/*.npz")}
    photos = {path.parent.name for path in REALPACK.glob("mapillary/imagery/*/*/*.jpeg")}
    stored = render_store(REALPACK, clusters, tmp_path / "available")
    index = stored.index.set_index("cluster_id")
    assert set(index.index) == tiles and set(stored.quarantine["key"]) == ids - tiles
    shown = index["modalities"].str.startswith("photo")
    assert set(index.index[shown]) == tiles & photos and not shown.all() and shown.any()
    required = render_store(REALPACK, clusters, tmp_path / "both", REQUIRED)
    assert set(required.index["cluster_id"]) == tiles & photos


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


def test_every_setting_changes_the_picture_and_no_hash(tmp_path: Path) -> None:
    """Of three photos two are near-duplicates."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    tile = make_tile() * np.linspace(0.5, 1.5, 255, dtype=np.float32)
    tile[:5] *= np.array([1, 1.2, 0.8, 2, 1.5], dtype=np.float32)[:, None, None]
    put_tile(raw, ONE, tile)
    for photo_id, seed, height in (("1", 1, 600), ("2", 1, 606), ("3", 3, 600)):
        put_photo(raw, ONE, photo_id, jpeg(make_photo(seed, (900, height))))
    ids, hashes = set(), set()
    changes: list[dict[str, object]] = [
        {},
        {"layout": "several"},
        {"layout": "several", "photos": 4},
    ]
    for change in changes:
        settings = dataclasses.replace(ImageSettings(), **change)  # type: ignore[arg-type]
        stored = render_store(raw, clusters_of(ONE), out, settings)
        assert stored.rendered == 1
        ids.add(stored.index["image_id"][0])
        hashes.add(stored.index["tile_hash"][0] + stored.index["photo_hash"][0])
    assert len(ids) == len(changes)
    assert [len(text) for text in hashes] == [32]
    sizes = [open_picture(part).size for part in pictures(out, stored)[ONE]]
    assert sizes == [(448, 299), (448, 299), (255, 255), (255, 255)]
    assert stored.index["n_parts"].tolist() == [4]
    assert set(stored.index["photo_id"][0].split(",")) in ({"1", "3"}, {"2", "3"})
