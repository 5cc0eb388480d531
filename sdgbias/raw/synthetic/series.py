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
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

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
#: Series -> (value at wealth -2, value at wealth +2, geometric scale?, decimals).
CURVES: dict[str, tuple[float, float, bool, int]] = {
    "sh_sta_stunt": (45, 4, False, 1),
    "sh_sta_waste": (18, 1, False, 1),
    "sh_acs_unhc": (25, 80, False, 0),
    "eg_elc_accs": (8, 100, False, 2),
    "sh_h2o_safe": (5, 95, False, 2),
    "sh_san_safe": (5, 95, False, 2),
    "sp_acs_bsrvh2o": (35, 99, False, 2),
    "sp_acs_bsrvsan": (8, 97, False, 2),
    "sh_sta_wash": (60, 0.5, True, 1),
    "se_tot_cplr": (10, 95, False, 2),
    "ncd_pac": (10, 45, False, 3),
    "haq": (25, 75, False, 1),
    "shdi": (0.35, 0.85, False, 3),
    "edindex": (0.20, 0.82, False, 3),
    "healthindex": (0.48, 0.92, False, 3),
}


def curve(series: str, wealth: float) -> float:
    """The indicator's value at a wealth: straight between -2 and +2, flattening outside, never
    beyond the range."""
    low, high, geometric, decimals = CURVES[series]
    t = (wealth + 2.0) / 4.0
    t = (
        0.02 + 0.96 * t
        if 0 <= t <= 1
        else 0.02 * math.exp(48 * t)
        if t < 0
        else 1 - 0.02 * math.exp(48 * (1 - t))
    )
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


