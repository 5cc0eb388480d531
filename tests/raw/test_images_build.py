import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InputError
from sdgbias.raw.images import image_store as imagestore
from sdgbias.raw.images.composite import MASKED, open_picture, panels
from sdgbias.raw.images.image_store import ImageSettings, StoredImages, render_store
from sdgbias.raw.images.shards import RECORDS, ImageReader, store_images
from tests.builders.processes import children, end
from tests.builders.raw_folder import (
    ONE,
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

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


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
    reader = ImageReader(out)
    return {
        cluster: reader[key]
        for cluster, key in zip(stored.index["cluster_id"], stored.index["image_id"], strict=True)
    }


def left_out(stored: StoredImages) -> set[tuple[str, str, str]]:
    """Table, end of the key and rule of what was left out."""
    rows = stored.quarantine[["table", "key", "rule"]].itertuples(index=False, name=None)
    return {(table, key[-4:], rule) for table, key, rule in rows}


ALWAYS_LEFT_OUT = {
    ("images", "0003", "missing-tile"),
    ("images", "0005", "tile-all-zero"),
    ("photos", "/130", "photo-corrupt"),
    ("images", "0017", "tile-truncated"),
}


def test_every_fault_and_no_other_cluster_is_left_out(tmp_path: Path) -> None:
    raw, calls = tmp_path / "raw", []
    clusters = raw_folder(raw)
    stored = render_store(
        raw, clusters, tmp_path / "a", progress=lambda what, *at: calls.append(at)
    )
    photos = {("photos", photo, "photo-corrupt") for photo in ("/110", "/111")}
    assert left_out(stored) == ALWAYS_LEFT_OUT | photos
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
    assert (stored.rendered, stored.reused) == (17, 0)
    assert stored.lines() == ["15 clusters with pictures in 1 shards; 17 rendered, 0 unchanged"]
    details = stored.quarantine["detail"]  # the same wherever the folder lies
    assert not details.str.contains(str(tmp_path), regex=False).any()


def test_a_required_photo_leaves_out_the_clusters_without(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "a"
    clusters = raw_folder(raw)
    tile_alone = pictures(out, render_store(raw, clusters, out))["AL-2008-5#-00000007"]
    stored = render_store(raw, clusters, out, ImageSettings(photo="required"))
    assert left_out(stored) == ALWAYS_LEFT_OUT | {
        ("images", "0003", "missing-photo"),
        ("images", "0007", "missing-photo"),
        ("images", "0011", "photo-corrupt"),
    }
    assert set(stored.index["modalities"]) == {"photo, tile, nightlights"}
    assert len(stored.index) == 13
    back = render_store(raw, clusters, out)
    assert pictures(out, back)["AL-2008-5#-00000007"] == tile_alone
    cut = panels(open_picture(tile_alone[0]))
    assert cut["photo"].getcolors() == [(448 * 224, (MASKED, MASKED, MASKED))]
    assert cut["tile"].tobytes() != cut["photo"].tobytes()[: len(cut["tile"].tobytes())]


def test_photos_that_metadata_names_are_missed(tmp_path: Path) -> None:
    """The cluster keeps its tile; the photo that should be there is reported."""
    raw = tmp_path / "raw"
    clusters = raw_folder(raw)
    table = raw / "mapillary" / "metadata" / "AL.csv"
    table.parent.mkdir()
    named = [f"AL-2008-5#-{n:08d}" for n in (1, 7)]
    table.write_text(
        "id,DHSID_EA\n" + "".join(f"{n}0,{key}\n" for n, key in zip((1, 7), named, strict=True))
    )
    stored = render_store(raw, clusters, tmp_path / "a")
    lost = stored.quarantine[stored.quarantine["rule"] == "photo-missing-file"]
    assert lost[["table", "key"]].values.tolist() == [["photos", named[1]]]
    assert named[1] in set(stored.index["cluster_id"])


def test_neither_order_nor_workers_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "raw"
    clusters = raw_folder(raw)
    monkeypatch.setattr(imagestore, "PER_SHARD", 5)
    one = render_store(raw, clusters, tmp_path / "a")
    two = render_store(raw, clusters[::-1], tmp_path / "b", workers=2)
    same(one, two)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert len(files(tmp_path / "a")) == 4


def test_unchanged_shards_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run, broken photos and tiles included; then with other shards and from an
    archive."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = raw_folder(raw)
    first = render_store(raw, clusters, out)
    before = {path: path.stat().st_mtime_ns for path in (out / "images").glob("*.parquet")}
    again = render_store(raw, clusters, out)
    same(first, again)
    assert (again.rendered, again.reused) == (0, 17)
    assert {path: path.stat().st_mtime_ns for path in (out / "images").glob("*.parquet")} == before
    monkeypatch.setattr(imagestore, "PER_SHARD", 7)
    parted = render_store(raw, clusters, out)
    assert (parted.rendered, parted.reused) == (17, 0)
    assert files(out) == files(fresh(raw, clusters, tmp_path / "parted"))
    fewer = render_store(raw, clusters[:14], out)
    assert (fewer.rendered, fewer.reused) == (6, 7)
    assert files(out) == files(fresh(raw, clusters[:14], tmp_path / "fewer"))
    zipped(raw)
    assert render_store(raw, clusters[:14], out).rendered == 13
    assert render_store(raw, clusters[:14], out).rendered == 0


def fresh(
    raw: Path, clusters: pd.DataFrame, out: Path, settings: ImageSettings | None = None
) -> Path:
    render_store(raw, clusters, out, settings)
    return out


def test_a_shard_with_a_change_is_drawn_again_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagestore, "PER_SHARD", 9)
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = raw_folder(raw)
    ids = clusters["cluster_id"].tolist()
    tile = raw / "dhs_npzs" / ids[0][:10] / f"{ids[0]}.npz"
    render_store(raw, clusters, out)
    changes = [
        (lambda: put_tile(raw, ids[0], make_tile(0.3)), 9),
        (lambda: put_photo(raw, ids[0], "10", jpeg(make_photo(77))), 9),
        (lambda: put_photo(raw, ids[0], "99"), 9),  # a third photo
        (lambda: (raw / f"mapillary/imagery/AL/{ids[0]}/10.jpeg").unlink(), 9),
        (lambda: put_photo(raw, ids[6], "70"), 9),  # a missing photo appears
        (lambda: put_tile(raw, ids[16]), 8),  # a broken tile is fixed
        (lambda: put_photo(raw, ids[10], "110"), 8),  # so is a photo of a cluster without any other
        (lambda: os.utime(tile, (1, 1)), 9),
        (lambda: put_tile(raw, ids[2]), 18),  # a missing tile appears: every later cluster moves up
        (lambda: None, 0),
    ]
    for number, (change, redrawn) in enumerate(changes):
        change()
        stored = render_store(raw, clusters, out)
        assert (number, stored.rendered) == (number, redrawn)
        if number in (3, 8):
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
    put_tile(raw, ONE)
    put_photo(raw, ONE, "1")
    assert render_store(raw, clusters_of(ONE, year=2008), out).rendered == 1
    assert render_store(raw, clusters_of(ONE, year=2011), out).rendered == 0
    assert render_store(raw, clusters_of(ONE, year=2012), out).rendered == 1


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
    clusters = raw_folder(raw)
    render_store(raw, clusters, out)
    path = out / "images" / "AL-000.parquet"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "without a record":
        (out / "images" / RECORDS / "AL-000.json").unlink()
    else:
        store_images(out, iter([("AL-2008-5#-00000001", "1", [jpeg(make_photo(1))])]))
    assert render_store(raw, clusters, out).rendered == 17
    assert files(out) == files(fresh(raw, clusters, tmp_path / "fresh"))


DRIVER = """
import sys, time
from pathlib import Path
import pandas as pd
from sdgbias.raw.images import image_store as imagestore

def stop(what, done, total):  # once something is finished: the test never comes too late
    if list((out / "images" / ".next").glob("[A-Z]*.json")):
        time.sleep(600)

if __name__ == "__main__":
    imagestore.PER_SHARD = 4
    raw, out, table = map(Path, sys.argv[1:])
    imagestore.render_store(raw, pd.read_parquet(table), out, workers=2, progress=stop)
"""


def test_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 as soon as the first shard is there: the workers leave too, the next run takes over
    what is finished."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = raw_folder(raw)
    for number in range(20, 50):
        put_tile(raw, f"AL-2008-5#-{number:08d}", make_tile(number / 200))
        put_photo(raw, f"AL-2008-5#-{number:08d}", str(number))
    clusters = clusters_of(*clusters["cluster_id"], *(f"AL-2008-5#-{n:08d}" for n in range(20, 50)))
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
    monkeypatch.setattr(imagestore, "PER_SHARD", 4)
    stored = render_store(raw, clusters, out)
    assert 0 < stored.rendered < 46 and stored.reused > 0
    assert files(out) == files(fresh(raw, clusters, tmp_path / "fresh"))


def test_results_flow_and_errors_leave_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    clusters = raw_folder(raw)
    monkeypatch.setattr(imagestore, "PER_SHARD", 4)
    photos = raw / "mapillary" / "imagery" / "AL" / "AL-2008-5#-00000018"
    os.symlink("/etc/hostname", photos / "0.jpeg")
    with pytest.raises(InputError, match="climbs out of"):
        render_store(raw, clusters, out, workers=2)
    assert not list((out / "images").glob("*.parquet"))


def test_a_tile_that_links_out_of_its_folder_is_not_opened(tmp_path: Path) -> None:
    raw, secret = tmp_path / "raw", tmp_path / "elsewhere.npz"
    put_tile(raw, ONE)
    put_tile(raw, TWO)
    put_photo(raw, ONE, "5")
    put_photo(raw, TWO, "6")
    tile = raw / "dhs_npzs" / ONE[:10] / f"{ONE}.npz"
    tile.rename(secret)
    os.symlink(secret, tile)
    first = render_store(raw, clusters_of(ONE, TWO), tmp_path / "out")
    [[table, key, rule, detail]] = first.quarantine.values.tolist()
    assert (table, key, rule) == ("images", ONE, "tile-outside-folder")
    assert "links out of the folder of the tiles" in detail and str(tmp_path) not in detail
    assert first.index["cluster_id"].tolist() == [TWO]
    secret.unlink()  # never opened: nothing changes where it leads to nothing
    again = render_store(raw, clusters_of(ONE, TWO), tmp_path / "again")
    assert again.quarantine["rule"].tolist() in (["tile-outside-folder"], ["missing-tile"])
    # the folder of the tiles itself may be a link: big folders often lie on another disk
    tile.unlink()
    put_tile(raw, ONE)
    (raw / "dhs_npzs").rename(tmp_path / "disk")
    os.symlink(tmp_path / "disk", raw / "dhs_npzs")
    linked = render_store(raw, clusters_of(ONE, TWO), tmp_path / "linked")
    assert linked.quarantine.empty and len(linked.index) == 2


def test_metadata_without_files_and_of_others(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    put_tile(raw, ONE)
    put_photo(raw, TWO, "5")
    put_metadata(raw, f"id,DHSID_EA,path\n5,{TWO},\n6,{ONE},\n7,{TWO},\n5,{ONE},AL/{TWO}/5.jpeg\n")
    required = ImageSettings(photo="required")
    stored = render_store(raw, clusters_of(ONE), tmp_path / "out", required)
    assert stored.index.empty
    assert stored.index.dtypes.equals(
        render_store(raw, clusters_of(TWO), tmp_path / "two").index.dtypes
    )
    assert stored.quarantine[["table", "key", "rule"]].values.tolist() == [
        ["images", ONE, "photo-missing-file"],
        ["photos", f"{ONE}/5", "photo-of-other-cluster"],
    ]


@pytest.mark.parametrize("missing", ["dhs_npzs", "mapillary/imagery"])
def test_missing_folders(tmp_path: Path, missing: str) -> None:
    for name in {"dhs_npzs", "mapillary/imagery"} - {missing}:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(InputError, match=f"no folder .*{missing}; "):
        render_store(tmp_path, clusters_of(ONE), tmp_path / "out")


def test_realpack(tmp_path: Path) -> None:
    """Real bytes. The expectation is counted from the folder: a cluster stays iff it has a tile,
    and with a photo where photos are required."""
    from sdgbias.raw.clusters import read_clusters

    raw = SHARED / "realpack"
    if not raw.exists():
        pytest.skip("needs the shared realpack folder")
    clusters, _ = read_clusters(raw)
    tiles = {path.stem for path in raw.glob("dhs_npzs/*/*.npz")}
    photos = {path.parent.name for path in raw.glob("mapillary/imagery/*/*/*.jpeg")}
    stored = render_store(raw, clusters, tmp_path / "available")
    index = stored.index.set_index("cluster_id")
    assert set(index.index) == set(clusters["cluster_id"]) & tiles
    shown = index["modalities"].str.startswith("photo")
    assert set(index.index[shown]) == set(index.index) & photos and not shown.all() and shown.any()
    assert set(stored.quarantine["key"]) == set(clusters["cluster_id"]) - set(
        stored.index["cluster_id"]
    )
    assert render_store(raw, clusters, tmp_path / "available").rendered == 0
    required = render_store(raw, clusters, tmp_path / "both", ImageSettings(photo="required"))
    assert set(required.index["cluster_id"]) == set(index.index) & photos
