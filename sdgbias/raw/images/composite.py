"""Satellite tiles, and the images of a cluster that are sent to models.

Composite, 448x448 RGB: top half (448x224) the street photo, centre-cropped to 2:1; bottom left
(224x224) the tile in colour; bottom right the tile's nightlights. A cluster without a photo keeps
the square with a dark grey top half: its tile has the same size and place as every other one, and
models that crop to the centre lose nothing of it. As several pictures: photos (longer side 448 at
most, none where there is none), tile and nightlights (255x255 each). Maps are north up; tiles store
south first (DATA.md section 2).
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from sdgbias.errors import InputError
from sdgbias.files import FileError, regular_size, understood

TILE_SHAPE = (8, 255, 255)
NIGHTLIGHTS = 7
COLOURS = (2, 1, 0)  # the bands shown as red, green and blue
MASKED = 48  # dark grey
OPTICAL = (0, 1, 2, 3, 4, 6)  # reflectances; the other two are temperature and nightlights
MAX_ARRAY_BYTES = 64 * 2**20  # a true tile has 2 MiB
#: Pictures of more pixels are not decoded: a quarter of a GiB as RGB. A file of 50 KB can claim 400
#: million.
MAX_PIXELS = 89_478_485
SIDE = 448
HALF = SIDE // 2
#: Night palette at levels 0, 1/4 .. 1: lightness rises all the way, so that it can be read without
#: colour vision.
_NIGHT = np.array(
    [(5, 6, 18), (52, 28, 84), (139, 58, 92), (226, 120, 60), (255, 240, 150)], dtype=float
)


class TileError(FileError):
    """rule: tile-truncated, tile-missing-key, tile-wrong-shape, tile-wrong-scale, tile-all-zero or
    tile-outside-folder."""


def tile_path(raw: Path, cluster_id: str) -> Path:
    return Path(raw) / "dhs_npzs" / cluster_id[:10] / f"{cluster_id}.npz"


def tile_inside(raw: Path, cluster_id: str) -> Path:
    """tile_path, checked before it is opened: links may not lead out of the folder of the tiles,
    which may itself be a link. Raises TileError."""
    path, folder = tile_path(raw, cluster_id), Path(raw) / "dhs_npzs"
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise TileError(
            "tile-outside-folder",
            f"{path}: links out of the folder of the tiles; copy the tile itself there",
        )
    return path


def read_tile(path: Path) -> np.ndarray:
    """Read key ``x`` of a tile: float32 (8, 255, 255), row 0 south.

    Bands: BLUE, GREEN, RED, SWIR1, SWIR2, TEMP1, NIR, NIGHTLIGHTS. Reflectances are fractions,
    temperature is in kelvin, masked pixels are 0 or NaN. Raises TileError.
    """
    # a disk error, not a broken tile: stop instead of dropping a cluster
    with understood(path, "can't be read", "check the disk and permissions"):
        regular_size(path)
        data = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {
                info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()
            }
            if "x" not in sizes:
                names = ", ".join(sorted(sizes)) or "nothing"
                fix = "save it as np.savez(path, x=tile)"
                raise TileError("tile-missing-key", f"{path}: no array 'x' (found: {names}); {fix}")
            if sizes["x"] > MAX_ARRAY_BYTES:
                detail = f"x has {sizes['x']} bytes, expected float32 (8, 255, 255)"
                raise TileError("tile-wrong-shape", f"{path}: {detail}; cut the tile again")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            tile: np.ndarray = arrays["x"]
    except FileError:
        raise
    except Exception as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"{path}: unreadable npz ({cause}); unpack it again from SustainBench's tarball"
        raise TileError("tile-truncated", message) from error
    if tile.shape != TILE_SHAPE or tile.dtype.kind not in "fiu":
        channel_last = tile.shape == (*TILE_SHAPE[1:], TILE_SHAPE[0])
        expected = "expected float32 (8, 255, 255); cut the tile again"
        fix = "looks channel-last; transpose to (8, 255, 255)" if channel_last else expected
        raise TileError("tile-wrong-shape", f"{path}: x is {tile.dtype} {tile.shape}, {fix}")
    tile = tile.astype(np.float32, copy=False)
    seen = tile[:3][np.isfinite(tile[:3]) & (tile[:3] != 0)]
    if not seen.size:
        detail = "blue, green and red are 0 or NaN in every pixel"
        raise TileError(
            "tile-all-zero", f"{path}: {detail}; get the tile again, or leave the cluster out"
        )
    # snow and cloud reflect about 1; integers scaled by 10,000 have medians near 1,000
    if np.median(seen) > 10:
        fix = "divide the reflectances by their scale, often 10000"
        detail = f"median visible reflectance is {np.median(seen):g}, expected 0 to 1"
        raise TileError("tile-wrong-scale", f"{path}: {detail}; {fix}")
    return tile


def tile_rgb(tile: np.ndarray) -> np.ndarray:
    """Preview of ``tile`` (8, 255, 255): uint8 (255, 255, 3), north up, masked pixels dark grey.

    The benchmark authors' own stretch: reflectance 0..cut becomes 0..255, where cut = min(0.35,
    (brightest + 0.35) / 2).
    """
    rgb = tile[list(COLOURS)]
    masked = ~np.isfinite(rgb).all(axis=0) | (tile[list(OPTICAL)] == 0).all(axis=0)
    rgb = np.where(masked, 0, rgb)
    shown = rgb / min(0.35, (max(float(rgb.max()), 0.0) + 0.35) / 2)  # never below 0.175
    shown = np.rint(np.clip(shown, 0, 1) * 255)
    shown = np.where(masked, MASKED, shown).astype(np.uint8)
    return np.ascontiguousarray(shown.transpose(1, 2, 0)[::-1])


def nightlights(tile: np.ndarray, year: int) -> np.ndarray:
    """Nightlights of ``tile`` (8, 255, 255) on a logarithmic scale: uint8 (255, 255, 3),
    north up, dark blue to light yellow.

    Surveys up to 2011 have DMSP (brightest colour at 1,000), later ones VIIRS (at 100 nW/cm2/sr).
    The two sensors can't be compared with each other.
    """
    full = 1000.0 if sensor(year) == "DMSP" else 100.0
    light = np.nan_to_num(tile[NIGHTLIGHTS].astype(float), nan=0.0, posinf=full, neginf=0.0)
    light = np.clip(light, 0, full)
    # (255, 255) in [0, 1]
    level = np.log1p(light) / np.log1p(full)
    anchors = np.linspace(0, 1, len(_NIGHT))
    shown = np.stack([np.interp(level, anchors, channel) for channel in _NIGHT.T], axis=-1)
    return np.ascontiguousarray(np.rint(shown).astype(np.uint8)[::-1])


def sensor(year: int) -> str:
    return "DMSP" if year <= 2011 else "VIIRS"


def photo_panel(photo: Image.Image) -> Image.Image:
    """``photo`` centre-cropped to 2:1, 448x224."""
    crop_height = min(photo.height, photo.width / 2)
    crop_width = min(photo.width, photo.height * 2)
    left, top = (photo.width - crop_width) / 2, (photo.height - crop_height) / 2
    box = (left, top, left + crop_width, top + crop_height)
    return photo.resize((SIDE, HALF), Image.Resampling.LANCZOS, box=box)


def tile_panel(tile: np.ndarray) -> Image.Image:
    """The tile in colour, 224x224."""
    shown = Image.fromarray(tile_rgb(tile))
    return shown.resize((HALF, HALF), Image.Resampling.BICUBIC)


def composite(photo: Image.Image | None, tile: Image.Image, night: np.ndarray) -> Image.Image:
    """The 448x448 RGB picture of one cluster from its photo_panel, tile_panel and nightlights;
    dark grey instead of a photo that is None."""
    canvas = Image.new("RGB", (SIDE, SIDE), (MASKED, MASKED, MASKED))
    if photo is not None:
        canvas.paste(photo, (0, 0))
    canvas.paste(tile, (0, HALF))
    shown = Image.fromarray(night).resize((HALF, HALF), Image.Resampling.BICUBIC)
    canvas.paste(shown, (HALF, HALF))
    return canvas


def side_by_side(parts: Sequence[bytes]) -> bytes:
    """One picture for people from the pictures of a prompt: 224 pixels high, left to right; a
    single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    images = [open_picture(part) for part in parts]
    widths = [max(1, round(image.width * HALF / image.height)) for image in images]
    canvas = Image.new("RGB", (sum(widths), HALF))
    for at, width, image in zip(accumulate([0, *widths]), widths, images, strict=False):
        canvas.paste(image.resize((width, HALF), Image.Resampling.BICUBIC), (at, 0))
    return encode_png(canvas)


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """A picture whose pixels are not decoded yet: PNG or JPEG and nothing else, at most
    ``MAX_PIXELS``. Raises Pillow's own errors."""
    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        # Pillow itself refuses only twice as many, and warns before
        if image.width * image.height > MAX_PIXELS:
            raise Image.DecompressionBombError(
                f"{image.width}x{image.height} pixels, at most {MAX_PIXELS} pixels are decoded"
            )
        yield image


