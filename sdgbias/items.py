"""Clusters + indicator series -> questions with gold answers: 12 multiple-choice indicators and 9 regression tasks.

Everything is set-based. Order of the input never matters: items are keyed by (task, indicator, cluster), chosen by a
keyed hash and sorted by item_id. The columns are those of items_mcq.parquet and items_regression.parquet (MCQ_COLUMNS,
REGRESSION_COLUMNS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.indicators import Bins, Indicator, bins, load_indicators, load_regression_tasks
from sdgbias.types import PILLARS, TOLERANCES, Task

LABELS = ("asset_index", "water_index", "sanitation_index", "under5_mort", "women_edu", "women_bmi")
_PLACE = ("item_id", "cluster_id", "cname", "iso3", "country", "year", "urban")
_KIND = ("pillar", "indicator", "indicator_title", "sdg", "unit")
_OPTIONS = ("option_a", "option_b", "option_c")
_SPLITS = ("split", "split_place", "image_id")
MCQ_COLUMNS = (
    *(*_PLACE, *_KIND, "value", "value_year", "source", "level", "polarity", "question"),
    *(*_OPTIONS, "answer", *_SPLITS, *LABELS),
)
REGRESSION_COLUMNS = (*_PLACE, *_KIND, "target", "tolerance", "question", "answer", *_SPLITS, *LABELS)
QUARANTINE_COLUMNS = ("table", "key", "rule", "detail")

#: Table A: questions per pillar of the published benchmark; a smaller benchmark keeps these proportions.
PILLAR_WEIGHTS = {
    Task.MCQ: dict(zip(PILLARS, (222_900, 162_600, 114_500), strict=True)),
    Task.REGRESSION: dict(zip(PILLARS, (19_427, 16_761, 13_812), strict=True)),
}
VAL_SHARE = 0.2
MAX_GAP = 10


@dataclass(frozen=True)
class Built:
    """What build_items returns. `notes` is plain JSON: quotas, shortfalls in words, bins, coverage, splits."""

    items_mcq: pd.DataFrame
    items_regression: pd.DataFrame
    quarantine: pd.DataFrame
    notes: dict[str, Any]


def build_items(
    clusters: pd.DataFrame,
    images: pd.DataFrame,
    series: pd.DataFrame,
    gdl_regions: pd.DataFrame | None = None,
    *,
    mcq: int | None,
    regression: int | None,
    seed: int,
    max_gap: int = MAX_GAP,
) -> Built:
    """Ask every indicator of every cluster with an image and a value; keep `mcq` and `regression` items (None: all).

    `clusters`: the columns of clusters.parquet; gdl_region may be absent or ''. `gdl_regions`: cname, adm1dhs,
    gdl_region, fills empty regions. `series`: series.read_series. `max_gap`: most years between a national or regional
    value and the survey, where the indicator table says nothing else. Raises InputError for a missing column,
    UsageError for a negative number.
    """
    for name, number in (("mcq", mcq), ("regression", regression), ("max_gap", max_gap)):
        if number is not None and number < 0:
            raise UsageError(f"{name} is {number}; give a number of 0 or more, or leave it out to keep every item")
    base, repeated, notes = _base(clusters, images, gdl_regions)
    place, notes["split_place"] = split_by_country(base[["cname", "official_split"]].drop_duplicates())

    found, lost_mcq, options = _mcq_candidates(base, series, max_gap, notes)
    chosen = _choose(found, Task.MCQ, {i.slug: i.pillar for i in load_indicators()}, mcq, seed, notes)
    items_mcq = _finish_mcq(chosen, base, options, place)

    found, lost_regression = _regression_candidates(base)
    chosen = _choose(found, Task.REGRESSION, {t.slug: t.pillar for t in load_regression_tasks()}, regression, seed, notes)
    items_regression = _finish_regression(chosen, base, place)

    shares = pd.crosstab(items_mcq["pillar"], items_mcq["answer"], normalize="index").round(4)
    notes["label_shares"] = shares.to_dict(orient="index")
    quarantine = _concat([repeated, lost_mcq, lost_regression], list(QUARANTINE_COLUMNS))
    quarantine = quarantine.sort_values(list(QUARANTINE_COLUMNS), kind="stable").reset_index(drop=True)
    return Built(items_mcq, items_regression, quarantine, notes)


def authors_split(task: str, ids: Sequence[int] | np.ndarray | pd.Series) -> np.ndarray:
    """'val' or 'test' per item id (N,) by the authors' rule.

    The first 15 hex digits of the md5 of '<task>-<id>', as a fraction of 1, lie below 0.2 for val. The rule knows
    nothing of places: two questions about one country can stand on both sides (see split_by_country).
    """
    if task not in [known.value for known in Task]:
        raise InputError(one_of("task", task, [known.value for known in Task]))
    texts = f"{task}-" + pd.Series(np.asarray(ids, dtype="int64")).astype(str)
    return np.where(_md5(texts, 15) / 16.0**15 < VAL_SHARE, "val", "test").astype(object)


def split_by_country(countries: pd.DataFrame) -> tuple[dict[str, str], dict[str, Any]]:
    """'val' or 'test' per cname, and a note; no country stands on both sides. `countries`: cname, official_split.

    SustainBench's val countries are val, all others test. Where that leaves one side empty, the first fifth of the
    countries (rounded up) by the md5 of their code is val; a single country is test.
    """
    official = dict(zip(countries["cname"], countries["official_split"], strict=True))
    codes = sorted(official)
    val = {code for code in codes if official[code] == "val"}
    rule = "official val countries"
    if codes and (not val or len(val) == len(codes)):
        order = np.argsort(_md5(pd.Series(codes), 15), kind="stable")
        val = {codes[at] for at in order[: math.ceil(VAL_SHARE * len(codes))]} if len(codes) > 1 else set()
        rule = "a fifth of the countries by md5, because the official split leaves one side empty"
    split = {code: "val" if code in val else "test" for code in codes}
    return split, {"rule": rule, "val": sorted(val), "test": sorted(set(codes) - val)}


def _md5(texts: pd.Series, digits: int) -> np.ndarray:
    """First hex digits (at most 15) of every text's md5 as int64 (N,), in one DuckDB query."""
    table = pa.table({"row": np.arange(len(texts)), "text": pa.array(texts.to_numpy(dtype=object), pa.string())})
    with duckdb.connect() as connection:
        connection.register("texts", table)
        query = f"SELECT ('0x' || left(md5(text), {digits:d}))::BIGINT AS number FROM texts ORDER BY row"
        return np.asarray(connection.execute(query).fetchnumpy()["number"], dtype="int64")


