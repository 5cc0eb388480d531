import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from sdgbias.errors import InputError
from sdgbias.raw.images import composite
from sdgbias.raw.images import photos as photos_module
from sdgbias.raw.images.composite import TileError, read_tile
from sdgbias.raw.images.photos import (
    PhotoError,
    choose_photos,
    distance,
    index_photos,
    locate,
    perceptual_hash,
    photo_bytes,
    read_photo,
)
from tests.builders.raw_folder import (
    ONE,
    THREE,
    TWO,
    jpeg,
    make_photo,
    put_metadata,
    put_photo,
    zipped,
)

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MAPILLARY_TOOLS = SHARED / "street" / "mapillary_tools"


@pytest.mark.parametrize(
    "data", [b"", b"not a photo", jpeg(make_photo())[:-600], jpeg(make_photo())[:100]]
)
def test_corrupt_photo(tmp_path: Path, data: bytes) -> None:
    path = put_photo(tmp_path, ONE, "1", data)
    with pytest.raises(PhotoError, match=r"1\.jpeg: no readable JPEG .*save it as one") as caught:
        read_photo(path)
    assert caught.value.rule == "photo-corrupt" and "0x" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["corrupt_exif.jpg", "corrupt_exif_large_thumbnail.jpg", "test_exif.jpg"]
)
def test_corrupt_exif_specimens(name: str) -> None:
    if not MAPILLARY_TOOLS.exists():
        pytest.skip("needs the shared corrupt-EXIF specimens of mapillary_tools")
    photo = read_photo(MAPILLARY_TOOLS / name)
    assert photo.mode == "RGB"
    assert min(photo.size) >= 16


