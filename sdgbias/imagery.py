"""Satellite tiles, and the one composite picture per cluster that models see.

Composite, 448x448 RGB: top half (448x224) the street photo, centre-cropped to 2:1; bottom left (224x224) the tile in
true colour; bottom right the tile's nightlights. Both maps are north up; tiles store south first (DATA.md section 2).
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from sdgbias.errors import InfrastructureError, InputError
from sdgbias.paths import FileError
from sdgbias.photos import PhotoError, choose_photo, index_and_named, photo_index, read_photo

__all__ = [
    "TILE_SHAPE",
    "PhotoError",
    "TileError",
    "choose_photo",
    "composite",
    "encode_png",
    "iter_images",
    "nightlights",
    "panels",
    "photo_index",
    "read_photo",
    "read_tile",
    "render_images",
    "tile_path",
    "tile_rgb",
]  # fmt: skip

TILE_SHAPE = (8, 255, 255)
RED, GREEN, BLUE, NIGHTLIGHTS = 2, 1, 0, 7
OPTICAL = (0, 1, 2, 3, 4, 6)  # reflectances; the other two are temperature and nightlights
MAX_ARRAY_BYTES = 64 * 2**20  # a true tile has 2 MiB
SIDE = 448
HALF = SIDE // 2
CHUNK = 16  # clusters per message to a worker process
IMAGE_COLUMNS = ["cluster_id", "image_id", "png", "photo_id", "n_photos"]
QUARANTINE_COLUMNS = ["table", "key", "rule", "detail"]
#: Night palette at levels 0, 1/4 .. 1: lightness rises all the way, so that it can be read without colour vision.
_NIGHT = np.array([(5, 6, 18), (52, 28, 84), (139, 58, 92), (226, 120, 60), (255, 240, 150)], dtype=float)


class TileError(FileError):
    """rule: tile-truncated, tile-missing-key, tile-wrong-shape, tile-wrong-scale or tile-all-zero."""


def tile_path(raw: Path, cluster_id: str) -> Path:
    return Path(raw) / "dhs_npzs" / cluster_id[:10] / f"{cluster_id}.npz"


def read_tile(path: Path) -> np.ndarray:
    """Read key ``x`` of a tile: float32 (8, 255, 255), row 0 south.

    Bands: BLUE, GREEN, RED, SWIR1, SWIR2, TEMP1, NIR, NIGHTLIGHTS. Reflectances are fractions, temperature is in
    kelvin, masked pixels are 0 or NaN. Raises TileError.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:  # the disk's fault, not the tile's: stop instead of leaving a cluster out
        raise InputError(f"{path}: can't be read ({error.strerror or error}); check the disk and permissions") from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
            if "x" not in sizes:
                found = ", ".join(sorted(sizes)) or "nothing"
                fix = "save it as np.savez(path, x=tile)"
                raise TileError("tile-missing-key", f"{path}: no array 'x' (found: {found}); {fix}")
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
        raise TileError("tile-all-zero", f"{path}: {detail}; get the tile again, or leave the cluster out")
    if np.median(seen) > 10:  # snow and cloud reflect about 1; integers scaled by 10,000 have medians near 1,000
        fix = "divide the reflectances by their scale, often 10000"
        detail = f"median visible reflectance is {np.median(seen):g}, expected 0 to 1"
        raise TileError("tile-wrong-scale", f"{path}: {detail}; {fix}")
    return tile


def tile_rgb(tile: np.ndarray) -> np.ndarray:
    """True-colour preview of ``tile`` (8, 255, 255): uint8 (255, 255, 3), north up, masked pixels dark grey.

    The benchmark authors' stretch: reflectance 0..cut becomes 0..255, cut = min(0.35, (brightest + 0.35) / 2).
    """
    rgb = tile[[RED, GREEN, BLUE]]
    masked = ~np.isfinite(rgb).all(axis=0) | (tile[list(OPTICAL)] == 0).all(axis=0)
    rgb = np.where(masked, 0, rgb)
    cut = min(0.35, (max(float(rgb.max()), 0.0) + 0.35) / 2)  # never below 0.175
    shown = np.rint(np.clip(rgb / cut, 0, 1) * 255)
    shown = np.where(masked, 48, shown).astype(np.uint8)
    return np.ascontiguousarray(shown.transpose(1, 2, 0)[::-1])


