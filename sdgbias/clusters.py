"""DHS clusters: the packaged country table and the reader of SustainBench's label file (DATA.md sections 1 and 7).

A row that can't be used leaves with a reason; a value that can't be true is blanked with a reason and the row stays.
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.errors import InputError

LABELS_FILE = "dhs_final_labels.csv"
ID_PATTERN = re.compile(r"[A-Z]{2}-\d{4}-\d[#A-Z]-\d{8}")
UNKNOWN_ADM1 = 9999
QUARANTINE_COLUMNS = ["table", "key", "rule", "detail"]

#: Closed ranges of what a cluster mean can be, with the unit. asset_index, a first principal component, is unbounded.
#: women_bmi: DHS flags a woman's BMI below 12 or above 60 as implausible (2400 is DHS's v445 not yet divided by 100).
LABEL_RANGES: dict[str, tuple[float, float, str]] = {
    "asset_index": (-np.inf, np.inf, "(principal component)"),
    "water_index": (1.0, 5.0, "(index)"),
    "sanitation_index": (1.0, 5.0, "(index)"),
    "under5_mort": (0.0, 1000.0, "deaths per 1,000 live births"),
    "women_edu": (0.0, 18.0, "years"),
    "women_bmi": (12.0, 60.0, "kg/m2"),
}
LABELS = tuple(LABEL_RANGES)
#: The 21 columns of SustainBench's file, in its order (the reader goes by name; further columns are ignored).
COLUMNS = (
    *("DHSID_EA", "cname", "year", "lat", "lon", "n_asset", "asset_index", "n_water", "water_index", "n_sanitation"),
    *("sanitation_index", "under5_mort", "n_under5_mort", "women_edu", "women_bmi", "n_women_edu", "n_women_bmi"),
    *("cluster_id", "adm1fips", "adm1dhs", "urban"),
)
_MISSING = ("", "na", "nan", "none", "null")


@cache
def _countries() -> pd.DataFrame:
    with files("sdgbias").joinpath("data/countries.csv").open(encoding="utf-8") as lines:
        # keep_default_na: Namibia's ISO-2 code is the string 'NA'
        return pd.read_csv(lines, keep_default_na=False, dtype={"m49": "int32"})


def countries() -> pd.DataFrame:
    """The 56 countries: cname (DHS code, not ISO-2 for ten of them), iso2, iso3, m49, name, official_split."""
    return _countries().copy()


def read_clusters(raw: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read ``raw/dhs_final_labels.csv`` into (clusters, quarantine).

    clusters, sorted by cluster_id (the DHSID_EA): cluster_id, cname, iso3, country, survey, year int32, lat, lon
    (degrees), urban ('U', 'R' or '' unknown), adm1dhs int32 (9999 unknown), official_split, and the six labels (double,
    NaN unknown; units in LABEL_RANGES). quarantine: table, key, rule, detail; table 'clusters' (the row left) or
    'labels' (only the value was blanked). Raises InputError when the file or a column is missing, or no row is usable.
    """
    path = Path(raw) / LABELS_FILE
    table = _read_text(path)
    table["line"] = np.arange(2, len(table) + 2)  # as an editor shows it; line 1 is the header
    table["year_number"] = pd.to_numeric(table["year"], errors="coerce")
    lost: list[tuple[str, str, str, str]] = []
    reasons = _row_faults(table)
    for row, reason in zip(table.loc[reasons.notna(), "DHSID_EA"], reasons[reasons.notna()], strict=True):
        lost.append(("clusters", row, *reason))
    kept = table[reasons.isna()]
    if kept.empty:
        found = ", ".join(sorted({rule for _, _, rule, _ in lost})) or "no rows"
        first = f"; first: {lost[0][3]}" if lost else ""
        raise InputError(
            f"{path}: none of its {len(table)} rows is usable ({found}{first}); get SustainBench's file or run 'sdgbias sample'"
        )
    kept = kept.sort_values("DHSID_EA", kind="stable").reset_index(drop=True)
    return _tidy(kept, lost), pd.DataFrame(sorted(lost), columns=QUARANTINE_COLUMNS, dtype="str")


