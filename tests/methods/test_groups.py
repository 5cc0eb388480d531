"""Metrics by group against masks, disparities against arithmetic, tests and intervals by
simulation."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sdgbias.methods import metrics, stats


def test_reductions_of_group_values() -> None:
    v = np.array([[0.5, 0.8, 0.2], [0.5, np.nan, 0.4], [np.nan, np.nan, 0.4]])
    assert metrics.max_min(v) == pytest.approx([0.8 - 0.2, 0.5 - 0.4, np.nan], nan_ok=True)
    assert metrics.difference(v, 0, 2) == pytest.approx([0.5 - 0.2, 0.5 - 0.4, np.nan], nan_ok=True)


def _two_groups(shares: tuple[float, float], rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    hits = np.concatenate([np.arange(rows) < s * rows for s in shares]).astype(float)
    return hits, np.repeat(["rural", "urban"], rows)


def test_disparity_of_two_groups() -> None:
    hits, group = _two_groups((0.5, 0.8))
    means = stats.group_means(hits, group, np.arange(800), draws=2_000)
    d = stats.disparity(means, lambda v: metrics.difference(v, 1, 0))
    se = np.sqrt(0.5 * 0.5 / 400 + 0.8 * 0.2 / 400)
    assert (d.value[0], d.n) == (pytest.approx(0.8 - 0.5), 800)
    assert (d.low[0], d.high[0]) == (
        pytest.approx(0.3 - 1.96 * se, abs=0.006),
        pytest.approx(0.3 + 1.96 * se, abs=0.006),
    )
    assert d.p[0] == pytest.approx(1 / 2_001), "no draw from equal groups is as far apart"
    largest = stats.disparity(means, metrics.max_min)
    assert (largest.value[0], largest.p[0]) == (
        d.value[0],
        d.p[0],
    ), "of two groups, max - min is the size of the difference"


def test_change_of_a_disparity() -> None:
    before, group = _two_groups((0.5, 0.8))
    after, _ = _two_groups((0.6, 0.7))
    means = stats.group_means(
        np.column_stack([before, after, before]), group, np.arange(800), draws=1_000
    )
    d = stats.disparity(means, lambda v: metrics.difference(v, 1, 0))
    pick = [d.take([i]) for i in range(3)]
    narrower = stats.disparity_change(pick[0], pick[1])
    assert (
        narrower.value[0] == pytest.approx(0.1 - 0.3)
        and narrower.high[0] < 0
        and narrower.p[0] < 0.01
    )
    none = stats.disparity_change(pick[0], pick[2])
    assert (none.value[0], none.low[0], none.high[0], none.p[0]) == (0.0, 0.0, 0.0, 1.0)


def test_a_group_for_each_row_needs_memory_by_the_row() -> None:
    """A column of ids that was named as a group took 18 GB for 40,000 rows."""
    rows = np.arange(6_000)
    tracemalloc.start()
    means = stats.group_means(rows % 2, rows, rows, draws=10)
    assert np.isnan(stats.disparity(means, metrics.max_min).value).all()
    assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    tracemalloc.stop()


def test_small_groups_and_missing_rows_do_not_enter_a_disparity() -> None:
    hits, group = _two_groups((0.5, 0.8))
    more, names = np.append(hits, np.zeros(5)), np.append(group, ["islands"] * 5)
    d = stats.disparity(stats.group_means(more, names, np.arange(805), draws=100), metrics.max_min)
    assert d.value[0] == pytest.approx(0.3), "five islanders who are always wrong would make it 0.8"
    holes = np.column_stack([hits, np.where(group == "urban", np.nan, hits)])
    d = stats.disparity(stats.group_means(holes, group, np.arange(800), draws=100), metrics.max_min)
    assert d.value[0] == pytest.approx(0.3) and np.isnan([d.value[1], d.p[1], d.low[1]]).all(), (
        "one group is no disparity"
    )
    assert np.isnan(
        stats.disparity(
            stats.group_means(hits, group, np.zeros(800), draws=10), metrics.max_min
        ).low[0]
    ), "one cluster"


def test_max_min_of_equal_groups_covers_zero_and_rejects_as_stated() -> None:
    """Five groups that don't differ: the interval of max - min holds 0, and p is below 5 %, as
    often as they say."""
    rng = np.random.default_rng(0)
    group, place = np.repeat(np.arange(5), 150), np.repeat(np.arange(250), 3)
    covered = rejected = 0
    for k in range(200):
        x = (np.repeat(rng.normal(0, 0.5, 250), 3) + rng.normal(0, 1, 750) > 0).astype(float)
        d = stats.disparity(stats.group_means(x, group, place, draws=200, seed=k), metrics.max_min)
        covered, rejected = covered + (d.low[0] == 0), rejected + (d.p[0] < 0.05)
    slack = 4 * np.sqrt(0.05 * 0.95 / 200)
    assert covered / 200 > 0.95 - slack and rejected / 200 < 0.05 + slack


@pytest.mark.parametrize("places", [5, 8])
def test_disparities_cover_with_few_places(places: int) -> None:
    """Two groups in every place, and three, none of which differ. Without the widening 81 to 90 %
    of the intervals hold zero."""
    rng = np.random.default_rng(places)
    covered = np.zeros(2)
    for k in range(200):
        place = np.repeat(np.arange(places), rng.integers(15, 40, places))
        right = 1 / (1 + np.exp(-rng.normal(0, 1, places)[place]))
        hit = (rng.random(place.size) < right).astype(float)
        for i, groups in enumerate((2, 3)):
            group = rng.integers(0, groups, place.size)
            means = stats.group_means(hit, group, place, draws=200, seed=k, smallest=1)
            reduction = (lambda v: metrics.difference(v, 1, 0), metrics.max_min)[i]
            d = stats.disparity(means, reduction).estimate()
            covered[i] += d.low <= 0 <= d.high
    assert (covered / 200 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)).all(), covered / 200


def test_a_compared_group_with_too_few_places_leaves_no_interval() -> None:
    """Forty places, but one group lives in three of them: resampling can't tell how it varies."""
    hits, rng = np.random.default_rng(0).integers(0, 2, 800).astype(float), np.random.default_rng(1)
    place = np.repeat(np.arange(40), 20)
    group = np.where(place < 3, "coast", np.where(rng.random(800) < 0.5, "hills", "plain"))
    means = stats.group_means(hits, group, place, draws=200)
    assert means.clusters.tolist() == [[3, 37, 37]]
    others = stats.disparity(means, lambda v: metrics.difference(v, 1, 2))
    assert others.estimate().clusters == 37 and np.isfinite([others.low[0], others.p[0]]).all()
    for reduction in (metrics.max_min, lambda v: metrics.difference(v, 0, 2)):
        d = stats.disparity(means, reduction)
        assert d.estimate().too_few and np.isfinite(d.value[0])
        assert np.isnan([d.low[0], d.high[0], d.p[0]]).all()
        change = stats.disparity_change(d, others)
        assert change.estimate().too_few and np.isnan([change.low[0], change.p[0]]).all()


def test_a_change_of_disparity_is_widened_for_the_fewer_clusters_of_either_run() -> None:
    rng = np.random.default_rng(0)
    group, place = np.tile([0, 1], 60), np.repeat(np.arange(60), 2)
    many = rng.random(120)
    few = np.where(place < 6, many, np.nan)
    before, after = (
        stats.disparity(stats.group_means(v, group, place, draws=200, smallest=1), apart)
        for v in (many, few)
    )

    both = [stats.disparity_change(*pair) for pair in ((before, after), (after, before))]

    assert before.clusters[0] == 60 and after.clusters[0] == 6
    assert [change.clusters[0] for change in both] == [6, 6]
    assert [change.wider[0] for change in both] == [after.wider[0]] * 2
    assert both[0].high[0] - both[0].low[0] == pytest.approx(both[1].high[0] - both[1].low[0])


def apart(means: np.ndarray) -> np.ndarray:
    return metrics.difference(means, 0, 1)
