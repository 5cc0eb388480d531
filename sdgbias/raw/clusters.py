"""DHS clusters: the packaged country table and the reader of SustainBench's label file (DATA.md
sections 1 and 7).

An unusable row is quarantined with a reason; an impossible value is blanked with a reason and the
row stays. Of several rows with one id the most complete is kept, whatever their order in the file.
"""

from __future__ import annotations

import io
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.errors import InputError
from sdgbias.raw.text_tables import numbers, read_text, separator, years
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
    table = _read_labels(path)
    faults = _row_faults(table)
    lost = [("clusters", *fault) for fault in faults.itertuples(index=False, name=None)]
    kept = table.drop(faults.index)
    if kept.empty:
        rules = ", ".join(sorted({rule for _, _, rule, _ in lost})) or "no rows"
        first = f"; first: {lost[0][3]}" if lost else ""
        raise InputError(
            f"{path}: none of its {len(table)} rows is usable ({rules}{first}); get SustainBench's"
            " file or run 'sdgbias sample'"
        )
    _refuse_swapped(path, kept)
    kept = kept.sort_values("DHSID_EA", kind="stable").reset_index(drop=True)
    return _tidy(kept, lost), pd.DataFrame(sorted(lost), columns=QUARANTINE_COLUMNS, dtype="str")


def _read_labels(path: Path) -> pd.DataFrame:
    """COLUMNS as text, with each row's line of the file and its year."""
    if not path.is_file():
        raise InputError(
            f"no file {path}; --raw wants SustainBench's layout ('sdgbias sample' writes a small"
            " one)"
        )
    table = read_text(path, COLUMNS, _AGAIN, whole_lines=True)
    if separator(path) == ";":  # as spreadsheets of many languages export: with decimal commas
        table = table.replace(r"^(-?\d+),(\d+)$", r"\1.\2", regex=True)
    return table.assign(line=np.arange(2, len(table) + 2), year_number=years(table["year"]))


