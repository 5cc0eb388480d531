"""Synthetic indicator series in the file formats of the public dumps (UNSD, WHO, IHME/OWID, Global
Data Lab).

Every value is a monotone function of the same latent wealth that the images show: the country's,
the country's urban or rural stratum's, or the region's, plus a small offset per indicator and place
and a slow gain over time. Units and ranges are those of the real series; world aggregates and decoy
rows (other sexes, quintiles, 'No data') are included because readers must skip them. All figures
are invented.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from sdgbias.files import packaged_yaml
from sdgbias.raw.clusters import countries
from sdgbias.raw.synthetic.latent import (
    COUNTRIES,
    REGIONS,
    RURAL_STEP,
    URBAN_STEP,
    country_wealth,
    keyed,
    region_offset,
    surveys,
)


@cache
def crosswalk() -> dict[str, dict[str, Any]]:
    """DHS country code -> its row of data/countries.csv."""
    rows: dict[str, dict[str, Any]] = countries().set_index("cname").to_dict("index")  # type: ignore[assignment]
    return rows


PLACE_SD = 0.12  # wealth units: standard deviation of a place's indicator from its wealth
GAIN = 0.03  # wealth units a year, 0 in 2010
WORLD = "WLD"
WORLD_WEALTH = 0.6
_STRATA = {"allarea": 0.0, "rural": RURAL_STEP, "urban": URBAN_STEP}
_SAMPLE = packaged_yaml("synthetic.yaml")
#: Series -> (value at wealth -2, value at wealth +2, geometric scale?, decimals).
CURVES: dict[str, tuple[float, float, bool, int]] = _SAMPLE["curves"]


def curve(series: str, wealth: float) -> float:
    """The indicator's value at a wealth: straight between -2 and +2, flattening outside, never
    beyond the range."""
    low, high, geometric, decimals = CURVES[series]
    t = (wealth + 2.0) / 4.0
    if t < 0:
        t = 0.02 * math.exp(48 * t)
    else:
        t = 0.02 + 0.96 * t if t <= 1 else 1 - 0.02 * math.exp(48 * (1 - t))
    value = low * (high / low) ** t if geometric else low + (high - low) * t
    return round(value, decimals)


def value_at(seed: int, series: str, cc: str, place: str, wealth: float, year: int) -> float:
    """One figure of the series. ``place``: 'all', 'urban', 'rural' or a region number; it keys the
    offset."""
    offset = PLACE_SD * _offset(seed, series, cc, place)
    return curve(series, wealth + offset + GAIN * (year - 2010))


@cache
def _offset(seed: int, series: str, cc: str, place: str) -> float:
    return float(keyed(seed, "series", series, cc, place).normal())


def gdl_code(cc: str, region: int) -> str:
    """Global Data Lab code of a region in lower case, e.g. 'senr101'."""
    return f"{crosswalk()[cc]['iso3'].lower()}r{100 + region}"


def _nation(cc: str) -> str:
    """The Global Data Lab's code of a country, e.g. 'sent'."""
    return f"{crosswalk()[cc]['iso3'].lower()}t"


