"""The seeded, stratified draw of a benchmark's items, and the ids that make it stable. Set-based,
independent of question texts.

Every number here comes from md5 over the item's names, so that neither the order of the input nor
another country's clusters change the draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.types import PILLARS, Task

#: Table A: questions per pillar of the published benchmark (multiple choice: x 5 tests); a smaller
#: one keeps these proportions.
PILLAR_WEIGHTS = {
    Task.MCQ: dict(zip(PILLARS, (222_900, 162_600, 114_500), strict=True)),
    Task.REGRESSION: dict(zip(PILLARS, (19_427, 16_761, 13_812), strict=True)),
}
#: Table B: percent of the published multiple-choice answers that are A, B and C.
TABLE_B = dict(
    zip(PILLARS, ((27.75, 42.80, 29.45), (40.11, 39.11, 20.78), (32.03, 33.87, 34.11)), strict=True)
)
#: Distinct questions of the published benchmark: a multiple-choice question counts five times in
#: Table A.
PAPER = {Task.MCQ: 100_000, Task.REGRESSION: 50_000}


def md5_numbers(texts: pd.Series, digits: int) -> np.ndarray:
    """First hex digits (at most 15) of every text's md5 as int64 (N,), in one DuckDB query."""
    table = pa.table({"text": pa.array(texts.to_numpy(dtype=object), pa.string())})
    return _md5_numbers(table, {"number": ("text", digits)})["number"]


def _md5_numbers(table: pa.Table, wanted: Mapping[str, tuple[str, int]]) -> dict[str, np.ndarray]:
    """Name -> (N,) first hex digits of the md5 of an SQL expression over each row."""
    columns = ", ".join(f"md5_number_upper({text}) AS {name}" for name, (text, _) in wanted.items())
    with duckdb.connect() as connection:
        connection.register("rows", table)
        numbers = connection.execute(f"SELECT {columns} FROM rows").fetchnumpy()
    # DuckDB reads the first eight bytes from the last one on
    return {
        name: (np.asarray(numbers[name]).byteswap() >> np.uint64(64 - 4 * digits)).astype("int64")
        for name, (_, digits) in wanted.items()
    }


def with_ids(candidates: pd.DataFrame, task: Task, seed: int) -> pd.DataFrame:
    """``candidates`` (indicator, cluster_id, cname, year, ..., one row each) with item_id and rank.

    item_id: 12 hex digits (48 bits) of the md5 of '<task>|<indicator>|<cluster_id>'; collisions
    count up. rank: the place of the row in the draw of its indicator (rank < n are the n that are
    kept). Within an indicator every stratum (country and survey year) gives its share of clusters,
    in the order of a hash keyed by (seed, indicator, cluster).
    """
    of = candidates.groupby(["indicator", "cname", "year"], sort=False, observed=True)
    stratum, strata = of.ngroup().to_numpy(), of.head(1)
    names = candidates[["indicator", "cluster_id"]].astype("str")
    numbers = _md5_numbers(
        pa.Table.from_pandas(names, preserve_index=False),
        {
            "id": (f"'{task.value}|' || indicator || '|' || cluster_id", 12),
            "hash": (f"'{int(seed)}|' || indicator || '|' || cluster_id", 15),
        },
    )
    texts = (
        f"{int(seed)}|" + strata["indicator"].astype("str") + "|" + strata["cname"].astype("str")
    )
    shift = md5_numbers(texts + "|" + strata["year"].astype("str"), 15) / 16.0**15
    # the id decides where two hashes of 60 bits are equal
    at = _counted(stratum, numbers["id"], numbers["hash"])
    size = np.bincount(stratum, minlength=len(strata))
    place = (at + shift[stratum]) / size[stratum]
    indicator = pd.factorize(candidates["indicator"])[0]
    rank = _counted(indicator, numbers["id"], numbers["hash"], place)
    return without_collisions(candidates.assign(item_id=numbers["id"], rank=rank))


