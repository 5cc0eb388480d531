"""Survey regions -> Global Data Lab regions, by name.

SustainBench's label file holds the survey's region as a number (adm1dhs) that means nothing outside
the survey. The names lie in the GPS tables that DHS publishes beside each survey; exported as CSV
into RAW/dhs_gps/ they give each cluster the name of its region. The series' publisher lists the
names of its regions (series.read_region_names). Both are compared within a country, and what
doesn't match one region is listed for a person, never guessed. A hand-written gdl_regions.csv
overrides all of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from sdgbias.errors import InputError
from sdgbias.raw.text_tables import read_text

GPS_FOLDER = "dhs_gps"
#: Columns of a GPS table with a region's name, in order of preference: the region by which the
#: survey was sampled, then the first administrative level.
NAME_COLUMNS = ("DHSREGNA", "ADM1NAME")
REVIEW_COLUMNS = ("cname", "iso3", "survey", "region_name", "clusters", "status", "candidates")
#: What became of a survey region: matched by the map, by name, or not (three reasons).
BY_MAP, BY_NAME = "by gdl_regions.csv", "by name"
NO_NAME, NO_MATCH, SEVERAL = "no region name", "no region of this name", "several regions fit"
_UNKNOWN = ("", "null", "na", "nan", "none", "n/a", "missing", "9999")
#: Words that say what kind of place a name is. Left out where something else remains.
_KINDS = frozenset(
    (
        *("region", "regions", "province", "provinces", "state", "states", "department"),
        *("departement", "departamento", "governorate", "district", "county", "oblast", "marz"),
        *("division", "zone", "area", "the", "of", "de", "du", "la", "le", "el", "and", "y", "et"),
    )
)


def read_cluster_regions(raw: Path) -> pd.DataFrame:
    """dhs_id (DHS's own id: country, year, cluster number), region_name ('' unknown), from all
    CSVs of RAW/dhs_gps; no rows without that folder.

    Column names are compared ignoring case. Raises InputError for a table without DHSID or without
    any of NAME_COLUMNS.
    """
    parts = [_gps_table(path) for path in sorted((Path(raw) / GPS_FOLDER).glob("*.[cC][sS][vV]"))]
    if not parts:
        return pd.DataFrame({"dhs_id": [], "region_name": []}, dtype="str")
    table = pd.concat(parts, ignore_index=True)
    table = table.sort_values(["dhs_id", "region_name"], ascending=[True, False], kind="stable")
    return table.drop_duplicates("dhs_id", ignore_index=True)


def _gps_table(path: Path) -> pd.DataFrame:
    table = read_text(path, again="export the GPS table again")
    table.columns = table.columns.str.upper()
    names = [name for name in NAME_COLUMNS if name in table.columns]
    if "DHSID" not in table.columns or not names:
        raise InputError(
            f"{path}: wants the columns DHSID and one of {', '.join(NAME_COLUMNS)}; found:"
            f" {', '.join(table.columns)}; export the survey's GPS table (GE) as CSV"
        )
    region = pd.Series("", index=table.index, dtype="str")
    for name in names:
        is_known = ~table[name].str.lower().isin(_UNKNOWN)
        region = region.where((region != "") | ~is_known, table[name])
    return pd.DataFrame({"dhs_id": table["DHSID"], "region_name": region}, dtype="str")


def dhs_ids(cluster_ids: pd.Series) -> pd.Series:
    """'AL-2008-5#-00000001' -> 'AL200800000001', DHS's id of the same cluster."""
    return cluster_ids.str[:2] + cluster_ids.str[3:7] + cluster_ids.str[-8:]


def match_regions(
    clusters: pd.DataFrame, given: pd.DataFrame, names: pd.DataFrame
) -> tuple[pd.Series, pd.DataFrame]:
    """(gdl_region per cluster, '' where none; the review list).

    `clusters`: cluster_id, cname, iso3, survey, adm1dhs and optionally region_name. `given`: the
    hand-written map (cname, adm1dhs, gdl_region), which wins. `names`: iso3, region, name. The
    review list (REVIEW_COLUMNS) has one row per survey and region name, those without a region
    first.
    """
    region_name = clusters.get("region_name", pd.Series("", index=clusters.index)).fillna("")
    mapped = clusters[["cname", "adm1dhs"]].merge(given, on=["cname", "adm1dhs"], how="left")
    by_map = mapped["gdl_region"].fillna("").str.lower().set_axis(clusters.index)
    index = _index_of(names)
    named = clusters[["iso3"]].assign(name=region_name)
    pairs = named.drop_duplicates(ignore_index=True)
    matches = [
        _regions_named(index.get(iso3, {}), name)
        for iso3, name in pairs.itertuples(index=False, name=None)
    ]
    pairs["by_name"] = [regions[0] if len(regions) == 1 else "" for regions in matches]
    pairs["candidates"] = [" ".join(regions) for regions in matches]
    pairs["status"] = [(NO_MATCH, BY_NAME, SEVERAL)[min(2, len(regions))] for regions in matches]
    pairs["status"] = pairs["status"].where(pairs["name"] != "", NO_NAME)
    rows = named.merge(pairs, on=["iso3", "name"], how="left").set_axis(clusters.index)
    region = by_map.where(by_map != "", rows["by_name"]).astype("str")
    rows = clusters[["cname", "iso3", "survey"]].assign(
        region_name=region_name,
        status=rows["status"].where(by_map == "", BY_MAP),
        candidates=rows["candidates"].where(by_map == "", region),
    )
    review = rows.groupby(list(rows.columns), sort=True).size().rename("clusters").reset_index()
    order = {NO_MATCH: 0, SEVERAL: 1, NO_NAME: 2, BY_NAME: 3, BY_MAP: 4}
    review = review.assign(order=review["status"].map(order)).sort_values(
        ["order", "cname", "survey", "region_name", "candidates"], kind="stable", ignore_index=True
    )
    return region, review[list(REVIEW_COLUMNS)]


@dataclass(frozen=True)
class _Known:
    """The normalised names of one region: its own, and what stands in brackets behind one, the
    list of the units that the region joins."""

    names: frozenset[str]
    members: tuple[str, ...]


def _index_of(names: pd.DataFrame) -> Mapping[str, Mapping[str, _Known]]:
    """iso3 -> region -> its names."""
    index: dict[str, dict[str, _Known]] = {}
    for iso3, region, name in names[["iso3", "region", "name"]].itertuples(index=False, name=None):
        bare, _, members = name.partition("(")
        forms = {plain(name), plain(bare), *(plain(part) for part in re.split(r"[,;/)]", members))}
        names_of = index.setdefault(iso3, {}).get(region, _Known(frozenset(), ()))
        index[iso3][region] = _Known(
            names_of.names | (forms - {""}), (*names_of.members, f" {plain(members)} ")
        )
    return index


def _regions_named(regions: Mapping[str, _Known], name: str) -> tuple[str, ...]:
    """The regions that fit a survey region's name: those with this very name, else those in whose
    list of joined units it stands. A part of a name isn't a match: 'North' is not 'North East'."""
    wanted = plain(name)
    if not wanted:
        return ()
    equal = tuple(sorted(r for r, entry in regions.items() if wanted in entry.names))
    if equal:
        return equal
    joined = f" {wanted} "
    return tuple(sorted(r for r, k in regions.items() if any(joined in m for m in k.members)))


@cache
def plain(name: str) -> str:
    """A name for comparison: lower case, no accents, letters and digits only, without the words
    that only say what kind of place it is."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    text = "".join(c if c.isalnum() else " " for c in letters if not unicodedata.combining(c))
    words = text.split()
    return " ".join([word for word in words if word not in _KINDS] or words)
