"""DHS clusters: the packaged country table and the reader of SustainBench's label file (DATA.md
sections 1 and 7).

An unusable row is quarantined with a reason; an impossible value is blanked with a reason and the
row stays. Of several rows with one id the most complete is kept, whatever their order in the file.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.errors import InputError
from sdgbias.raw.text_tables import decimal_points, first_faults, numbers, read_text, years
from sdgbias.types import QUARANTINE_COLUMNS

LABELS_FILE = "dhs_final_labels.csv"
ID_PATTERN = re.compile(r"[A-Z]{2}-\d{4}-\d[#A-Z]-\d{8}")
UNKNOWN_ADM1 = 9999

#: Closed ranges of what a cluster mean can be, with the unit. asset_index, a first principal
#: component, is unbounded. women_bmi: DHS flags a woman's BMI below 12 or above 60 as implausible
#: (2400 is DHS's v445 not yet divided by 100).
LABEL_RANGES: dict[str, tuple[float, float, str]] = {
    "asset_index": (-np.inf, np.inf, "(principal component)"),
    "water_index": (1.0, 5.0, "(index)"),
    "sanitation_index": (1.0, 5.0, "(index)"),
    "under5_mort": (0.0, 1000.0, "deaths per 1,000 live births"),
    "women_edu": (0.0, 18.0, "years"),
    "women_bmi": (12.0, 60.0, "kg/m2"),
}
LABELS = tuple(LABEL_RANGES)
#: Of every numeric column.
RANGES = {
    "lat": (-90.0, 90.0, "degrees"),
    "lon": (-180.0, 180.0, "degrees"),
    "adm1dhs": (0.0, 2.0**31 - 1, "(region code)"),
} | LABEL_RANGES
#: The 21 columns of SustainBench's file, in its order (the reader goes by name; further columns are
#: ignored).
COLUMNS = (
    *("DHSID_EA", "cname", "year", "lat", "lon", "n_asset", "asset_index", "n_water"),
    *("water_index", "n_sanitation", "sanitation_index", "under5_mort", "n_under5_mort"),
    *("women_edu", "women_bmi", "n_women_edu", "n_women_bmi"),
    *("cluster_id", "adm1fips", "adm1dhs", "urban"),
)
_MISSING = ("", "na", "nan", "none", "null")
#: DHS's code for a missing number. Outside every other range, but inside that of an unbounded
#: principal component.
MISSING_CODE = -9.0
_AGAIN = "get SustainBench's dhs_final_labels.csv, whose 21 columns may be in any order"


@cache
def _countries() -> pd.DataFrame:
    with files("sdgbias").joinpath("data/countries.csv").open(encoding="utf-8") as lines:
        # keep_default_na: Namibia's ISO-2 code is the string 'NA'
        return pd.read_csv(lines, keep_default_na=False, dtype={"m49": "int32"})


def countries() -> pd.DataFrame:
    """The 56 countries: cname (DHS code, not ISO-2 for ten of them), iso2, iso3, m49, name,
    official_split."""
    return _countries().copy()


def read_clusters(raw: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read ``raw/dhs_final_labels.csv`` into (clusters, quarantine).

    clusters, sorted by cluster_id (the DHSID_EA): cluster_id, cname, iso3, country, survey, year
    int32, lat, lon (degrees), urban ('U', 'R' or '' unknown), adm1dhs int32 (9999 unknown),
    official_split, and the six labels (double, NaN unknown; units in LABEL_RANGES). quarantine:
    table, key, rule, detail; table 'clusters' (the row left) or 'labels' (only the value was
    blanked). A year such as '2016-2017' counts for its first; bytes that aren't UTF-8 do no harm
    outside the id. Raises InputError when the file or a column is missing, or no row is usable.
    """
    path = Path(raw) / LABELS_FILE
    if not path.is_file():
        raise InputError(
            f"no file {path}; --raw wants SustainBench's layout ('sdgbias sample' writes a small"
            " one)"
        )
    table = decimal_points(path, read_text(path, COLUMNS, _AGAIN))
    table = table.assign(line=table.index, year_number=years(table["year"]))
    faults = _row_faults(table).assign(table="clusters", key=table["DHSID_EA"])
    left = faults[faults["rule"] != ""]
    kept = table[faults["rule"] == ""].sort_values("DHSID_EA", kind="stable", ignore_index=True)
    if kept.empty:
        rules = ", ".join(sorted(set(left["rule"]))) or "no rows"
        first = f"; first: {left['detail'].iloc[0]}" if len(left) else ""
        raise InputError(
            f"{path}: none of its {len(table)} rows is usable ({rules}{first}); get SustainBench's"
            " file or run 'sdgbias sample'"
        )
    values, blanked = _values(kept)
    lost = pd.concat([left, *blanked])[QUARANTINE_COLUMNS].astype("str")
    place = _countries().set_index("cname").loc[kept["cname"]].reset_index(drop=True)
    clusters = pd.DataFrame(
        {
            "cluster_id": kept["DHSID_EA"],
            "cname": kept["cname"],
            "iso3": place["iso3"],
            "country": place["name"],
            "survey": kept["DHSID_EA"].str[:10],
            "year": kept["year_number"].astype("int32"),
            "lat": values["lat"],
            "lon": values["lon"],
            "urban": values["urban"],
            "adm1dhs": values["adm1dhs"].fillna(UNKNOWN_ADM1).astype("int32"),
            "official_split": place["official_split"],
            **{name: values[name] for name in LABELS},
        }
    )
    return clusters, lost.sort_values(QUARANTINE_COLUMNS, ignore_index=True)


