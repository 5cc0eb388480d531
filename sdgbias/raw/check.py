"""What is there of a raw folder, what is missing or broken, and how to get it (`sdgbias raw
check`): one row a source.

Every table and listing is read by the reader that a build uses, so that both judge alike. No pixel
is decoded; single rows, tiles and photos are left to the build, whose quarantine names each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias import templates
from sdgbias.errors import InputError
from sdgbias.progress import Progress, each, silent
from sdgbias.raw import clusters, regions, series
from sdgbias.raw.images.photos import IMAGERY, index_photos
from sdgbias.raw.indicators import load_indicators
from sdgbias.raw.sources import Source, source, sources

_PUBLISHERS = tuple(entry for entry in sources() if entry.series)


@dataclass(frozen=True)
class SourceState:
    """One source: its state (present, partial, missing, broken), what was found and what a build
    does without the rest, and the fix."""

    source: str
    state: str
    found: str
    fix: str = ""


@dataclass(frozen=True)
class RawReport:
    """`findings`: one per source; `pictures`: number of clusters with a tile."""

    folder: Path
    indicators: Path
    findings: tuple[SourceState, ...]
    pictures: int

    @property
    def ok(self) -> bool:
        """A build can run, with or without pictures: there are labels and at least one series."""
        usable = {f.source for f in self.findings if f.state in ("present", "partial")}
        return "sustainbench_labels" in usable and any(entry.id in usable for entry in _PUBLISHERS)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else InputError.exit_code

    def lines(self) -> list[str]:
        """The table and the next command."""
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
    labels, ids = _labels(folder)
    tiles, pictures = _tiles(folder, ids, progress)
    findings = [labels, tiles]
    for names, check, place in (
        (("mapillary_metadata", "mapillary_imagery"), _photos, folder),
        (("dhs_gps",), _region_names, folder),
        (tuple(entry.id for entry in _PUBLISHERS), _series, indicators),
        (("gdl_regions",), _region_map, indicators),
    ):
        try:
            findings += check(place, ids)
        except InputError as error:  # as the build's own reader refuses the file
            broken = ("broken", "a build stops there", f"fix this first: {error}")
            findings += [SourceState(name, *broken) for name in names]
    return RawReport(folder, indicators, tuple(findings), pictures)


def _finding(entry: Source, coverage: str, *, some: bool, whole: bool) -> SourceState:
    state = "present" if whole else "partial" if some else "missing"
    return SourceState(entry.id, state, coverage, "" if whole else f"{entry.get} {entry.url}")


def _names(values: Collection[str], most: int = 8) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(sorted(values)[:most]) + more


def _labels(folder: Path) -> tuple[SourceState, set[str]]:
    """The label file as a build reads it, and the ids of its usable clusters."""
    entry, path = source("sustainbench_labels"), folder / clusters.LABELS_FILE
    if not path.is_file():
        none = f"no {path.name}; nothing can be built"
        return _finding(entry, none, some=False, whole=False), set()
    try:
        table, lost = clusters.read_clusters(folder)
    except InputError as error:
        coverage = f"{error}; nothing can be built"
        return SourceState(entry.id, "broken", coverage, f"{entry.get} {entry.url}"), set()
    absent = set(clusters.countries()["cname"]) - set(table["cname"])
    coverage = f"{len(table):,} clusters, {56 - len(absent)} of 56 countries"
    counts = lost.groupby(["table", "rule"], as_index=False).size()
    for kind, rule, n in counts.itertuples(index=False, name=None):
        what = "row(s) will leave" if kind == "clusters" else "value(s) will be blanked"
        coverage += f"; {rule}, {n} {what}"
    if absent:
        coverage += f"; no question about {_names(absent)}"
    state = "partial" if absent else "present"
    return SourceState(entry.id, state, coverage), set(table["cluster_id"])


def _tiles(folder: Path, ids: set[str], progress: Progress) -> tuple[SourceState, int]:
    """The unpacked tiles, and the number of clusters that have one."""
    entry, root = source("sustainbench_tiles"), folder / "dhs_npzs"
    surveys = sorted(root.iterdir()) if root.is_dir() else []
    unpacked = {
        file.name.removesuffix(".npz")
        for survey in each(progress, "looking at tiles", surveys)
        if survey.is_dir() and clusters.ID_PATTERN.fullmatch(f"{survey.name}-00000000")
        for file in os.scandir(survey)
        if file.name.endswith(".npz")
    }
    have = ids & unpacked if ids else unpacked
    coverage = f"tiles of {len(have):,} of {len(ids or have):,} clusters"
    lacking = Counter(
        tarball  # dhs_AL_DR.tar.gz: the clusters of AL to DR
        for cluster in ids - unpacked
        for tarball in entry.bytes
        if tarball[4:6] <= cluster[:2] <= tarball[7:9]
    )
    fixes, is_cut = [], False
    for tarball, n in sorted(lacking.items()):
        coverage += f"; {n:,} of {tarball} get no picture and no question"
        packed = next((p for p in (folder / tarball, root / tarball) if p.is_file()), None)
        if packed is None:
            continue
        size, published = packed.stat().st_size, entry.bytes[tarball]
        if size == published:
            fixes.append(f"unpack {tarball}: mkdir -p {root} && tar -xzf {packed} -C {root}")
        else:
            is_cut = True
            cut = f"it has {size:,} of {published:,} published bytes"
            fixes.append(f"download {tarball} again: {cut}")
    state = _finding(entry, coverage, some=bool(have), whole=bool(have) and not lacking)
    fix = ". ".join([*fixes, state.fix]).strip()
    return SourceState(entry.id, "broken" if is_cut else state.state, coverage, fix), len(have)


def _photos(folder: Path, ids: set[str]) -> list[SourceState]:
    """Metadata tables and photos, by country."""
    tables, images = source("mapillary_metadata"), source("mapillary_imagery")
    surveyed = {cluster[:2] for cluster in ids} or set(clusters.countries()["cname"])
    wanted = surveyed - set(images.none_for)
    listed = {path.stem for path in (folder / IMAGERY.parent / "metadata").glob("*.[cC][sS][vV]")}
    photos = pd.Series(dtype="str")
    if (folder / IMAGERY).is_dir():
        photos = index_photos(folder).rows["cluster_id"]
    shown = photos[photos.isin(ids)] if ids else photos
    kept = f"{len(shown):,} photos of {shown.nunique():,} clusters"
    if surveyed - wanted:
        kept += f"; SustainBench has none of {_names(surveyed - wanted)}"
    held = set(photos.str[:2])
    return [
        _by_country(tables, "listed", wanted, listed, "photos are taken as they lie there"),
        _by_country(images, kept, wanted, held, "pictures show the tile alone there"),
    ]


def _by_country(
    entry: Source, coverage: str, wanted: set[str], have: set[str], without: str
) -> SourceState:
    coverage = f"{len(wanted & have)} of {len(wanted)} countries, {coverage}"
    if wanted - have:
        coverage += f"; without {_names(wanted - have)}: {without}"
    return _finding(entry, coverage, some=bool(have), whole=wanted <= have)


def _region_names(folder: Path, ids: set[str]) -> list[SourceState]:
    """The names of survey regions, by which clusters get regional values."""
    table = regions.read_cluster_regions(folder)
    wanted = regions.dhs_ids(pd.Series(sorted(ids), dtype="str"))
    named = int(wanted.isin(table["dhs_id"][table["region_name"] != ""]).sum())
    coverage = f"region names of {named:,} of {len(wanted):,} clusters"
    whole = not table.empty and named == len(wanted)
    if not whole:
        coverage += "; a regional value of the others needs a line in gdl_regions.csv"
    return [_finding(source("dhs_gps"), coverage, some=not table.empty, whole=whole)]


def _region_map(folder: Path, _: set[str]) -> list[SourceState]:
    """The hand-written map of survey regions, which nobody needs."""
    table = series.read_gdl_regions(folder)
    coverage = f"{len(table):,} survey regions of {table['cname'].nunique()} countries"
    if table.empty:
        coverage = f"no {series.REGIONS_FILE}; survey regions are matched by their names alone"
    whole = not table.empty
    return [_finding(source("gdl_regions"), coverage, some=False, whole=whole)]


def _series(folder: Path, _: set[str]) -> list[SourceState]:
    """One finding per publisher: its series, the countries they cover and the questions that depend
    on them."""
    countries: dict[str, int] = {}
    if folder.is_dir():
        frame, _not_found = series.read_series(folder)
        covered = frame.groupby("series")["iso3"].nunique()
        countries = {str(name): int(n) for name, n in covered.items()}
    findings = []
    for entry in _PUBLISHERS:
        have = [name for name in entry.series if name in countries]
        absent = [name for name in entry.series if name not in countries]
        counted = ", ".join(f"{name} {countries[name]}" for name in have)
        coverage = f"countries of 56: {counted}" if have else f"no series in {folder}"
        if lost := _questions_lost(absent, countries):
            coverage += f"; {lost}"
        findings.append(_finding(entry, coverage, some=bool(have), whole=not absent))
    return findings


def _questions_lost(absent: list[str], countries: dict[str, int]) -> str:
    """The indicators that a missing series leaves without any value, and those that lose regional
    values."""
    asks = [i for i in load_indicators() if any(ref.name in absent for ref in i.series)]
    gone = [i.slug for i in asks if not any(ref.name in countries for ref in i.series)]
    coarser = [i.slug for i in asks if i.slug not in gone]
    lost = [f"no question of {_names(gone)}"] if gone else []
    return ", ".join(lost + ([f"{_names(coarser)}: other series only"] if coarser else []))