def nightlights(tile: np.ndarray, year: int) -> np.ndarray:
    """Nightlights of ``tile`` (8, 255, 255) on a log scale: uint8 (255, 255, 3), north up, dark blue to light yellow.

    Surveys up to 2011 have DMSP (brightest colour at 1,000), later ones VIIRS (at 100 nW/cm2/sr). The two sensors can't
    be compared with each other.
    """
    full = 1000.0 if year <= 2011 else 100.0
    light = np.clip(np.nan_to_num(tile[NIGHTLIGHTS].astype(float), nan=0.0, posinf=full, neginf=0.0), 0, full)
    level = np.log1p(light) / np.log1p(full)  # (255, 255) in [0, 1]
    anchors = np.linspace(0, 1, len(_NIGHT))
    shown = np.stack([np.interp(level, anchors, _NIGHT[:, channel]) for channel in range(3)], axis=-1)
    return np.ascontiguousarray(np.rint(shown).astype(np.uint8)[::-1])


def composite(tile: np.ndarray, photo: Image.Image, year: int) -> Image.Image:
    """The 448x448 RGB picture of one cluster: photo on top, true colour bottom left, nightlights bottom right."""
    canvas = Image.new("RGB", (SIDE, SIDE))
    crop_height = min(photo.height, photo.width / 2)
    crop_width = min(photo.width, photo.height * 2)
    left, top = (photo.width - crop_width) / 2, (photo.height - crop_height) / 2
    box = (left, top, left + crop_width, top + crop_height)
    canvas.paste(photo.resize((SIDE, HALF), Image.Resampling.LANCZOS, box=box), (0, 0))
    for x, shown in ((0, tile_rgb(tile)), (HALF, nightlights(tile, year))):
        canvas.paste(Image.fromarray(shown).resize((HALF, HALF), Image.Resampling.BICUBIC), (x, HALF))
    return canvas


def encode_png(image: Image.Image) -> bytes:
    """PNG bytes without any metadata: the same pixels give the same bytes."""
    out = io.BytesIO()
    Image.frombytes(image.mode, image.size, image.tobytes()).save(out, format="PNG", compress_level=6)
    return out.getvalue()


def panels(png: bytes) -> dict[str, Image.Image]:
    """Cut a composite again: photo (448x224), tile and nightlights (224x224 each)."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
        image = opened.convert("RGB")
    if image.size != (SIDE, SIDE):
        raise InputError(f"a composite is {SIDE}x{SIDE}, not {image.width}x{image.height}; build the images again")
    boxes = {"photo": (0, 0, SIDE, HALF), "tile": (0, HALF, HALF, SIDE), "nightlights": (HALF, HALF, SIDE, SIDE)}
    return {name: image.crop(box) for name, box in boxes.items()}


Quarantined = tuple[str, str, str, str]  # table, key, rule, detail
Task = tuple[str, str, int, list[tuple[str, str]], str]  # raw, cluster_id, year, (photo_id, path)s, rule if none
Rendered = tuple[dict[str, object] | None, list[Quarantined]]


def render_images(
    raw: Path, clusters: pd.DataFrame, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(images, quarantine) of ``clusters`` (needs cluster_id and year), both sorted; see iter_images.

    images: cluster_id, image_id (sha256 of png), png, photo_id, n_photos. quarantine: table, key, rule, detail; table
    'images' (the cluster has no image: one row per missing or broken modality) or 'photos' (an unreadable photo of a
    cluster that has others). About 0.3 MB per cluster: for all of SustainBench take iter_images and write as you go.
    """
    rows, lost = [], []
    for row, quarantined in iter_images(raw, clusters, workers, progress):
        rows += [row] if row is not None else []
        lost += quarantined
    images = pd.DataFrame(rows, columns=IMAGE_COLUMNS)
    images = images.astype({"cluster_id": "str", "image_id": "str", "photo_id": "str", "n_photos": "int32"})
    return images, pd.DataFrame(sorted(lost), columns=QUARANTINE_COLUMNS, dtype="str")


