"""Indicator series: the original dumps (or tidy CSVs) of a folder become one tidy frame for the 56
countries.

Columns: series, iso3, region ('' national, else the Global Data Lab code in lower case), stratum
('all', 'urban', 'rural'), year (int), value (float), source. Regional aggregates and other
countries are left out. Traps of the dumps: M49 codes, years such as '2016-2017', Latin-1, blanks
and -9 for missing, region codes in mixed case, country names. A file with codes of another kind
than expected is rejected: otherwise it would silently lose every row.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.errors import InputError
from sdgbias.files import packaged_yaml
from sdgbias.raw.clusters import countries
from sdgbias.raw.text_tables import decimal_points, head, numbers, read_text, refuse, years

COLUMNS = ("series", "iso3", "region", "stratum", "year", "value", "source")
REGIONS_FILE = "gdl_regions.csv"
REGION_NAMES_FILE = "gdl_region_names.csv"
STRATA = {"allarea": "all", "urban": "urban", "rural": "rural"}
#: unsd, dumps and area: the files of each series, and which of their columns is which.
SOURCES = packaged_yaml("series.yaml")
UNSD: dict[str, dict[str, tuple[str, ...]]] = SOURCES["unsd"]
SHDI = ("shdi", "edindex", "healthindex")
AREA: dict[str, str] = SOURCES["area"]
#: The paper's custom indicator, undefined there; ours: 1 - |edindex - healthindex| of the same
#: region and year.
ALIGNMENT = "ed_health_alignment"
#: Every series that an indicator may name.
SERIES = (*UNSD, "cr_2_f", "ncd_pac", "haq", *SHDI, *AREA, ALIGNMENT)

_MISSING = ("", "no data", "nan", "na", "n/a", "..", "-")


def read_series(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read all series in ``folder``; return (tidy frame sorted by its keys, names in SERIES that
    weren't found).

    Reads the subfolders unsd_sdg, uis, who_gho, ihme_haq, gdl_shdi, gdl_area and tidy, and at CSV
    files with the tidy header in ``folder`` itself (so that data/indicators is such a folder). A
    dump takes precedence over a tidy copy of the same value. Raises InputError for a missing
    folder, a folder without any series, a file that lacks a column, or a non-numeric value.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"no folder {folder}; pass --indicators with the series' folder, e.g. data/indicators"
            " of this project"
        )
    parts = [part for reader in _READERS for part in reader(folder)]
    if not parts:
        raise InputError(
            f"{folder} holds no indicator series; wants unsd_sdg, uis, who_gho, ihme_haq, gdl_shdi,"
            f" gdl_area or tables of one's own ({', '.join(COLUMNS)}) in it; pass --indicators"
            " data/indicators for the open series of this project"
        )
    frame = pd.concat(parts, ignore_index=True)
    keys = list(COLUMNS[:5])
    frame = frame.drop_duplicates(keys)  # parts are in order of preference
    frame = pd.concat([frame, _alignment(frame)], ignore_index=True).drop_duplicates(keys)
    frame = frame.sort_values(keys, kind="stable").reset_index(drop=True)
    present = set(frame["series"].unique())
    return frame, [name for name in SERIES if name not in present]


def read_gdl_regions(folder: Path) -> pd.DataFrame:
    """The optional gdl_regions.csv: cname, adm1dhs int32, gdl_region, the Global Data Lab region of
    a survey's region.

    No rows where the file is absent. Raises InputError for unknown countries, codes that are no
    numbers and double lines.
    """
    path, names = Path(folder) / REGIONS_FILE, ["cname", "adm1dhs", "gdl_region"]
    if not path.is_file():
        return pd.DataFrame(columns=names, dtype="str").astype({"adm1dhs": "int32"})
    table = read_text(path, names)
    unknown = table["cname"][~table["cname"].isin(countries()["cname"])]
    refuse(path, unknown, "DHS codes such as NM (Namibia)")
    number = numbers(table["adm1dhs"])
    is_code = number.between(0, 2**31 - 1) & (number % 1 == 0)
    refuse(path, table["adm1dhs"][~is_code], "the survey's region codes, which are whole numbers")
    table["adm1dhs"] = number.astype("int32")
    table["gdl_region"] = table["gdl_region"].str.lower()
    table = table.drop_duplicates()
    twice = table[table.duplicated(["cname", "adm1dhs"])]
    if len(twice):
        row = twice.iloc[0]
        raise InputError(
            f"{path}: {row['cname']},{row['adm1dhs']} lies in two regions; keep one line for each"
            " survey region"
        )
    return table.sort_values(["cname", "adm1dhs"], ignore_index=True)


def read_region_names(folder: Path) -> pd.DataFrame:
    """Names of the Global Data Lab's regions: iso3, region (code in lower case), name without its
    country; a region has several rows where it has several names. No rows without any.

    Reads gdl_region_names.csv (shipped with data/indicators) and what lies beside the dumps:
    gdl_shdi/entities_subnat.csv and the regions of the area file. Raises InputError for a file that
    lacks a column.
    """
    parts = []
    for pattern, region, name in (
        (REGION_NAMES_FILE, "region", "name"),
        (f"tidy/{REGION_NAMES_FILE}", "region", "name"),
        ("gdl_shdi/entities_subnat.csv", "subnat", "name"),
        ("gdl_area/GDL-AreaData*.csv", "GDLCODE", "region"),
    ):
        for path in sorted(Path(folder).glob(pattern)):
            table = read_text(path, (region, name))
            parts.append(pd.DataFrame({"region": table[region].str.lower(), "name": table[name]}))
    if not parts:
        return pd.DataFrame({"iso3": [], "region": [], "name": []}, dtype="str")
    names = pd.concat(parts, ignore_index=True)
    names = names[names["region"].str.fullmatch(r"[a-z]{3}r\d{3}")]
    names.insert(0, "iso3", names["region"].str[:3].str.upper())
    names = names[names["iso3"].isin(set(countries()["iso3"]))].copy()
    names["name"] = names["name"].str.replace(r"^[^(]*? - ", "", regex=True).str.strip()
    names = names[names["name"] != ""].drop_duplicates()
    return names.sort_values(["region", "name"], kind="stable", ignore_index=True).astype("str")


def iso3_of_name(name: str) -> str:
    """ISO-3 code of a country name as dumps write it, '' for aggregates and countries outside the
    56."""
    return _names().get(_plain(name), "")


@cache
def _names() -> dict[str, str]:
    also = packaged_yaml("country_names.yaml")
    return countries().set_index(countries()["name"].map(_plain))["iso3"].to_dict() | {
        name: iso3 for iso3, names in also.items() for name in names
    }


def _plain(name: str) -> str:
    """Lower case without accents, typographic apostrophes and doubled blanks."""
    letters = unicodedata.normalize("NFKD", name.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    return " ".join("".join(c for c in letters if not unicodedata.combining(c)).lower().split())


def _tidy(path: Path, raw: pd.DataFrame, series: str, source: str) -> pd.DataFrame:
    """(iso3, region, stratum, year text, value text) -> COLUMNS, without other countries and
    missing values."""
    frame = decimal_points(path, raw[raw["iso3"].isin(set(countries()["iso3"]))]).copy()
    text, year = frame["value"], years(frame["year"])
    value = numbers(text)
    blank = text.str.lower().isin(_MISSING)
    refuse(path, text[~np.isfinite(value) & ~blank], "numbers")
    refuse(path, frame["year"][year.isna()], "years such as 2016 or 2016-2017")
    # a span counts for its first year
    spans = frame["year"].mask(frame["year"].str.fullmatch(r"\d{4}(\.0)?"), "")
    frame["year"], frame["value"] = year.astype("int64"), value
    frame["series"] = series
    frame["source"] = (source + " (" + spans + ")").where(spans != "", source)
    frame = frame[value.notna() & (value != -9.0)]
    return frame[list(COLUMNS)]


def _unsd(folder: Path) -> Iterator[pd.DataFrame]:
    """UN SDG database as DDF files: M49 codes, aggregates among the countries, one row per nature
    of the value."""
    m49 = countries().set_index("m49")["iso3"].to_dict()
    for series, accepted in UNSD.items():
        for path in sorted((folder / "unsd_sdg").glob(f"*datapoints--{series}--*.csv")):
            by_place = "--location--" in path.name or "location" in _header(path)
            names = ["geo_area", "year", series, "nature", *["location"] * by_place, *accepted]
            table = read_text(path, names)
            for column, values in accepted.items():
                table = table[table[column].isin(values)]
            area = numbers(table["geo_area"])
            refuse(path, table["geo_area"][area.isna()], "UN M49 numbers such as 404 (Kenya)")
            # 1 (World) and other aggregates have no country and leave here
            table["iso3"] = area.map(m49)
            table["stratum"] = table["location"].map(STRATA) if by_place else "all"
            table = table[table["iso3"].notna() & table["stratum"].notna()]
            table = table.assign(region="", value=table[series])
            table = _ranked(table, {**accepted, "nature": SOURCES["natures"]})
            tidy = _tidy(path, table, series, f"unsd_sdg {series.upper()}")
            yield tidy.drop_duplicates(["iso3", "stratum", "year"])


def _ranked(table: pd.DataFrame, orders: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """``table`` by the places of its texts in these lists, other texts last, then by value."""

    def rank(column: pd.Series) -> pd.Series:
        order = orders.get(str(column.name))
        return column if order is None else column.map({text: at for at, text in enumerate(order)})

    return table.sort_values([*orders, "value"], key=rank, na_position="last", kind="stable")


def _dumps(folder: Path) -> Iterator[pd.DataFrame]:
    """UNESCO's female lower-secondary completion, IHME's HAQ index (GBD 2015) as Our World in Data
    ships it, Global Data Lab's SHDI and its education and health index."""
    for dump in SOURCES["dumps"]:
        for path in sorted(folder.glob(dump["files"])):
            table = read_text(path, (dump["place"], dump["year"], dump["value"]))
            table.columns = pd.Index(["place", "year", "value"])
            table = table.assign(stratum="all", region="")
            if dump["is"] == "name":
                table["iso3"] = table["place"].map(iso3_of_name)
            elif dump["is"] == "iso3":
                table["iso3"] = table["place"].str.upper()
            else:
                table["iso3"] = table["place"].str[:3].str.upper()
            if dump["is"] == "region":
                table["region"] = table["place"].str.lower()
            yield _tidy(path, table, dump["series"], dump["source"])


