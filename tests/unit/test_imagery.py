import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias import photos as photos_module
from sdgbias.errors import InputError
from sdgbias.imagery import (
    PhotoError,
    TileError,
    choose_photo,
    composite,
    encode_png,
    iter_images,
    nightlights,
    panels,
    photo_index,
    read_photo,
    read_tile,
    render_images,
    tile_rgb,
)
from sdgbias.paths import confine

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MAPILLARY_TOOLS = SHARED / "street" / "mapillary_tools"
ONE, TWO, THREE = (f"AL-2008-5#-{n:08d}" for n in (1, 2, 3))


def make_tile(reflectance: float = 0.1, light: float = 5.0) -> np.ndarray:
    tile = np.full((8, 255, 255), reflectance, dtype=np.float32)
    tile[5], tile[7] = 298.0, light
    return tile


def make_photo(seed: int = 0, size: tuple[int, int] = (160, 90), contrast: int = 60) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-contrast, contrast + 1, (9, 16, 3)) + 128
    return Image.fromarray(noise.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)


def jpeg(image: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=90, **options)
    return out.getvalue()


def put_tile(raw: Path, cluster: str, tile: np.ndarray | None = None, **arrays: np.ndarray) -> Path:
    path = raw / "dhs_npzs" / cluster[:10] / f"{cluster}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **(arrays or {"x": make_tile() if tile is None else tile}))
    return path


def put_photo(raw: Path, cluster: str, photo_id: str, data: bytes | None = None) -> Path:
    path = raw / "mapillary" / "imagery" / cluster[:2] / cluster / f"{photo_id}.jpeg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(make_photo(int(photo_id))) if data is None else data)
    return path


def put_metadata(raw: Path, text: str, cc: str = "AL") -> None:
    (raw / "mapillary" / "metadata").mkdir(parents=True, exist_ok=True)
    (raw / "mapillary" / "metadata" / f"{cc}.csv").write_text(text)


def clusters_of(*ids: str, year: int = 2008) -> pd.DataFrame:
    return pd.DataFrame({"cluster_id": ids, "year": np.full(len(ids), year, dtype=np.int32)})


# tiles


def bad(path: Path, rule: str, says: str) -> None:
    with pytest.raises(TileError, match=says) as caught:
        read_tile(path)
    assert caught.value.rule == rule
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))  # comes back from worker processes
    assert (again.rule, str(again)) == (rule, str(caught.value))


def test_read_tile(tmp_path: Path) -> None:
    tile = read_tile(put_tile(tmp_path, ONE, make_tile(0.2).astype(np.float64)))
    assert tile.dtype == np.float32
    assert tile.shape == (8, 255, 255)
    assert tile[0, 0, 0] == np.float32(0.2)


@pytest.mark.parametrize("keep", [0, 10, 0.5, -40])
def test_truncated_tile(tmp_path: Path, keep: float) -> None:
    path = put_tile(tmp_path, ONE)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep == 0.5 else int(keep)])
    bad(path, "tile-truncated", "unreadable npz .*unpack it again")


def test_flipped_byte_in_tile(tmp_path: Path) -> None:
    path = put_tile(tmp_path, ONE, make_tile() + np.random.default_rng(0).random((8, 255, 255), dtype=np.float32))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    bad(path, "tile-truncated", "unreadable npz")


def test_pickled_tile_is_never_loaded(tmp_path: Path) -> None:
    bad(put_tile(tmp_path, ONE, x=np.array([{"a": 1}], dtype=object)), "tile-truncated", "allow_pickle")


def test_tile_without_key(tmp_path: Path) -> None:
    bad(put_tile(tmp_path, ONE, image=make_tile()), "tile-missing-key", r"no array 'x' \(found: image\); save it as")


