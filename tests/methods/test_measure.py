"""Means over groups: against masks, by hand, and clustered in two ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sdgbias.methods import metrics, stats

RNG = np.random.default_rng(0)
GOLD, SAID = RNG.integers(0, 3, 300), RNG.integers(0, 3, 300)
GROUP = np.array(["north", "south", "west"])[RNG.integers(0, 3, 300)]
PLACE = RNG.integers(0, 60, 300)


def measured(
    values: np.ndarray,
    by: np.ndarray,
    groups: int,
    clusters: Sequence[np.ndarray],
    kind: stats.Kind = "share",
    **how: Any,
) -> stats.MeansByGroup:
    (found,) = stats.measure([stats.ValueColumn("m", values, kind)], by, groups, clusters, **how)
    return found


@pytest.mark.parametrize("kind", ["share", "mean", "amount", "fraction", "difference"])
def test_a_group_has_the_numbers_of_its_rows_alone(kind: stats.Kind) -> None:
    hit = metrics.correct(GOLD, SAID).astype(float)
    if kind == "difference":
        hit -= RNG.integers(0, 2, 300)
    test = "difference" if kind == "difference" else "mean"

    table = measured(hit, stats.codes(GROUP)[0], 3, [PLACE], kind, p="each")

    for i, name in enumerate(("north", "south", "west")):
        rows = name == GROUP
        expected, found = stats.mean(hit[rows], PLACE[rows], kind), table.estimate(i)
        assert (found.value, found.low, found.high) == pytest.approx(
            (expected.value, expected.low, expected.high), nan_ok=True
        )
        assert (found.n, found.clusters) == (expected.n, len(set(PLACE[rows])))
        assert table.p[i] == pytest.approx(stats.paired(hit[rows], PLACE[rows], test).p)


def test_a_group_of_twenty_rows_has_a_value_and_one_of_nineteen_none() -> None:
    code = np.repeat([0, 1], [20, 19])
    hits = (np.arange(39) % 2).astype(float)

    table = measured(hits, code, 2, [np.arange(39)], smallest=stats.SMALLEST)
    means = stats.group_means(hits, code, np.arange(39), draws=10)

    assert list(table.small) == [False, True]
    assert list(np.isnan(table.value)) == list(np.isnan(means.value[0])) == [False, True]


def test_rows_of_no_group_and_groups_of_no_row_count_nowhere() -> None:
    table = measured(np.array([1.0, 0.0, 1.0]), np.array([-1, 0, 2]), 4, [np.arange(3)])

    assert list(table.n) == [1, 0, 1, 0]
    assert list(np.isnan(table.value)) == [False, True, False, True]
    assert measured(np.zeros(0), np.zeros(0, int), 0, [np.zeros(0, int)]).n.size == 0


def test_of_two_ways_to_cluster_each_group_takes_the_one_that_claims_less() -> None:
    rng = np.random.default_rng(0)
    hits, code = rng.integers(0, 2, 200).astype(float), np.repeat([0, 1], 100)
    place, prompt = np.arange(200) // 2, np.where(code == 0, 0, 1 + np.arange(200) % 10)
    by_place, by_prompt = (measured(hits, code, 2, [way]) for way in (place, prompt))

    both = measured(hits, code, 2, [place, prompt])

    assert both.estimate(0).too_few and np.isnan(both.low[0]), "one prompt has no interval"
    each = [by_place.estimate(1), by_prompt.estimate(1)]
    assert both.estimate(1) == stats.widest(each)
    assert both.way[1] == each.index(stats.widest(each))
    turned = measured(hits, code, 2, [prompt, place])
    assert (turned.low[1], turned.clusters[0]) == (both.low[1], 1)


def test_a_way_counts_only_where_rows_depend_in_it() -> None:
    """The first group's rows share no prompt: its interval is that over places."""
    hits, code = (np.arange(200) % 2).astype(float), np.repeat([0, 1], 100)
    place, prompt = np.arange(200) // 2, np.where(code == 0, -1, np.arange(200) % 2)

    table = measured(hits, code, 2, [prompt, place])

    assert list(table.way) == [1, 0]
    assert list(table.n) == [100, 100]
    assert table.estimate(0) == stats.share(hits[:100], place[:100])
    assert table.clusters[1] == 2 and np.isnan(table.low[1])


def test_a_paired_difference_counts_rows_of_both_and_its_family_is_adjusted_together() -> None:
    """Both answerers have a value in rows 0 to 38; of the second pair all differences are one."""
    now, before = np.ones(40), np.zeros(40)
    before[:36], before[39] = 1.0, np.nan
    columns = [stats.ValueColumn("gain", now), stats.ValueColumn("all", now)]
    one, place = np.zeros(40, dtype=np.int64), np.arange(40)

    few, every = stats.measure(columns, one, 1, [place], versus=[before, np.zeros(40)], p="family")

    assert (few.n[0], few.value[0]) == (39, pytest.approx(3 / 39))
    assert few.test() == stats.paired(now - before, place, "difference")
    assert [few.p[0], every.p[0]] == [pytest.approx(2 / 2**3), pytest.approx(2 / 2**40)]
    assert few.p_adjusted[0] == few.p[0] and every.p_adjusted[0] == 2 * every.p[0]
