"""Street photos of a SustainBench folder: finding them, reading them, choosing one per cluster
(DATA.md section 3)."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import imagehash
import numpy as np
import pandas as pd
from PIL import Image

from sdgbias.errors import InputError
from sdgbias.files import FileError, confine, regular_size
from sdgbias.raw.images.composite import open_picture, opened
from sdgbias.raw.text_tables import find_column, read_text

IMAGERY = Path("mapillary") / "imagery"
PHOTO_CANDIDATES = 8  # readable photos considered for each one wanted
#: Of 64: photos of one cluster that differ in at most this many bits show the same view.
NEAR_BITS = 4
MAX_FILE_BYTES = 64 * 2**20
#: Names of the required metadata columns, the usual one first; compared ignoring case.
ID_NAMES = ("id", "image_id", "mapillary_id")
CLUSTER_NAMES = ("DHSID_EA", "dhsid", "cluster")


class PhotoError(FileError):
    """rule: photo-corrupt, photo-too-large, or missing-photo when none was given."""


@lru_cache(maxsize=4)
def _archive(path: str, _size: int, _changed: int) -> zipfile.ZipFile:
    """An open archive, kept because reading a directory of 100,000 members takes longer than a
    photo."""
    return zipfile.ZipFile(path)


def _zip(path: str) -> zipfile.ZipFile:
    try:
        regular_size(Path(path))
        stat = Path(path).stat()
        return _archive(path, stat.st_size, stat.st_mtime_ns)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(
            f"{path}: unreadable zip ({error}); download it again or unpack it beside itself"
        ) from error


def split_path(path: str) -> tuple[str, str]:
    """(file, member of that archive, '' for a photo of its own)."""
    outer, *member = re.split(r"(?i)(?<=\.zip)::", path, maxsplit=1)
    return outer, "".join(member)


def photo_bytes(path: Path | str) -> bytes:
    """The bytes of the file; ``path`` as in read_photo. Raises PhotoError (too large, damaged in
    its archive)."""
    outer, member = split_path(str(path))
    try:
        archive = _zip(outer) if member else None
        size = regular_size(Path(path)) if archive is None else archive.getinfo(member).file_size
        if size > MAX_FILE_BYTES:
            limit = f"at most {MAX_FILE_BYTES} are read; shrink the photo"
            raise PhotoError("photo-too-large", f"{path}: {size} bytes, {limit}")
        return Path(path).read_bytes() if archive is None else archive.read(member)
    except InputError:
        raise
    except OSError as error:  # a disk error, not a broken photo: stop instead of dropping a cluster
        raise InputError(
            f"{path}: can't be read ({error.strerror or error}); check the disk and permissions"
        ) from error
    except Exception as error:  # a damaged member of an archive
        raise _corrupt(path, error) from error


def _corrupt(path: Path | str, error: Exception) -> PhotoError:
    cause = str(error).split(" <_io")[0].splitlines()[0] if str(error) else type(error).__name__
    return PhotoError(
        "photo-corrupt",
        f"{path}: no readable JPEG or PNG ({cause}); download it again, save it as one, or delete"
        " it",
    )


def _decode(path: Path | str, decode: Callable[[bytes], Image.Image]) -> Image.Image:
    """``decode`` of the photo's bytes, every fault turned into a PhotoError."""
    data = photo_bytes(path)
    try:
        with warnings.catch_warnings():  # of odd EXIF, which is fine, and of sizes
            warnings.simplefilter("ignore")
            return decode(data)
    except Image.DecompressionBombError as error:
        raise PhotoError("photo-too-large", f"{path}: {error}; shrink the photo") from error
    except Exception as error:
        raise _corrupt(path, error) from error


def read_photo(path: Path | str) -> Image.Image:
    """Read one photo as RGB, rotated upright by its EXIF tag; with damaged EXIF the photo is used
    unrotated.

    ``path`` may name a member of an archive: 'imagery/AL.zip::AL/AL-2008-5#-00000001/123.jpeg'.
    Raises PhotoError.
    """
    return _decode(path, open_picture)


def _glance(data: bytes) -> Image.Image:
    """The photo in grey, 64 pixels on its longer side."""
    with opened(data) as image:
        image.thumbnail((64, 64), Image.Resampling.BOX)  # JPEGs are decoded at 1/8 size for this
        return image.convert("L")


def _information(glance: Image.Image) -> float:
    """Information content of a photo: variance of the gradient's magnitude. Fog, night, a lens cap
    or a wall score near 0."""
    grey = np.asarray(glance, dtype=float)
    if min(grey.shape) < 2:
        return 0.0
    down, across = np.gradient(grey)
    return float(np.hypot(down, across).var())


def perceptual_hash(image: Image.Image) -> str:
    """64-bit pHash (signs of the lowest frequencies of the cosine transform) as 16 hex digits."""
    return str(imagehash.phash(image))


def distance(one: str, other: str) -> int:
    """Bits in which two perceptual hashes differ."""
    return (int(one, 16) ^ int(other, 16)).bit_count()


@dataclass
class Choice:
    """The result of choose_photos: the photos, best first; the unreadable ones among those
    tried."""

    photos: list[tuple[str, Image.Image]] = field(default_factory=list)
    broken: list[tuple[str, PhotoError]] = field(default_factory=list)