@pytest.mark.parametrize(
    ("tile", "says"),
    [
        (make_tile().transpose(1, 2, 0), r"\(255, 255, 8\), looks channel-last; transpose to \(8, 255, 255\)"),
        (make_tile()[:, :224, :224], r"\(8, 224, 224\), expected float32 \(8, 255, 255\)"),
        (make_tile()[:7], r"\(7, 255, 255\), expected"),
        (make_tile().astype("U4"), "<U4"),
        (np.zeros((8, 2000, 2000), dtype=np.float32), "bytes, expected"),
    ],
)
def test_tile_of_wrong_shape(tmp_path: Path, tile: np.ndarray, says: str) -> None:
    bad(put_tile(tmp_path, ONE, tile), "tile-wrong-shape", says)


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_empty_tile(tmp_path: Path, fill: float) -> None:
    tile = np.full((8, 255, 255), fill, dtype=np.float32)
    bad(put_tile(tmp_path, ONE, tile), "tile-all-zero", "0 or NaN in every pixel")
    tile[7] = 3.0  # lights of another source don't make a picture
    bad(put_tile(tmp_path, ONE, tile), "tile-all-zero", "0 or NaN in every pixel")
    tile[0, 3, 4] = 0.1
    assert read_tile(put_tile(tmp_path, ONE, tile))[0, 3, 4] == np.float32(0.1)


def test_scaled_tile(tmp_path: Path) -> None:
    bad(put_tile(tmp_path, ONE, make_tile(1000)), "tile-wrong-scale", "reflectance is 1000, .*often 10000")


def test_true_colour_is_north_up_and_stretched() -> None:
    tile = make_tile(0.07)
    tile[2, 0, 0] = 0.21  # red, south-west corner; brightest: cut = (0.21 + 0.35) / 2 = 0.28
    rgb = tile_rgb(tile)
    assert rgb.shape == (255, 255, 3)
    assert rgb.dtype == np.uint8
    assert rgb[254, 0].tolist() == [round(0.21 / 0.28 * 255), *[round(0.07 / 0.28 * 255)] * 2]
    assert rgb[0, 0].tolist() == [64, 64, 64]
    tile[0, 0, 0] = 0.9  # a cloud: cut stays at 0.35
    assert tile_rgb(tile)[0, 0].tolist() == [51, 51, 51]
    assert tile_rgb(tile)[254, 0, 2] == 255


def test_bands_are_blue_green_red() -> None:
    tile = make_tile()
    tile[0], tile[1], tile[2] = 0.05, 0.10, 0.30
    red, green, blue = tile_rgb(tile)[100, 100].tolist()
    assert red > green > blue


def test_masked_nan_negative_and_tiny_values() -> None:
    tile = make_tile(1e-9)
    tile[:, 0, 0] = 0
    tile[0, 0, 1] = np.nan
    tile[1, 0, 2] = np.inf
    tile[2, 0, 3] = -0.1
    tile[7] = np.nan
    rgb = tile_rgb(tile)
    assert rgb[254, :4].tolist() == [[48] * 3, [48] * 3, [48] * 3, [0] * 3]
    assert (rgb[0] == 0).all()
    assert (nightlights(tile, 2008) == nightlights(make_tile(light=0), 2008)).all()


def lightness(rgb: np.ndarray) -> np.ndarray:
    return rgb.astype(float) @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize(("year", "full"), [(2011, 1000), (2012, 100)])
def test_nightlights_are_ordered_and_scaled_by_sensor(year: int, full: float) -> None:
    tile = make_tile()
    tile[7] = np.linspace(0, 2 * full, 255)
    row = lightness(nightlights(tile, year)[0])
    assert (np.diff(row) >= 0).all()
    assert row[0] < 10
    assert row[-1] > 220
    assert row[127] == row[-1]
    assert row[100] < row[-1]


def test_nightlights_are_north_up_and_by_year() -> None:
    tile = make_tile(light=0)
    tile[7, 0, :] = 90  # south
    shown = lightness(nightlights(tile, 2015))
    assert (shown[254] > 200).all()
    assert (shown[:254] < 10).all()
    assert shown[254, 0] > lightness(nightlights(tile, 2011))[254, 0]


# photos


