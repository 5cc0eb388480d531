"""Imported records as item and cluster tables: fields that a record lacks are filled from our
tables, or left blank.

The indicator table gives polarity, unit, title and pillar when a name in the record matches (slug,
title or SDG code, ignoring case and punctuation). A cluster id in DHS's form gives country and
survey year. The rest is '' or NaN, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.release.records import COLUMNS, FIELD_OF
from sdgbias.benchmark.splits import authors_split, split_by_country
from sdgbias.raw.clusters import ID_PATTERN, LABELS, UNKNOWN_ADM1, countries
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import CONTEXT_NAMES, PILLARS, TOLERANCES, Task

#: Every column that isn't text.
NUMBERS = {
    **dict.fromkeys(("year", "value_year"), "int32"),
    **dict.fromkeys(("value", "tolerance", *LABELS), "float64"),
    "item_id": "int64",
}
_CLUSTER = ("cluster_id", "cname", "iso3", "country", "year", "urban", *LABELS)


def place_of_paths(paths: pd.Series) -> pd.Series:
    """A cluster id per distinct image path: the path without 'images/' and suffix, or with it where
    two paths would collide."""
    short = paths.map(
        lambda path: str(PurePosixPath(path).with_suffix("")) if PurePosixPath(path).name else path
    )
    short = short.str.removeprefix("images/")
    return short.where(~short.duplicated(keep=False) & (short != ""), paths)


def item_table(task: Task, records: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(the columns of items_<task> sorted by item_id, notes). ``records``: one row per item;
    item_id, image_id, cluster_id, bare (the question without context and options) and the record's
    other fields as text, missing ones as NaN or None."""
    rows = pd.DataFrame(
        {name: _text(records[name]) for name in records.columns if name != "item_id"},
        index=records.index,
    )
    rows["item_id"] = records["item_id"].astype("int64")
    ours = rows["item_question"] != ""
    rows["item_question"] = rows["item_question"].where(ours, rows["bare"])
    if task is Task.REGRESSION:
        rows["target"] = _targets(rows)
    rows["indicator"] = rows["indicator"].where(rows["indicator"] != "", rows["task_name"])
    named = rows["indicator"].copy()
    slug = _match(task, rows, "slug")
    rows["indicator"] = slug.where(slug != "", rows["indicator"])
    title = _match(task, rows, "title")
    rows["task_name"] = rows["task_name"].where(ours, title.where(title != "", named))
    for name in ("unit", "sdg", "polarity"):
        if name in rows:
            rows[name] = rows[name].where(rows[name] != "", _match(task, rows, name))
    pillars = {_key(name): name for name in PILLARS}
    canonical = rows["pillar"].map(_key).map(pillars).fillna(rows["pillar"])
    rows["pillar"] = canonical.where(canonical != "", _match(task, rows, "pillar"))
    given = rows["split"].str.lower()
    by_rule = pd.Series(authors_split(task.value, rows["item_id"]), index=rows.index)
    rows["split"] = given.where(given != "", by_rule)
    notes = {
        "indicators_not_ours": counts(named[slug == ""]),
        "split_by_rule": int((given == "").sum()),
    }
    _fill_place(rows)
    if task is Task.REGRESSION:
        rows["tolerance"] = _number(rows["tolerance"]).fillna(rows["target"].map(TOLERANCES))
    items = pd.DataFrame(
        {name: _typed(rows[FIELD_OF.get(name, name)], name, task) for name in COLUMNS[task]}
    )
    return items.sort_values("item_id", ignore_index=True), notes


