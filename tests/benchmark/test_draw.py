"""The draw: Table A to the item, ids that collide, ranks that only the keyed hash decides."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from sdgbias.benchmark.draw import (
    draw,
    largest_remainder,
    md5_numbers,
    quotas,
    with_ids,
    without_collisions,
)
from sdgbias.types import PILLARS, Task


def test_table_a_itself() -> None:
    assert largest_remainder(100_000, [222_900, 162_600, 114_500]) == [44_580, 32_520, 22_900]
    assert largest_remainder(50_000, [19_427, 16_761, 13_812]) == [19_427, 16_761, 13_812]
    assert largest_remainder(5, [1, 1, 1]) == [2, 2, 1] and largest_remainder(0, [1, 2]) == [0, 0]


def test_md5_numbers_are_those_of_hashlib() -> None:
    texts = pd.Series(["", "a", "Côte d'Ivoire", "x" * 1000])
    expected = [int(hashlib.md5(text.encode()).hexdigest()[:15], 16) for text in texts]
    assert md5_numbers(texts, 15).tolist() == expected
    assert md5_numbers(texts[:0], 15).tolist() == []


def test_an_id_collision_counts_up_whatever_the_order() -> None:
    rows = pd.DataFrame(
        {"indicator": "shdi", "cluster_id": ["d", "b", "c", "a"], "item_id": [6, 5, 5, 5]}
    )
    expected = {
        "a": 5,
        "b": 6,
        "c": 7,
        "d": 8,
    }  # a, b, c want 5: they take 5, 6, 7; d wants 6 and makes way
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        made = without_collisions(rows.iloc[order])
        assert (
            made["item_id"].is_unique
            and dict(zip(made["cluster_id"], made["item_id"], strict=True)) == expected
        )


def candidates(each: int = 30) -> pd.DataFrame:
    rows = [
        (i, c, y, f"{c}-{y}-{n}")
        for i in ("shdi", "wasting")
        for c in ("KE", "NI")
        for y in (2008, 2015)
        for n in range(each)
    ]
    return pd.DataFrame(rows, columns=["indicator", "cname", "year", "cluster_id"])


def test_ids_and_ranks_by_hand() -> None:
    """The window functions give what a loop over the written rule gives."""
    rows = candidates(5)
    made = with_ids(rows, Task.MCQ, seed=7)
    assert made["item_id"].tolist() == [
        int(hashlib.md5(f"mcq|{i}|{c}".encode()).hexdigest()[:12], 16)
        for i, c in zip(rows["indicator"], rows["cluster_id"], strict=True)
    ]

    def number(text: str) -> int:
        return int(hashlib.md5(text.encode()).hexdigest()[:15], 16)

    for indicator, own in made.groupby("indicator"):
        places = []
        for (cname, year), stratum in own.groupby(["cname", "year"]):
            shift = number(f"7|{indicator}|{cname}|{year}") / 16**15
            ordered = sorted(stratum["cluster_id"], key=lambda c: number(f"7|{indicator}|{c}"))
            places += [((at + shift) / len(ordered), c) for at, c in enumerate(ordered)]
        assert own.sort_values("rank")["cluster_id"].tolist() == [c for _, c in sorted(places)]


def test_order_of_the_rows_changes_nothing() -> None:
    rows = candidates()
    mixed = rows.sample(frac=1, random_state=3)
    names = ["indicator", "cluster_id"]
    first, again = (
        with_ids(r, Task.MCQ, 1).sort_values(names, ignore_index=True) for r in (rows, mixed)
    )
    pd.testing.assert_frame_equal(first, again)


def test_every_prefix_of_the_draw_gives_each_stratum_its_share() -> None:
    made = with_ids(candidates(), Task.MCQ, 1)
    own = made[made["indicator"] == "shdi"].sort_values("rank")
    for n in range(1, len(own)):
        counts = (
            own.head(n)
            .groupby(["cname", "year"])
            .size()
            .reindex(pd.MultiIndex.from_product([["KE", "NI"], [2008, 2015]]), fill_value=0)
        )
        assert counts.max() - counts.min() <= 2
    assert np.array_equal(own["rank"], np.arange(len(own)))


def test_draw_without_some() -> None:
    made = with_ids(candidates(), Task.MCQ, 1)
    pillars = {"shdi": PILLARS[2], "wasting": PILLARS[0]}
    kept, notes = draw(made, Task.MCQ, pillars, 60)
    out = set(kept["item_id"][::9])
    less, _ = draw(made, Task.MCQ, pillars, 60, out)
    assert len(less) == len(kept) == notes["made"] and set(kept["item_id"]) - out <= set(
        less["item_id"]
    )
    everything, _ = draw(made, Task.MCQ, pillars, None, out)
    assert len(everything) == len(made) - len(out)


def test_what_one_indicator_cant_fill_goes_to_its_pillar_only() -> None:
    pillars = {"a": PILLARS[0], "b": PILLARS[0], "c": PILLARS[1], "d": PILLARS[2]}
    kept, notes = quotas(Task.MCQ, pillars, {"a": 3, "b": 100, "c": 5, "d": 100}, 50)
    wanted = notes["pillar_quotas"]
    assert kept == {"a": 3, "b": wanted[PILLARS[0]] - 3, "c": 5, "d": wanted[PILLARS[2]]}
    assert any(
        f"{PILLARS[1]}: wanted {wanted[PILLARS[1]]}, the data gives 5" in line
        for line in notes["short"]
    )


def test_equal_remainders_go_to_the_earlier_entry() -> None:
    assert largest_remainder(2, [1, 1, 1]) == [1, 1, 0]
    assert largest_remainder(1, [1, 1]) == [1, 0]


def test_the_larger_remainder_goes_first_wherever_it_stands() -> None:
    assert largest_remainder(10, [14, 15, 71]) == [1, 2, 7]
    assert largest_remainder(10, [71, 15, 14]) == [7, 2, 1]


def test_pillars_get_the_shares_of_table_a() -> None:
    pillars, plenty = dict(zip(PILLARS, PILLARS, strict=True)), dict.fromkeys(PILLARS, 10**6)
    for task, counts in (
        (Task.MCQ, (44_580, 32_520, 22_900)),
        (Task.REGRESSION, (19_427, 16_761, 13_812)),
    ):
        kept, _ = quotas(task, pillars, plenty, sum(counts))
        assert tuple(kept.values()) == counts


def test_an_indicator_without_candidates_is_named_where_all_are_kept() -> None:
    made = with_ids(candidates(), Task.MCQ, 1)
    pillars = {"shdi": PILLARS[2], "wasting": PILLARS[0], "nothing": PILLARS[0]}
    kept, notes = draw(made, Task.MCQ, pillars, None)
    assert len(kept) == notes["available"] == len(made)
    assert notes["short"] == [f"{PILLARS[0]}, nothing: the data gives no item"]
