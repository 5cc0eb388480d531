"""Imported records as item and cluster tables: fields that a record lacks are filled from our
tables, or left blank.

The indicator table gives polarity, unit, title and pillar when a name in the record matches (slug,
title or SDG code, ignoring case and punctuation). A cluster id in DHS's form gives country and
survey year. The rest is '' or NaN, and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.release.records import COLUMNS, FIELD_OF, FIELDS
from sdgbias.benchmark.splits import authors_split, split_by_country
from sdgbias.files import packaged_sql
from sdgbias.raw.clusters import ID_PATTERN, LABELS, UNKNOWN_ADM1, countries
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import CONTEXT_NAMES, PILLARS, TOLERANCES, Task

#: Every column that isn't text; an `answer` is a number where it is asked for.
NUMBERS = {
    **dict.fromkeys(("year", "value_year"), "int32"),
    **dict.fromkeys(("value", "tolerance", *LABELS), "float64"),
}
_CLUSTER = ("cluster_id", "cname", "iso3", "country", "year", "urban", *LABELS)
_ENTRY = ("slug", "title", "sdg", "unit", "polarity", "pillar", "target")


def register(con: duckdb.DuckDBPyConnection, name: str, frame: pd.DataFrame) -> None:
    """A table of that name in the database, of the frame's rows."""
    con.register("_frame", frame)
    con.execute(f"CREATE OR REPLACE TABLE {name} AS FROM _frame")
    con.unregister("_frame")


def register_names(con: duckdb.DuckDBPyConnection) -> None:
    """Tables of what our own tables know: names (of indicators and regression tasks), targets,
    pillars, countries. Of two entries of one name the first wins."""
    names, targets, tasks = [], [], load_regression_tasks()
    for task, entries in ((Task.MCQ, load_indicators()), (Task.REGRESSION, tasks)):
        codes = Counter(entry.sdg for entry in entries)
        for by in ("slug", "title", "sdg"):
            for entry in entries:
                if by != "sdg" or codes[entry.sdg] == 1:  # else the code names neither
                    fields = [str(getattr(entry, field, "")) for field in _ENTRY]
                    names.append((task.value, getattr(entry, by), *fields))
    for target, context_name in CONTEXT_NAMES.items():
        targets += [(target, target), (context_name, target)] if target in TOLERANCES else []
    targets += [(name, t.target) for t in tasks for name in (t.slug, t.title)]
    tables = {
        "names": (["task", "name", *_ENTRY], names),
        "targets": (["name", "target"], targets),
        "pillars": (["name"], [(pillar,) for pillar in PILLARS]),
    }
    for table, (columns, rows) in tables.items():
        register(con, table, pd.DataFrame(rows, columns=columns).reset_index(names="rank"))
        keyed = packaged_sql("release_import.sql")["keyed"]
        con.execute(keyed.format(table=table, of_task="task, " if table == "names" else ""))
    register(con, "countries", countries())


def place_of_paths(paths: pd.Series) -> pd.Series:
    """A cluster id per distinct image path: the path without 'images/' and suffix, or with it where
    two paths would collide."""
    short = paths.map(
        lambda path: str(PurePosixPath(path).with_suffix("")) if PurePosixPath(path).name else path
    )
    short = short.str.removeprefix("images/")
    return short.where(~short.duplicated(keep=False) & (short != ""), paths)


def complete_items(
    con: duckdb.DuckDBPyConnection, task: Task
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(the columns of items_<task> sorted by item_id, notes), from the tables of
    release_import.sql."""
    fields = {name: "VARCHAR" for name in FIELDS if name not in ("item_id", "images")}
    values = {"task": task.value, "fields": json.dumps(fields), "dhs_id": ID_PATTERN.pattern}
    query = packaged_sql("release_import.sql")["items"]
    rows: pd.DataFrame = con.sql(query, params=values).to_arrow_table().to_pandas()
    not_ours = counts(rows["not_ours"].dropna())
    rows = rows.fillna({name: "" for name in rows.columns if name != "item_id"})
    by_rule = rows["split"] == ""
    rows["split"] = rows["split"].where(~by_rule, authors_split(task.value, rows["item_id"]))
    codes = pd.DataFrame({"cname": sorted(set(rows["cname"]) - {""})})
    official = countries().set_index("cname")["official_split"]
    sides, _ = split_by_country(
        codes.assign(official_split=codes["cname"].map(official).fillna(""))
    )
    given = rows["split_place"] != ""
    rows["split_place"] = rows["split_place"].where(given, rows["cname"].map(sides).fillna(""))
    notes: dict[str, Any] = {"indicators_not_ours": not_ours, "split_by_rule": int(by_rule.sum())}
    items = pd.DataFrame(
        {name: _typed(rows[FIELD_OF.get(name, name)], name, task) for name in COLUMNS[task]}
    )
    if task is Task.REGRESSION:
        limits = items["target"].map(TOLERANCES).astype("float64")
        items["tolerance"] = items["tolerance"].fillna(limits)
        without = items.loc[items["tolerance"].isna(), "target"]
        notes["without_tolerance"] = counts(without.replace("", "missing"))
    return items, notes


def _typed(values: pd.Series, name: str, task: Task) -> pd.Series:
    is_number = name in NUMBERS or (name == "answer" and task is Task.REGRESSION)
    if name == "item_id":
        return values.astype("int64")
    if not is_number:
        return values.astype("str")
    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    if NUMBERS.get(name) == "int32":  # years: 0 is unknown
        return numbers.where(numbers.abs() < 10_000, 0.0).astype("int32")
    return numbers


def clusters_of(items: Mapping[Task, pd.DataFrame]) -> pd.DataFrame:
    """clusters.parquet: the places as far as the items contain them, sorted; coordinates
    unknown."""
    tables = [table[list(_CLUSTER)] for table in items.values() if len(table)]
    rows = pd.concat(tables).groupby("cluster_id", sort=True).first().reset_index()
    official = rows["cname"].map(countries().set_index("cname")["official_split"]).fillna("")
    is_dhs_id = rows["cluster_id"].str.fullmatch(ID_PATTERN.pattern)
    table = rows.assign(
        survey=rows["cluster_id"].str[:10].where(is_dhs_id, ""),
        lat=np.nan,
        lon=np.nan,
        adm1dhs=np.int32(UNKNOWN_ADM1),
        official_split=official.astype("str"),
    )
    first = ("cluster_id", "cname", "iso3", "country", "survey", "year", "lat", "lon", "urban")
    kinds = {"year": "int32", "adm1dhs": "int32", **dict.fromkeys(LABELS, "float64")}
    return table[[*first, "adm1dhs", "official_split", *LABELS]].astype(kinds)