def clusters_of(items: Mapping[Task, pd.DataFrame]) -> pd.DataFrame:
    """clusters.parquet: the places as far as the items contain them, sorted; coordinates
    unknown."""
    tables = [table[list(_CLUSTER)] for table in items.values() if len(table)]
    both = pd.concat(tables, ignore_index=True)
    rows = both.groupby("cluster_id", sort=True).first().reset_index()
    split = rows["cname"].map(countries().set_index("cname")["official_split"]).fillna("")
    dhs = rows["cluster_id"].str.fullmatch(ID_PATTERN.pattern)
    return pd.DataFrame(
        {
            **{name: rows[name] for name in ("cluster_id", "cname", "iso3", "country")},
            "survey": rows["cluster_id"].str[:10].where(dhs, ""),
            "year": rows["year"].astype("int32"),
            "lat": np.nan,
            "lon": np.nan,
            "urban": rows["urban"],
            "adm1dhs": pd.Series(UNKNOWN_ADM1, index=rows.index, dtype="int32"),
            "official_split": split.astype("str"),
            **{name: rows[name].astype("float64") for name in LABELS},
        }
    )


def _fill_place(rows: pd.DataFrame) -> None:
    """Country and year from a cluster id in DHS's form, split_place from the country; in place."""
    table = countries().set_index("cname")
    dhs = rows["cluster_id"].str.fullmatch(ID_PATTERN.pattern)
    code = rows["cluster_id"].str[:2].where(dhs & rows["cluster_id"].str[:2].isin(table.index), "")
    rows["cname"] = rows["cname"].where(rows["cname"] != "", code)
    for name, source in (("iso3", "iso3"), ("country", "name")):
        rows[name] = rows[name].where(rows[name] != "", rows["cname"].map(table[source]).fillna(""))
    year = rows["cluster_id"].str[3:7].where(dhs, "0")
    rows["year"] = rows["year"].where(rows["year"] != "", year)
    codes = pd.DataFrame({"cname": sorted(set(rows["cname"]) - {""})})
    place, _ = split_by_country(
        codes.assign(official_split=codes["cname"].map(table["official_split"]).fillna(""))
    )
    rows["split_place"] = rows["split_place"].where(
        rows["split_place"] != "", rows["cname"].map(place).fillna("")
    )


def _targets(rows: pd.DataFrame) -> pd.Series:
    """The label that a regression item asks for: `target` by a label of SustainBench, its name in a
    context (Table E), or slug or title of one of our tasks, else that of the task that `indicator`
    or `task_name` names; a target of another name stays as it is."""
    entries = load_regression_tasks()
    labels = {_key(name): entry.target for entry in entries for name in (entry.title, entry.slug)}
    labels |= {_key(CONTEXT_NAMES[target]): target for target in TOLERANCES}
    labels |= {_key(target): target for target in TOLERANCES}
    named = rows["target"].map(_key).map(labels).fillna(_match(Task.REGRESSION, rows, "target"))
    return named.where(named != "", rows["target"]).astype("str")


def _match(task: Task, rows: pd.DataFrame, field: str) -> pd.Series:
    """A field of our indicator table for every row, '' where neither `indicator` nor `task_name`
    names an entry."""
    field_of: dict[str, str] = {}
    entries = load_indicators() if task is Task.MCQ else load_regression_tasks()
    for name in ("sdg", "title", "slug"):  # a slug wins
        for entry in entries:
            field_of[_key(str(getattr(entry, name)))] = str(getattr(entry, field, ""))
    codes = Counter(_key(entry.sdg) for entry in entries)
    for code, n in codes.items():
        if n > 1:  # two tasks of one SDG indicator: the code names neither
            field_of.pop(code)
    first = rows["indicator"].map(_key).map(field_of)
    return first.fillna(rows["task_name"].map(_key).map(field_of)).fillna("").astype("str")


def _key(name: str) -> str:
    return "".join(c for c in name.casefold().replace("&", "and") if c.isalnum())


def _text(values: pd.Series) -> pd.Series:
    return values.astype("str").where(values.notna(), "").astype("str")


def _number(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values, errors="coerce").astype("float64")


def _typed(values: pd.Series, name: str, task: Task) -> pd.Series:
    kind = NUMBERS.get(name, "str")
    if name == "answer" and task is Task.REGRESSION:
        kind = "float64"
    if kind == "str":
        return values.astype("str")
    if kind == "int32":  # years: 0 is unknown
        whole = _number(values)
        return whole.where(np.isfinite(whole) & (whole.abs() < 10_000), 0.0).astype("int32")
    return values.astype("int64") if kind == "int64" else _number(values)
