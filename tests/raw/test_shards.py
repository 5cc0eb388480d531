from hashlib import sha256
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sdgbias.errors import InputError, StoreError
from sdgbias.raw.images import shards
from sdgbias.raw.images.composite import encode_png
from sdgbias.raw.images.shards import (
    ImageReader,
    image_id,
    pending_index,
    picture_hashes,
    store_images,
)
from tests.builders.raw_folder import jpeg, make_photo


def picture(seed: int, size: tuple[int, int] = (48, 48)) -> bytes:
    return encode_png(make_photo(seed, size))


def rows_of(count: int, start: int = 0, country: str = "AL") -> list[tuple[str, str, list[bytes]]]:
    return [
        (f"{country}-2008-5#-{n:08d}", str(n), [picture(n)]) for n in range(start, start + count)
    ]


def benchmark(folder: Path, rows: list[tuple[str, str, list[bytes]]]) -> pd.DataFrame:
    index = store_images(folder, iter(rows))
    index.assign(image_group=index["image_id"]).to_parquet(folder / "images.parquet")
    return index


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_store_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PER_SHARD", 20)
    rows = [
        *rows_of(45),
        *rows_of(3, 50, "ZW"),
        ("zz-foreign", "", [picture(1), jpeg(make_photo(2))]),
    ]
    index = benchmark(tmp_path, rows)
    assert index.columns.tolist() == shards.INDEX_COLUMNS
    assert index["shard"].value_counts().sort_index().to_dict() == {
        "AL-000": 20,
        "AL-001": 20,
        "AL-002": 5,
        "XX-000": 1,
        "ZW-000": 3,
    }
    assert [
        pq.ParquetFile(tmp_path / "images" / "AL-000.parquet").metadata.row_group(i).num_rows
        for i in (0, 1)
    ] == [16, 4]
    reader = ImageReader(tmp_path, limit_bytes=1)  # one row group is kept, however small the limit
    assert len(reader) == 49
    for _, _, parts in reversed(rows):
        assert reader[image_id(parts)] == tuple(parts)
        assert len(reader.blocks) == 1
    assert dict(ImageReader(tmp_path)) == {image_id(parts): tuple(parts) for _, _, parts in rows}
    assert index.set_index("cluster_id").loc["zz-foreign", "n_parts"] == 2
    reader.require([*index["image_id"], ""])
    missing = r"images.parquet: no image beef \(2 missing\); build the benchmark again"
    with pytest.raises(InputError, match=missing):
        reader.require(["beef", "f00d", index["image_id"][0]])
    assert "beef" not in reader and reader.get("beef") is None


def test_the_same_rows_give_the_same_bytes_and_nothing_stays_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark(tmp_path / "a", rows_of(20))
    monkeypatch.setattr(shards, "PER_SHARD", 3)
    benchmark(tmp_path / "b", rows_of(10, start=5))
    monkeypatch.undo()
    benchmark(tmp_path / "b", rows_of(20))
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("rows", [[*rows_of(2), *rows_of(1, start=1)], rows_of(2)[::-1]])
def test_order_and_duplicates_are_refused(
    tmp_path: Path, rows: list[tuple[str, str, list[bytes]]]
) -> None:
    with pytest.raises(
        InputError, match="comes after 'AL-2008-5#-00000001'; sort the images by cluster, one each"
    ):
        store_images(tmp_path, rows)


def test_image_id_of_one_and_of_several() -> None:
    both = sha256(sha256(b"a").digest() + sha256(b"b").digest()).hexdigest()
    assert (image_id([b"a"]), image_id([b"a", b"b"])) == (sha256(b"a").hexdigest(), both)


def test_hashes_of_finished_pictures() -> None:
    top, left = make_photo(1, (448, 224)), make_photo(2, (224, 224))
    canvas = Image.new("RGB", (448, 448))
    canvas.paste(top, (0, 0))
    canvas.paste(left, (0, 224))
    tile_hash, photo_hash = picture_hashes([encode_png(canvas)])
    assert (tile_hash, photo_hash) == picture_hashes([encode_png(top), encode_png(left)])
    assert tile_hash != photo_hash
    alone = picture_hashes([jpeg(make_photo(3))])
    assert alone[0] == alone[1]
    assert picture_hashes([b"no picture"]) == ("", "")


def test_pending_index(tmp_path: Path) -> None:
    clusters = pd.DataFrame({"cluster_id": ["ZW-2010-6#-00000002", "AL-2008-5#-00000001"]})
    index = pending_index(clusters)
    assert index.columns.tolist() == [*shards.INDEX_COLUMNS, "image_group"]
    assert index["cluster_id"].tolist() == sorted(clusters["cluster_id"])
    assert index["image_id"].str.fullmatch("pending:[0-9a-f]{32}").all()
    assert index["image_id"].equals(index["image_group"])
    assert (index[["n_photos", "n_parts"]] == 0).all(axis=None)
    assert (index[["photo_id", "tile_hash", "photo_hash", "shard"]] == "").all(axis=None)
    assert index.dtypes[shards.INDEX_COLUMNS].equals(store_images(tmp_path, rows_of(1)).dtypes)
    index.to_parquet(tmp_path / "images.parquet")
    reader = ImageReader(tmp_path)
    with pytest.raises(InputError, match="built with --no-images.*sdgbias build"):
        reader.require(index["image_id"])
    with pytest.raises(InputError, match="built with --no-images"):
        reader[index["image_id"][0]]


def test_damaged_stores(tmp_path: Path) -> None:
    index = benchmark(tmp_path, rows_of(20))
    path, key = tmp_path / "images" / "AL-000.parquet", index["image_id"][18]
    whole = path.read_bytes()

    def says(message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            ImageReader(tmp_path)[key]
        assert "AL-000.parquet" in str(caught.value) and "\n" not in str(caught.value)

    path.write_bytes(whole[:-100])
    onward = f"sdgbias build --out {tmp_path}"
    says(f"damaged .*delete that file and build the images again: {onward}")
    at = whole.index(picture(18))
    path.write_bytes(whole[: at + 60] + bytes([whole[at + 60] ^ 1]) + whole[at + 61 :])
    says("has other bytes than its name states; delete that file")
    assert ImageReader(tmp_path)[index["image_id"][3]] == (picture(3),)
    benchmark(tmp_path / "other", rows_of(3))
    path.write_bytes((tmp_path / "other" / "images" / "AL-000.parquet").read_bytes())
    says("damaged")
    path.unlink()
    says("not there; build the images again")
    (tmp_path / "origin.json").write_text('{"release": true}')
    says("build the images again: sdgbias release import FOLDER --out")
    (tmp_path / "images.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="images.parquet: no readable table of images"):
        ImageReader(tmp_path)
    index.assign(shard="../../etc/x").to_parquet(tmp_path / "images.parquet")
    with pytest.raises(InputError, match="climbs out of"):
        ImageReader(tmp_path)[key]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "images").write_text("in the way")
    with pytest.raises(StoreError, match="can't be written .*another --out"):
        store_images(tmp_path, rows_of(1))