def open_picture(data: bytes) -> Image.Image:
    """Encoded bytes as RGB, turned upright as its EXIF tag says. Raises as `opened`."""
    with opened(data) as image:
        with suppress(Exception):  # a damaged EXIF: as it lies
            ImageOps.exif_transpose(image, in_place=True)
        return as_rgb(image)


def as_rgb(image: Image.Image) -> Image.Image:
    """Of 16 bits of grey the upper eight, where Pillow shows all but the darkest as white."""
    if image.mode.startswith("I"):
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255)
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def encode_png(image: Image.Image) -> bytes:
    """PNG bytes without any metadata: the same pixels give the same bytes."""
    out, bare = io.BytesIO(), Image.frombytes(image.mode, image.size, image.tobytes())
    bare.save(out, format="PNG", compress_level=6)
    return out.getvalue()


def encode_jpeg(image: Image.Image, quality: int, side: int | None = None) -> bytes:
    """JPEG bytes without any metadata, at most ``side`` pixels a side; ``image`` itself shrinks."""
    if side:
        image.thumbnail((side, side))
    image.info.clear()
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


def panels(image: Image.Image) -> dict[str, Image.Image]:
    """Cut a composite again: photo (448x224), tile and nightlights (224x224 each)."""
    if image.size != (SIDE, SIDE):
        raise InputError(
            f"a composite is {SIDE}x{SIDE}, not {image.width}x{image.height}; build the images"
            " again"
        )
    boxes = {
        "photo": (0, 0, SIDE, HALF),
        "tile": (0, HALF, HALF, SIDE),
        "nightlights": (HALF, HALF, SIDE, SIDE),
    }
    return {name: image.crop(box) for name, box in boxes.items()}
