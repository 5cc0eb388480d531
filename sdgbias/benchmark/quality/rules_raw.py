"""Set-based quality rules as boolean columns: True = the row satisfies the rule. Pure pandas, no
I/O, except stored_facts.

Great Expectations checks one value of one row; rules that need two columns, two rows or two tables
are computed here and in rules_items, rules_prompts and rules_predictions, one flag per rule, as a
column ``ok_<rule>`` that a suite in expectations/ requires to be True. When a rule can't be
evaluated, its flag is the reason as text and the rule is reported as skipped.

stored_facts compares images.parquet with the stored images; it reads shards a few rows at a time to
keep memory flat.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.errors import InputError
from sdgbias.files import confine
from sdgbias.raw import clusters
from sdgbias.raw.images import shards
from sdgbias.types import TOLERANCES

LABELS = tuple(TOLERANCES)
PENDING = "pending:"  # image_id of a benchmark built without images
#: Facts about each row of images.parquet that are read from the shards, see stored_facts.
STORED = ("stored", "id_is_sha256", "is_whole")
_HEX = r"(?:[0-9a-f]{16})?"  # '': no hash, near to none
_SHOWN = r"(?:photo, )?tile(?:, nightlights)?"


@dataclass(frozen=True)
class Whole:
    """A table in a Parquet file that is judged block by block: what a rule asks of all its rows is
    asked of the file, once."""

    path: Path
    found: dict[str, pd.DataFrame] = field(default_factory=dict)

    def query(self, sql: str, **tables: pd.DataFrame) -> pd.DataFrame:
        """The result of a query over ``whole`` and the named tables."""
        if sql not in self.found:
            with (
                TemporaryDirectory() as spill,  # beyond its limit, DuckDB writes to disk
                duckdb.connect(
                    config={"memory_limit": "512MB", "temp_directory": spill}
                ) as connection,
            ):
                path = str(self.path).replace("'", "''")
                connection.execute(f"CREATE VIEW whole AS FROM read_parquet('{path}')")
                for name, table in tables.items():
                    connection.register(name, table)
                self.found[sql] = connection.execute(sql).df()
        return self.found[sql]


@dataclass(frozen=True)
class RuleContext:
    """What a flag may use besides its own table: other tables of the benchmark by name, the suite's
    meta block, and the required split rule ('id' or 'place'). ``tables['countries']`` replaces the
    packaged country crosswalk. ``whole``: the file, where the table is judged block by block."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    split: str = "id"
    whole: Whole | None = None

    def distinct(self, frame: pd.DataFrame, *names: str) -> pd.DataFrame:
        """The distinct rows of these columns in the table, of which ``frame`` may be a block, and
        their number n."""
        if self.whole:
            columns = ", ".join(names)
            return self.whole.query(
                f"SELECT {columns}, count(*) AS n FROM whole GROUP BY ALL ORDER BY ALL"
            )
        groups = frame.groupby(list(names), dropna=False, sort=False, observed=True)
        return groups.size().rename("n").reset_index()

    def countries(self) -> pd.DataFrame:
        return self.tables["countries"] if "countries" in self.tables else clusters.countries()


#: (N,) bool, or the reason why the rule can't be evaluated.
Judged = pd.Series | np.ndarray | str
Flag = Callable[[pd.DataFrame, RuleContext], Judged]


def column(rule: str) -> str:
    """Name of the flag column of a rule: 'bins-ordered' -> 'ok_bins_ordered'."""
    return "ok_" + rule.replace("-", "_")


def missing_table(table: str) -> str:
    """The reason to skip a rule that needs a table that isn't given."""
    return f"{table} isn't available"


def joined(frame: pd.DataFrame, *columns: str) -> pd.Series:
    """Columns as text, joined by '|'."""
    text = frame[columns[0]].astype("str")
    for name in columns[1:]:
        text = text + "|" + frame[name].astype("str")
    return text


def among(values: pd.Series, others: pd.Series) -> np.ndarray:
    """(N,) bool: the value, not missing, is one of ``others``."""
    return np.asarray(
        pd.Index(others.dropna().unique()).get_indexer(pd.Index(values)) >= 0, dtype=bool
    )


def known(key: str, table: str) -> Flag:
    """Referential rule: ``key`` of this table exists in ``table``."""

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        return (
            among(frame[key], given.tables[table][key])
            if table in given.tables
            else missing_table(table)
        )

    return flag


def whole_numbers(values: pd.Series) -> pd.Series:
    """(N,) bool: no fraction, not missing."""
    number = pd.to_numeric(values, errors="coerce")
    return number.notna() & (number % 1 == 0)


# ----------------------------------------------------------------------
# clusters