def _row_faults(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that can't be used, indexed as ``table``: key, rule, detail, by the first reason
    that holds."""
    names = _countries().set_index("cname")["name"].to_dict()
    ids, cname = table["DHSID_EA"], table["cname"]
    survey_year = numbers(ids.str[3:7])
    tests = {
        "malformed-id": ~ids.str.fullmatch(ID_PATTERN.pattern),
        "unknown-country": ~cname.isin(list(names)),
        "country": cname != ids.str[:2],
        # surveys span New Year; an unreadable year fails too
        "year": ~((table["year_number"] - survey_year).abs() <= 1),
    }
    failed = [bad.fillna(True).to_numpy(dtype=bool) for bad in tests.values()]
    rules = pd.Series(np.select(failed, list(tests), ""), index=table.index, dtype=object)
    usable = table[rules == ""]
    twice = usable[usable.duplicated("DHSID_EA", keep=False)]
    kept = _fullest(twice)
    rules.loc[twice.index.difference(kept.index)] = "duplicate-cluster"
    kept_line = kept.set_index("DHSID_EA")["line"].to_dict()

    def detail(rule: str, dhsid: str, code: str, year: str) -> str:
        if rule == "malformed-id":
            return f"DHSID_EA {dhsid!r} is not of the form CC-YYYY-V#-00000000"
        if rule == "unknown-country":
            return f"cname {code!r} is none of the 56 DHS codes{_meant(code)}"
        if rule == "country":
            begins = f"{dhsid[:2]!r} ({names.get(dhsid[:2], 'no known country')})"
            return f"cname {code!r} ({names[code]}) but DHSID_EA begins {begins}"
        if rule == "year":
            return f"year {year!r} but DHSID_EA says {dhsid[3:7]}"
        return f"repeats line {kept_line[dhsid]}, which is kept"

    faulty = table.assign(rule=rules)[rules != ""]
    details = map(detail, *(faulty[name] for name in ("rule", "DHSID_EA", "cname", "year")))
    lines = [f"line {line}: {text}" for line, text in zip(faulty["line"], details, strict=True)]
    shown = faulty["rule"].replace(
        {"country": "inconsistent-metadata", "year": "inconsistent-metadata"}
    )
    return pd.DataFrame({"key": faulty["DHSID_EA"], "rule": shown, "detail": lines})


def _fullest(table: pd.DataFrame) -> pd.DataFrame:
    """One row per id: most labels filled, then by text, so that the order of the file affects only
    the line number."""
    filled = sum((~table[name].str.lower().isin(_MISSING)).astype(int) for name in LABELS)
    ranked = table.assign(filled=filled).sort_values(
        ["filled", *COLUMNS, "line"], ascending=[False] + [True] * 22, kind="stable"
    )
    return table.loc[ranked.drop_duplicates("DHSID_EA").index]


def _meant(cname: str) -> str:
    """'; ...' naming the DHS code when ``cname`` is an ISO code or differs by case only."""
    table = _countries()
    for column, title in (("iso2", "ISO-2"), ("iso3", "ISO-3"), ("cname", "DHS")):
        hit = table[table[column] == cname.upper()]
        if len(hit):
            row = hit.iloc[0]
            what = f"{cname.upper()} is the {title} code of {row['name']}"
            return f"; {what}: {row['cname']} was probably meant"
    return ""


def _refuse_swapped(path: Path, kept: pd.DataFrame) -> None:
    """InputError where latitude and longitude stand in each other's column: most clusters lie
    10 degrees or more from the middle of their countries, and near it when swapped."""
    text = files("sdgbias").joinpath("data/synthetic_countries.csv").read_text(encoding="utf-8")
    table = pd.read_csv(io.StringIO(text), keep_default_na=False).set_index("cname")
    middle = table.loc[kept["cname"], ["lat", "lon"]].to_numpy(dtype=float)
    given = kept[["lat", "lon"]].apply(numbers).to_numpy()
    apart = np.hypot(*(given - middle).T)
    swapped = np.hypot(*(given[:, ::-1] - middle).T)
    is_placed = np.isfinite(apart)
    far = (apart > 10.0) & (swapped < 12.0)
    if is_placed.any() and far[is_placed].mean() > 0.5:
        row = kept[far].iloc[0]
        name = _countries().set_index("cname")["name"][row["cname"]]
        raise InputError(
            f"{path}: lat and lon are swapped: line {row['line']} puts {name} at lat {row['lat']},"
            f" lon {row['lon']}; change the names of these two columns"
        )


def _tidy(kept: pd.DataFrame, lost: list[tuple[str, str, str, str]]) -> pd.DataFrame:
    """Types, country columns and value checks; appends one 'labels' row to ``lost`` per blanked
    value."""
    ids = kept["DHSID_EA"]

    def blanked(bad: np.ndarray, name: str, wanted: str) -> None:
        for row in np.flatnonzero(bad):
            detail = f"{name} {kept[name][row]!r} is outside {wanted}"
            lost.append(("labels", ids[row], "value-out-of-range", detail))

    def number(name: str, low: float, high: float, unit: str) -> np.ndarray:
        """Column ``name`` as float64, NaN outside [low, high]."""
        values = numbers(kept[name]).to_numpy()
        good = np.isfinite(values) & (values >= low) & (values <= high)
        if not np.isfinite(low):
            good &= values != MISSING_CODE
        bad = ~good & ~kept[name].str.lower().isin(_MISSING).to_numpy(dtype=bool)
        wanted = (
            f"{low:g} to {high:g} {unit}"
            if np.isfinite(low)
            else f"the finite numbers {unit}, where {MISSING_CODE:g} means missing"
        )
        blanked(bad, name, wanted)
        return np.where(good, values, np.nan)

    lat, lon = number("lat", -90, 90, "degrees"), number("lon", -180, 180, "degrees")
    nowhere = (lat == 0) & (lon == 0)  # DHS writes 0, 0 where the position is unknown
    lat[nowhere], lon[nowhere] = np.nan, np.nan
    adm1 = number("adm1dhs", 0, 2**31 - 1, "(region code)")
    urban = kept["urban"].str.upper()
    odd = ~urban.isin(["U", "R"]) & ~urban.str.lower().isin(_MISSING)
    blanked(odd.to_numpy(dtype=bool), "urban", "U, R and empty")
    place = _countries().set_index("cname").loc[kept["cname"]].reset_index(drop=True)
    return pd.DataFrame(
        {
            "cluster_id": ids,
            "cname": kept["cname"],
            "iso3": place["iso3"],
            "country": place["name"],
            "survey": ids.str[:10],
            "year": kept["year_number"].astype("int32"),
            "lat": lat,
            "lon": lon,
            "urban": urban.where(urban.isin(["U", "R"]), ""),
            "adm1dhs": np.where(np.isnan(adm1), UNKNOWN_ADM1, adm1).astype("int32"),
            "official_split": place["official_split"],
            **{name: number(name, *LABEL_RANGES[name]) for name in LABELS},
        }
    )
