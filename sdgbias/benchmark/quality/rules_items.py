"""Quality rules for items_mcq.parquet and items_regression.parquet, one boolean column per rule."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pandas as pd

from sdgbias.benchmark.quality.rules_raw import (
    LABELS,
    Flag,
    Judged,
    RuleContext,
    among,
    joined,
    known,
    missing_table,
    whole_numbers,
)
from sdgbias.benchmark.splits import authors_split
from sdgbias.types import LETTERS, TOLERANCES, Task

_NUMBER = re.compile(r"(?<![\d.])[-−]?\d+(?:\.\d+)?")
_OPTIONS = ("option_a", "option_b", "option_c")
_EPS = 1e-9
#: Lowest and highest value of an option, and whether each of them is included.
Range = tuple[float, float, bool, bool]


# ----------------------------------------------------------------------
# any item


def _country_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return joined(frame, "cname", "iso3").isin(joined(given.countries(), "cname", "iso3"))


def _image_of_cluster(frame: pd.DataFrame, given: RuleContext) -> Judged:
    if "images" not in given.tables:
        return missing_table("images")
    images = (
        given.tables["images"].drop_duplicates("cluster_id").set_index("cluster_id")["image_id"]
    )
    return frame["cluster_id"].map(images) == frame["image_id"]


def _modalities_of_image(frame: pd.DataFrame, given: RuleContext) -> Judged:
    if "images" not in given.tables or "modalities" not in given.tables["images"]:
        return missing_table("images.modalities")
    images = given.tables["images"].drop_duplicates("image_id")
    return frame["image_id"].map(images.set_index("image_id")["modalities"]) == frame["modalities"]


def _labels_agree(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Place, year, urban and context values are those of the item's cluster (NaN equals NaN)."""
    if "clusters" not in given.tables:
        return missing_table("clusters")
    wanted = ["cname", "iso3", "country", "year", "urban", *LABELS]
    own = given.tables["clusters"].drop_duplicates("cluster_id").set_index("cluster_id")[wanted]
    at = own.index.get_indexer(pd.Index(frame["cluster_id"]))
    same = at >= 0
    if not same.any():
        return same
    theirs = own.take(np.maximum(at, 0))
    for name in wanted:
        left, right = frame[name].reset_index(drop=True), theirs[name].reset_index(drop=True)
        same &= ((left == right) | (left.isna() & right.isna())).to_numpy(dtype=bool)
    return same


def _one_value_per(group: str, *names: str) -> Flag:
    """Each of ``names`` has a single value within a ``group``."""

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        single = np.ones(len(frame), dtype=bool)
        for name in names:
            pairs = given.distinct(frame, group, name)[[group, name]].dropna()
            mixed = pairs.loc[pairs[group].duplicated(), group]
            single &= ~frame[group].isin(mixed).to_numpy(dtype=bool)
        return single

    return flag


def _split_by_id(task: Task) -> Flag:
    """split equals the authors' rule applied to task and id."""

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        if given.split != "id":
            return f"the split is by {given.split}"
        return np.asarray(
            frame["split"].to_numpy(dtype=object) == authors_split(task.value, frame["item_id"])
        )

    return flag


def _split_by_place(other: str) -> Flag:
    """No country is on both sides of ``split``, including the other task's items."""

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        return (
            _same_side(frame, given, other, "split")
            if given.split == "place"
            else f"the split is by {given.split}"
        )

    return flag


def _place_across_tasks(other: str) -> Flag:
    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        return (
            _same_side(frame, given, other, "split_place")
            if other in given.tables
            else missing_table(other)
        )

    return flag


def _same_side(frame: pd.DataFrame, given: RuleContext, other: str, name: str) -> Judged:
    own = given.distinct(frame, "cname", name)
    both = [own, *([given.tables[other]] if other in given.tables else [])]
    pairs = pd.concat([table[["cname", name]] for table in both]).drop_duplicates()
    return ~frame["cname"].isin(pairs.loc[pairs["cname"].duplicated(), "cname"])


def _asked(frame: pd.DataFrame, texts: tuple[str, ...]) -> pd.Series:
    """(N,) equal numbers for equal wording: lower case, with everything but letters and digits
    collapsed to one space."""
    number = pd.Series(0, index=frame.index, dtype="int64")
    for name in texts:
        codes, distinct = pd.factorize(frame[name].fillna("").astype("str"))
        plain = [" ".join(re.findall(r"[^\W_]+", str(text).lower())) for text in distinct]
        words, kinds = pd.factorize(np.asarray(plain, dtype=object))
        number = number * (len(kinds) + 1) + (words[codes] if len(plain) else 0)
        number = pd.Series(pd.factorize(number)[0], index=frame.index, dtype="int64")
    return number


