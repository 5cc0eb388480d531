"""What the rules in SQL may use beside the tables of a benchmark: relations with the constants of
the paper and of the package, and functions in Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.benchmark import people_items
from sdgbias.benchmark.prompts import option_letters, option_lines, own_prompts
from sdgbias.benchmark.quality.ranges import bins_ascend, bins_cover, option_range, unit_range
from sdgbias.raw import clusters
from sdgbias.raw.facet import CLASSES, GROUPS, UNKNOWN
from sdgbias.types import LETTERS, TESTS, TOLERANCES, Task

#: A table, or its Parquet file.
Table = pd.DataFrame | Path
Tables = Mapping[str, Table]


def _items(tables: Tables, name: str) -> pd.DataFrame:
    table = tables[name]
    items = pd.read_parquet(table) if isinstance(table, Path) else table
    return items.drop_duplicates("item_id")


def _facts(tables: Tables) -> pd.DataFrame:
    """What predictions are compared with: the gold answer and the valid letters of every item."""
    mcq, regression = (_items(tables, f"items_{t}") for t in Task)
    choices = mcq[["item_id", "split"]].assign(
        task=Task.MCQ.value, gold=mcq["answer"], letters=option_lines(mcq)[1]
    )
    numbers = regression[["item_id", "split", "tolerance"]].assign(
        task=Task.REGRESSION.value, number=regression["answer"].astype("float64")
    )
    return pd.concat([choices, numbers], ignore_index=True)


def _letters(tables: Tables) -> pd.DataFrame:
    """The letters that the questions have columns for."""
    known = option_letters(_items(tables, "items_mcq")) if "items_mcq" in tables else LETTERS
    return pd.DataFrame({"letter": list(known)})


#: Name in SQL -> (the tables that it is made of, how).
RELATIONS: dict[str, tuple[tuple[str, ...], Callable[[Tables], pd.DataFrame]]] = {
    "countries": ((), lambda _: clusters.countries()),  # the packaged crosswalk
    "tests": (
        (),
        lambda _: pd.DataFrame(
            [(task.value, test.value) for task in Task for test in TESTS[task]],
            columns=["task", "test"],
        ),
    ),
    "tolerances": (
        (),
        lambda _: pd.DataFrame(TOLERANCES.items(), columns=["target", "tolerance"]),
    ),
    "classes": ((), lambda _: pd.DataFrame({"name": list(CLASSES)})),
    "person_groups": (
        (),
        lambda _: pd.DataFrame(
            [(k, name) for k, names in GROUPS.items() for name in (*names, UNKNOWN)],
            columns=["attribute", "name"],
        ),
    ),
    "facts": (("items_mcq", "items_regression"), _facts),
    "choice_letters": ((), _letters),
    "own_prompts": (
        ("items_own",),
        lambda tables: own_prompts(_items(tables, "items_own"), has_context=True),
    ),
}


def _as_specified(text: str, prompt: str, asked: str) -> bool:
    """Whether a prompt about a person has the paper's words. p1's class list may be in any order:
    it is shuffled by a seed."""
    if prompt in people_items.CHOICES:
        return text == people_items.CHOICES[prompt].format(name=asked)
    before, _, after = people_items.P1.partition("{list}")
    listed = text.removeprefix(before).removesuffix(after).split(", ")
    return text.startswith(before) and text.endswith(after) and sorted(listed) == sorted(CLASSES)


def _group_names(text: str) -> list[str] | None:
    """The keys of a JSON object of texts; None for anything else."""
    try:
        groups = json.loads(text)
    except ValueError:
        return None
    valid = isinstance(groups, dict) and all(isinstance(v, str) and v for v in groups.values())
    return list(groups) if valid else None


#: Name in SQL -> function, types of its arguments, type of its result.
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any], Any]] = {
    "option_range": (
        lambda text: (covered := option_range(text)) and covered._asdict(),
        ["VARCHAR"],
        "STRUCT(low DOUBLE, high DOUBLE, low_in BOOLEAN, high_in BOOLEAN)",
    ),
    "unit_range": (
        lambda unit: dict(zip(("low", "high"), unit_range(unit), strict=True)),
        ["VARCHAR"],
        "STRUCT(low DOUBLE, high DOUBLE)",
    ),
    "bins_ascend": (bins_ascend, ["VARCHAR[]"], "BOOLEAN"),
    "bins_cover": (bins_cover, ["VARCHAR[]", "VARCHAR"], "BOOLEAN"),
    "as_specified": (_as_specified, ["VARCHAR"] * 3, "BOOLEAN"),
    "group_names": (_group_names, ["VARCHAR"], "VARCHAR[]"),
}
