"""Street photos of a SustainBench folder: finding them, reading them, choosing one per cluster
(DATA.md section 3)."""

from __future__ import annotations

import os
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
from sdgbias.files import FileError, confine
from sdgbias.raw.images.composite import open_picture, opened
from sdgbias.raw.text_tables import find_column, read_text
from sdgbias.types import QUARANTINE_COLUMNS

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
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(
            f"{path}: unreadable zip ({error}); download it again or unpack it beside itself"
        ) from error


def _zip(path: str) -> zipfile.ZipFile:
    stat = Path(path).stat()
    return _archive(path, stat.st_size, stat.st_mtime_ns)


def photo_bytes(path: Path | str) -> bytes:
    """The bytes of the file; ``path`` as in read_photo. Raises PhotoError (too large, damaged in
    its archive)."""
    outer, inside, member = str(path).partition(".zip::")
    try:
        archive = _zip(outer + ".zip") if inside else None
        size = Path(path).stat().st_size if archive is None else archive.getinfo(member).file_size
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
        f"{path}: no readable JPEG ({cause}); download the photo again or delete it",
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
    outer, inside, member = relative.partition(".zip::")
    file = confine(
        raw / IMAGERY, str(Path(outer + ".zip" if inside else outer).relative_to(IMAGERY))
    )
    return f"{file}::{member}" if inside else str(file)


@dataclass(frozen=True)
class PhotoIndex:
    """rows: cluster_id, photo_id, path (below the raw folder), sorted. named: the clusters that
    metadata names. misplaced: quarantine rows of photos that metadata assigns to one cluster but
    are in another one's folder."""

    rows: pd.DataFrame
    named: frozenset[str]
    misplaced: pd.DataFrame


def index_photos(raw: Path) -> PhotoIndex:
    """All street photos under ``raw``.

    Read from mapillary/metadata/{CC}.csv (columns in any order) where present, otherwise from the
    files found. Rows whose file doesn't exist are left out. Photos lie in
    imagery/{CC}/{DHSID_EA}/{id}.jpeg or in imagery/{CC}.zip of the same tree; members are read in
    place, with path 'mapillary/imagery/AL.zip::AL/AL-2008-5#-00000001/123.jpeg'.
    """
    listed = _listing(raw)
    tables = {path.stem: path for path in sorted((raw / IMAGERY.parent / "metadata").glob("*.csv"))}
    parts = [listed[~listed["cc"].isin(list(tables))]]
    misplaced = [pd.DataFrame(columns=QUARANTINE_COLUMNS, dtype="str")]
    named: set[str] = set()
    for cc, path in tables.items():
        rows, of_country = _metadata(raw, path), listed[listed["cc"] == cc]
        matched = of_country.merge(rows, on=["cluster_id", "photo_id"])
        rest = rows.merge(matched[["cluster_id", "photo_id"]], how="left", indicator=True)
        rest = rest[rest["_merge"] == "left_only"].drop(columns="_merge")
        wrong = _of_others(rest, rows, of_country, path.relative_to(raw).as_posix())
        extra = rest[(rest["path_given"] != "") & ~rest.index.isin(wrong.index)]
        exists = np.array(
            [confine(raw / IMAGERY, given).is_file() for given in extra["path_given"]], dtype=bool
        )
        extra = extra.loc[exists]
        extra = extra.assign(path=[(IMAGERY / given).as_posix() for given in extra["path_given"]])
        if len(rows) and matched.empty and extra.empty and len(of_country):
            example = f"{rows['cluster_id'].iloc[0]}/{rows['photo_id'].iloc[0]}"
            raise InputError(
                f"{path}: none of its {len(rows)} rows names a photo of {raw / IMAGERY / cc} (first"
                f" row: {example}); expected the photo's id and the DHSID_EA, or remove the table"
                " to use the folder as it is"
            )
        parts += [matched, extra]
        misplaced.append(wrong)
        named.update(rows["cluster_id"])
    index = pd.concat([part[["cluster_id", "photo_id", "path"]] for part in parts]).astype("str")
    index = index.drop_duplicates(["cluster_id", "photo_id"]).sort_values(
        ["cluster_id", "photo_id"], ignore_index=True
    )
    return PhotoIndex(index, frozenset(named), pd.concat(misplaced, ignore_index=True))


