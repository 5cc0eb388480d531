"""Set-based rules of the quality gate as boolean columns: True = the row keeps the rule. Pure pandas, no I/O.

Great Expectations judges one value of one row; what needs two columns, two rows or two tables is computed here, one
function per rule, as a column ``ok_<rule>`` that a suite in expectations/ then requires to be true. A function returns
None when the other table it compares with isn't at hand; the rule is then reported as skipped.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.quality_prompts import prompt_flags
from sdgbias.types import LETTERS, TOLERANCES, Task

#: flag(frame, tables of the same benchmark by name) -> (N,) bool, or None when a table that it needs is missing
Tables = Mapping[str, pd.DataFrame]
Flag = Callable[[pd.DataFrame, Tables], "pd.Series | np.ndarray | None"]

LABELS = tuple(TOLERANCES)
_SIDE = 448  # pixels, see imagery
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND\xaeB`\x82"
_NUMBER = re.compile(r"(?<![\d.])[-−]?\d+(?:\.\d+)?")
_VAL_SHARE = 0.2  # of the authors' split rule, DATA.md section 5


def column(rule: str) -> str:
    """Name of the flag column of a rule: 'bins-ordered' -> 'ok_bins_ordered'."""
    return "ok_" + rule.replace("-", "_")


def compute(table: str, frame: pd.DataFrame, tables: Tables) -> dict[str, pd.Series | np.ndarray | None]:
    """Every flag of a table: rule -> (N,) bool or None (skipped)."""
    return {rule: flag(frame, tables) for rule, flag in FLAGS[table].items()}


def image_facts(image_id: list[str], png: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(id is the sha256 of the bytes, bytes are a whole 448x448 8-bit RGB PNG), each (N,) bool.

    Only header and trailer are looked at; pixels aren't decoded.
    """
    hashed = [hashlib.sha256(blob or b"").hexdigest() == name for name, blob in zip(image_id, png, strict=True)]
    return np.array(hashed, dtype=bool), np.array([_is_composite(blob) for blob in png], dtype=bool)


def _is_composite(blob: bytes | None) -> bool:
    if not isinstance(blob, bytes) or len(blob) < 45 or not blob.startswith(_PNG_START) or not blob.endswith(_PNG_END):
        return False
    return bool(struct.unpack(">IIBB", blob[16:26]) == (_SIDE, _SIDE, 8, 2))


# -------------------------------------------------------------------------------------------------- clusters


def _pair(frame: pd.DataFrame, *columns: str) -> pd.Series:
    """Text columns joined by '|', for sets of valid combinations that are listed in the suite."""
    joined = frame[columns[0]].astype(str)
    for name in columns[1:]:
        joined = joined + "|" + frame[name].astype(str)
    return joined