def _write(
    path: Path, header: str, rows: Iterable[Sequence[object]], quoting: int = csv.QUOTE_MINIMAL
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n", quoting=quoting)  # type: ignore[arg-type]
        writer.writerow(header.split(","))
        writer.writerows(rows)


def _places(seed: int, countries: Sequence[str]) -> list[tuple[str, int, float]]:
    """(country, M49, wealth) with the World first, as the real files have it."""
    own = sorted((int(crosswalk()[cc]["m49"]), cc) for cc in countries)
    return [(WORLD, 1, WORLD_WEALTH), *((cc, m49, country_wealth(seed, cc)) for m49, cc in own)]


def _sparse(seed: int, series: str, cc: str) -> list[int]:
    """The years of a survey-based series: the country's two rounds and about every third other year
    of 2000-2018."""
    if cc == WORLD:
        return [2000, 2005, 2010, 2015]
    kept = keyed(seed, "years", series, cc).random(19) < 0.3
    return sorted({*(2000 + i for i in range(19) if kept[i]), *(s.year for s in surveys(seed, cc))})


def _unsd(out: Path, seed: int, countries: Sequence[str]) -> None:
    places = _places(seed, countries)

    def rows(
        series: str,
        years: Callable[[str], Iterable[int]],
        before: tuple[str, ...],
        after: tuple[str, ...],
    ) -> list[tuple[object, ...]]:
        return [
            (*before, m49, *after, year, value_at(seed, series, cc, "all", w, year))
            for cc, m49, w in places
            for year in years(cc)
        ]

    for series in ("sh_sta_stunt", "sh_sta_waste"):
        _write(
            out / f"ddf--datapoints--{series}--by--age--geo_area--nature--units--year.csv",
            f"age,geo_area,nature,units,year,{series}",
            rows(series, partial(_sparse, seed, series), ("lt5y",), ("ca", "per_pop_u5")),
        )
    _write(
        out / "ddf--datapoints--sh_acs_unhc--by--geo_area--nature--units--year.csv",
        "geo_area,nature,units,year,sh_acs_unhc",
        rows("sh_acs_unhc", lambda cc: (2000, 2005, 2010, 2015, 2017), (), ("e", "index")),
    )
    _write(
        out / "ddf--datapoints--sh_sta_wash--by--age--geo_area--nature--sex--units--year.csv",
        "age,geo_area,nature,sex,units,year,sh_sta_wash",
        rows("sh_sta_wash", lambda cc: (2016,), ("notspec",), ("e", "notspec", "per_100000_pop")),
    )
    for series in ("eg_elc_accs", "sh_h2o_safe", "sh_san_safe", "sp_acs_bsrvh2o", "sp_acs_bsrvsan"):
        nature = "c" if series == "eg_elc_accs" else "e"
        _write(
            out / f"ddf--datapoints--{series}--by--geo_area--location--nature--units--year.csv",
            f"geo_area,location,nature,units,year,{series}",
            (
                (
                    m49,
                    area,
                    nature,
                    "percent",
                    year,
                    value_at(seed, series, cc, area, w + step, year),
                )
                for cc, m49, w in places
                for area, step in _STRATA.items()
                for year in range(2000, 2019)
            ),
        )
    school = "se_tot_cplr"
    by = "education_level,geo_area,location,nature,quantile,sex,units,year"
    _write(
        out / f"ddf--datapoints--{school}--by--{by.replace(',', '--')}.csv",
        f"{by},{school}",
        (
            (
                level,
                m49,
                "allarea",
                "e",
                fifth,
                sex,
                "percent",
                y,
                value_at(seed, school, cc, "all", w + ahead, y),
            )
            for level, easier in (("lowsec", 0.0), ("primar", 0.9))
            for cc, m49, w in places[1:]
            for fifth, richer in (("q1", -0.9), ("q5", 0.9), ("t", 0.0))
            for sex, gap in (("bothsex", 0.1), ("female", 0.0), ("male", 0.2))
            for ahead in (easier + richer + gap,)
            for y in _sparse(seed, school, cc)
        ),
    )


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
            shown = (
                ("No data", "", "", "")
                if silent
                else (f"{value:.1f} [{low:.1f}-{high:.1f}]", value, low, high)
            )
            place = (COUNTRIES[cc]["who_region"], "", table[cc]["iso3"])
            who.append(
                ("NCD_PAC", "PUBLISHED", "2010", *place, "YEARS18-PLUS", sex, *map(str, shown), "")
            )
    _write(
        out / "who_gho" / "NCD_PAC.csv",
        "GHO,PUBLISHSTATE,YEAR,REGION,WORLDBANKINCOMEGROUP,COUNTRY,AGEGROUP,SEX,Display"
        " Value,Numeric,Low,High,Comments",
        who,
        csv.QUOTE_ALL,
    )
    _write(
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
    for series in ("shdi", "edindex", "healthindex"):
        _write(
            out / "gdl_shdi" / f"{series}--by--national--year.csv",
            f"national,year,{series}",
            (
                (
                    f"{table[cc]['iso3'].lower()}t",
                    year,
                    value_at(seed, series, cc, "all", wealth, year),
                )
                for cc in ordered
                for wealth in (country_wealth(seed, cc),)
                for year in range(1990, 2020)
            ),
        )
        _write(
            out / "gdl_shdi" / f"{series}--by--subnat--year.csv",
            f"subnat,year,{series}",
            (
                (gdl_code(cc, region), year, value_at(seed, series, cc, str(region), wealth, year))
                for cc, region in regions
                for wealth in (country_wealth(seed, cc) + region_offset(seed, cc, region),)
                for year in range(1990, 2020)
            ),
        )
    _write(
        out / "gdl_shdi" / "entities_national.csv",
        "national,gdlcode,iso_code,name,is--national",
        (
            (f"{i.lower()}t", f"{i}t", i, table[cc]["name"], "TRUE")
            for cc in ordered
            for i in (table[cc]["iso3"],)
        ),
    )
    _write(
        out / "gdl_shdi" / "entities_subnat.csv",
        "subnat,gdlcode,is--subnat,national,name",
        (
            (
                gdl_code(cc, r),
                f"{i}r{100 + r}",
                "TRUE",
                f"{i.lower()}t",
                f"{table[cc]['name']} - Region {r}",
            )
            for cc, r in regions
            for i in (table[cc]["iso3"],)
        ),
    )
    _write(
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