def _of_others(
    rest: pd.DataFrame, rows: pd.DataFrame, listed: pd.DataFrame, table: str
) -> pd.DataFrame:
    """Quarantine rows for those of ``rest`` (metadata rows without a photo in their cluster's
    folder) whose photo lies in another cluster's: where their path says so, or where only the file
    says so and no row claims it for its own folder."""
    folder = rest["path_given"].str.extract(r"([^/\\]+)[/\\][^/\\]+$")[0].fillna("").astype("str")
    clusters = set(listed["cluster_id"]) | set(rows["cluster_id"])
    by_path = folder.where(folder.isin(clusters) & (folder != rest["cluster_id"]), "")
    unclaimed = listed.merge(rows[["cluster_id", "photo_id"]], how="left", indicator=True)
    unclaimed = unclaimed[unclaimed["_merge"] == "left_only"]
    owners = dict(zip(unclaimed["photo_id"], unclaimed["cluster_id"], strict=True))
    by_file = (
        rest["photo_id"].map(owners).fillna("").astype("str").where(rest["path_given"] == "", "")
    )
    other = by_path.where(by_path != "", by_file)
    wrong, other = rest[other != ""], other[other != ""]
    where = f"{table} names it, but it lies in the folder of "
    detail = where + other + "; correct the row or move the photo"
    key = wrong["cluster_id"] + "/" + wrong["photo_id"]
    return pd.DataFrame(
        {"table": "photos", "key": key, "rule": "photo-of-other-cluster", "detail": detail},
        dtype="str",
    )


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
    for zipped in sorted(root.glob("*.zip")):
        for member in sorted(_zip(str(zipped)).namelist()):
            *_, cluster_name, name = ("", "", *member.split("/"))
            if _is_jpeg(name) and "__MACOSX" not in member:
                path = f"{(IMAGERY / zipped.name).as_posix()}::{member}"
                rows.append((cluster_name, name.rpartition(".")[0], path, zipped.stem))
    listed = pd.DataFrame(rows, columns=["cluster_id", "photo_id", "path", "cc"], dtype="str")
    return listed.drop_duplicates(["cluster_id", "photo_id"])


def _is_jpeg(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith((".jpeg", ".jpg"))


def _metadata(raw: Path, path: Path) -> pd.DataFrame:
    """One metadata table: cluster_id, photo_id, path_given ('' without)."""
    table = read_metadata(path)
    given = table.get("path", pd.Series("", index=table.index, dtype="str"))
    rows = table[["cluster_id", "photo_id"]].assign(path_given=given)
    for column in (rows[name] for name in rows.columns):
        for value in column[column.str.contains(r"\.\.|^[\\/]|^[A-Za-z]:|\0", regex=True)]:
            confine(raw / IMAGERY, value)
    return rows.drop_duplicates(["cluster_id", "photo_id"])


def read_metadata(path: Path) -> pd.DataFrame:
    """A metadata table as text: photo_id, cluster_id, and lat, lon, path where it has them. Ids
    exceed 2**53. Raises InputError for a file that can't be read or lacks one of the ids."""
    table = read_text(path)
    named = {
        find_column(path, table, "photo's id", ID_NAMES): "photo_id",
        find_column(path, table, "cluster's DHSID_EA", CLUSTER_NAMES): "cluster_id",
    }
    named |= {
        name: name.lower() for name in table.columns if name.lower() in ("lat", "lon", "path")
    }
    return table[list(named)].rename(columns=named)
