"""The paper's printed values, from ``data/paper/*.csv`` (see the README there). Nothing here is
measured by us."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from sdgbias.files import packaged
from sdgbias.types import SDG

FOLDER = packaged("data", "paper")


@dataclass(frozen=True)
class Printed:
    """value: in the results' unit (shares 0 to 1), None if the paper prints no number. text: the
    characters as printed."""

    value: float | None
    text: str


@cache
def described(suite: str) -> Mapping[str, Any]:
    """What is said of a suite's tables: ``tables`` by item, ``ours`` by the kind of our values,
    ``models``, the file of the models that the suite's paper shows."""
    path = packaged("data", f"tables_{suite}.yaml")
    found: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


@cache
def rows(item: str) -> tuple[Mapping[str, str], ...]:
    """All lines of one file, by its stem: 'table_h', 'figure_8', 'claims', 'models'; none of ''."""
    if not item:
        return ()
    with (FOLDER / f"{item}.csv").open(encoding="utf-8", newline="") as handle:
        return tuple(csv.DictReader(handle))


@cache
def names(suite: str = SDG) -> Mapping[str, str]:
    """Registry name (or key) -> name, of the models that a suite's paper shows, in its order."""
    return {r["model"]: r["name"] for r in rows(described(suite)["models"])}


def models(item: str) -> tuple[str, ...]:
    """Registry names of the models that an item of the paper shows, in the paper's order."""
    return tuple(dict.fromkeys(r["model"] for r in rows(item) if r["model"]))


def find(item: str, **where: str) -> Printed | None:
    """The printed value of one line, None if the paper prints none. Columns not named in ``where``
    may hold anything."""
    found = [r for r in rows(item) if where.items() <= r.items()]
    if len(found) > 1:
        raise ValueError(f"{item}: {len(found)} lines fit {where}; name more columns")
    if not found:
        return None
    return Printed(float(found[0]["value"]) if found[0]["value"] else None, found[0]["printed"])