def _duplicate(near: bool, *texts: str) -> Flag:
    """False for all but the first item (by cluster_id) with the same wording and the same image;
    with ``near``: the same image_group and the same context (labels at one decimal, urban).
    """

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        if near and "images" not in given.tables:
            return missing_table("images")
        if given.whole is None:
            return _first_of_its_kind(frame, given, near, texts)
        # the few rows whose indicator and picture (or group) occur again, of the whole table
        distinct = given.distinct(frame, *texts)
        wording = distinct[list(texts)].assign(asked=_asked(distinct, texts))
        same = " AND ".join(f"w.{name} IS NOT DISTINCT FROM i.{name}" for name in texts)
        picture, more, other = "i.image_id", "", {"wording": wording}
        if near:
            groups = given.tables["images"][["image_id", "image_group"]]
            other["groups"] = groups.drop_duplicates("image_id")
            more = "LEFT JOIN groups g USING (image_id)"
            picture = "coalesce(g.image_group, i.image_id)"
        kinds = f"SELECT i.*, asked, hash({picture}) AS shown FROM whole i {more} JOIN wording w ON"
        rows = given.whole.query(
            f"WITH kinds AS NOT MATERIALIZED ({kinds} {same}), again AS (SELECT asked, shown FROM"
            " kinds GROUP BY ALL HAVING count(*) > 1) SELECT kinds.* FROM kinds SEMI JOIN again"
            " USING (asked, shown)",
            **other,
        )
        again = rows[~_first_of_its_kind(rows, given, near, texts)]
        key = ("item_id", "cluster_id", "indicator")
        return ~joined(frame, *key).isin(joined(again, *key)) if len(again) else _all(frame)

    return flag


def _first_of_its_kind(
    frame: pd.DataFrame, given: RuleContext, near: bool, texts: tuple[str, ...]
) -> pd.Series:
    same = pd.DataFrame({"asked": _asked(frame, texts), "image": frame["image_id"]})
    if near:
        images = given.tables["images"].drop_duplicates("image_id")
        group = images.set_index("image_id")["image_group"]
        same["image"] = frame["image_id"].map(group).fillna(frame["image_id"])
        same = pd.concat([same, frame[list(LABELS)].round(1) + 0.0, frame["urban"]], axis=1)
    order = frame[["cluster_id", "item_id"]].sort_values(["cluster_id", "item_id"], kind="stable")
    return ~same.loc[order.index].duplicated().reindex(frame.index)


def _has_prompts(task: Task) -> Flag:
    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        if "prompts" not in given.tables:
            return missing_table("prompts")
        prompts = given.tables["prompts"]
        return among(frame["item_id"], prompts.loc[prompts["task"] == task.value, "item_id"])

    return flag


# ----------------------------------------------------------------------
# multiple choice


def option_range(text: str) -> Range | None:
    """The range of values that an option's text covers: 'below 20 %' -> (-inf, 20, True, False);
    None without a number.

    'X to under Y' excludes its upper end, 'X-Y' includes both; a number alone is the top of a scale
    ('100 %'). A denominator such as 'per 100,000' isn't a bound; a hyphen between two numbers is a
    dash, not a minus.
    """
    plain = re.sub(r"\bper\s+[\d,.]+", "", text.lower())
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", plain)
    plain = re.sub(r"(?<=\d)\s*%?\s*[-–—]\s*(?=\d)", " to ", plain)
    numbers = [float(n.replace("−", "-")) for n in _NUMBER.findall(plain)]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    if len(numbers) > 1:
        return low, high, True, not re.search(r"\b(?:under|below|less than)\b|<", plain)
    if re.search(r"\bor more\b|\band (?:more|above)\b|\bor above\b|\bat least\b|≥|>=", plain):
        return low, np.inf, True, True
    if re.search(r"\bor less\b|\bat most\b|\bup to\b|≤|<=", plain):
        return -np.inf, high, True, True
    if re.search(r"\b(?:below|under|less than|fewer than)\b|<", plain):
        return -np.inf, high, True, False
    if re.search(r"\b(?:above|over|more than)\b|>", plain):
        return low, np.inf, False, True
    return low, high, True, True


def _ranges(frame: pd.DataFrame) -> tuple[np.ndarray, list[tuple[list[Range | None], str]]]:
    """(code (N,), per code the ranges of the non-empty options, and the unit): each option set is
    parsed once."""
    sets = frame[[*_OPTIONS, "unit"]].fillna("").astype("str")
    codes = sets.groupby(list(sets.columns), sort=False).ngroup().to_numpy()
    distinct = sets.iloc[np.unique(codes, return_index=True)[1]] if len(sets) else sets
    rows = distinct.itertuples(index=False, name=None)
    return codes, [
        ([option_range(text) for text in row[:3] if text.strip()], str(row[3])) for row in rows
    ]