def _who(folder: Path) -> Iterator[pd.DataFrame]:
    """WHO GHO: both sexes; where a country has no such row, the mean of women and men."""
    for path in sorted((folder / "who_gho").glob("NCD_PAC.csv")):
        table = read_text(path, ("COUNTRY", "YEAR", "SEX", "AGEGROUP", "Numeric"))
        table = table[table["AGEGROUP"].isin(["YEARS18-PLUS", ""])]
        names = {"COUNTRY": "iso3", "YEAR": "year", "Numeric": "value"}
        table = table.rename(columns=names).assign(region="", stratum="all")
        keys = ["iso3", "region", "stratum", "year"]
        both = _tidy(path, table[table["SEX"] == "BTSX"], "ncd_pac", "who_gho NCD_PAC")
        each = [
            _tidy(path, table[table["SEX"] == sex], "ncd_pac", "who_gho NCD_PAC, mean of sexes")
            for sex in ("FMLE", "MLE")
        ]
        mean = each[0].merge(each[1][[*keys, "value"]], on=keys, suffixes=("", "_men"))
        mean["value"] = (mean["value"] + mean.pop("value_men")) / 2
        yield pd.concat([both, mean], ignore_index=True).drop_duplicates(keys)


def _area(folder: Path) -> Iterator[pd.DataFrame]:
    """Global Data Lab's area file (Latin-1; blank or -9 is missing): regions, urban and rural,
    national totals."""
    names = tuple(AREA.values())
    for path in sorted((folder / "gdl_area").glob("GDL-AreaData*.csv")):
        table = read_text(path, ("iso_code", "year", "GDLCODE", "level", *names))
        code = table["GDLCODE"].str.lower()
        place = code.str[3:].map({"t": "all", "tu": "urban", "tr": "rural"})
        table = table.assign(
            iso3=table["iso_code"].str.upper(),
            region=code.where(place.isna(), ""),
            stratum=place.fillna("all"),
        )
        for series, column in AREA.items():
            yield _tidy(path, table.assign(value=table[column]), series, f"gdl_area {column}")


