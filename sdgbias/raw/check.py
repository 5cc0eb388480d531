"""What is there of a raw folder, what is missing or broken, what that means for a build, and where
to get it (`sdgbias raw check`): one row a source.

Names, sizes and tables are checked; no pixel is decoded, and single rows, tiles and photos are left
to the build, whose quarantine names each. Only packed tarballs of unknown size are read completely.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias import templates
from sdgbias.errors import InputError
from sdgbias.progress import Progress, each, silent
from sdgbias.raw import clusters, regions, series
from sdgbias.raw.images.photos import read_metadata
from sdgbias.raw.indicators import load_indicators
from sdgbias.raw.sources import Source, source, sources

HALF = (".part", ".partial", ".crdownload", ".download", ".tmp", ".aria2", ".!ut")
_SERIES_SOURCES = tuple(entry.id for entry in sources() if entry.series)
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


@dataclass(frozen=True)
class RawReport:
    """`findings`: one per source (tiles: one per tarball), then one per half-finished download;
    `pictures`: number of clusters with a tile, `with_photo`: those of them with photos."""

    folder: Path
    indicators: Path
    findings: tuple[SourceState, ...]
    pictures: int
    with_photo: int

    def state(self, name: str) -> str:
        return next(f.state for f in self.findings if f.source == name)

    @property
    def ok(self) -> bool:
        """A build can run, with or without pictures: there are labels and at least one series."""
        usable = {f.source for f in self.findings if f.state in ("present", "partial")}
        return "sustainbench_labels" in usable and not usable.isdisjoint(_SERIES_SOURCES)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else InputError.exit_code

    def lines(self) -> list[str]:
        """A table, the missing files, and the next command."""
        return templates.lines("raw_check", r=self)


def check_raw(
    folder: Path, indicators: Path | None = None, progress: Progress = silent
) -> RawReport:
    """Check a raw folder and its indicator series; writes nothing.

    ``indicators`` defaults to that of `sdgbias build`: folder/indicators, else data/indicators.
    Damage is reported, not raised; InputError only when ``folder`` is no folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"no folder {folder}; give the raw folder in SustainBench's layout, e.g. sdgbias raw"
            " check data/raw"
        )
    if indicators is None:
        indicators = (
            folder / "indicators" if (folder / "indicators").is_dir() else Path("data/indicators")
        )
    labels, places = _labels(folder)
    tiles, with_tile = _tiles(folder, places, progress)
    photos, with_photo = _photos(folder, places, progress)
    others = (*_series(indicators), *_half_downloads(folder, indicators))
    findings = (labels, *tiles, *photos, _gps(folder, places), *others)
    return RawReport(folder, indicators, findings, len(with_tile), len(with_tile & with_photo))


def _how(entry: Source) -> str:
    return f"{entry.get} {entry.url}"


def _names(values: Collection[str], most: int = 8) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(sorted(values)[:most]) + more


# ----------------------------------------------------------------------
# labels and survey regions


def _labels(folder: Path) -> tuple[SourceState, pd.DataFrame | None]:
    """The label file as a build reads it, and the usable clusters (None when there are none)."""
    entry, path = source("sustainbench_labels"), folder / clusters.LABELS_FILE
    means = ("nothing can be built", _how(entry))
    if not path.is_file():
        return SourceState(entry.id, "missing", f"no {path.name}", *means), None
    try:
        table, lost = clusters.read_clusters(folder)
    except InputError as error:
        return SourceState(entry.id, "broken", str(error), *means), None
    absent = set(clusters.countries()["cname"]) - set(table["cname"])
    content = f"{len(table):,} clusters, {56 - len(absent)} of 56 countries"
    for (kind, rule), part in lost.groupby(["table", "rule"], sort=True):
        what = "row(s) will leave" if kind == "clusters" else "value(s) will be blanked"
        first = f"{part['key'].iloc[0]}: {part['detail'].iloc[0]}"
        content += f"; {rule}, {len(part)} {what}, first {first}"
    if not absent:
        return SourceState(entry.id, "present", content), table
    return SourceState(entry.id, "partial", content, f"no question about {_names(absent)}"), table