def choose_photos(raw: Path, photos: Sequence[tuple[str, str]], wanted: int = 1) -> Choice:
    """The most informative of the first 8 x ``wanted`` readable ``photos`` in photo_id order; ties
    go to the lower id.

    ``photos``: (photo_id, path) pairs as index_photos gives them. A near-duplicate of a better
    photo (NEAR_BITS) is skipped, so there may be fewer than ``wanted``. Raises InputError when a
    path leads out of ``raw``.
    """
    choice = Choice()
    ranked: list[tuple[float, str, str, str]] = []
    for photo_id, relative in sorted(photos):
        if len(ranked) == PHOTO_CANDIDATES * wanted:
            break
        path = locate(raw, relative)
        try:
            glance = _decode(path, _glance)
            shape = perceptual_hash(glance) if wanted > 1 else ""
            ranked.append((-_information(glance), photo_id, path, shape))
        except PhotoError as error:
            choice.broken.append((photo_id, error))
    better: list[str] = []
    for _, photo_id, path, shape in sorted(ranked):
        if len(choice.photos) == wanted:
            break
        if not any(distance(shape, other) <= NEAR_BITS for other in better):
            try:
                choice.photos.append((photo_id, read_photo(path)))
            except PhotoError as error:  # fine at 1/8 size, damaged at full size
                choice.broken.append((photo_id, error))
                continue
        better.append(shape)
    return choice


def locate(raw: Path, relative: str) -> str:
    """Full form of an index path; the photo or its archive must lie in the imagery folder, links
    resolved."""
    outer, member = split_path(relative)
    file = confine(raw / IMAGERY, str(Path(outer).relative_to(IMAGERY)))
    return f"{file}::{member}" if member else str(file)


@dataclass(frozen=True)
class PhotoIndex:
    """rows: cluster_id, photo_id, path (below the raw folder), sorted. named: the clusters that
    metadata names."""

    rows: pd.DataFrame
    named: frozenset[str]


def index_photos(raw: Path) -> PhotoIndex:
    """All street photos under ``raw``.

    Photos lie in imagery/{CC}/{DHSID_EA}/{id}.jpeg or in imagery/{CC}.zip of the same tree; members
    are read in place, with path 'mapillary/imagery/AL.zip::AL/AL-2008-5#-00000001/123.jpeg'. Where
    a country has a table mapillary/metadata/{CC}.csv (columns in any order), its photos are those
    that the table names, in the folder of their cluster. Raises InputError for a table none of
    whose rows has a file.
    """
    listed = _listing(raw)
    metadata = (raw / IMAGERY.parent / "metadata").glob("*.[cC][sS][vV]")
    tables = {path.stem: path for path in sorted(metadata)}
    parts = [listed[~listed["cc"].isin(list(tables))]]
    named: set[str] = set()
    for cc, path in tables.items():
        rows, of_country = _metadata(path), listed[listed["cc"] == cc]
        matched = of_country.merge(rows)
        if len(rows) and matched.empty and len(of_country):
            example = f"{rows['cluster_id'].iloc[0]}/{rows['photo_id'].iloc[0]}"
            raise InputError(
                f"{path}: none of its {len(rows)} rows names a photo of {raw / IMAGERY / cc} (first"
                f" row: {example}); expected the photo's id and the DHSID_EA, or remove the table"
                " to use the folder as it is"
            )
        parts.append(matched)
        named.update(rows["cluster_id"])
    index = pd.concat([part[["cluster_id", "photo_id", "path"]] for part in parts]).astype("str")
    index = index.sort_values(["cluster_id", "photo_id"], ignore_index=True)
    return PhotoIndex(index, frozenset(named))


def _listing(raw: Path) -> pd.DataFrame:
    """Photo files on disk: cluster_id, photo_id, path, cc (folder or archive name). Folders take
    precedence over archives."""
    root = raw / IMAGERY
    if not root.is_dir():
        raise InputError(
            f"no folder {root}; put SustainBench's Mapillary photos there (CC/ or CC.zip), or"
            " make it empty to show tiles alone"
        )
    rows: list[tuple[str, str, str, str]] = []
    for cc in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        for cluster in sorted(entry for entry in cc.iterdir() if entry.is_dir()):
            folder = (IMAGERY / cc.name / cluster.name).as_posix()
            for name in sorted(filter(_is_jpeg, os.listdir(cluster))):
                rows.append((cluster.name, name.rpartition(".")[0], f"{folder}/{name}", cc.name))
    for zipped in sorted(root.glob("*.[zZ][iI][pP]")):
        for member in sorted(_zip(str(zipped)).namelist()):
            # some archives of Windows have backslashes
            *_, cluster_name, name = ("", "", *member.replace("\\", "/").split("/"))
            if _is_jpeg(name) and "__MACOSX" not in member:
                path = f"{(IMAGERY / zipped.name).as_posix()}::{member}"
                rows.append((cluster_name, name.rpartition(".")[0], path, zipped.stem))
    listed = pd.DataFrame(rows, columns=["cluster_id", "photo_id", "path", "cc"], dtype="str")
    return listed.drop_duplicates(["cluster_id", "photo_id"])


def _is_jpeg(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith((".jpeg", ".jpg"))


def _metadata(path: Path) -> pd.DataFrame:
    """A metadata table: cluster_id, photo_id as text (ids exceed 2**53). Raises InputError for a
    file that can't be read or lacks one of the two."""
    table = read_text(path)
    named = {
        find_column(path, table, "photo's id", ID_NAMES): "photo_id",
        find_column(path, table, "cluster's DHSID_EA", CLUSTER_NAMES): "cluster_id",
    }
    return table[list(named)].rename(columns=named).drop_duplicates(ignore_index=True)