def _read_text(path: Path) -> pd.DataFrame:
    """Every column of COLUMNS as stripped strings; '' where the file has nothing."""
    if not path.is_file():
        raise InputError(f"no file {path}; --raw wants SustainBench's layout ('sdgbias sample' writes a small one)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # lines longer than the header
            table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False)
    except (ValueError, OSError, pd.errors.ParserWarning) as error:  # bad UTF-8, no header, ... are ValueErrors
        cause = str(error).strip().splitlines()[-1]
        raise InputError(f"{path} is no readable UTF-8 CSV ({cause}); download it again") from error
    table.columns = table.columns.str.strip()
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InputError(
            f"{path}: missing column(s) {', '.join(missing)}; found: {', '.join(table.columns)}; "
            "the header must hold the 21 comma-separated columns of SustainBench's dhs_final_labels.csv, in any order"
        )
    table = table[list(COLUMNS)].fillna("")  # a line that ends early
    return pd.DataFrame({name: table[name].str.strip() for name in COLUMNS})


def _row_faults(table: pd.DataFrame) -> pd.Series:
    """Per row None, or (rule, detail) of the first reason why the row can't be used."""
    known = _countries().set_index("cname")["name"]
    faults: list[tuple[str, str] | None] = []
    first_line: dict[str, int] = {}
    rows = zip(*(table[name].tolist() for name in ("DHSID_EA", "cname", "year", "year_number", "line")), strict=True)
    names = known.to_dict()
    for dhsid, cname, year, year_number, line in rows:
        fault: tuple[str, str] | None = None
        if not ID_PATTERN.fullmatch(dhsid):
            fault = ("malformed-id", f"line {line}: DHSID_EA {dhsid!r} is not of the form CC-YYYY-V#-00000000")
        elif cname not in names:
            fault = ("unknown-country", f"line {line}: cname {cname!r} is none of the 56 DHS codes{_meant(cname)}")
        elif cname != dhsid[:2]:
            other = names.get(dhsid[:2], "no known country")
            detail = f"line {line}: cname {cname!r} ({names[cname]}) but DHSID_EA begins {dhsid[:2]!r} ({other})"
            fault = ("inconsistent-metadata", detail)
        elif not abs(year_number - int(dhsid[3:7])) <= 1:  # surveys span New Year; a NaN year fails too
            fault = ("inconsistent-metadata", f"line {line}: year {year!r} but DHSID_EA says {dhsid[3:7]}")
        elif dhsid in first_line:
            fault = ("duplicate-cluster", f"line {line}: repeats line {first_line[dhsid]}, which is kept")
        else:
            first_line[dhsid] = line
        faults.append(fault)
    return pd.Series(faults, index=table.index, dtype=object)


def _meant(cname: str) -> str:
    """'; ...' naming the DHS code when ``cname`` is an ISO code or differs by case only."""
    table = _countries()
    for column, title in (("iso2", "ISO-2"), ("iso3", "ISO-3"), ("cname", "DHS")):
        hit = table[table[column] == cname.upper()]
        if len(hit):
            row = hit.iloc[0]
            return f"; {cname.upper()} is the {title} code of {row['name']}: {row['cname']} was probably meant"
    return ""


def _tidy(kept: pd.DataFrame, lost: list[tuple[str, str, str, str]]) -> pd.DataFrame:
    """Types, country columns and value checks; appends one 'labels' row to ``lost`` per blanked value."""
    ids = kept["DHSID_EA"]

    def number(name: str, low: float, high: float, unit: str) -> np.ndarray:
        """Column ``name`` as float64, NaN outside [low, high]."""
        values = pd.to_numeric(kept[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        good = np.isfinite(values) & (values >= low) & (values <= high)
        bad = ~good & ~kept[name].str.lower().isin(_MISSING).to_numpy(dtype=bool)
        wanted = f"{low:g} to {high:g} {unit}" if np.isfinite(low) else f"the finite numbers {unit}"
        for row in np.flatnonzero(bad):
            lost.append(("labels", ids[row], "value-out-of-range", f"{name} {kept[name][row]!r} is outside {wanted}"))
        return np.where(good, values, np.nan)

    lat, lon = number("lat", -90, 90, "degrees"), number("lon", -180, 180, "degrees")
    nowhere = (lat == 0) & (lon == 0)  # DHS writes 0, 0 where the position is unknown
    lat[nowhere], lon[nowhere] = np.nan, np.nan
    adm1 = number("adm1dhs", 0, 2**31 - 1, "(region code)")
    urban = kept["urban"].str.upper()
    odd = ~urban.isin(["U", "R"]) & ~urban.str.lower().isin(_MISSING)
    for row in np.flatnonzero(odd):
        detail = f"urban {kept['urban'][row]!r} is outside U, R and empty"
        lost.append(("labels", ids[row], "value-out-of-range", detail))
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