def _gps(folder: Path, places: pd.DataFrame | None) -> SourceState:
    """The names of survey regions, by which clusters get regional values."""
    entry = source("dhs_gps")
    means = "a regional value needs a line in gdl_regions.csv"
    try:
        table = regions.read_cluster_regions(folder)
    except InputError as error:
        return SourceState(entry.id, "broken", str(error), "a build stops there", _how(entry))
    if table.empty:
        none = f"no {regions.GPS_FOLDER}/*.csv"
        return SourceState(entry.id, "missing", none, means, _how(entry))
    ids = regions.dhs_ids(places["cluster_id"]) if places is not None else pd.Series(dtype="str")
    named = int(ids.isin(table["dhs_id"][table["region_name"] != ""]).sum())
    content = f"region names of {named:,} of {len(ids):,} clusters"
    whole = named == len(ids)
    return SourceState(entry.id, "present" if whole else "partial", content, "" if whole else means)


# ----------------------------------------------------------------------
# tiles and photos


def _tiles(
    folder: Path, places: pd.DataFrame | None, progress: Progress
) -> tuple[list[SourceState], set[str]]:
    """One finding per tarball, and the clusters of the labels (or all, without labels) that have a
    tile."""
    entry, root = source("sustainbench_tiles"), folder / "dhs_npzs"
    surveys = sorted(root.iterdir()) if root.is_dir() else []
    unpacked = {
        file.name.removesuffix(".npz")
        for survey in each(progress, "looking at tiles", surveys)
        if survey.is_dir() and clusters.ID_PATTERN.fullmatch(f"{survey.name}-00000000")
        for file in os.scandir(survey)
        if file.name.endswith(".npz")
    }
    ids = set(places["cluster_id"]) if places is not None else unpacked
    findings = []
    for name, (tarball, first, last) in TILE_GROUPS.items():
        wanted = {cluster for cluster in ids if first <= cluster[:2] <= last}
        have = len(wanted & unpacked)
        content = f"{have:,} of {len(wanted):,} tiles"
        if not wanted:
            findings.append(SourceState(name, "unneeded", "no cluster of these countries"))
        elif have == len(wanted):
            findings.append(SourceState(name, "present", content))
        else:
            packed = next((p for p in (folder / tarball, root / tarball) if p.is_file()), None)
            state, get, archive = "partial" if have else "missing", _how(entry), f"no {tarball}"
            if packed and (fault := tarball_fault(packed, entry.bytes[tarball], progress)):
                state, archive = "broken", f"{tarball} {fault}"
                get = f"download {tarball} again. {_how(entry)}"
            elif packed:
                archive = f"{tarball} is complete but packed"
                get = f"unpack it: mkdir -p {root} && tar -xzf {packed} -C {root}"
            lost = f"{len(wanted) - have:,} cluster(s) get no picture and no question"
            findings.append(SourceState(name, state, f"{content}, {archive}", lost, get))
    return findings, ids & unpacked


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


def _photos(
    folder: Path, places: pd.DataFrame | None, progress: Progress
) -> tuple[list[SourceState], set[str]]:
    """Two findings, metadata tables and photos, and the clusters with photos."""
    tables, images = source("mapillary_metadata"), source("mapillary_imagery")
    root = folder / "mapillary"
    table = places if places is not None else clusters.countries()
    surveyed = set(table["cname"])
    wanted = surveyed - set(images.none_for)
    listed: dict[str, pd.Series] = {}
    broken: list[str] = []
    paths = sorted((root / "metadata").glob("*.csv"))
    for path in each(progress, "reading photo metadata", paths):
        try:
            listed[path.stem] = read_metadata(path)["cluster_id"]
        except InputError as error:
            broken.append(str(error))
    rows = pd.concat([pd.Series(dtype="str"), *listed.values()])
    listing = f"{len(rows):,} photos of {rows.nunique():,} clusters"
    held, damaged = _imagery(root / "imagery", progress)
    used = held & set(places["cluster_id"]) if places is not None else held
    holding = f"photos of {len(used):,} clusters of the labels"
    if never := surveyed - wanted:
        holding += f"; SustainBench has none of {_names(never)}"
    have = {cluster[:2] for cluster in held}
    without = ("photos of the others are taken as they lie", "pictures show the tile alone there")
    return [
        _countries(tables, listing, wanted, set(listed), broken, without[0]),
        _countries(images, holding, wanted, have, damaged, without[1]),
    ], used


