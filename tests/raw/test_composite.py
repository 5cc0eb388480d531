import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sdgbias.errors import InputError
from sdgbias.raw.images.composite import (
    TileError,
    composite,
    encode_png,
    nightlights,
    open_picture,
    panels,
    photo_panel,
    read_tile,
    side_by_side,
    tile_inside,
    tile_panel,
    tile_rgb,
)
from tests.builders.raw_folder import ONE, make_photo, make_tile, put_tile


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


@pytest.mark.parametrize(("kind", "says"), [("pipe", "no regular file"), ("loop", "symbolic")])
def test_a_tile_that_is_a_pipe_or_links_to_itself_is_named(
    tmp_path: Path, kind: str, says: str
) -> None:
    path = put_tile(tmp_path, ONE)
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(path)
    with pytest.raises(InputError, match=f"npz: can't be read .*{says}"):
        read_tile(tile_inside(tmp_path, ONE))


@pytest.mark.parametrize("keep", [0, 10, -40, "a flipped byte"])
def test_truncated_tile(tmp_path: Path, keep: int | str) -> None:
    noise = np.random.default_rng(0).random((8, 255, 255), dtype=np.float32)
    path = put_tile(tmp_path, ONE, make_tile() + noise)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data[:keep] if isinstance(keep, int) else data)
    bad(path, "tile-truncated", "unreadable npz .*unpack it again")


@pytest.mark.parametrize(
    ("arrays", "rule", "says"),
    [
        ({"x": np.array([{"a": 1}], dtype=object)}, "tile-truncated", "allow_pickle"),  # not loaded
        ({"image": make_tile()}, "tile-missing-key", r"no array 'x' \(found: image\); save it as"),
        (
            {"x": make_tile().transpose(1, 2, 0)},
            "tile-wrong-shape",
            r"\(255, 255, 8\), looks channel-last; transpose to \(8, 255, 255\)",
        ),
        (
            {"x": make_tile()[:, :224, :224]},
            "tile-wrong-shape",
            r"\(8, 224, 224\), expected float32 \(8, 255, 255\)",
        ),
        ({"x": make_tile()[:7]}, "tile-wrong-shape", r"\(7, 255, 255\), expected"),
        ({"x": make_tile().astype("U4")}, "tile-wrong-shape", "<U4"),
        ({"x": np.zeros((8, 2000, 2000), np.float32)}, "tile-wrong-shape", "bytes, expected"),
        ({"x": make_tile(1000)}, "tile-wrong-scale", "reflectance is 1000, .*often 10000"),
    ],
)
def test_a_tile_of_another_make_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], rule: str, says: str
) -> None:
    bad(put_tile(tmp_path, ONE, **arrays), rule, says)


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_empty_tile(tmp_path: Path, fill: float) -> None:
    tile = np.full((8, 255, 255), fill, dtype=np.float32)
    bad(put_tile(tmp_path, ONE, tile), "tile-all-zero", "0 or NaN in every pixel")
    tile[7] = 3.0  # lights of another source don't make a picture
    bad(put_tile(tmp_path, ONE, tile), "tile-all-zero", "0 or NaN in every pixel")
    tile[0, 3, 4] = 0.1
    assert read_tile(put_tile(tmp_path, ONE, tile))[0, 3, 4] == np.float32(0.1)


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


def test_masked_nan_negative_and_tiny_values() -> None:
    tile = make_tile(1e-9)
    tile[:, 0, 0] = 0
    tile[0, 0, 1], tile[1, 0, 2], tile[2, 0, 3] = np.nan, np.inf, -0.1
    tile[:3, 0, 4] = 0.05, 0.10, 0.30
    tile[7] = np.nan
    rgb = tile_rgb(tile)
    assert rgb[254, :4].tolist() == [[48] * 3, [48] * 3, [48] * 3, [0] * 3]
    assert (rgb[0] == 0).all()
    red, green, blue = rgb[254, 4].tolist()
    assert red > green > blue, "bands are blue, green, red"
    assert (nightlights(tile, 2008) == nightlights(make_tile(light=0), 2008)).all()


def lightness(rgb: np.ndarray) -> np.ndarray:
    return rgb.astype(float) @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize(("year", "full"), [(2011, 1000), (2012, 100)])
def test_nightlights_are_ordered_north_up_and_scaled_by_sensor(year: int, full: float) -> None:
    tile = make_tile()
    tile[7] = np.linspace(0, 2 * full, 255)
    tile[7, 1:, :] = 0  # lights in the south alone
    shown = lightness(nightlights(tile, year))
    row = shown[254]
    assert (np.diff(row) >= 0).all()
    assert row[0] < 10 and row[-1] > 220
    assert row[127] == row[-1] > row[100]
    assert (shown[:254] < 10).all()


def drawn(tile: np.ndarray, photo: Image.Image, year: int = 2008) -> Image.Image:
    return composite(photo_panel(photo), tile_panel(tile), nightlights(tile, year))


def test_composite_and_back() -> None:
    tile, photo = make_tile(), Image.new("RGB", (160, 90), (200, 100, 50))
    tile[:3, :128], tile[7, :128] = 0.3, 90.0  # the southern half is bright
    picture = drawn(tile, photo, 2015)
    assert picture.size == (448, 448)
    assert picture.mode == "RGB"
    cut = panels(open_picture(encode_png(picture)))
    assert {name: image.size for name, image in cut.items()} == {
        "photo": (448, 224),
        "tile": (224, 224),
        "nightlights": (224, 224),
    }
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
    x, y = width // 2, height // 2
    photo = Image.new("RGB", size, (255, 0, 0))
    photo.paste((0, 0, 255), (x - across, y - down, x + across, y + down))
    shown = np.asarray(drawn(make_tile(), photo))[5:219, 5:443]
    assert (shown == (0, 0, 255)).all()


def test_png_bytes_follow_the_pixels() -> None:
    image, other = drawn(make_tile(), make_photo()), drawn(make_tile(0.2), make_photo())
    tagged = image.copy()
    tagged.info["dpi"] = (72, 72)
    assert encode_png(image) == encode_png(tagged) != encode_png(other)
    for size in ((1, 1), (3000, 2), (1, 999)):
        assert drawn(make_tile(), Image.new("RGB", size)).size == (448, 448)


def test_panels_refuse_other_pictures() -> None:
    with pytest.raises(InputError, match="not 160x90"):
        panels(make_photo())


def test_side_by_side() -> None:
    red = encode_png(Image.new("RGB", (20, 10), (255, 0, 0)))
    tall = encode_png(Image.new("RGB", (10, 20), (0, 0, 255)))
    assert side_by_side([red]) == red
    both = open_picture(side_by_side([red, tall]))
    assert both.size == (448 + 112, 224)
    assert (both.getpixel((10, 10)), both.getpixel((500, 200))) == ((255, 0, 0), (0, 0, 255))


@pytest.mark.parametrize("name", ["16 bits", "8 bits"])
def test_sixteen_bits_of_grey_are_grey(name: str) -> None:
    """Not white, as all but the darkest 256 shades would be if they were cut off."""
    shades = np.linspace(0, 65535, 64 * 64).reshape(64, 64)
    pixels = shades.astype(np.uint16) if name == "16 bits" else (shades / 257).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    seen = np.asarray(open_picture(out.getvalue()))
    assert seen.shape == (64, 64, 3)
    assert np.abs(seen[..., 0] - shades / 257).max() <= 1.0