@pytest.mark.parametrize("data", [b"", b"not a photo", jpeg(make_photo())[:-600], jpeg(make_photo())[:100]])
def test_corrupt_photo(tmp_path: Path, data: bytes) -> None:
    path = put_photo(tmp_path, ONE, "1", data)
    with pytest.raises(PhotoError, match=r"1\.jpeg: no readable JPEG .*delete it") as caught:
        read_photo(path)
    assert caught.value.rule == "photo-corrupt"
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("name", ["corrupt_exif.jpg", "corrupt_exif_large_thumbnail.jpg", "test_exif.jpg"])
def test_corrupt_exif_specimens(name: str) -> None:
    if not MAPILLARY_TOOLS.exists():
        pytest.skip("needs the shared corrupt-EXIF specimens of mapillary_tools")
    photo = read_photo(MAPILLARY_TOOLS / name)
    assert photo.mode == "RGB"
    assert min(photo.size) >= 16


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
def test_corrupt_exif(tmp_path: Path, exif: bytes) -> None:
    data = jpeg(make_photo())
    tagged = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    plain, odd = put_photo(tmp_path, ONE, "1", data), put_photo(tmp_path, ONE, "2", tagged)
    assert read_photo(odd).tobytes() == read_photo(plain).tobytes()


def test_exif_reader_that_raises_costs_only_the_turning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Image.Image) -> None:
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(Image.Image, "getexif", broken)
    assert read_photo(put_photo(tmp_path, ONE, "1")).size == (160, 90)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    path = put_photo(tmp_path, ONE, "1", jpeg(make_photo(), exif=exif))
    with Image.open(path) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    assert read_photo(path).tobytes() == expected.tobytes()
    assert read_photo(path).size == ((160, 90) if orientation < 5 else (90, 160))


def test_huge_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_photo(tmp_path, ONE, "1")
    monkeypatch.setattr(photos_module, "MAX_PHOTO_PIXELS", 160 * 90 - 1)
    with pytest.raises(PhotoError, match="160x90 pixels, at most 14399 pixels") as caught:
        read_photo(path)
    assert caught.value.rule == "photo-too-large"
    monkeypatch.setattr(photos_module, "MAX_FILE_BYTES", 100)
    with pytest.raises(PhotoError, match="bytes, at most 100") as caught:
        read_photo(path)
    assert caught.value.rule == "photo-too-large"
    monkeypatch.undo()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses by itself
    with pytest.raises(PhotoError, match="pixels") as caught:
        read_photo(path)
    assert caught.value.rule == "photo-too-large"


def test_disk_faults_are_not_the_photos_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read") as caught:
        read_photo(tmp_path / "gone.jpeg")
    assert not isinstance(caught.value, PhotoError)
    with pytest.raises(InputError, match="can't be read") as caught:
        read_tile(tmp_path / "gone.npz")
    assert not isinstance(caught.value, TileError)


@pytest.mark.parametrize("path", ["../x.jpeg", "a/../../x", "/etc/passwd", "..\\x", "C:\\x", "a/.."])
def test_confine_refuses(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="climbs out of"):
        confine(tmp_path, path)