def write_csv(path: Path, header: str, rows: Iterable[Sequence[object]], **form: Any) -> None:
    """A CSV file, None as an empty field. form: as of csv.writer; lines end in '\\n' otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, **{"lineterminator": "\n", **form})
        writer.writerow(header.split(","))
        writer.writerows(rows)


def _places(seed: int, countries: Sequence[str]) -> list[tuple[str, int, float]]:
    """(country, M49, wealth) with the World first, as the real files have it."""
    codes = sorted((int(crosswalk()[cc]["m49"]), cc) for cc in countries)
    return [(WORLD, 1, WORLD_WEALTH), *((cc, m49, country_wealth(seed, cc)) for m49, cc in codes)]


def _sparse(seed: int, series: str, cc: str) -> list[int]:
    """The years of a survey-based series: the country's two rounds and about every third other year
    of 2000-2018."""
    if cc == WORLD:
        return [2000, 2005, 2010, 2015]
    kept = keyed(seed, "years", series, cc).random(19) < 0.3
    return sorted({*(2000 + i for i in range(19) if kept[i]), *(s.year for s in surveys(seed, cc))})


def _unsd(out: Path, seed: int, countries: Sequence[str]) -> None:
    places = _places(seed, countries)
    for series, about in _SAMPLE["unsd"].items():
        names = [*about["columns"], "year"]
        write_csv(
            out / f"ddf--datapoints--{series}--by--{'--'.join(names)}.csv",
            ",".join([*names, series]),
            _unsd_rows(seed, series, about, places if about.get("world", True) else places[1:]),
        )


def _unsd_rows(
    seed: int, series: str, about: Mapping[str, Any], places: Sequence[tuple[str, int, float]]
) -> Iterator[tuple[object, ...]]:
    """One row per place, other choice of texts and year, in the order of the columns."""
    columns: dict[str, Any] = {
        name: _STRATA if texts == "strata" else texts if isinstance(texts, dict) else {texts: 0.0}
        for name, texts in about["columns"].items()
    }
    columns["geo_area"] = dict.fromkeys(places, 0.0)
    for chosen in product(*(texts.items() for texts in columns.values())):
        row = {name: text for name, (text, _) in zip(columns, chosen, strict=True)}
        cc, row["geo_area"], wealth = row["geo_area"]
        wealth += sum(step for _, step in chosen)
        area = row["location"] if columns.get("location") is _STRATA else "all"
        for year in _years(seed, series, cc, about["years"]):
            yield (*row.values(), year, value_at(seed, series, cc, area, wealth, year))


def _years(seed: int, series: str, cc: str, years: str | list[int]) -> Sequence[int]:
    if isinstance(years, list):
        return years
    return range(2000, 2019) if years == "all" else _sparse(seed, series, cc)


def _others(out: Path, seed: int, countries: Sequence[str]) -> None:
    places = _places(seed, countries)
    table = crosswalk()
    who: list[tuple[object, ...]] = []
    for cc, _, wealth in places[1:]:
        silent = keyed(seed, "no-data", cc).random() < 0.15
        middle = value_at(seed, "ncd_pac", cc, "all", wealth, 2010)
        for sex, factor in (("MLE", 0.88), ("FMLE", 1.12), ("BTSX", 1.0)):
            value = round(middle * factor, 5)
            low, high = round(value * 0.6, 5), round(value * 1.5, 5)
            shown = (f"{value:.1f} [{low:.1f}-{high:.1f}]", str(value), str(low), str(high))
            shown = ("No data", "", "", "") if silent else shown
            place = (COUNTRIES[cc]["who_region"], "", table[cc]["iso3"])
            who.append(("NCD_PAC", "PUBLISHED", "2010", *place, "YEARS18-PLUS", sex, *shown, ""))
    write_csv(
        out / "who_gho" / "NCD_PAC.csv",
        "GHO,PUBLISHSTATE,YEAR,REGION,WORLDBANKINCOMEGROUP,COUNTRY,AGEGROUP,SEX,Display"
        " Value,Numeric,Low,High,Comments",
        who,
        quoting=csv.QUOTE_ALL,
    )
    write_csv(
        out / "ihme_haq" / "ihme_haq_gbd2015_owid.csv",
        "Entity,Year,HAQ Index (IHME (2017))",
        sorted(
            (name, year, value_at(seed, "haq", cc, "all", w, year))
            for cc, _, w in places
            for name in (
                "World" if cc == WORLD else COUNTRIES[cc]["owid_name"] or table[cc]["name"],
            )
            for year in range(1990, 2016, 5)
        ),
    )
    ordered = sorted(countries, key=lambda cc: table[cc]["iso3"])
    regions = [(cc, region) for cc in ordered for region in REGIONS]
    of_nations = [(_nation(cc), cc, "all", country_wealth(seed, cc)) for cc in ordered]
    of_regions = [
        (gdl_code(cc, r), cc, str(r), country_wealth(seed, cc) + region_offset(seed, cc, r))
        for cc, r in regions
    ]
    for series, (kind, places_of_kind) in product(
        ("shdi", "edindex", "healthindex"), (("national", of_nations), ("subnat", of_regions))
    ):
        write_csv(
            out / "gdl_shdi" / f"{series}--by--{kind}--year.csv",
            f"{kind},year,{series}",
            (
                (code, year, value_at(seed, series, cc, place, wealth, year))
                for code, cc, place, wealth in places_of_kind
                for year in range(1990, 2020)
            ),
        )
    write_csv(
        out / "gdl_shdi" / "entities_national.csv",
        "national,gdlcode,iso_code,name,is--national",
        (
            (_nation(cc), f"{table[cc]['iso3']}t", table[cc]["iso3"], table[cc]["name"], "TRUE")
            for cc in ordered
        ),
    )
    write_csv(
        out / "gdl_shdi" / "entities_subnat.csv",
        "subnat,gdlcode,is--subnat,national,name",
        (
            (code, f"{code[:3].upper()}{code[3:]}", "TRUE", _nation(cc), f"{name} - Region {r}")
            for cc, r in regions
            for code, name in ((gdl_code(cc, r), table[cc]["name"]),)
        ),
    )
    write_csv(
        out / "gdl_regions.csv",
        "cname,adm1dhs,gdl_region",
        ((cc, region, gdl_code(cc, region)) for cc in sorted(countries) for region in REGIONS),
    )


def write_series(out: Path, seed: int, countries: Sequence[str]) -> int:
    """Write the folder ``out`` (unsd_sdg/, who_gho/, ihme_haq/, gdl_shdi/, gdl_regions.csv);
    returns the file count."""
    _unsd(out / "unsd_sdg", seed, countries)
    _others(out, seed, countries)
    return sum(1 for path in out.rglob("*.csv") if path.is_file())
