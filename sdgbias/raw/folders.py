"""Files of a raw folder: tiles and their tarballs, street photos and their metadata; inventory and
damage report."""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias.errors import InputError
from sdgbias.progress import Progress, each, silent
from sdgbias.raw import clusters
from sdgbias.raw.images.photos import read_metadata
from sdgbias.raw.sources import Source, source

TILE_SAMPLE = 200  # tiles whose last bytes are checked; for all others only the size
PHOTO_SAMPLE = 3  # clusters per country whose photos are compared with the metadata
#: Photos were matched to clusters within 0.1 degree; positions are rounded.
NEAR_DEGREES = 0.15
#: Name of a finding -> (tarball, first and last DHS code that it holds).
TILE_GROUPS = {
    f"tiles {name[4:9]}": (name, name[4:6], name[7:9])
    for name in source("sustainbench_tiles").bytes
}


@dataclass(frozen=True)
class SourceState:
    """One source: its state (present, partial, missing, broken, unneeded), the files found,
    the effect on a build, and the fix."""

    source: str
    state: str
    found: str
    means: str = ""
    get: str = ""


def how(entry: Source) -> str:
    return f"{entry.get} {entry.url}"


def sample_note(folder: Path) -> str:
    """The README.txt of a sample that this package made, '' for any other folder."""
    path = folder / "README.txt"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return text if text.startswith("Synthetic sample") else ""


def names(values: list[str] | set[str], most: int = 8) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(sorted(values)[:most]) + more


def tiles(
    folder: Path, known: pd.DataFrame | None, notes: list[str], progress: Progress
) -> tuple[list[SourceState], set[str]]:
    """One finding per tarball, and the clusters of the labels (or all, without labels) that have a
    tile."""
    entry, root = source("sustainbench_tiles"), folder / "dhs_npzs"
    there, short, misplaced = _walk_tiles(root, progress)
    ids = set(known["cluster_id"]) if known is not None else set(there)
    if misplaced:
        notes.append(
            f"{root}: {names(misplaced)} is no survey folder such as AL-2008-5#; move what it holds"
            " one level up"
        )
    if short:
        notes.append(
            f"{root}: {len(short)} tile(s) are cut short, first {short[0]}; they will leave as"
            " tile-truncated; unpack them again"
        )
    extra = set(there) - ids
    if extra:
        notes.append(
            f"{root}: {len(extra)} tile(s) have no usable label row, first {min(extra)}; they are"
            " not used"
        )
    out = []
    for name, (tarball, first, last) in TILE_GROUPS.items():
        wanted = {cluster for cluster in ids if first <= cluster[:2] <= last}
        have = len(wanted.intersection(there))
        packed = next((p for p in (folder / tarball, root / tarball) if p.is_file()), None)
        found = f"{have:,} of {len(wanted):,} tiles"
        if have == len(wanted):
            if not wanted:
                found = "no cluster of these countries"
            out.append(SourceState(name, "present" if wanted else "unneeded", found))
            continue
        state = "partial" if have else "missing"
        fault = tarball_fault(packed, entry.bytes[tarball], progress) if packed else ""
        if fault:
            state, get = "broken", f"download {tarball} again. {how(entry)}"
        elif packed:
            fault = "is complete but packed"
            get = f"unpack it: mkdir -p {root} && tar -xzf {packed} -C {root}"
        else:
            get = how(entry)
        archive = f"{packed.name} {fault}" if packed else f"no {tarball}"
        lost = f"{len(wanted) - have:,} cluster(s) get no picture and no question"
        out.append(SourceState(name, state, f"{found}, {archive}", lost, get))
    return out, ids.intersection(there)