@pytest.mark.parametrize(
    "exif",
    [b"Exif\0\0garbage", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"],
)
def test_corrupt_exif(tmp_path: Path, exif: bytes) -> None:
    data = jpeg(make_photo())
    tagged = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    plain, odd = put_photo(tmp_path, ONE, "1", data), put_photo(tmp_path, ONE, "2", tagged)
    assert read_photo(odd).tobytes() == read_photo(plain).tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = put_photo(tmp_path, ONE, "1", jpeg(make_photo(), exif=exif))
    with Image.open(path) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    assert read_photo(path).tobytes() == expected.tobytes()
    assert read_photo(path).size == ((160, 90) if orientation < 5 else (90, 160))


def test_huge_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_photo(tmp_path, ONE, "1")
    for module, limit, most, words in (
        (composite, "MAX_PIXELS", 160 * 90 - 1, "160x90 pixels, at most 14399 pixels"),
        (photos_module, "MAX_FILE_BYTES", 100, "bytes, at most 100"),
        (Image, "MAX_IMAGE_PIXELS", 100, "pixels"),  # Pillow refuses by itself
    ):
        with monkeypatch.context() as patch, pytest.raises(PhotoError, match=words) as caught:
            patch.setattr(module, limit, most)
            read_photo(path)
        assert caught.value.rule == "photo-too-large"


@pytest.mark.parametrize(
    ("read", "name", "fault"),
    [(read_photo, "gone.jpeg", PhotoError), (read_tile, "gone.npz", TileError)],
)
def test_disk_faults_are_not_the_pictures_fault(
    tmp_path: Path, read: Callable[[Path], object], name: str, fault: type[Exception]
) -> None:
    with pytest.raises(InputError, match="can't be read") as caught:
        read(tmp_path / name)
    assert not isinstance(caught.value, fault)


def test_the_index_is_that_of_the_files_that_metadata_names(tmp_path: Path) -> None:
    """A row whose photo isn't in its own cluster's folder has none; long ids stay text."""
    long = "1002355980508103999"
    for cluster, photo_id in ((TWO, "5"), (ONE, long), (ONE, "9"), (TWO, "4")):
        put_photo(tmp_path, cluster, photo_id)
    (tmp_path / "mapillary" / "imagery" / "AL" / ONE / "._9.jpeg").write_bytes(b"")
    whole = [[ONE, long], [ONE, "9"], [TWO, "4"], [TWO, "5"]]

    def rows() -> list[list[str]]:
        table = index_photos(tmp_path).rows
        parts = zip(table["cluster_id"], table["photo_id"], table["path"], strict=True)
        for cluster, photo_id, path in parts:
            assert path == f"mapillary/imagery/AL/{cluster}/{photo_id}.jpeg"
        return table[["cluster_id", "photo_id"]].to_numpy().tolist()

    assert rows() == whole and not index_photos(tmp_path).named
    listed = f"9,2008,{ONE}\n{long},2008,{ONE}\n5,2008,{TWO}\n77,2008,{THREE}\n4,2008,{ONE}\n"
    for header in ("id,year,DHSID_EA", "image_id,year,dhsid", "Mapillary_ID,year,cluster"):
        put_metadata(tmp_path, f"{header}\n{listed}")
        assert rows() == [row for row in whole if row != [TWO, "4"]]
        assert index_photos(tmp_path).named == {ONE, TWO, THREE}


def test_archives_are_read_in_place(tmp_path: Path) -> None:
    for photo_id in ("8", "9"):
        put_photo(tmp_path, ONE, photo_id)
    data = photo_bytes(tmp_path / index_photos(tmp_path).rows["path"][0])
    zipped(tmp_path)
    path = tmp_path / "mapillary" / "imagery" / "AL.zip"
    path.rename(path.with_suffix(".ZIP"))
    assert photo_bytes(locate(tmp_path, index_photos(tmp_path).rows["path"][0])) == data
    path.with_suffix(".ZIP").rename(path)
    index = index_photos(tmp_path).rows
    assert index["path"].tolist() == [
        f"mapillary/imagery/AL.zip::AL/{ONE}/{n}.jpeg" for n in (8, 9)
    ]
    assert read_photo(tmp_path / index["path"][1]).size == (160, 90)
    assert photo_bytes(tmp_path / index["path"][0]) == data
    # the same length, as some tools of Windows write names
    path.write_bytes(path.read_bytes().replace(f"AL/{ONE}/".encode(), f"AL\\{ONE}\\".encode()))
    index = index_photos(tmp_path).rows
    assert index["photo_id"].tolist() == ["8", "9"] and set(index["cluster_id"]) == {ONE}
    assert photo_bytes(tmp_path / index["path"][0]) == data


def test_broken_archives(tmp_path: Path) -> None:
    put_photo(tmp_path, ONE, "9")
    zipped(tmp_path)
    path = tmp_path / "mapillary" / "imagery" / "AL.zip"
    data = path.read_bytes()
    at = data.index(b"\xff\xd8\xff") + 400
    path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
    with pytest.raises(PhotoError, match="CRC") as caught:
        read_photo(tmp_path / index_photos(tmp_path).rows["path"][0])
    assert caught.value.rule == "photo-corrupt"


@pytest.mark.parametrize("target", ["gone.zip", "AL.zip"])
def test_an_archive_that_is_a_broken_link_is_named(tmp_path: Path, target: str) -> None:
    path = tmp_path / "mapillary" / "imagery" / "AL.zip"
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    with pytest.raises(InputError, match="AL.zip: unreadable zip"):
        index_photos(tmp_path)


@pytest.mark.parametrize(("kind", "says"), [("pipe", "no regular file"), ("loop", "symbolic")])
def test_a_photo_that_is_a_pipe_or_links_to_itself_is_named(
    tmp_path: Path, kind: str, says: str
) -> None:
    path = put_photo(tmp_path, ONE, "1")
    photos = candidates(tmp_path)
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(path)
    with pytest.raises(InputError, match=f"1.jpeg: can't be read .*{says}"):
        choose_photos(tmp_path, photos)


def candidates(raw: Path) -> list[tuple[str, str]]:
    return list(index_photos(raw).rows[["photo_id", "path"]].itertuples(index=False, name=None))


def chosen(raw: Path, photos: list[tuple[str, str]], wanted: int = 1) -> list[str]:
    return [photo_id for photo_id, _ in choose_photos(raw, photos, wanted).photos]


def test_choose_the_most_informative_photo(tmp_path: Path) -> None:
    for photo_id, contrast in (("1", 5), ("2", 100), ("3", 40), ("4", 0)):
        put_photo(tmp_path, ONE, photo_id, jpeg(make_photo(int(photo_id), contrast=contrast)))
    photos = candidates(tmp_path)
    choice = choose_photos(tmp_path, photos)
    assert [(photo_id, image.size) for photo_id, image in choice.photos] == [("2", (160, 90))]
    assert choice.broken == []
    assert chosen(tmp_path, photos[::-1]) == ["2"]
    assert chosen(tmp_path, photos, 3) == ["2", "3", "1"]


def test_ties_go_to_the_lower_id_and_eight_are_looked_at(tmp_path: Path) -> None:
    flat = jpeg(make_photo(0, contrast=0))
    for number in range(10, 19):
        put_photo(tmp_path, ONE, str(number), flat)
    put_photo(tmp_path, ONE, "18", jpeg(make_photo(1, contrast=100)))  # the ninth: too late
    assert chosen(tmp_path, candidates(tmp_path)[::-1]) == ["10"]
    assert chosen(tmp_path, candidates(tmp_path), 2)[0] == "18"  # sixteen for two
    put_photo(tmp_path, ONE, "11", b"")  # broken ones don't count
    assert chosen(tmp_path, candidates(tmp_path)) == ["18"]


def test_near_duplicates_of_a_better_photo_are_passed_over(tmp_path: Path) -> None:
    scene = make_photo(1, contrast=100)
    hazier = Image.blend(scene, Image.new("RGB", scene.size, (128, 128, 128)), 0.2)
    for photo_id, image in (("1", scene), ("2", hazier), ("3", make_photo(3, contrast=30))):
        put_photo(tmp_path, ONE, photo_id, jpeg(image))
    assert chosen(tmp_path, candidates(tmp_path), 4) == ["1", "3"]


def test_a_duplicate_stands_in_for_a_photo_that_fails_at_full_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for photo_id in ("1", "2"):
        put_photo(tmp_path, ONE, photo_id, jpeg(make_photo(1)))
    real = photos_module.read_photo

    def fails(path: str) -> Image.Image:
        if path.endswith("1.jpeg"):
            raise PhotoError("photo-corrupt", "damaged at full size")
        return real(path)

    monkeypatch.setattr(photos_module, "read_photo", fails)
    choice = choose_photos(tmp_path, candidates(tmp_path), 2)
    assert [photo_id for photo_id, _ in choice.photos] == ["2"]
    assert [photo_id for photo_id, _ in choice.broken] == ["1"]


def test_no_readable_photo(tmp_path: Path) -> None:
    put_photo(tmp_path, ONE, "1", b"")
    put_photo(tmp_path, ONE, "2", b"x")
    choice = choose_photos(tmp_path, candidates(tmp_path))
    assert choice.photos == []
    broken = [(photo_id, error.rule) for photo_id, error in choice.broken]
    assert broken == [("1", "photo-corrupt"), ("2", "photo-corrupt")]
    assert choose_photos(tmp_path, []).photos == []


def test_perceptual_hash_follows_the_view_not_the_file() -> None:
    one = make_photo(1)
    small, other = one.resize((80, 45)), make_photo(2)
    assert len(perceptual_hash(one)) == 16
    assert distance(perceptual_hash(one), perceptual_hash(small)) <= 4
    assert distance(perceptual_hash(one), perceptual_hash(other)) > 12
    assert distance("0000000000000000", "f00000000000000f") == 8