def _bins_ordered(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Options ascend: no bound of an option is below that of the previous option, and the last is
    above the first."""
    codes, sets = _ranges(frame)
    return np.array([_ascending(ranges) for ranges, _ in sets], dtype=bool)[codes]


def _ascending(ranges: list[Range | None]) -> bool:
    found = [r for r in ranges if r is not None]
    if len(found) < len(ranges) or len(found) < 2:
        return not found  # words only: nothing to compare; numbers in some options only: broken
    return (
        all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(found))
        and found[0][:2] != found[-1][:2]
    )


def _bins_cover(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Options are exclusive and cover the scale: each range begins where the previous one ends, and
    that number belongs to exactly one of them; nothing is left below the first or above the last.
    """
    codes, sets = _ranges(frame)
    return np.array([_covering(ranges, unit) for ranges, unit in sets], dtype=bool)[codes]


def _covering(ranges: list[Range | None], unit: str) -> bool:
    found = [r for r in ranges if r is not None]
    if len(found) < len(ranges) or not found:
        return True  # words can't be compared; mixtures are left to bins-ordered
    low, high = unit_range(unit)
    touch = all(a[1] == b[0] and a[3] != b[2] for a, b in pairwise(found))
    return touch and found[0][0] <= low and found[-1][1] >= high


def _gold_in_option(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """The value lies in the range of the gold option. Missing values, letters and options are left
    to other rules."""
    codes, sets = _ranges(frame)
    limits = np.full((max(len(sets), 1), len(LETTERS), 4), np.nan)
    for at, (ranges, _) in enumerate(sets):
        for place, found in enumerate(ranges):
            if found is not None:
                limits[at, place] = found
    letter = (
        frame["answer"]
        .map({name: i for i, name in enumerate(LETTERS)})
        .fillna(-1)
        .to_numpy(dtype=np.int64)
    )
    low, high, low_in, high_in = (
        limits[codes, np.maximum(letter, 0)].T if len(frame) else np.zeros((4, 0))
    )
    value = frame["value"].to_numpy(dtype=float)
    above = (value > low) | ((value == low) & (low_in == 1))
    below = (value < high) | ((value == high) & (high_in == 1))
    return (above & below) | np.isnan(low) | np.isnan(value) | (letter < 0)


def _options(frame: pd.DataFrame) -> list[pd.Series]:
    return [frame[name].fillna("").astype("str").str.strip() for name in _OPTIONS]


def _options_present(frame: pd.DataFrame, given: RuleContext) -> Judged:
    a, b, _ = _options(frame)
    return (a != "") & (b != "")


def _options_distinct(frame: pd.DataFrame, given: RuleContext) -> Judged:
    a, b, c = (text.str.lower() for text in _options(frame))
    return ((a != b) | (a == "")) & ((c == "") | ((c != a) & (c != b)))


def _answer_present(frame: pd.DataFrame, given: RuleContext) -> Judged:
    present = pd.Series(False, index=frame.index)
    for letter, text in zip(LETTERS, _options(frame), strict=True):
        present |= (frame["answer"] == letter) & (text != "")
    return present


def _answers_follow_values(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Among items with the same options no value of an earlier letter lies above a value of a later
    one."""
    keys = ["indicator", *_OPTIONS]
    kinds = given.distinct(frame, *keys, "answer", "value")
    group = kinds.groupby(keys, dropna=False, sort=False).ngroup()
    ok = np.ones(len(kinds), dtype=bool)
    for early, late in (("A", "B"), ("B", "C"), ("A", "C")):
        top = kinds["value"].where(kinds["answer"] == early).groupby(group).transform("max")
        bottom = kinds["value"].where(kinds["answer"] == late).groupby(group).transform("min")
        ok &= ~(top > bottom).to_numpy(dtype=bool)
    return ~joined(frame, *keys).isin(joined(kinds[~ok], *keys)) if not ok.all() else _all(frame)


def _all(frame: pd.DataFrame) -> np.ndarray:
    return np.ones(len(frame), dtype=bool)


def _value_in_unit_range(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Units that begin with % allow 0 to 100; 'index, 0-100' and the like allow the range they
    name. NaN is left to another rule."""
    codes, units = pd.factorize(frame["unit"].fillna("").astype("str"))
    limits = np.array([unit_range(str(unit)) for unit in units], dtype=float).reshape(-1, 2)[codes]
    value = frame["value"]
    return value.isna() | ((value >= limits[:, 0]) & (value <= limits[:, 1]))


def unit_range(unit: str) -> tuple[float, float]:
    """Lowest and highest value that a unit allows; infinite when it names no range."""
    if unit.startswith(("%", "percent")):
        return 0.0, 100.0
    stated = re.search(r"(\d+(?:\.\d+)?)\s*[-–]\s*(\d+(?:\.\d+)?)", unit)
    return (float(stated[1]), float(stated[2])) if stated else (-np.inf, np.inf)


def _value_from_series(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """The value is in the series table: same country, year and source."""
    if "series" not in given.tables:
        return missing_table("series")
    keys = {"iso3": "iso3", "value_year": "year", "value": "value", "source": "source"}
    there = given.tables["series"][list(keys.values())].drop_duplicates()
    mine = frame[list(keys)].rename(columns=keys).astype({"year": "float64"})
    found = mine.merge(
        there.astype({"year": "float64"}), on=list(keys.values()), how="left", indicator="where"
    )
    return (found["where"] == "both").to_numpy(dtype=bool) | frame["value"].isna().to_numpy(
        dtype=bool
    )


def _year_near(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return (frame["value_year"] - frame["year"]).abs() <= 15


# ----------------------------------------------------------------------
# regression


def _tolerance_of_target(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return frame["target"].map(TOLERANCES) == frame["tolerance"]


def _answer_is_label(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """The gold number equals the target's label, up to rounding to one decimal."""
    ok = pd.Series(False, index=frame.index)
    for target in LABELS:
        ok |= (frame["target"] == target) & ((frame["answer"] - frame[target]).abs() <= 0.05 + _EPS)
    return ok | ~frame["target"].isin(LABELS) | frame["answer"].isna()  # those are other rules


def _any_item(task: Task, other: str, texts: tuple[str, ...]) -> dict[str, Flag]:
    return {
        "item-country-known": _country_known,
        "item-cluster-exists": known("cluster_id", "clusters"),
        "item-image-exists": known("image_id", "images"),
        "image-of-cluster": _image_of_cluster,
        "modalities-of-image": _modalities_of_image,
        "labels-of-cluster": _labels_agree,
        "split-place-by-country": _one_value_per("cname", "split_place"),
        "split-place-across-tasks": _place_across_tasks(other),
        "split-by-id": _split_by_id(task),
        "split-by-place": _split_by_place(other),
        "duplicate-item": _duplicate(False, *texts),
        "near-duplicate-item": _duplicate(True, *texts),
        "item-has-prompts": _has_prompts(task),
        "year-whole": lambda frame, given: whole_numbers(frame["year"]),
    }


FLAGS: dict[str, dict[str, Flag]] = {
    "items_mcq": {
        **_any_item(Task.MCQ, "items_regression", ("question", *_OPTIONS)),
        "indicator-uniform": _one_value_per(
            "indicator", "pillar", "polarity", "unit", "question", *_OPTIONS
        ),
        "options-present": _options_present,
        "options-distinct": _options_distinct,
        "answer-among-options": _answer_present,
        "bins-ordered": _bins_ordered,
        "bins-cover": _bins_cover,
        "gold-in-option": _gold_in_option,
        "answers-follow-values": _answers_follow_values,
        "value-in-unit-range": _value_in_unit_range,
        "value-from-series": _value_from_series,
        "value-year-whole": lambda frame, given: whole_numbers(frame["value_year"]),
        "value-year-near": _year_near,
    },
    "items_regression": {
        **_any_item(Task.REGRESSION, "items_mcq", ("question",)),
        "indicator-uniform": _one_value_per("indicator", "pillar", "target", "unit", "question"),
        "tolerance-of-target": _tolerance_of_target,
        "answer-is-label": _answer_is_label,
    },
}


def label_share_gap(frame: pd.DataFrame, given: RuleContext) -> pd.Series:
    """Per row the largest distance (percentage points) of its pillar's A/B/C shares from Table
    B."""
    counts = given.distinct(frame, "pillar", "answer")
    shares = counts.pivot_table(
        index="pillar", columns="answer", values="n", aggfunc="sum", fill_value=0
    )
    shares = 100 * shares.div(shares.sum(axis=1), axis=0)
    shares = shares.reindex(columns=list(LETTERS), fill_value=0.0)
    gaps = {
        p: float(np.abs(shares.loc[p].to_numpy() - want).max())
        for p, want in given.meta["label_shares"].items()
        if p in shares.index
    }
    return frame["pillar"].map(gaps).astype(float)