def _base(
    clusters: pd.DataFrame, images: pd.DataFrame, gdl_regions: pd.DataFrame | None
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """(clusters that have an image, sorted, with image_id and gdl_region; repeated clusters; notes)."""
    wanted = (*_PLACE[1:], "adm1dhs", "official_split", *LABELS)
    for name, frame, columns in (("clusters", clusters, wanted), ("images", images, ("cluster_id", "image_id"))):
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            raise InputError(f"{name}: missing column(s) {', '.join(missing)}; build the benchmark again with 'sdgbias build'")
    base = clusters[list(wanted)].copy()
    base["gdl_region"] = clusters["gdl_region"].fillna("").str.lower() if "gdl_region" in clusters else ""
    if gdl_regions is not None and len(gdl_regions):
        known = gdl_regions[["cname", "adm1dhs", "gdl_region"]].rename(columns={"gdl_region": "given"})
        base = base.merge(known, on=["cname", "adm1dhs"], how="left")
        base["gdl_region"] = base["gdl_region"].where(base["gdl_region"] != "", base.pop("given").fillna("").str.lower())
    image = images[["cluster_id", "image_id"]].sort_values(["cluster_id", "image_id"]).drop_duplicates("cluster_id")
    kept = base.merge(image, on="cluster_id", how="inner")
    kept = kept.sort_values(["cluster_id", *(c for c in kept.columns if c != "cluster_id")], kind="stable")
    notes = {
        "clusters": len(base),
        "clusters_with_image": kept["cluster_id"].nunique(),
        "countries": sorted(kept["cname"].unique().tolist()),
    }
    again = kept.duplicated("cluster_id")
    where = {"table": "clusters", "rule": "duplicate-item", "detail": "cluster appears twice; one row is kept"}
    twice = pd.DataFrame({"key": kept["cluster_id"][again], **where}, columns=list(QUARANTINE_COLUMNS))
    return kept[~again].reset_index(drop=True), twice, notes


def _mcq_candidates(
    base: pd.DataFrame, series: pd.DataFrame, max_gap: int, notes: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Bins]]:
    """(every cluster x indicator with a valid gold letter, the quarantined others, options per indicator)."""
    slim = base[["cluster_id", "cname", "iso3", "year", "urban", "gdl_region", "image_id"]]
    found, lost, options = [], [], {}
    notes["bins"], notes["coverage"] = {}, {}
    for entry in load_indicators():
        rows = _lookup(slim, series, entry, max_gap).assign(indicator=entry.slug)
        names = ", ".join(ref.name for ref in entry.series)
        gone = rows["value"].isna()
        where = rows["iso3"] + " " + rows["year"].astype(str)
        lost.append(_quarantine(Task.MCQ, rows[gone], "no-indicator-value", f"no value of {names} near " + where[gone]))
        low, high = entry.limits
        false = ~gone & ~rows["value"].between(low, high)
        detail = rows["value"].astype(str)[false] + f" is outside {low:g} to {high:g} {entry.unit}"
        lost.append(_quarantine(Task.MCQ, rows[false], "value-out-of-range", detail))
        rows, twice = _once(rows[~gone & ~false])
        lost.append(_quarantine(Task.MCQ, twice, "duplicate-item", "same indicator and image as " + twice["first"]))
        notes["coverage"][entry.slug] = {level: int((rows["level"] == level).sum()) for level in entry.levels}
        options[entry.slug] = made = bins(entry, rows["value"].to_numpy(dtype=float))
        notes["bins"][entry.slug] = {**asdict(made), "n": len(rows)}
        if made.labels:
            rows["answer"] = made.letters(rows["value"].to_numpy(dtype=float))
            found.append(rows)
        else:
            lost.append(_quarantine(Task.MCQ, rows, "invalid-options", pd.Series(made.reason, index=rows.index)))
    columns = ["cluster_id", "cname", "year", "indicator", "value", "value_year", "source", "level", "answer"]
    return _concat(found, columns), _concat(lost, list(QUARANTINE_COLUMNS)), options