def _id_agrees(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """cluster_id begins with cname and survey; its year is at most one off (surveys span New
    Year)."""
    ids = frame["cluster_id"].astype("str")
    year = pd.to_numeric(ids.str[3:7], errors="coerce")
    same_place = (ids.str[:2] == frame["cname"]) & (ids.str[:10] == frame["survey"])
    return same_place & ((year - frame["year"]).abs() <= 1)


def _on_earth(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """lat/lon unknown together, or degrees in range and not exactly 0, 0 (DHS's mark for 'no
    position')."""
    lat, lon = frame["lat"], frame["lon"]
    inside = lat.between(-90, 90) & lon.between(-180, 180) & ~((lat == 0) & (lon == 0))
    return inside | (lat.isna() & lon.isna())


def _country_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """DHS code, ISO-3 and split belong together, by the suite's own list (meta.countries:
    cname|iso3|m49|split)."""
    valid = {
        f"{c}|{i}|{s}" for c, i, _, s in (str(line).split("|") for line in given.meta["countries"])
    }
    return joined(frame, "cname", "iso3", "official_split").isin(valid)


def _crosswalk_right(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """The packaged crosswalk agrees with the suite's list on the row's country; each ISO-3 and M49
    code belongs to one country."""
    table = given.countries()
    number = pd.to_numeric(table["m49"], errors="coerce").astype("Int64").astype("str")
    line = table["cname"] + "|" + table["iso3"] + "|" + number + "|" + table["official_split"]
    unique = ~(
        table["cname"].duplicated(keep=False)
        | table["iso3"].duplicated(keep=False)
        | number.duplicated(keep=False)
    )
    listed = {str(line).split("|")[0] for line in given.meta["countries"]}
    right = set(table["cname"][line.isin(given.meta["countries"]) & unique])
    return ~frame["cname"].isin(listed - right)  # unlisted countries are left to another rule


def _has_series(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return (
        among(frame["iso3"], given.tables["series"]["iso3"])
        if "series" in given.tables
        else missing_table("series")
    )


def _no_missing_code(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """No label is exactly -9, -99 or -999: codes for 'missing' that an unbounded index would let
    pass."""
    return ~frame[list(LABELS)].isin([-9.0, -99.0, -999.0]).any(axis=1)


# ----------------------------------------------------------------------
# series


def _series_country(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return frame["iso3"].isin(given.countries()["iso3"])


def _region_of_country(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """'' (national), or a Global Data Lab code of the row's country ('afgr101'); regional values
    have no strata."""
    region = frame["region"].fillna("").astype("str")
    form = region.str.fullmatch(r"[a-z]{3}r\d{3}") & (
        region.str[:3] == frame["iso3"].fillna("").astype("str").str.lower()
    )
    return (region == "") | (form & (frame["stratum"] == "all"))


def _value_in_range(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """meta.ranges: series -> [low, high, unit]. NaN and unknown series are left to other rules."""
    low, high = (
        frame["series"]
        .map({name: entry[at] for name, entry in given.meta["ranges"].items()})
        .astype(float)
        for at in (0, 1)
    )
    return low.isna() | frame["value"].isna() | ((frame["value"] >= low) & (frame["value"] <= high))


def _unit_scale(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """A series in percent has values above 1: otherwise it would be a share. Not evaluated below 10
    rows."""
    percent = frame["series"].isin(
        [name for name, entry in given.meta["ranges"].items() if str(entry[2]).startswith("%")]
    )
    groups = frame.groupby("series")["value"]
    return ~(percent & (groups.transform("max") <= 1) & (groups.transform("size") >= 10))


# ----------------------------------------------------------------------
# images


def _pending(frame: pd.DataFrame) -> pd.Series:
    return frame["image_id"].fillna("").astype("str").str.startswith(PENDING)


def _of_bytes(judge: Callable[[pd.DataFrame], pd.Series]) -> Flag:
    """A rule about stored images: skipped when the benchmark has none."""

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        return "built with --no-images" if len(frame) and _pending(frame).all() else judge(frame)

    return flag


def _stored(fact: str) -> Flag:
    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        if len(frame) and _pending(frame).all():
            return "built with --no-images"
        return frame.get(fact, "the pictures aren't available")

    return flag


def _hashed(name: str) -> Flag:
    return _of_bytes(lambda frame: frame[name].fillna("").astype("str").str.fullmatch(_HEX))


def _with_photo(frame: pd.DataFrame) -> pd.Series:
    """(N,) bool: the picture shows a street photo; where that isn't stated, it is assumed."""
    shown = frame["modalities"].fillna("").astype("str")
    return (shown == "") | shown.str.startswith("photo")


def _only_with_photo(name: str) -> Flag:
    """The column is filled where the picture shows a photo, and only there."""
    return _of_bytes(lambda frame: (frame[name].fillna("") != "") == _with_photo(frame))


def _pending_all_or_none(frame: pd.DataFrame, given: RuleContext) -> Judged:
    pending = _pending(frame)
    return np.full(len(frame), len(frame) == 0 or bool(pending.all() or not pending.any()))


def _image_group_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """image_group is the id of an image in the table that is the leader of its group."""
    leaders = frame.loc[frame["image_id"] == frame["image_group"], "image_id"]
    return among(frame["image_group"], leaders)


FLAGS: dict[str, dict[str, Flag]] = {
    "clusters": {
        "cluster-id-agrees": _id_agrees,
        "country-known": _country_known,
        "crosswalk-right": _crosswalk_right,
        "country-has-series": _has_series,
        "year-whole": lambda frame, given: whole_numbers(frame["year"]),
        "missing-code": _no_missing_code,
        "coordinates-on-earth": _on_earth,
    },
    "series": {
        "series-country-known": _series_country,
        "region-of-country": _region_of_country,
        "year-whole": lambda frame, given: whole_numbers(frame["year"]),
        "value-in-range": _value_in_range,
        "unit-scale": _unit_scale,
    },
    "images": {
        "image-cluster-exists": known("cluster_id", "clusters"),
        "pending-all-or-none": _pending_all_or_none,
        "modalities-known": _of_bytes(
            lambda frame: frame["modalities"].fillna("").astype("str").str.fullmatch(_SHOWN)
        ),
        "photo-id-present": _only_with_photo("photo_id"),
        "photo-hash-present": _only_with_photo("photo_hash"),
        "photo-count": _of_bytes(lambda frame: (frame["n_photos"] >= 1) | ~_with_photo(frame)),
        "part-count": _of_bytes(lambda frame: frame["n_parts"] >= 1),
        "tile-hash-format": _hashed("tile_hash"),
        "photo-hash-format": _hashed("photo_hash"),
        "image-group-known": _image_group_known,
        "image-stored": _stored("stored"),
        "image-id-is-sha256": _stored("id_is_sha256"),
        "image-is-whole": _stored("is_whole"),
    },
}


_ROWS = 16  # images held in memory at once
_SAME = ("photo_id", "n_photos", "n_parts", "tile_hash", "photo_hash")
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"


def stored_facts(benchmark: Path, index: pd.DataFrame) -> pd.DataFrame:
    """``index`` (images.parquet) with a bool column for each of STORED: the shard contains the row
    as indexed; image_id is the digest of the bytes; every part is a complete PNG or JPEG.

    Header and trailer are checked, pixels aren't decoded. A row that isn't stored breaks only the
    first. Rows without images ('pending:') are skipped. Raises InputError for an unreadable shard
    or a name that leads out of the folder.
    """
    wanted = index.loc[~index["image_id"].fillna("").astype("str").str.startswith(PENDING)]
    found = [_shard(benchmark, str(name)) for name in sorted(wanted["shard"].fillna("").unique())]
    table = pd.concat(found, ignore_index=True) if found else _facts([])
    rows = index.merge(
        table.drop_duplicates(["shard", "cluster_id"]),
        on=["shard", "cluster_id"],
        how="left",
        suffixes=("", "_stored"),
    )
    same = rows["image_id"] == rows["image_id_stored"]
    for name in _SAME:
        same &= rows[name] == rows[f"{name}_stored"]
    there = rows["image_id_stored"].notna()
    facts = {
        "stored": same & there,
        **{name: (rows[name] == True) | ~there for name in STORED[1:]},  # noqa: E712
    }
    return index.assign(**{name: fact.to_numpy(dtype=bool) for name, fact in facts.items()})


def _facts(rows: list[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["shard", "cluster_id", "image_id", *_SAME, *STORED[1:]])


def _shard(benchmark: Path, name: str) -> pd.DataFrame:
    """The rows of one shard, without their images; none when there's no such file."""
    path = confine(benchmark / shards.FOLDER, f"{name}.parquet")
    if not path.is_file():
        return _facts([])
    columns = ["cluster_id", "image_id", *_SAME]
    rows: list[tuple[object, ...]] = []
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=[*columns, "parts"]):
                for row in batch.to_pylist():
                    parts = row["parts"] or []
                    named = bool(parts) and shards.image_id(parts) == row["image_id"]
                    rows.append(
                        (name, *(row[c] for c in columns), named, bool(parts) and is_whole(parts))
                    )
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        again = (
            f"delete it and build the images again: sdgbias build --stage images --out {benchmark}"
        )
        raise InputError(f"{path}: can't be read ({type(error).__name__}); {again}") from None
    return _facts(rows)


def is_whole(parts: Sequence[bytes]) -> bool:
    """Every part begins and ends as a PNG with at least one pixel, or as a JPEG."""
    return all(
        _whole_png(part) or (part.startswith(_JPEG_START) and part.endswith(_JPEG_END))
        for part in parts
    )


def _whole_png(part: bytes) -> bool:
    if len(part) < 45 or not part.startswith(_PNG_START) or not part.endswith(_PNG_END):
        return False
    return part[12:16] == b"IHDR" and min(struct.unpack(">II", part[16:24])) > 0