def _row_faults(table: pd.DataFrame) -> pd.DataFrame:
    """rule and detail of each row, of the first fault that it has; '' for a row that can be
    used."""
    ids, cname, line = table["DHSID_EA"], table["cname"], "line " + table["line"].astype("str")
    name = _countries().set_index("cname")["name"]
    begins = ids.str[:2].map(repr) + " (" + ids.str[:2].map(name).fillna("no known country") + ")"
    faults = [
        (
            "malformed-id",
            ~ids.str.fullmatch(ID_PATTERN.pattern),
            "DHSID_EA " + ids.map(repr) + " is not of the form CC-YYYY-V#-00000000",
        ),
        (
            "unknown-country",
            ~cname.isin(name.index),
            "cname " + cname.map(repr) + " is none of the 56 DHS codes",
        ),
        (
            "inconsistent-metadata",
            cname != ids.str[:2],
            "cname " + cname.map(repr) + " (" + cname.map(name) + ") but DHSID_EA begins " + begins,
        ),
        (
            "inconsistent-metadata",
            # surveys span New Year; an unreadable year fails too
            ~((table["year_number"] - numbers(ids.str[3:7])).abs() <= 1),
            "year " + table["year"].map(repr) + " but DHSID_EA says " + ids.str[3:7],
        ),
    ]
    usable = table[first_faults(faults)["rule"] == ""]
    # the fullest row of each id, then the first by text: the order of the file decides nothing
    filled = sum((~table[label].str.lower().isin(_MISSING)).astype(int) for label in LABELS)
    ranked = usable.assign(filled=filled).sort_values(
        ["filled", *COLUMNS, "line"], ascending=[False] + [True] * 22, kind="stable"
    )
    kept = ranked.drop_duplicates("DHSID_EA")
    kept_line = ids.map(kept.set_index("DHSID_EA")["line"]).astype("str")
    is_repeated = pd.Series(table.index.isin(usable.index.difference(kept.index)), table.index)
    repeats = "repeats line " + kept_line.str.removesuffix(".0") + ", which is kept"
    first = first_faults([*faults, ("duplicate-cluster", is_repeated, repeats)])
    return first.assign(detail=line + ": " + first["detail"])


def _values(kept: pd.DataFrame) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """The values of RANGES, NaN outside of them, and urban; the quarantine rows of what was
    blanked, by column."""
    values, blanked = {}, []
    for name, (low, high, unit) in RANGES.items():
        number = numbers(kept[name])
        is_valid = np.isfinite(number) & number.between(low, high)
        wanted = f"{low:g} to {high:g} {unit}"
        if not np.isfinite(low):
            is_valid &= number != MISSING_CODE
            wanted = f"the finite numbers {unit}, where {MISSING_CODE:g} means missing"
        elif name == "adm1dhs":  # the number of a region, not a measurement
            is_valid &= number % 1 == 0
            wanted = f"the whole numbers {wanted}"
        values[name] = number.where(is_valid)
        blanked.append(_blanked(kept, name, is_valid, wanted))
    # DHS writes 0, 0 where the position is unknown
    nowhere = (values["lat"] == 0) & (values["lon"] == 0)
    values |= {name: values[name].mask(nowhere) for name in ("lat", "lon")}
    urban = kept["urban"].str.upper()
    values["urban"] = urban.where(urban.isin(["U", "R"]), "")
    blanked.append(_blanked(kept, "urban", urban.isin(["U", "R"]), "U, R and empty"))
    return pd.DataFrame(values), blanked


def _blanked(kept: pd.DataFrame, name: str, is_valid: pd.Series[bool], wanted: str) -> pd.DataFrame:
    """Quarantine rows of the texts of a column that are neither valid nor missing."""
    wrong = kept[~is_valid & ~kept[name].str.lower().isin(_MISSING)]
    detail = f"{name} " + wrong[name].map(repr) + f" is outside {wanted}"
    return pd.DataFrame(
        {"table": "labels", "key": wrong["DHSID_EA"], "rule": "value-out-of-range"}
    ).assign(detail=detail)