def _countries(
    entry: Source, content: str, wanted: set[str], have: set[str], broken: list[str], means: str
) -> SourceState:
    content = f"{len(wanted & have)} of {len(wanted)} countries, {content}"
    if broken:
        content += f"; {broken[0]}"
        return SourceState(entry.id, "broken", content, "a build stops there", _how(entry))
    if wanted <= have:
        return SourceState(entry.id, "present", content)
    lost = f"without {_names(wanted - have)}: {means}"
    return SourceState(entry.id, "partial" if have else "missing", content, lost, _how(entry))


def _imagery(root: Path, progress: Progress) -> tuple[set[str], list[str]]:
    """(clusters with photos, unreadable archives)."""
    held: set[str] = set()
    broken: list[str] = []
    places = sorted(root.iterdir()) if root.is_dir() else []
    for place in each(progress, "looking at photos", places):
        if place.is_dir():
            held |= {entry.name for entry in os.scandir(place) if entry.is_dir()}
        elif place.suffix == ".zip":
            try:
                with zipfile.ZipFile(place) as archive:
                    held |= {name.split("/")[-2] for name in archive.namelist() if "/" in name[:-1]}
            except (zipfile.BadZipFile, OSError) as error:
                why = str(error).splitlines()[0]
                broken.append(f"{place} is damaged or a half-finished download ({why})")
    return held, broken


# ----------------------------------------------------------------------
# series


def _series(folder: Path) -> list[SourceState]:
    """One finding per publisher: its series, the countries they cover and the questions that depend
    on them."""
    entries = [entry for entry in sources() if entry.series]
    override = source("gdl_regions")
    if not folder.is_dir():
        gone = ("missing", f"no folder {folder}")
        rows = [SourceState(e.id, *gone, "nothing can be built", _how(e)) for e in entries]
        return [*rows, SourceState(override.id, *gone)]
    try:
        frame, _ = series.read_series(folder)
    except InputError as error:
        unread = ("broken", "not read", "a build stops there", f"fix this first: {error}")
        rows = [SourceState(e.id, *unread) for e in entries]
        return [*rows, _regions(override, folder)]
    countries = {str(name): int(n) for name, n in frame.groupby("series")["iso3"].nunique().items()}
    out = []
    for entry in entries:
        have = [name for name in entry.series if countries.get(name)]
        absent = [name for name in entry.series if name not in have]
        files = [path for pattern in entry.files for path in folder.glob(pattern)]
        counted = ", ".join(f"{name} {countries[name]}" for name in have)
        content = f"countries of 56: {counted}" if have else "no series"
        lost = _questions_lost(absent, countries)
        if files and not have:
            bad = f"{files[0].name} is there but holds no value of the 56 countries"
            out.append(SourceState(entry.id, "broken", bad, lost, _how(entry)))
        else:
            state = "present" if not absent else "partial" if have else "missing"
            out.append(SourceState(entry.id, state, content, lost, _how(entry) if absent else ""))
    return [*out, _regions(override, folder)]


def _questions_lost(absent: list[str], countries: dict[str, int]) -> str:
    """The indicators that a missing series leaves without any value, and those that lose regional
    values."""
    asks = [i for i in load_indicators() if any(ref.name in absent for ref in i.series)]
    gone = [i.slug for i in asks if not any(countries.get(ref.name) for ref in i.series)]
    coarser = [i.slug for i in asks if i.slug not in gone]
    lost = [f"no question of {_names(gone)}"] if gone else []
    return ", ".join(lost + ([f"{_names(coarser)}: other series only"] if coarser else []))


def _regions(entry: Source, folder: Path) -> SourceState:
    means = "survey regions are matched by their names alone"
    try:
        table = series.read_gdl_regions(folder)
    except InputError as error:
        return SourceState(entry.id, "broken", str(error), "a build stops there", _how(entry))
    if table.empty:
        return SourceState(entry.id, "missing", f"no {series.REGIONS_FILE}", means, _how(entry))
    content = f"{len(table):,} survey regions of {table['cname'].nunique()} countries"
    return SourceState(entry.id, "present", content)


def _half_downloads(folder: Path, indicators: Path) -> Iterator[SourceState]:
    """Incomplete files of a browser or download tool."""
    parts = ("", "dhs_npzs", "mapillary/metadata", "mapillary/imagery")
    roots = [*(folder / part for part in parts), indicators, *indicators.glob("*")]
    files = {path for root in roots if root.is_dir() for path in root.iterdir()}
    for path in sorted(path for path in files if path.name.lower().endswith(HALF)):
        fix = f"finish {path} or delete it"
        yield SourceState(path.name, "partial", "a half-finished download", "not used", fix)