def _tidies(folder: Path) -> Iterator[pd.DataFrame]:
    """CSVs (or .csv.gz) with the tidy header: all of tidy/, and those of the folder with a `series`
    column."""
    for path in sorted((folder / "tidy").glob("*")):
        if path.suffix.lower() in (".xlsx", ".xls", ".ods", ".tsv"):
            raise InputError(f"{path}: no CSV; save its table as CSV, or move it elsewhere")
    others = (REGIONS_FILE, REGION_NAMES_FILE)
    with_series = [path for path in _csvs(folder) if path.name not in others and _is_tidy(path)]
    copies = [path for path in _csvs(folder / "tidy") if path.name != REGION_NAMES_FILE]
    for path in [*copies, *with_series]:
        table = read_text(path, COLUMNS, "write it again, cells with commas in quotes")
        unknown = sorted(set(table["series"].unique()) - set(SERIES))
        if unknown:
            raise InputError(
                f"{path}: unknown series {unknown[0]!r}; valid: {', '.join(sorted(SERIES))}"
            )
        other = table["stratum"][~table["stratum"].isin(STRATA.values())]
        refuse(path, other, "all, urban or rural")
        other = table["stratum"][(table["region"] != "") & (table["stratum"] != "all")]
        refuse(path, other, "all in the rows of a region")
        table["iso3"], table["region"] = table["iso3"].str.upper(), table["region"].str.lower()
        other = table["iso3"][~table["iso3"].str.fullmatch("[A-Z]{3}")]
        refuse(path, other, "ISO-3 codes such as KEN, not UN M49 numbers or DHS codes")
        tidy = _tidy(path, table, "", "")
        rows = table.loc[tidy.index]
        origin = (rows["source"] + tidy["source"]).str.strip()
        tidy = tidy.assign(series=rows["series"], source=origin)
        _refuse_two_values(path, tidy.assign(year=rows["year"]))
        yield tidy