def _walk_tiles(root: Path, progress: Progress) -> tuple[dict[str, int], list[str], list[str]]:
    """(tile -> bytes, names of short tiles, folders that aren't surveys) below ``root``."""
    there: dict[str, int] = {}
    misplaced: list[str] = []
    surveys = sorted(os.scandir(root), key=lambda e: e.name) if root.is_dir() else []
    for survey in each(progress, "looking at tiles", surveys):
        if not survey.is_dir():
            continue
        if not clusters.ID_PATTERN.fullmatch(f"{survey.name}-00000000"):
            misplaced.append(survey.name)
            continue
        there |= {
            e.name[:-4]: e.stat().st_size
            for e in os.scandir(survey.path)
            if e.name.endswith(".npz")
        }
    short = sorted(name for name, size in there.items() if size < 1000)
    step = max(1, len(there) // TILE_SAMPLE)
    for name in sorted(set(there) - set(short))[::step]:
        with (root / name[:10] / f"{name}.npz").open("rb") as file:
            # a zip ends with its directory, at most 64 KiB of comment behind it
            file.seek(max(0, there[name] - 65_557))
            if b"PK\x05\x06" not in file.read():
                short.append(name)
    return there, sorted(short), misplaced


def tarball_fault(path: Path, published: int | None = None, progress: Progress = silent) -> str:
    """'' for a complete .tar.gz, else its fault. A file of the ``published`` size isn't read."""
    size = path.stat().st_size
    if size == published:
        return ""
    of = f"{size:,} of {published:,} published bytes" if published else f"{size:,} bytes"
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for count, member in enumerate(archive):
                    archive.members = []  # type: ignore[attr-defined]  # else a TarInfo of each of 30,000 tiles stays in memory
                    if member.name.startswith("/") or ".." in member.name.split("/"):
                        elsewhere = "which would be unpacked elsewhere; don't unpack it"
                        return f"holds {member.name!r}, {elsewhere}"
                    if not count % 50:
                        progress(f"reading {path.name}", min(raw.tell(), size - 1), size)
            while stream.read(1 << 20):  # the end of the stream carries its checksum
                pass
    except (EOFError, gzip.BadGzipFile, tarfile.TarError, zlib.error) as error:
        return f"is damaged or a half-finished download ({of}; {str(error).splitlines()[0]})"
    except OSError as error:
        return f"can't be read ({error.strerror or error})"
    finally:
        progress(f"reading {path.name}", size, size)
    return ""


def photos(
    folder: Path, known: pd.DataFrame | None, notes: list[str], progress: Progress
) -> tuple[list[SourceState], set[str]]:
    """Two findings, metadata tables and photos, and the clusters with photos; those of another
    cluster become notes."""
    tables, images = source("mapillary_metadata"), source("mapillary_imagery")
    root = folder / "mapillary"
    surveyed = set(known["cname"]) if known is not None else set(clusters.countries()["cname"])
    wanted = surveyed - set(images.none_for)
    listed: dict[str, pd.DataFrame] = {}
    broken: list[str] = []
    paths = sorted((root / "metadata").glob("*.csv"))
    for path in each(progress, "reading photo metadata", paths):
        try:
            listed[path.stem] = read_metadata(path)
        except InputError as error:
            broken.append(str(error))
    rows = pd.concat([pd.DataFrame(columns=["photo_id", "cluster_id"]), *listed.values()])
    notes += _strangers(listed, known)
    have, held, bad = _imagery(root / "imagery", listed, notes, progress)
    used = held & set(known["cluster_id"]) if known is not None else held
    listing = f"{len(rows):,} photos of {rows['cluster_id'].nunique():,} clusters"
    holding = f"photos of {len(used):,} clusters of the labels"
    if never := surveyed - wanted:
        holding += f"; SustainBench has none of {names(never)}"
    without = ("photos of the others are taken as they lie", "pictures show the tile alone there")
    return [
        _state(tables, listing, wanted, set(listed), broken, without[0]),
        _state(images, holding, wanted, have, bad, without[1]),
    ], used


def _state(
    entry: Source, found: str, wanted: set[str], have: set[str], broken: list[str], means: str
) -> SourceState:
    found = f"{len(wanted & have)} of {len(wanted)} countries, {found}"
    if broken:
        found += f"; {broken[0]}"
        return SourceState(entry.id, "broken", found, "a build stops there", how(entry))
    if wanted <= have:
        return SourceState(entry.id, "present", found)
    lost = f"without {names(wanted - have)}: {means}"
    return SourceState(entry.id, "partial" if have else "missing", found, lost, how(entry))


def _strangers(listed: dict[str, pd.DataFrame], known: pd.DataFrame | None) -> Iterator[str]:
    """Metadata rows that seem to belong to another cluster: another country, another folder, or too
    far away."""
    for cc, rows in listed.items():
        foreign = rows[rows["cluster_id"].str[:2] != cc]
        if len(foreign):
            yield (
                f"metadata/{cc}.csv: {len(foreign)} row(s) of another country, first"
                f" {foreign['cluster_id'].iloc[0]!r}"
            )
        if "path" in rows:
            folder = rows["path"].str.split("/").str[-2].fillna("")
            other = rows[(folder != "") & (folder != rows["cluster_id"])]
            if len(other):
                row = other.iloc[0]
                yield (
                    f"metadata/{cc}.csv: {len(other)} photo(s) of another cluster, first"
                    f" {row['path']} for {row['cluster_id']}"
                )
        if known is not None and {"lat", "lon"} <= set(rows.columns):
            placed = rows.merge(
                known[["cluster_id", "lat", "lon"]], on="cluster_id", suffixes=("", "_cluster")
            )
            off = [
                (pd.to_numeric(placed[a], errors="coerce") - placed[f"{a}_cluster"]).abs()
                > NEAR_DEGREES
                for a in ("lat", "lon")
            ]
            far = placed[off[0] | off[1]]
            if len(far):
                row = far.iloc[0]
                yield (
                    f"metadata/{cc}.csv: {len(far)} photo(s) lie more than {NEAR_DEGREES} degrees"
                    f" from their cluster, first {row['photo_id']} of {row['cluster_id']}; photos"
                    " of another cluster?"
                )


def _imagery(
    root: Path, listed: dict[str, pd.DataFrame], notes: list[str], progress: Progress
) -> tuple[set[str], set[str], list[str]]:
    """(countries with photos, clusters with photos, unreadable archives). Folders take precedence
    over archives, as in a build."""
    have: set[str] = set()
    held: set[str] = set()
    broken: list[str] = []
    places = list(os.scandir(root)) if root.is_dir() else []
    places.sort(key=lambda e: (not e.is_dir(), e.name))
    for place in each(progress, "looking at photos", places):
        cc = place.name.removesuffix(".zip")
        if place.is_dir():
            inside = {e.name: e.path for e in os.scandir(place.path) if e.is_dir()}
            photos = {
                n: [f.name for f in os.scandir(inside[n])] for n in sorted(inside)[:PHOTO_SAMPLE]
            }
        elif place.name.endswith(".zip"):
            try:
                with zipfile.ZipFile(place.path) as archive:
                    members = [
                        m.split("/")[-2:]
                        for m in archive.namelist()
                        if m.count("/") and not m.endswith("/")
                    ]
            except (zipfile.BadZipFile, OSError) as error:
                broken.append(
                    f"{place.path} is damaged or a half-finished download"
                    f" ({str(error).splitlines()[0]})"
                )
                continue
            inside = dict.fromkeys((cluster for cluster, _ in members), place.path)
            chosen = sorted(inside)[:PHOTO_SAMPLE]
            photos = {n: [name for cluster, name in members if cluster == n] for n in chosen}
        else:
            continue
        held |= set(inside)
        have |= {cc} if inside else set()
        strange = {n for n in inside if n[:2] != cc}
        if strange:
            notes.append(
                f"{place.path}: {len(strange)} folder(s) of another country or no cluster, first"
                f" {min(strange)}"
            )
        if cc in listed:
            shown = [(n, p, p.rpartition(".")[0]) for n, found in photos.items() for p in found]
            sampled = listed[cc][listed[cc]["photo_id"].isin([photo for _, _, photo in shown])]
            # a photo may serve two surveys
            pairs = set(zip(sampled["photo_id"], sampled["cluster_id"], strict=True))
            ids = set(sampled["photo_id"])
            wrong = [(n, p) for n, p, photo in shown if photo in ids and (photo, n) not in pairs]
            if wrong:
                notes.append(
                    f"{place.path}: {len(wrong)} sampled photo(s) lie in another cluster's folder"
                    f" than the metadata says, first {wrong[0][1]} in {wrong[0][0]}"
                )
    return have, held, broken