def test_confine_and_links(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.jpeg").write_bytes(b"x")
    (tmp_path / "root" / "link.jpeg").symlink_to(tmp_path / "secret.jpeg")
    (tmp_path / "alias").symlink_to(tmp_path / "root")
    assert confine(tmp_path / "root", "a/b..c.jpeg") == tmp_path / "root" / "a" / "b..c.jpeg"
    assert confine(tmp_path / "alias", "a") == tmp_path / "alias" / "a"  # the root itself may be a link
    with pytest.raises(InputError, match="climbs out of"):
        confine(tmp_path / "root", "link.jpeg")


def test_index_from_folder_and_from_any_metadata(tmp_path: Path) -> None:
    for cluster, photo_id in ((TWO, "5"), (ONE, "10"), (ONE, "9")):
        put_photo(tmp_path, cluster, photo_id)
    (tmp_path / "mapillary" / "imagery" / "AL" / ONE / "._9.jpeg").write_bytes(b"")
    base = "mapillary/imagery/AL"
    expected = pd.DataFrame(
        {
            "cluster_id": [ONE, ONE, TWO],
            "photo_id": ["10", "9", "5"],
            "path": [f"{base}/{ONE}/10.jpeg", f"{base}/{ONE}/9.jpeg", f"{base}/{TWO}/5.jpeg"],
        }
    )
    pd.testing.assert_frame_equal(photo_index(tmp_path), expected)
    for header in ("id,year,DHSID_EA", "image_id,year,dhsid", "Mapillary_ID,year,cluster"):
        put_metadata(tmp_path, f"{header}\n9,2008,{ONE}\n10,2008,{ONE}\n5,2008,{TWO}\n77,2008,{THREE}\n")
        pd.testing.assert_frame_equal(photo_index(tmp_path), expected)
    put_metadata(tmp_path, f"DHSID_EA,path,id\n{ONE},AL/{ONE}/9.jpeg,9\n{ONE},,10\n{TWO},nowhere.jpeg,5\n{TWO},,5\n")
    pd.testing.assert_frame_equal(photo_index(tmp_path), expected)
    put_metadata(tmp_path, f"DHSID_EA,id\n{ONE},9\n")  # the table decides which photos count
    assert photo_index(tmp_path)["photo_id"].tolist() == ["9"]


def test_metadata_may_name_another_place(tmp_path: Path) -> None:
    put_photo(tmp_path, ONE, "9").rename(tmp_path / "mapillary" / "imagery" / "elsewhere.jpeg")
    put_metadata(tmp_path, f"path,id,dhsid\nelsewhere.jpeg,9,{ONE}\ngone.jpeg,8,{ONE}\n")
    assert photo_index(tmp_path).values.tolist() == [[ONE, "9", "mapillary/imagery/elsewhere.jpeg"]]


def test_long_ids_stay_text(tmp_path: Path) -> None:
    put_photo(tmp_path, ONE, "1002355980508103999")
    put_metadata(tmp_path, f"id,DHSID_EA\n1002355980508103999,{ONE}\n")
    assert photo_index(tmp_path)["photo_id"].tolist() == ["1002355980508103999"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"id,year\n9,{ONE}\n", "AL.csv: no column for the cluster's DHSID_EA; name it .*dhsid.*found: id, year"),
        (f"DHSID_EA,year\n{ONE},2008\n", "AL.csv: no column for the photo's id; name it id or .*found: DHSID_EA, year"),
        (f"id,DHSID_EA,path\n9,{ONE},../../../secret.jpeg\n", "'../../../secret.jpeg' climbs out of"),
        (f"id,DHSID_EA,path\n9,{ONE},/etc/passwd\n", "'/etc/passwd' climbs out of"),
        (f"id,DHSID_EA\n../../9,{ONE}\n", "'../../9' climbs out of"),
        ("id,DHSID_EA\n9,../AL\n", "'../AL' climbs out of"),
        ("id,DHSID_EA\n9,1\n9,2\n", "AL.csv: none of its 2 rows names a photo of .*first row: 1/9"),
        ("", "AL.csv is no readable UTF-8 CSV"),
    ],
)
def test_bad_metadata(tmp_path: Path, text: str, says: str) -> None:
    put_photo(tmp_path, ONE, "9")
    put_metadata(tmp_path, text)
    with pytest.raises(InputError, match=says):
        photo_index(tmp_path)


def zipped(raw: Path) -> None:
    """Pack imagery/AL into imagery/AL.zip, as SustainBench ships it."""
    root = raw / "mapillary" / "imagery"
    with zipfile.ZipFile(root / "AL.zip", "w") as archive:
        archive.writestr(f"__MACOSX/AL/{ONE}/._9.jpeg", b"")
        for path in sorted((root / "AL").rglob("*.jpeg")):
            archive.write(path, path.relative_to(root))
            path.unlink()


def test_archives_are_read_in_place(tmp_path: Path) -> None:
    put_tile(tmp_path, ONE)
    put_photo(tmp_path, ONE, "9")
    put_photo(tmp_path, ONE, "8", b"broken")
    expected, _ = render_images(tmp_path, clusters_of(ONE))
    zipped(tmp_path)
    index = photo_index(tmp_path)
    assert index["path"].tolist() == [f"mapillary/imagery/AL.zip::AL/{ONE}/{n}.jpeg" for n in (8, 9)]
    assert read_photo(tmp_path / index["path"][1]).size == (160, 90)
    images, lost = render_images(tmp_path, clusters_of(ONE))
    pd.testing.assert_frame_equal(images, expected)
    assert lost["key"].tolist() == [f"{ONE}/8"]


def test_broken_archives(tmp_path: Path) -> None:
    put_photo(tmp_path, ONE, "9")
    zipped(tmp_path)
    path = tmp_path / "mapillary" / "imagery" / "AL.zip"
    data = path.read_bytes()
    at = data.index(b"\xff\xd8\xff") + 400
    path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
    with pytest.raises(PhotoError, match="CRC") as caught:
        read_photo(tmp_path / photo_index(tmp_path)["path"][0])
    assert caught.value.rule == "photo-corrupt"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"AL.zip: unreadable zip .*download it again"):
        photo_index(tmp_path)