def _regression_candidates(base: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(every cluster x task whose target is known, the quarantined others)."""
    found, lost = [], []
    for entry in load_regression_tasks():
        rows = base[["cluster_id", "cname", "year", "image_id", entry.target]].rename(columns={entry.target: "answer"})
        rows = rows.assign(indicator=entry.slug)
        gone = rows["answer"].isna()
        unknown = pd.Series(f"{entry.target} is unknown", index=rows.index)
        lost.append(_quarantine(Task.REGRESSION, rows[gone], "no-indicator-value", unknown[gone]))
        rows, twice = _once(rows[~gone])
        lost.append(_quarantine(Task.REGRESSION, twice, "duplicate-item", "same task and image as " + twice["first"]))
        found.append(rows)
    return _concat(found, ["cluster_id", "cname", "year", "indicator", "answer"]), _concat(lost, list(QUARANTINE_COLUMNS))


def _lookup(rows: pd.DataFrame, series: pd.DataFrame, entry: Indicator, max_gap: int) -> pd.DataFrame:
    """`rows` plus value, value_year, source, level: most local level first, then series order, then nearest year.

    Two years equally near: the earlier. NaN where no level has a value within the gap (years) of the survey year.
    """
    keys = ["iso3", "gdl_region", "urban", "year"]
    wanted = rows[keys].drop_duplicates()
    wanted["stratum"] = wanted["urban"].map({"U": "urban", "R": "rural"}).fillna("")
    used = [(ref.name, at, max_gap if ref.max_gap is None else ref.max_gap) for at, ref in enumerate(entry.series)]
    own = series.merge(pd.DataFrame(used, columns=["series", "rank", "limit"]), on="series")
    own = own.rename(columns={"year": "value_year", "region": "gdl_region"})
    regional, whole = own["gdl_region"] != "", own["stratum"] == "all"
    places = {
        "subnational": (own[regional].drop(columns="stratum"), ["iso3", "gdl_region"]),
        "urban-rural": (own[~regional & ~whole].drop(columns="gdl_region"), ["iso3", "stratum"]),
        "national": (own[~regional & whole].drop(columns=["gdl_region", "stratum"]), ["iso3"]),
    }
    found: list[pd.DataFrame] = []
    for level in entry.levels:
        known, place = places[level]
        pairs = wanted[[*place, "year"]].drop_duplicates().merge(known, on=place)
        pairs["gap"] = (pairs["value_year"] - pairs["year"]).abs()
        pairs = pairs[pairs["gap"] <= pairs["limit"]].sort_values(["rank", "gap", "value_year"], kind="stable")
        best = pairs.drop_duplicates([*place, "year"])[[*place, "year", "value", "value_year", "source"]]
        found.append(wanted.merge(best, on=[*place, "year"]).assign(level=level))
    near = pd.concat(found, ignore_index=True).drop_duplicates(keys)
    return rows.merge(near.drop(columns="stratum"), on=keys, how="left")


def _once(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(first row of every image in cluster order, the repetitions with `first` = the cluster that is kept)."""
    rows = rows.sort_values("cluster_id", kind="stable").reset_index(drop=True)
    again = rows.duplicated("image_id")
    first = rows.groupby("image_id")["cluster_id"].transform("first")
    return rows[~again].reset_index(drop=True), rows[again].assign(first=first[again])


def _quarantine(task: Task, rows: pd.DataFrame, rule: str, detail: pd.Series) -> pd.DataFrame:
    key = rows["cluster_id"] + "|" + rows["indicator"]
    return pd.DataFrame({"table": f"items_{task}", "key": key, "rule": rule, "detail": detail}, columns=list(QUARANTINE_COLUMNS))


def _concat(frames: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """The non-empty frames' columns below each other; an empty frame with these columns if there is none."""
    frames = [frame[columns] for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _choose(
    found: pd.DataFrame, task: Task, pillars: Mapping[str, str], total: int | None, seed: int, notes: dict[str, Any]
) -> pd.DataFrame:
    """Keep `total` candidates: pillars as in Table A, even over a pillar's indicators, stratified by country and year.

    Within an indicator every stratum gives its share of clusters, in the order of a hash keyed by (seed, indicator,
    cluster): another country only pushes items out, it never brings others of the same country in.
    """
    have = found["indicator"].value_counts()
    capacity = {slug: int(have.get(slug, 0)) for slug in pillars}
    kept, notes[task.value] = _quotas(task, pillars, capacity, total)
    if total is None or not len(found):
        return _with_ids(found, task)
    key = f"{seed}|" + found["indicator"] + "|"
    stratum = found["indicator"] + "|" + found["cname"] + "|" + found["year"].astype(str)
    hashes = _md5(key + found["cluster_id"], 15)
    shift = _md5(f"{seed}|" + stratum, 15) / 16.0**15
    ordered = found.assign(stratum=stratum, hash=hashes, shift=shift).sort_values(["stratum", "hash", "cluster_id"])
    groups = ordered.groupby("stratum")
    ordered["place"] = (groups.cumcount() + ordered["shift"]) / groups["hash"].transform("size")
    ordered = ordered.sort_values(["indicator", "place", "hash", "cluster_id"])
    chosen = ordered[ordered.groupby("indicator").cumcount() < ordered["indicator"].map(kept)]
    # ids are given before the choice, so that an id never depends on the quota
    ids = _with_ids(found, task)[["indicator", "cluster_id", "item_id"]]
    return chosen.drop(columns=["stratum", "hash", "shift", "place"]).merge(ids, on=["indicator", "cluster_id"])


def _quotas(
    task: Task, pillars: Mapping[str, str], capacity: Mapping[str, int], total: int | None
) -> tuple[dict[str, int], dict[str, Any]]:
    """(items to keep per indicator, notes with every shortfall in words)."""
    short: list[str] = []
    kept: dict[str, int] = dict(capacity)
    weights = PILLAR_WEIGHTS[task]
    quotas = dict(zip(PILLARS, largest_remainder(total or 0, list(weights.values())), strict=True))
    for pillar in PILLARS if total is not None else ():
        own = {slug: capacity[slug] for slug in pillars if pillars[slug] == pillar}
        even = dict(zip(own, largest_remainder(quotas[pillar], [1] * len(own)), strict=True))
        kept |= (given := _fill(quotas[pillar], own))
        for slug in own:
            if given[slug] < even[slug]:
                short.append(f"{pillar}, {slug}: wanted {even[slug]}, the data gives {given[slug]}")
        if sum(given.values()) < quotas[pillar]:
            short.append(f"{pillar}: wanted {quotas[pillar]}, the data gives {sum(given.values())}; the rest stays empty")
    for slug in (slug for slug in pillars if total is None and not capacity[slug]):
        short.append(f"{pillars[slug]}, {slug}: the data gives no item")
    made = {pillar: {slug: kept[slug] for slug in pillars if pillars[slug] == pillar} for pillar in PILLARS}
    return kept, {
        "requested": total,
        "available": sum(capacity.values()),
        "made": sum(kept.values()),
        "pillar_quotas": quotas if total is not None else None,
        "items": made,
        "short": short,
    }


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to `weights` that sum to `total`; equal remainders go to the earlier entry."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [math.floor(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[: total - sum(whole)]:
        whole[at] += 1
    return whole


def _fill(quota: int, capacity: Mapping[str, int]) -> dict[str, int]:
    """Spread `quota` evenly, nobody above capacity; what one can't hold goes to the others."""
    given = dict.fromkeys(capacity, 0)
    left = quota
    while left and (open_ := [slug for slug in capacity if given[slug] < capacity[slug]]):
        for slug, share in zip(open_, largest_remainder(left, [1] * len(open_)), strict=True):
            given[slug] += min(share, capacity[slug] - given[slug])
        left = quota - sum(given.values())
    return given


def _with_ids(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Add item_id: 12 hex digits (48 bits) of the md5 of '<task>|<indicator>|<cluster_id>'; collisions count up."""
    keys = (f"{task}|" + rows["indicator"] + "|" + rows["cluster_id"]).astype(str)
    rows = rows.assign(key=keys, item_id=_md5(keys, 12)).sort_values(["item_id", "key"], kind="stable")
    while rows["item_id"].duplicated().any():
        rows["item_id"] += rows.groupby("item_id").cumcount()
        rows = rows.sort_values(["item_id", "key"], kind="stable")
    return rows.drop(columns="key").reset_index(drop=True)


def _finish(chosen: pd.DataFrame, base: pd.DataFrame, task: Task, place: Mapping[str, str]) -> pd.DataFrame:
    """Cluster columns, labels and both splits for the chosen rows, sorted by item_id."""
    own = base.set_index("cluster_id")[["iso3", "country", "urban", "image_id", *LABELS]]
    items = chosen.join(own, on="cluster_id")
    items["split"] = authors_split(task.value, items["item_id"])
    items["split_place"] = items["cname"].map(place)
    return items.sort_values("item_id", kind="stable").reset_index(drop=True)


def _finish_mcq(chosen: pd.DataFrame, base: pd.DataFrame, options: Mapping[str, Bins], place: Mapping[str, str]) -> pd.DataFrame:
    rows = []
    for entry in load_indicators():
        texts = [*options[entry.slug].labels, "", "", ""][:3]
        rows.append((entry.slug, entry.pillar, entry.title, entry.sdg, entry.unit, entry.polarity, entry.question, *texts))
    names = ["indicator", "pillar", "indicator_title", "sdg", "unit", "polarity", "question", *_OPTIONS]
    items = _finish(chosen, base, Task.MCQ, place).merge(pd.DataFrame(rows, columns=names), on="indicator", how="left")
    numbers = {"item_id": "int64", "value": "float64", "value_year": "int32", "year": "int32"}
    return _typed(items[list(MCQ_COLUMNS)], numbers)


def _finish_regression(chosen: pd.DataFrame, base: pd.DataFrame, place: Mapping[str, str]) -> pd.DataFrame:
    rows = [(t.slug, t.pillar, t.title, t.sdg, t.unit, t.target, TOLERANCES[t.target], t.question) for t in load_regression_tasks()]
    names = ["indicator", "pillar", "indicator_title", "sdg", "unit", "target", "tolerance", "question"]
    items = _finish(chosen, base, Task.REGRESSION, place).merge(pd.DataFrame(rows, columns=names), on="indicator", how="left")
    numbers = {"item_id": "int64", "answer": "float64", "tolerance": "float64", "year": "int32"}
    return _typed(items[list(REGRESSION_COLUMNS)], numbers)


def _typed(items: pd.DataFrame, numbers: Mapping[str, str]) -> pd.DataFrame:
    """The contract's types: the named numbers, labels as double, everything else text."""
    kinds = {**dict.fromkeys(LABELS, "float64"), **numbers}
    return items.astype({column: kinds.get(column, "str") for column in items.columns})
