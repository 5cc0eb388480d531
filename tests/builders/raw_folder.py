"""A raw folder in SustainBench's layout, picture by picture."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

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
    return pd.DataFrame(
        {
            "cluster_id": ids,
            "cname": [key[:2] for key in ids],
            "year": np.full(len(ids), year, dtype=np.int32),
        }
    )


def zipped(raw: Path) -> None:
    """Pack imagery/AL into imagery/AL.zip, as SustainBench ships it."""
    root = raw / "mapillary" / "imagery"
    with zipfile.ZipFile(root / "AL.zip", "w") as archive:
        archive.writestr(f"__MACOSX/AL/{ONE}/._9.jpeg", b"")
        for path in sorted((root / "AL").rglob("*.jpeg")):
            archive.write(path, path.relative_to(root))
            path.unlink()


def raw_folder(raw: Path) -> pd.DataFrame:
    """18 clusters, some of them with each kind of fault."""
    ids = [f"AL-2008-5#-{n:08d}" for n in range(1, 19)]
    for number, cluster in enumerate(ids, start=1):
        if number != 3:
            put_tile(
                raw,
                cluster,
                np.zeros((8, 255, 255), np.float32) if number == 5 else make_tile(number / 200),
            )
        if number not in (3, 7):
            for photo in range(2):
                broken = number == 11 or (number == 13 and photo == 0)
                put_photo(raw, cluster, str(10 * number + photo), b"broken" if broken else None)
    put_tile(raw, ids[16]).write_bytes(b"PK")
    return clusters_of(*ids)