def candidates(raw: Path) -> list[tuple[str, str]]:
    return list(photo_index(raw)[["photo_id", "path"]].itertuples(index=False, name=None))


def test_choose_the_most_informative_photo(tmp_path: Path) -> None:
    for photo_id, contrast in (("1", 5), ("2", 100), ("3", 40), ("4", 0)):
        put_photo(tmp_path, ONE, photo_id, jpeg(make_photo(int(photo_id), contrast=contrast)))
    photos = candidates(tmp_path)
    chosen, image, broken = choose_photo(tmp_path, photos)
    assert chosen == "2"
    assert image.size == (160, 90)
    assert broken == []
    assert choose_photo(tmp_path, photos[::-1])[0] == "2"


def test_ties_go_to_the_lower_id_and_eight_are_looked_at(tmp_path: Path) -> None:
    flat = jpeg(make_photo(0, contrast=0))
    for number in range(10, 19):
        put_photo(tmp_path, ONE, str(number), flat)
    put_photo(tmp_path, ONE, "18", jpeg(make_photo(1, contrast=100)))  # the ninth: too late
    assert choose_photo(tmp_path, candidates(tmp_path)[::-1])[0] == "10"
    put_photo(tmp_path, ONE, "11", b"")  # broken ones don't count
    assert choose_photo(tmp_path, candidates(tmp_path))[0] == "18"


def test_no_readable_photo(tmp_path: Path) -> None:
    put_photo(tmp_path, ONE, "1", b"")
    put_photo(tmp_path, ONE, "2", b"x")
    with pytest.raises(PhotoError, match=r"none of 2 photo\(s\) is readable; first: .*1.jpeg"):
        choose_photo(tmp_path, candidates(tmp_path))


# composites


def test_composite_and_back() -> None:
    tile, photo = make_tile(), Image.new("RGB", (160, 90), (200, 100, 50))
    tile[:3, :128], tile[7, :128] = 0.3, 90.0  # the southern half is bright
    picture = composite(tile, photo, 2015)
    assert picture.size == (448, 448)
    assert picture.mode == "RGB"
    cut = panels(encode_png(picture))
    assert {name: image.size for name, image in cut.items()} == {
        "photo": (448, 224), "tile": (224, 224), "nightlights": (224, 224),
    }  # fmt: skip
    assert cut["photo"].getcolors() == [(448 * 224, (200, 100, 50))]
    again = Image.new("RGB", (448, 448))
    for name, corner in (("photo", (0, 0)), ("tile", (0, 224)), ("nightlights", (224, 224))):
        again.paste(cut[name], corner)
    assert again.tobytes() == picture.tobytes()
    for name in ("tile", "nightlights"):
        shown = np.asarray(cut[name].convert("L"))
        assert shown[200].min() > shown[20].max()  # south at the bottom


