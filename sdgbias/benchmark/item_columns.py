"""The columns of items_mcq.parquet and items_regression.parquet, and how the key of a question gets
them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from sdgbias.benchmark.splits import authors_split
from sdgbias.raw.clusters import LABELS
from sdgbias.raw.indicators import Bins, load_indicators, load_regression_tasks
from sdgbias.types import TOLERANCES, Task

PLACE = ("item_id", "cluster_id", "cname", "iso3", "country", "year", "urban")
_KIND = ("pillar", "indicator", "indicator_title", "sdg", "unit")
_SHARED = ("pillar", "indicator_title", "sdg", "unit")
_OPTIONS = ("option_a", "option_b", "option_c")
_SPLITS = ("split", "split_place", "image_id", "modalities")
MCQ_COLUMNS = (
    *(*PLACE, *_KIND, "value", "value_year", "source", "level", "polarity", "question"),
    *(*_OPTIONS, "answer", *_SPLITS, *LABELS, "review"),
)
REGRESSION_COLUMNS = (
    *(*PLACE, *_KIND, "target", "tolerance", "question"),
    *("answer", *_SPLITS, *LABELS, "review"),
)


def finish_items(
    keys: pd.DataFrame,
    facts: pd.DataFrame,
    texts: pd.DataFrame,
    task: Task,
    place: Mapping[str, str],
) -> pd.DataFrame:
    """The item table of some keys, in their order: indicator columns, cluster columns (`facts`),
    labels, both splits."""
    few = list(keys.select_dtypes("category"))
    keys = keys.astype(dict.fromkeys(few, "str"))
    items = keys.join(facts, on="cluster_id").merge(texts, on="indicator", how="left")
    items["split"] = authors_split(task.value, items["item_id"])
    items["split_place"] = items["cname"].map(place)
    items["review"] = ""
    types = column_types(task)
    return items[list(types)].astype(types)


def column_types(task: Task) -> dict[str, str]:
    """The pandas type of each column of a task's item table, in their order."""
    numbers = {"item_id": "int64", "year": "int32"}
    if task is Task.MCQ:
        columns, more = MCQ_COLUMNS, {"value": "float64", "value_year": "int32"}
    else:
        columns, more = REGRESSION_COLUMNS, {"answer": "float64", "tolerance": "float64"}
    kinds = {**dict.fromkeys(LABELS, "float64"), **numbers, **more}  # everything else is text
    return {column: kinds.get(column, "str") for column in columns}


def shared_texts(options: Mapping[str, Bins], task: Task) -> pd.DataFrame:
    """One row per indicator or regression task: the columns that every item of it shares."""
    if task is Task.REGRESSION:
        rows = [
            (t.slug, t.pillar, t.title, t.sdg, t.unit, t.target, TOLERANCES[t.target], t.question)
            for t in load_regression_tasks()
        ]
        of_task = ["target", "tolerance", "question"]
        return pd.DataFrame(rows, columns=["indicator", *_SHARED, *of_task])
    indicators = [entry for entry in load_indicators() if entry.slug in options]
    texts = {e.slug: [*options[e.slug].labels, "", "", ""][:3] for e in indicators}
    entries = [
        (e.slug, e.pillar, e.title, e.sdg, e.unit, e.polarity, e.question, *texts[e.slug])
        for e in indicators
    ]
    return pd.DataFrame(entries, columns=["indicator", *_SHARED, "polarity", "question", *_OPTIONS])