def _id_agrees(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    """cluster_id begins with cname and survey; its year is at most one off (surveys span New Year)."""
    ids = frame["cluster_id"].astype(str)
    year = pd.to_numeric(ids.str[3:7], errors="coerce")
    same_place = (ids.str[:2] == frame["cname"]) & (ids.str[:10] == frame["survey"])
    return same_place & ((year - frame["year"]).abs() <= 1)


def _on_earth(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    """lat/lon unknown together, or degrees in range and not exactly 0, 0 (DHS's mark for 'no position')."""
    lat, lon = frame["lat"], frame["lon"]
    inside = lat.between(-90, 90) & lon.between(-180, 180) & ~((lat == 0) & (lon == 0))
    return inside | (lat.isna() & lon.isna())


# ---------------------------------------------------------------------------------------------------- images


def _image_fact(which: int) -> Flag:
    def flag(frame: pd.DataFrame, tables: Tables) -> pd.Series | np.ndarray:
        name = ("id_is_sha256", "is_composite")[which]
        if name in frame:
            return frame[name]
        return image_facts(frame["image_id"].tolist(), frame["png"].tolist())[which]

    return flag


def _unshared_image(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    return ~frame["image_id"].duplicated(keep=False)


def _known(key: str, table: str) -> Flag:
    """Referential rule: ``key`` of this table exists in ``table``."""

    def flag(frame: pd.DataFrame, tables: Tables) -> pd.Series | None:
        return frame[key].isin(tables[table][key]) if table in tables else None

    return flag


# ----------------------------------------------------------------------------------------------------- items


def _image_of_cluster(frame: pd.DataFrame, tables: Tables) -> pd.Series | None:
    if "images" not in tables:
        return None
    images = tables["images"].drop_duplicates("cluster_id").set_index("cluster_id")["image_id"]
    return frame["cluster_id"].map(images) == frame["image_id"]


def _labels_agree(frame: pd.DataFrame, tables: Tables) -> np.ndarray | None:
    """The context values and urban are those of the item's cluster (NaN equals NaN)."""
    if "clusters" not in tables:
        return None
    wanted = ["cname", "year", "urban", *LABELS]
    own = tables["clusters"].drop_duplicates("cluster_id").set_index("cluster_id")[wanted]
    theirs = own.reindex(frame["cluster_id"])
    same = np.ones(len(frame), dtype=bool)
    for name in wanted:
        left, right = frame[name].to_numpy(), theirs[name].to_numpy()
        same &= (left == right) | (pd.isna(left) & pd.isna(right))
    return same


def _one_value_per(group: str, *names: str) -> Flag:
    """Within a ``group`` every one of ``names`` has a single value."""

    def flag(frame: pd.DataFrame, tables: Tables) -> np.ndarray:
        single = np.ones(len(frame), dtype=bool)
        for name in names:
            single &= (frame.groupby(group)[name].transform("nunique") <= 1).to_numpy(dtype=bool)
        return single

    return flag


def _split_by_id(task: Task) -> Flag:
    """split is what the authors' rule says: val iff the first 15 hex digits of md5('<task>-<id>') are < 0.2."""

    def flag(frame: pd.DataFrame, tables: Tables) -> np.ndarray:
        marks = (hashlib.md5(f"{task}-{int(i)}".encode()).hexdigest()[:15] for i in frame["item_id"].tolist())
        val = np.fromiter((int(mark, 16) / 16**15 < _VAL_SHARE for mark in marks), dtype=bool, count=len(frame))
        return np.asarray(frame["split"].to_numpy() == np.where(val, "val", "test"))

    return flag


def _first_of_its_kind(*texts: str) -> Flag:
    """False for every item but the lowest id among those of one image whose texts are equal after normalising.

    Normalised: lower case, everything but letters and digits as one space.
    """

    def flag(frame: pd.DataFrame, tables: Tables) -> pd.Series:
        key = frame["image_id"].astype(str)
        for name in texts:
            codes, distinct = pd.factorize(frame[name].fillna("").astype(str))
            plain = [" ".join(re.findall(r"[^\W_]+", str(text).lower())) for text in distinct]
            key = key + "|" + pd.Series(plain, dtype=object).to_numpy()[codes]
        order = frame["item_id"].sort_values(kind="stable").index
        return ~key.loc[order].duplicated().reindex(frame.index)

    return flag


def _has_prompts(task: Task) -> Flag:
    def flag(frame: pd.DataFrame, tables: Tables) -> pd.Series | None:
        if "prompts" not in tables:
            return None
        prompts = tables["prompts"]
        return frame["item_id"].isin(prompts.loc[prompts["task"] == task.value, "item_id"])

    return flag


def _options(frame: pd.DataFrame) -> list[pd.Series]:
    return [frame[f"option_{letter.lower()}"].fillna("").astype(str).str.strip() for letter in LETTERS]


def _options_present(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    a, b, _ = _options(frame)
    return (a != "") & (b != "")


def _options_distinct(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    a, b, c = (text.str.lower() for text in _options(frame))
    return ((a != b) | (a == "")) & ((c == "") | ((c != a) & (c != b)))


def _answer_present(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    present = pd.Series(False, index=frame.index)
    for letter, text in zip(LETTERS, _options(frame), strict=True):
        present |= (frame["answer"] == letter) & (text != "")
    return present


def option_bounds(text: str) -> tuple[float, float] | None:
    """Smallest and largest number of an option's text ('31 to under 49 %' -> (31, 49)); None without a number.

    A denominator such as 'per 100,000' isn't a bound; a hyphen between two numbers is a dash, not a minus.
    """
    plain = re.sub(r"\bper\s+[\d,.]+", "", text.lower())
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", plain)
    plain = re.sub(r"(?<=\d)\s*[-–—]\s*(?=\d)", " to ", plain)
    numbers = [float(n.replace("−", "-")) for n in _NUMBER.findall(plain)]
    return (min(numbers), max(numbers)) if numbers else None


def _bins_ordered(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    """Options ascend: no bound of an option lies below that of the option before; at least one bound rises overall."""
    joined = pd.Series("", index=frame.index, dtype=object)
    for text in _options(frame):
        joined = joined + text.astype(object) + "\n"
    codes, distinct = pd.factorize(joined)
    return pd.Series(np.array([_ascending(str(text)) for text in distinct], dtype=bool)[codes], index=frame.index)


def _ascending(options: str) -> bool:
    bounds = [option_bounds(text) for text in options.split("\n") if text]
    known = [b for b in bounds if b is not None]
    if len(known) < len(bounds) or len(known) < 2:
        return not known  # words only: nothing to compare; numbers in some options only: broken
    rises = all(lo[0] <= hi[0] and lo[1] <= hi[1] for lo, hi in pairwise(known))
    return rises and (len(known) == 2 or known[0] != known[-1])


def _answers_follow_values(frame: pd.DataFrame, tables: Tables) -> np.ndarray:
    """Among items with the same options no value of an earlier letter lies above a value of a later one."""
    keys = ["indicator", "option_a", "option_b", "option_c"]
    group = frame.groupby(keys, dropna=False, sort=False).ngroup()
    ok = np.ones(len(frame), dtype=bool)
    for early, late in (("A", "B"), ("B", "C"), ("A", "C")):
        top = frame["value"].where(frame["answer"] == early).groupby(group).transform("max")
        bottom = frame["value"].where(frame["answer"] == late).groupby(group).transform("min")
        ok &= ~(top > bottom).to_numpy(dtype=bool)
    return ok


def _percent_in_range(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    """Units that begin with % hold 0 to 100; 'index, 0-100' and the like hold what they say. NaN is another rule's."""
    codes, units = pd.factorize(frame["unit"].fillna("").astype(str))
    limits = np.array([_unit_range(str(unit)) for unit in units], dtype=float).reshape(-1, 2)[codes]
    value = frame["value"]
    return value.isna() | ((value >= limits[:, 0]) & (value <= limits[:, 1]))


def _unit_range(unit: str) -> tuple[float, float]:
    if unit.startswith(("%", "percent")):
        return 0.0, 100.0
    stated = re.search(r"(\d+(?:\.\d+)?)\s*[-–]\s*(\d+(?:\.\d+)?)", unit)
    return (float(stated[1]), float(stated[2])) if stated else (-np.inf, np.inf)


def _year_near(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    return (frame["value_year"] - frame["year"]).abs() <= 15


def _tolerance_of_target(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    return frame["target"].map(TOLERANCES) == frame["tolerance"]


def _answer_is_label(frame: pd.DataFrame, tables: Tables) -> pd.Series:
    """The gold number is the target's own label, up to rounding to one decimal."""
    ok = pd.Series(False, index=frame.index)
    for target in LABELS:
        ok |= (frame["target"] == target) & ((frame["answer"] - frame[target]).abs() <= 0.05 + 1e-9)
    return ok | ~frame["target"].isin(LABELS) | frame["answer"].isna()  # those are other rules


_ITEMS: dict[str, Flag] = {
    "item-cluster-exists": _known("cluster_id", "clusters"),
    "item-image-exists": _known("image_id", "images"),
    "image-of-cluster": _image_of_cluster,
    "labels-of-cluster": _labels_agree,
    "split-place-by-country": _one_value_per("cname", "split_place"),
}
FLAGS: dict[str, dict[str, Flag]] = {
    "clusters": {"cluster-id-agrees": _id_agrees, "coordinates-on-earth": _on_earth},
    "images": {
        "image-id-is-sha256": _image_fact(0),
        "image-is-composite": _image_fact(1),
        "image-shared": _unshared_image,
        "image-cluster-exists": _known("cluster_id", "clusters"),
    },
    "items_mcq": _ITEMS
    | {
        "split-by-id": _split_by_id(Task.MCQ),
        "indicator-uniform": _one_value_per("indicator", "pillar", "polarity", "unit"),
        "near-duplicate-item": _first_of_its_kind("question", "option_a", "option_b", "option_c"),
        "item-has-prompts": _has_prompts(Task.MCQ),
        "options-present": _options_present,
        "options-distinct": _options_distinct,
        "answer-among-options": _answer_present,
        "bins-ordered": _bins_ordered,
        "answers-follow-values": _answers_follow_values,
        "value-in-unit-range": _percent_in_range,
        "value-year-near": _year_near,
    },
    "items_regression": _ITEMS
    | {
        "split-by-id": _split_by_id(Task.REGRESSION),
        "indicator-uniform": _one_value_per("indicator", "pillar", "target", "unit"),
        "near-duplicate-item": _first_of_its_kind("question"),
        "item-has-prompts": _has_prompts(Task.REGRESSION),
        "tolerance-of-target": _tolerance_of_target,
        "answer-is-label": _answer_is_label,
    },
    "prompts": {},
}


def derived(table: str, frame: pd.DataFrame, tables: Tables, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Every column that a suite may judge beside the table's own: flags by rule (None = skipped), pairs, distances.

    ``meta``: the suite's meta block; items_mcq reads ``label_shares`` (pillar -> [A, B, C] in percent, Table B).
    """
    flags = prompt_flags(frame, tables) if table == "prompts" else compute(table, frame, tables)
    made: dict[str, Any] = {column(rule): _bools(flag) for rule, flag in flags.items()}
    if table == "clusters":
        made["country_codes"] = _pair(frame, "cname", "iso3", "official_split")
    elif table.startswith("items_"):
        made["country_codes"] = _pair(frame, "cname", "iso3")
    if table == "items_mcq":
        made["label_share_gap"] = _label_share_gap(frame, meta["label_shares"])
    return made


def _bools(flag: pd.Series | np.ndarray | None) -> np.ndarray | None:
    """A flag as plain bool; unknown counts as broken."""
    return None if flag is None else np.asarray(pd.Series(flag).fillna(False), dtype=bool)


def _label_share_gap(frame: pd.DataFrame, published: Mapping[str, list[float]]) -> pd.Series:
    """Per row the largest distance (percentage points) of its pillar's A/B/C shares from Table B."""
    shares = pd.crosstab(frame["pillar"], frame["answer"], normalize="index") * 100
    shares = shares.reindex(columns=list(LETTERS), fill_value=0.0)
    gaps = {p: float(np.abs(shares.loc[p].to_numpy() - want).max()) for p, want in published.items() if p in shares.index}
    return frame["pillar"].map(gaps).astype(float)