@pytest.mark.parametrize("size", [(1600, 400), (400, 1600), (1000, 500), (1024, 1024)])
def test_photo_is_cropped_about_its_centre(size: tuple[int, int]) -> None:
    width, height = size
    across, down = min(width, 2 * height) // 2, min(height, width // 2) // 2
    photo = Image.new("RGB", size, (255, 0, 0))
    photo.paste((0, 0, 255), (width // 2 - across, height // 2 - down, width // 2 + across, height // 2 + down))
    shown = np.asarray(composite(make_tile(), photo, 2008))[5:219, 5:443]
    assert (shown == (0, 0, 255)).all()


@pytest.mark.parametrize("size", [(1, 1), (3000, 2), (1, 999)])
def test_photos_of_any_shape(size: tuple[int, int]) -> None:
    assert composite(make_tile(), Image.new("RGB", size), 2008).size == (448, 448)


def test_png_bytes_follow_the_pixels() -> None:
    image = composite(make_tile(), make_photo(), 2008)
    tagged = image.copy()
    tagged.info["dpi"] = (72, 72)
    assert encode_png(image) == encode_png(tagged) != encode_png(composite(make_tile(0.2), make_photo(), 2008))


def test_panels_refuse_other_pictures() -> None:
    with pytest.raises(InputError, match="not 160x90"):
        panels(encode_png(make_photo()))


def raw_folder(raw: Path) -> pd.DataFrame:
    """18 clusters, some of them with each kind of fault."""
    ids = [f"AL-2008-5#-{n:08d}" for n in range(1, 19)]
    for number, cluster in enumerate(ids, start=1):
        if number != 3:
            put_tile(raw, cluster, np.zeros((8, 255, 255), np.float32) if number == 5 else make_tile(number / 200))
        if number not in (3, 7):
            for photo in range(2):
                broken = number == 11 or (number == 13 and photo == 0)
                put_photo(raw, cluster, str(10 * number + photo), b"broken" if broken else None)
    put_tile(raw, ids[16]).write_bytes(b"PK")
    return clusters_of(*ids)


def test_render_images(tmp_path: Path) -> None:
    clusters = raw_folder(tmp_path)
    calls: list[tuple[int, int]] = []
    images, lost = render_images(tmp_path, clusters, 1, lambda done, total: calls.append((done, total)))
    faults = {(table, key[-4:], rule) for table, key, rule, _ in lost.itertuples(index=False)}
    assert faults == {
        ("images", "0003", "missing-tile"), ("images", "0003", "missing-photo"), ("images", "0005", "tile-all-zero"),
        ("images", "0007", "missing-photo"), ("images", "0011", "photo-corrupt"), ("photos", "/130", "photo-corrupt"),
        ("images", "0017", "tile-truncated"),
    }  # fmt: skip
    assert len(images) == 13
    assert images["cluster_id"].is_monotonic_increasing
    assert set(images["n_photos"]) == {2}
    assert images["n_photos"].dtype == np.int32
    assert not set(images["cluster_id"]) & set(lost.loc[lost["table"] == "images", "key"])
    assert calls == [(n, 18) for n in range(1, 19)]
    assert not lost["detail"].str.contains(str(tmp_path), regex=False).any()  # same table wherever the folder lies
    # neither the order of the rows nor the number of workers shows
    again, lost_again = render_images(tmp_path, clusters[::-1], workers=2)
    pd.testing.assert_frame_equal(images, again)
    pd.testing.assert_frame_equal(lost, lost_again)


def test_results_flow_and_errors_leave_the_workers(tmp_path: Path) -> None:
    clusters = raw_folder(tmp_path)
    os.symlink("/etc/hostname", tmp_path / "mapillary" / "imagery" / "AL" / "AL-2008-5#-00000018" / "0.jpeg")
    results = iter_images(tmp_path, clusters, workers=2)
    assert next(results)[0] is not None
    with pytest.raises(InputError, match="climbs out of"):
        list(results)


def test_metadata_without_files(tmp_path: Path) -> None:
    put_tile(tmp_path, ONE)
    put_photo(tmp_path, TWO, "5")
    put_metadata(tmp_path, f"id,DHSID_EA\n5,{TWO}\n6,{ONE}\n7,{TWO}\n")
    images, lost = render_images(tmp_path, clusters_of(ONE))
    assert images.empty
    assert lost[["key", "rule"]].values.tolist() == [[ONE, "photo-missing-file"]]


@pytest.mark.parametrize("missing", ["dhs_npzs", "mapillary/imagery"])
def test_missing_folders(tmp_path: Path, missing: str) -> None:
    for name in {"dhs_npzs", "mapillary/imagery"} - {missing}:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(InputError, match=f"no folder .*{missing}; "):
        render_images(tmp_path, clusters_of(ONE))


def test_realpack() -> None:
    """Real bytes. The expectation is counted from the folder: a cluster stays iff it has a tile and a photo."""
    from sdgbias.clusters import read_clusters

    raw = SHARED / "realpack"
    if not raw.exists():
        pytest.skip("needs the shared realpack folder")
    clusters, _ = read_clusters(raw)
    tiles = {path.stem for path in raw.glob("dhs_npzs/*/*.npz")}
    photos = {path.parent.name for path in raw.glob("mapillary/imagery/*/*/*.jpeg")}
    images, lost = render_images(raw, clusters)
    assert set(images["cluster_id"]) == set(clusters["cluster_id"]) & tiles & photos
    assert len(images) > 0
    assert set(lost["key"]) == set(clusters["cluster_id"]) - set(images["cluster_id"])
