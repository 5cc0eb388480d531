"""The draw: Table A to the item, ids that collide, ranks that only the keyed hash decides."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.draw import (
    draw,
    largest_remainder,
    md5_numbers,
    quotas,
    with_ids,
    without_collisions,
)
from sdgbias.types import PILLARS, Task

TABLE_A = {Task.MCQ: [44_580, 32_520, 22_900], Task.REGRESSION: [19_427, 16_761, 13_812]}


def number(text: str, digits: int = 15) -> int:
    return int(hashlib.md5(text.encode()).hexdigest()[:digits], 16)


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (100_000, [222_900, 162_600, 114_500], TABLE_A[Task.MCQ]),
        (50_000, TABLE_A[Task.REGRESSION], TABLE_A[Task.REGRESSION]),
        (0, [1, 2], [0, 0]),
        (5, [1, 1, 1], [2, 2, 1]),  # equal remainders go to the earlier entry
        (1, [1, 1], [1, 0]),
        (10, [14, 15, 71], [1, 2, 7]),  # the larger remainder goes first, wherever it stands
        (10, [71, 15, 14], [7, 2, 1]),
    ],
)
def test_largest_remainder(total: int, weights: list[int], parts: list[int]) -> None:
    assert largest_remainder(total, weights) == parts


def test_md5_numbers_are_those_of_hashlib() -> None:
    texts = pd.Series(["", "a", "Côte d'Ivoire", "x" * 1000])
    assert md5_numbers(texts, 15).tolist() == [number(text) for text in texts]
    assert md5_numbers(texts[:0], 15).tolist() == []


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_an_id_collision_counts_up_whatever_the_order(order: list[int]) -> None:
    """a, b and c want 5 and take 5, 6, 7; d wants 6 and makes way."""
    names = ["d", "b", "c", "a"]
    rows = pd.DataFrame({"indicator": "shdi", "cluster_id": names, "item_id": [6, 5, 5, 5]})
    ids = without_collisions(rows.iloc[order]).set_index("cluster_id")["item_id"]
    assert ids.to_dict() == {"a": 5, "b": 6, "c": 7, "d": 8}


def candidates(each: int = 30) -> pd.DataFrame:
    rows = [
        (i, c, y, f"{c}-{y}-{n}")
        for i in ("shdi", "wasting")
        for c in ("KE", "NI")
        for y in (2008, 2015)
        for n in range(each)
    ]
    return pd.DataFrame(rows, columns=["indicator", "cname", "year", "cluster_id"])


def test_ids_and_ranks_are_those_of_a_loop_over_the_written_rule() -> None:
    rows = candidates(5)
    drawn = with_ids(rows, Task.MCQ, seed=7)
    names = "mcq|" + rows["indicator"] + "|" + rows["cluster_id"]
    assert drawn["item_id"].tolist() == [number(name, 12) for name in names]
    for indicator, own in drawn.groupby("indicator"):
        places = []
        for (cname, year), stratum in own.groupby(["cname", "year"]):
            shift = number(f"7|{indicator}|{cname}|{year}") / 16**15
            ordered = sorted(stratum["cluster_id"], key=lambda c: number(f"7|{indicator}|{c}"))
            places += [((at + shift) / len(ordered), c) for at, c in enumerate(ordered)]
        assert own.sort_values("rank")["cluster_id"].tolist() == [c for _, c in sorted(places)]
        assert sorted(own["rank"]) == list(range(len(own)))
    again = with_ids(rows.sample(frac=1, random_state=3), Task.MCQ, seed=7)
    pd.testing.assert_frame_equal(again.sort_index(), drawn)


def test_every_prefix_of_the_draw_gives_each_stratum_its_share() -> None:
    drawn = with_ids(candidates(), Task.MCQ, 1)
    own = drawn[drawn["indicator"] == "shdi"].sort_values("rank")
    strata = pd.get_dummies(own["cname"] + own["year"].astype(str)).cumsum().to_numpy()
    assert np.ptp(strata, axis=1).max() <= 2


def test_items_that_are_left_out_are_replaced_and_the_others_stay() -> None:
    rows = with_ids(candidates(), Task.MCQ, 1)
    pillars = {"shdi": PILLARS[2], "wasting": PILLARS[0], "nothing": PILLARS[0]}
    kept, notes = draw(rows, Task.MCQ, pillars, 60)
    left_out = set(kept["item_id"][::9])
    less, _ = draw(rows, Task.MCQ, pillars, 60, left_out)
    assert len(less) == len(kept) == notes["made"]
    assert set(kept["item_id"]) - left_out <= set(less["item_id"])
    every, notes = draw(rows, Task.MCQ, pillars, None, left_out)
    assert len(every) == len(rows) - len(left_out) == notes["available"]
    assert notes["short"] == [f"{PILLARS[0]}, nothing: the data gives no item"]


def test_what_one_indicator_cant_fill_goes_to_its_pillar_only() -> None:
    pillars = {"a": PILLARS[0], "b": PILLARS[0], "c": PILLARS[1], "d": PILLARS[2]}
    kept, notes = quotas(Task.MCQ, pillars, {"a": 3, "b": 100, "c": 5, "d": 100}, 50)
    wanted = notes["pillar_quotas"]
    assert kept == {"a": 3, "b": wanted[PILLARS[0]] - 3, "c": 5, "d": wanted[PILLARS[2]]}
    short = f"{PILLARS[1]}: wanted {wanted[PILLARS[1]]}, the data gives 5; the rest stays empty"
    assert short in notes["short"]


@pytest.mark.parametrize("task", Task)
def test_pillars_get_the_shares_of_table_a(task: Task) -> None:
    pillars, plenty = dict(zip(PILLARS, PILLARS, strict=True)), dict.fromkeys(PILLARS, 10**6)
    kept, _ = quotas(task, pillars, plenty, sum(TABLE_A[task]))
    assert list(kept.values()) == TABLE_A[task]