def _refuse_two_values(path: Path, written: pd.DataFrame) -> None:
    """Raises InputError where a place has two values of a series in a year as written; a span such
    as 2016-2017 is another row than its first year."""
    keys = list(COLUMNS[:5])
    differing = written.drop_duplicates([*keys, "value"])
    twice = differing[differing.duplicated(keys, keep=False)].sort_values(keys, kind="stable")
    if len(twice):
        one, other = twice.iloc[0], twice.iloc[1]
        place = " ".join(filter(None, [one["iso3"], one["region"], one["stratum"]]))
        raise InputError(
            f"{path}: {one['series']} of {place} in {one['year']} has two values,"
            f" {one['value']:g} and {other['value']:g}; keep one of the rows"
        )


def _is_tidy(path: Path) -> bool:
    """Also of a table below a title, which its reader then refuses."""
    return "series" in _header(path) or any(
        b"series" in line and b"stratum" in line for line in head(path)[:4096].lower().splitlines()
    )


def _csvs(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if p.name.lower().endswith((".csv", ".csv.gz")))


def _header(path: Path) -> list[str]:
    """The names of the columns in small letters: of a file that can't be read or has the wrong
    names, a whole series would be lost. Raises InputError."""
    return list(read_text(path, rows=0).columns.str.lower())


def _alignment(frame: pd.DataFrame) -> pd.DataFrame:
    """ALIGNMENT wherever both indices are known; rounded to 6 decimals so that 1 - |0.6 - 0.3| is
    0.7."""
    keys = ["iso3", "region", "stratum", "year"]
    education, health = (frame[frame["series"] == name][[*keys, "value"]] for name in SHDI[1:])
    both = education.merge(health, on=keys, suffixes=("_education", "_health"))
    both["value"] = (1 - (both["value_education"] - both["value_health"]).abs()).round(6)
    both = both.assign(series=ALIGNMENT, source="gdl_shdi, 1 - |edindex - healthindex|")
    return both[list(COLUMNS)]


_READERS: tuple[Callable[[Path], Iterator[pd.DataFrame]], ...]
_READERS = (_unsd, _dumps, _who, _area, _tidies)
