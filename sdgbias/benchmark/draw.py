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
_RANKED = """
WITH keyed AS (
    SELECT row, indicator, cluster_id,
        ('0x' || left(md5($task || '|' || indicator || '|' || cluster_id), 12))::BIGINT AS id,
        ('0x' || left(md5($seed || '|' || indicator || '|' || cluster_id), 15))::BIGINT AS hash,
        indicator || '|' || cname || '|' || year AS stratum
    FROM found
), placed AS (
    SELECT *, (row_number() OVER part - 1 + ('0x' || left(md5($seed || '|' || stratum),
    15))::BIGINT / pow(16, 15))
        / count(*) OVER (PARTITION BY stratum) AS place
    FROM keyed WINDOW part AS (PARTITION BY stratum ORDER BY hash, cluster_id)
)
SELECT row, id, row_number() OVER (PARTITION BY indicator ORDER BY place, hash, cluster_id) - 1 AS
rank FROM placed ORDER BY row
"""


def md5_numbers(texts: pd.Series, digits: int) -> np.ndarray:
    """First hex digits (at most 15) of every text's md5 as int64 (N,), in one DuckDB query."""
    table = pa.table(
        {"row": np.arange(len(texts)), "text": pa.array(texts.to_numpy(dtype=object), pa.string())}
    )
    with duckdb.connect() as connection:
        connection.register("texts", table)
        query = (
            f"SELECT ('0x' || left(md5(text), {digits:d}))::BIGINT AS number FROM texts ORDER"
            " BY row"
        )
        return np.asarray(connection.execute(query).fetchnumpy()["number"], dtype="int64")


def with_ids(found: pd.DataFrame, task: Task, seed: int) -> pd.DataFrame:
    """``found`` (indicator, cluster_id, cname, year, ... one row per candidate) with item_id and
    rank.

    item_id: 12 hex digits (48 bits) of the md5 of '<task>|<indicator>|<cluster_id>'; collisions
    count up. rank: the place of the row in the draw of its indicator (rank < n are the n that are
    kept). Within an indicator every stratum (country and survey year) gives its share of clusters,
    in the order of a hash keyed by (seed, indicator, cluster).
    """
    names = found[["indicator", "cluster_id", "cname"]].astype("str")
    table = pa.Table.from_pandas(
        names.assign(year=found["year"].astype("int32")), preserve_index=False
    )
    table = table.append_column("row", pa.array(np.arange(len(found))))
    with duckdb.connect() as connection:
        connection.register("found", table)
        drawn = connection.execute(_RANKED, {"task": task.value, "seed": str(seed)}).fetchnumpy()
    rows = found.assign(
        item_id=np.asarray(drawn["id"], dtype="int64"),
        rank=np.asarray(drawn["rank"], dtype="int64"),
    )
    return _without_collisions(rows)


def _without_collisions(rows: pd.DataFrame) -> pd.DataFrame:
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
        own = {slug: capacity[slug] for slug in pillars if pillars[slug] == pillar}
        even = _by_family(wanted[pillar], dict.fromkeys(own, wanted[pillar]), families)
        kept |= (given := _by_family(wanted[pillar], own, families))
        for slug in own:
            if given[slug] < even[slug]:
                short.append(f"{pillar}, {slug}: wanted {even[slug]}, the data gives {given[slug]}")
        if sum(given.values()) < wanted[pillar]:
            short.append(
                f"{pillar}: wanted {wanted[pillar]}, the data gives {sum(given.values())}; the rest"
                " stays empty"
            )
    for slug in (slug for slug in pillars if total is None and not capacity[slug]):
        short.append(f"{pillars[slug]}, {slug}: the data gives no item")
    made = {
        pillar: {slug: kept[slug] for slug in pillars if pillars[slug] == pillar}
        for pillar in PILLARS
    }
    return kept, {
        "requested": total,
        "available": sum(capacity.values()),
        "made": sum(kept.values()),
        "pillar_quotas": wanted if total is not None else None,
        "items": made,
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
    parts = _fill(quota, {family: sum(own.values()) for family, own in members.items()})
    given: dict[str, int] = {}
    for family, own in members.items():
        given |= _fill(parts[family], own)
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
            rank=candidates.sort_values("rank").groupby("indicator").cumcount()
        )
    have = candidates["indicator"].value_counts()
    capacity = {slug: int(have.get(slug, 0)) for slug in pillars}
    kept, notes = quotas(task, pillars, capacity, total, families)
    if total is not None and len(candidates):
        candidates = candidates[candidates["rank"] < candidates["indicator"].map(kept)]
    return candidates.drop(columns="rank"), notes
