"""The contents of a raw folder, its gaps, their effect on a build, and where to get the missing
files (`sdgbias raw check`).

Names, sizes and tables are checked; no pixel is decoded. Only packed tarballs of unknown size are
read completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias import templates
from sdgbias.errors import InputError
from sdgbias.progress import Progress, silent
from sdgbias.raw import clusters, regions, series
from sdgbias.raw.folders import SourceState, how, names, photos, tiles
from sdgbias.raw.indicators import load_indicators
from sdgbias.raw.sources import Source, source, sources
from sdgbias.raw.text_tables import read_replacing, separator

__all__ = ["RawReport", "SourceState", "check_raw"]

HALF = (".part", ".partial", ".crdownload", ".download", ".tmp", ".aria2", ".!ut")
_SERIES_SOURCES = tuple(entry.id for entry in sources() if entry.series)


@dataclass(frozen=True)
class RawReport:
    """`findings` one per source (tiles: one per tarball), `notes` on single files; `pictures`:
    number of clusters with a tile, `with_photo`: those of them with photos."""

    folder: Path
    indicators: Path
    findings: tuple[SourceState, ...]
    notes: tuple[str, ...]
    pictures: int
    with_photo: int

    def state(self, name: str) -> str:
        return next(f.state for f in self.findings if f.source == name)

    @property
    def ok(self) -> bool:
        """A build can run, with or without pictures: there are labels and at least one series."""
        labels = self.state("sustainbench_labels") in ("present", "partial")
        return labels and any(
            f.state in ("present", "partial") for f in self.findings if f.source in _SERIES_SOURCES
        )

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else InputError.exit_code

    def lines(self) -> list[str]:
        """A table, the notes, the missing files, and the next command."""
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
    notes: list[str] = []
    labels, known = _labels(folder, notes)
    tile_rows, with_tile = tiles(folder, known, notes, progress)
    photo_rows, with_photo = photos(folder, known, notes, progress)
    rows = [labels, *tile_rows, *photo_rows, _gps(folder, known), *_series(indicators)]
    notes += _half_downloads(folder, indicators)
    pictures = (len(with_tile), len(with_tile & with_photo))
    return RawReport(folder, indicators, tuple(rows), tuple(notes), *pictures)


def _labels(folder: Path, notes: list[str]) -> tuple[SourceState, pd.DataFrame | None]:
    """The label file as a build reads it, and the usable clusters (None when there are none)."""
    entry, path = source("sustainbench_labels"), folder / clusters.LABELS_FILE
    means = ("nothing can be built", how(entry))
    if not path.is_file():
        return SourceState(entry.id, "missing", f"no {path.name}", *means), None
    try:
        table, lost = clusters.read_clusters(folder)
    except InputError as error:
        return SourceState(entry.id, "broken", str(error), *means), None
    notes += _label_notes(path)
    for (kind, rule), part in lost.groupby(["table", "rule"], sort=True):
        what = "row(s) will leave" if kind == "clusters" else "value(s) will be blanked"
        first = f"{part['key'].iloc[0]}: {part['detail'].iloc[0]}"
        notes.append(f"{path.name}: {rule}, {len(part)} {what}; first: {first}")
    absent = set(clusters.countries()["cname"]) - set(table["cname"])
    found = f"{len(table):,} clusters, {56 - len(absent)} of 56 countries"
    if not absent:
        return SourceState(entry.id, "present", found), table
    return SourceState(entry.id, "partial", found, f"no question about {names(absent)}"), table


def _label_notes(path: Path) -> Iterator[str]:
    """Irregularities that the reader tolerates, reported because they show that the file was
    changed by other tools."""
    data = path.read_bytes()
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield (
            f"{path.name}: not UTF-8 (Latin-1?) from line {line}; only ids, codes and numbers are"
            " read, which are ASCII"
        )
    raw = read_replacing(path, separator(path))
    if tuple(raw.columns.str.strip()) != clusters.COLUMNS:
        yield (
            f"{path.name}: columns stand in another order than SustainBench's or there are more;"
            " they are read by name"
        )
    raw.columns = raw.columns.str.strip()
    year = raw["year"].str.strip()
    whole = year.str.fullmatch(r"\d{4}(\.0+)?")
    spans = year.str.fullmatch(clusters.YEAR_PATTERN) & ~whole
    if spans.any():
        yield (
            f"{path.name}: {int(spans.sum())} survey year(s) such as"
            f" {raw['year'][spans].iloc[0]!r}; the first year counts"
        )
    labels = raw[list(clusters.LABELS)].fillna("")
    blank = int(labels.apply(lambda c: c.str.fullmatch(r"\s+")).to_numpy(dtype=bool).sum())
    if blank:
        yield f"{path.name}: {blank} label(s) of blanks only; read as missing"


def _series(folder: Path) -> list[SourceState]:
    """One finding per publisher: its series, the countries they cover and the questions that depend
    on them."""
    entries = [entry for entry in sources() if entry.series]
    override = source("gdl_regions")
    if not folder.is_dir():
        gone = ("missing", f"no folder {folder}")
        rows = [SourceState(e.id, *gone, "nothing can be built", how(e)) for e in entries]
        return [*rows, SourceState(override.id, *gone)]
    try:
        frame, _ = series.read_series(folder)
    except InputError as error:
        told = ("broken", "not read", "a build stops there", f"fix this first: {error}")
        rows = [SourceState(e.id, *told) for e in entries]
        return [*rows, _regions(override, folder)]
    countries = {str(name): int(n) for name, n in frame.groupby("series")["iso3"].nunique().items()}
    out = []
    for entry in entries:
        have = [name for name in entry.series if countries.get(name)]
        absent = [name for name in entry.series if name not in have]
        files = [path for pattern in entry.files for path in folder.glob(pattern)]
        counted = ", ".join(f"{name} {countries[name]}" for name in have)
        found = f"countries of 56: {counted}" if have else "no series"
        lost = _questions_lost(absent, countries)
        if files and not have:
            bad = f"{files[0].name} is there but holds no value of the 56 countries"
            out.append(SourceState(entry.id, "broken", bad, lost, how(entry)))
        else:
            state = "present" if not absent else "partial" if have else "missing"
            out.append(SourceState(entry.id, state, found, lost, how(entry) if absent else ""))
    return [*out, _regions(override, folder)]


def _questions_lost(absent: list[str], countries: dict[str, int]) -> str:
    """The indicators that a missing series leaves without any value, and those that lose regional
    values."""
    asks = [i for i in load_indicators() if any(ref.name in absent for ref in i.series)]
    gone = [i.slug for i in asks if not any(countries.get(ref.name) for ref in i.series)]
    coarser = [i.slug for i in asks if i.slug not in gone]
    said = [f"no question of {names(gone)}"] if gone else []
    return ", ".join(said + ([f"{names(coarser)}: other series only"] if coarser else []))


def _gps(folder: Path, known: pd.DataFrame | None) -> SourceState:
    """The names of survey regions, by which clusters get regional values."""
    entry = source("dhs_gps")
    means = "a regional value needs a line in gdl_regions.csv"
    try:
        table = regions.read_cluster_regions(folder)
    except InputError as error:
        return SourceState(entry.id, "broken", str(error), "a build stops there", how(entry))
    if table.empty:
        return SourceState(entry.id, "missing", f"no {regions.GPS_FOLDER}/*.csv", means, how(entry))
    ids = regions.dhs_ids(known["cluster_id"]) if known is not None else pd.Series(dtype="str")
    named = int(ids.isin(table["dhs_id"][table["region_name"] != ""]).sum())
    found = f"region names of {named:,} of {len(ids):,} clusters"
    whole = named == len(ids)
    return SourceState(entry.id, "present" if whole else "partial", found, "" if whole else means)


def _regions(entry: Source, folder: Path) -> SourceState:
    means = "survey regions are matched by their names alone"
    try:
        table = series.read_gdl_regions(folder)
    except InputError as error:
        return SourceState(entry.id, "broken", str(error), "a build stops there", how(entry))
    if table.empty:
        return SourceState(entry.id, "missing", f"no {series.REGIONS_FILE}", means, how(entry))
    found = f"{len(table):,} survey regions of {table['cname'].nunique()} countries"
    return SourceState(entry.id, "present", found)


def _half_downloads(folder: Path, indicators: Path) -> Iterator[str]:
    """Incomplete files of a browser or download tool."""
    parts = ("", "dhs_npzs", "mapillary/metadata", "mapillary/imagery")
    roots = [*(folder / part for part in parts), indicators, *indicators.glob("*")]
    files = {str(path) for root in roots if root.is_dir() for path in root.iterdir()}
    for path in sorted(path for path in files if path.lower().endswith(HALF)):
        yield f"{path} is a half-finished download; finish it or delete it"