def iter_images(
    raw: Path, clusters: pd.DataFrame, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> Iterator[Rendered]:
    """Yield (image row or None, quarantine rows) per cluster in cluster_id order, whatever the number of ``workers``.

    ``progress(done, total)`` is called after each cluster. A cluster without a usable tile and a readable photo gets
    None. Raises InputError when the folders are missing or a path leads out of ``raw``.
    """
    raw = Path(raw)
    if not (raw / "dhs_npzs").is_dir():
        raise InputError(f"no folder {raw / 'dhs_npzs'}; unpack SustainBench's tiles (dhs_*.tar.gz) there")
    index, named = index_and_named(raw)
    index = index[index["cluster_id"].isin(clusters["cluster_id"])]
    photos: dict[str, list[tuple[str, str]]] = {}
    for cluster_id, photo_id, path in index.itertuples(index=False, name=None):
        photos.setdefault(cluster_id, []).append((photo_id, path))
    wanted = clusters[["cluster_id", "year"]].sort_values("cluster_id").itertuples(index=False, name=None)
    tasks: list[Task] = [
        (str(raw), key, int(year), photos.get(key, []), "photo-missing-file" if key in named else "missing-photo") for key, year in wanted
    ]
    results = map(_render, tasks) if workers <= 1 or len(tasks) <= CHUNK else _in_pool(tasks, workers)
    for done, result in enumerate(results, start=1):
        yield result
        if progress is not None:
            progress(done, len(tasks))


def _in_pool(tasks: list[Task], workers: int) -> Iterator[Rendered]:
    """Results in the order of ``tasks``; at most four chunks per worker are in the air, so that memory stays flat."""
    chunks = (tasks[start : start + CHUNK] for start in range(0, len(tasks), CHUNK))
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            pending: deque[Future[list[Rendered]]] = deque()
            pending.extend(pool.submit(_render_all, chunk) for chunk in islice(chunks, 4 * workers))
            try:
                while pending:
                    yield from pending.popleft().result()
                    pending.extend(pool.submit(_render_all, chunk) for chunk in islice(chunks, 1))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)  # also when the caller stops early
    except BrokenProcessPool as error:
        message = "a worker process died while drawing images, most likely out of memory; run again with --workers 1"
        raise InfrastructureError(message) from error


def _render_all(tasks: list[Task]) -> list[Rendered]:
    return [_render(task) for task in tasks]


def _render(task: Task) -> Rendered:
    """Draw one cluster, or say everything that keeps it from being drawn."""
    raw, cluster_id, year, photos, without = Path(task[0]), *task[1:]
    reasons: list[tuple[str, str]] = []
    broken: list[tuple[str, PhotoError]] = []
    tile, photo = None, None
    path = tile_path(raw, cluster_id)
    if not path.is_file():
        reasons.append(("missing-tile", f"no file {path.relative_to(raw).as_posix()}"))
    else:
        try:
            tile = read_tile(path)
        except TileError as error:
            reasons.append((error.rule, _inside(raw, error)))
    if not photos:
        what = "metadata names photos, but no file is there" if without == "photo-missing-file" else "no street photo"
        reasons.append((without, what))
    elif tile is not None:  # photos cost most of the time: not decoded in vain
        try:
            photo_id, photo, broken = choose_photo(raw, photos)
        except PhotoError as error:
            reasons.append((error.rule, _inside(raw, error)))
    lost = [("photos", f"{cluster_id}/{name}", error.rule, _inside(raw, error)) for name, error in broken]
    if tile is None or photo is None:
        return None, lost + [("images", cluster_id, rule, detail) for rule, detail in reasons]
    png = encode_png(composite(tile, photo, year))
    digest = hashlib.sha256(png).hexdigest()
    return dict(zip(IMAGE_COLUMNS, (cluster_id, digest, png, photo_id, len(photos)), strict=True)), lost


def _inside(raw: Path, error: FileError) -> str:
    """The message without the machine's own folders: the quarantine table is the same wherever the raw folder lies."""
    return str(error).replace(f"{raw}/", "")