def _counted(group: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """(N,) place of each row within its group, from 0 on, in the order of the keys, the last one
    first."""
    order = np.lexsort((*keys, group))
    starts = np.r_[0, np.cumsum(np.bincount(group))]
    at = np.empty(len(order), dtype="int64")
    at[order] = np.arange(len(order)) - starts[group[order]]
    return at


def without_collisions(rows: pd.DataFrame) -> pd.DataFrame:
    """Equal ids count up in the order of their names, whatever the order of the rows."""
    while rows["item_id"].duplicated().any():
        rows = rows.sort_values(["item_id", "indicator", "cluster_id"], kind="stable")
        rows["item_id"] += rows.groupby("item_id").cumcount()
    return rows


def quotas(
    task: Task,
    pillars: Mapping[str, str],
    capacity: Mapping[str, int],
    total: int | None,
    families: Mapping[str, str] | None = None,
) -> tuple[dict[str, int], dict[str, Any]]:
    """(items to keep per indicator, notes with every shortfall in words).

    ``pillars``: slug -> pillar; ``capacity``: slug -> candidates; ``total``: items requested (None:
    all); ``families``: slug -> construct (default: each indicator its own). Pillars get their share
    of Table A, constructs an even part of their pillar's, indicators an even part of their
    construct's, and the part that one can't fill goes to the others.
    """
    families = families or {slug: slug for slug in pillars}
    short: list[str] = []
    kept: dict[str, int] = dict(capacity)
    weights = PILLAR_WEIGHTS[task]
    wanted = dict(zip(PILLARS, largest_remainder(total or 0, list(weights.values())), strict=True))
    for pillar in PILLARS if total is not None else ():
        of_pillar = {slug: capacity[slug] for slug in pillars if pillars[slug] == pillar}
        even = _by_family(wanted[pillar], dict.fromkeys(of_pillar, wanted[pillar]), families)
        kept |= (given := _by_family(wanted[pillar], of_pillar, families))
        for slug in of_pillar:
            if given[slug] < even[slug]:
                short.append(f"{pillar}, {slug}: wanted {even[slug]}, the data gives {given[slug]}")
        if sum(given.values()) < wanted[pillar]:
            short.append(
                f"{pillar}: wanted {wanted[pillar]}, the data gives {sum(given.values())}; the rest"
                " stays empty"
            )
    for slug in (slug for slug in pillars if total is None and not capacity[slug]):
        short.append(f"{pillars[slug]}, {slug}: the data gives no item")
    by_pillar = {
        pillar: {slug: kept[slug] for slug in pillars if pillars[slug] == pillar}
        for pillar in PILLARS
    }
    return kept, {
        "requested": total,
        "available": sum(capacity.values()),
        "made": sum(kept.values()),
        "pillar_quotas": wanted if total is not None else None,
        "items": by_pillar,
        "short": short,
    }


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to `weights` that sum to `total`; equal remainders go to the
    earlier entry."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [math.floor(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[: total - sum(whole)]:
        whole[at] += 1
    return whole


def _by_family(
    quota: int, capacity: Mapping[str, int], families: Mapping[str, str]
) -> dict[str, int]:
    """Spread `quota` evenly over the families, and the part of each over its indicators."""
    members: dict[str, dict[str, int]] = {}
    for slug, n in capacity.items():
        members.setdefault(families[slug], {})[slug] = n
    parts = _fill(quota, {family: sum(of_family.values()) for family, of_family in members.items()})
    given: dict[str, int] = {}
    for family, of_family in members.items():
        given |= _fill(parts[family], of_family)
    return given


def _fill(quota: int, capacity: Mapping[str, int]) -> dict[str, int]:
    """Spread `quota` evenly up to each capacity; the excess of one goes to the others."""
    given = dict.fromkeys(capacity, 0)
    left = quota
    while left and (free := [slug for slug in capacity if given[slug] < capacity[slug]]):
        for slug, share in zip(free, largest_remainder(left, [1] * len(free)), strict=True):
            given[slug] += min(share, capacity[slug] - given[slug])
        left = quota - sum(given.values())
    return given


def draw(
    candidates: pd.DataFrame,
    task: Task,
    pillars: Mapping[str, str],
    total: int | None,
    without: Collection[int] = (),
    families: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(the drawn candidates, notes of quotas). ``candidates``: from with_ids; ``without``: item_ids
    to exclude; ``families``: see quotas.

    An excluded item is replaced by the next rank of its indicator; nothing else changes.
    """
    if len(without):
        candidates = candidates[~candidates["item_id"].isin(list(without))]
        candidates = candidates.assign(
            rank=candidates.sort_values("rank").groupby("indicator", observed=True).cumcount()
        )
    have = candidates["indicator"].value_counts()
    capacity = {slug: int(have.get(slug, 0)) for slug in pillars}
    kept, notes = quotas(task, pillars, capacity, total, families)
    if total is not None and len(candidates):
        limits = candidates["indicator"].astype("str").map(kept)
        candidates = candidates[candidates["rank"] < limits]
    return candidates.drop(columns="rank"), notes
