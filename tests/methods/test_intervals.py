"""Intervals: against simulation, against textbook values, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods import stats
from sdgbias.methods.metrics import absolute_error, correct, within_tolerance


def test_share_of_independent_rows_is_close_to_wilson() -> None:
    hits = np.arange(200) < 60
    e = stats.share(hits, np.arange(200))
    assert (e.value, e.n) == (0.3, 200)
    assert (e.low, e.high) == (pytest.approx(0.2407, abs=0.002), pytest.approx(0.3668, abs=0.002))


def test_clustered_rows_widen_the_interval() -> None:
    hits = np.repeat(np.arange(40) < 12, 10)
    one, many = stats.share(hits, np.arange(400)), stats.share(hits, np.repeat(np.arange(40), 10))
    assert many.high - many.low > 2.5 * (one.high - one.low)


def test_coverage_of_clustered_shares_and_means() -> None:
    """95 % intervals of clustered data cover the truth in roughly 95 % of 400 draws (between 91 %
    and 98.5 %)."""
    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(60), 5)
    covered = np.zeros(2)
    for _ in range(400):
        level = np.repeat(rng.normal(0, 1, 60), 5)
        x = level + rng.normal(0, 1, 300)
        m, s = stats.mean(x, place), stats.share(x > 0, place)
        covered += [m.low <= 0 <= m.high, s.low <= 0.5 <= s.high]
    assert ((covered / 400 > 0.91) & (covered / 400 < 0.985)).all()


def test_edges() -> None:
    all_right = stats.share(np.ones(30, bool), np.arange(30) // 3)
    assert all_right.high == pytest.approx(1.0)
    assert 0.6 < all_right.low < 0.8, "ten clusters, not thirty rows"
    assert stats.share([], []).n == 0
    assert np.isnan(stats.mean([np.nan], [1]).value)
    assert np.isnan(stats.mean([1.0, 2.0], [1, 1]).low), "one cluster has no interval"
    assert stats.mean([1.0, np.nan, 3.0], [1, 2, 3]).n == 2


def test_row_metrics() -> None:
    assert list(correct(np.array([0, 1, 2]), np.array([0, -1, 1]))) == [True, False, False]
    error = absolute_error(np.array([22.1, 5.0]), np.array([27.1, np.nan]))
    assert list(within_tolerance(error, np.array([5.0, 5.0]))) == [
        True,
        False,
    ], "inclusive, and a missing answer is a miss"


def test_share_leaves_out_rows_without_a_number() -> None:
    some = stats.share([1.0, np.nan, 0.0, 1.0], [1, 2, 3, 4])
    assert (some.value, some.n) == (pytest.approx(2 / 3), 3)
    assert some == stats.share([1.0, 0.0, 1.0], [1, 3, 4])
    assert stats.share([np.nan, np.nan], [1, 2]).n == 0


def test_codes_follow_the_sorted_keys_whatever_their_kind() -> None:
    assert [
        list(stats.codes(k)[0])
        for k in (["b", "a", "b"], [900_000_000, -1, 900_000_000], [5, 2, 5])
    ] == [[1, 0, 1]] * 3
    assert stats.codes([])[1] == 0


def test_two_way_of_nested_places_is_the_country_level_variance() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0])
    country, place = np.repeat([0, 1, 2], 2), np.arange(6)
    estimate, note = stats.two_way(x, place, country)
    # mean 4; sums of residuals by country: -3-2, -1+0, 2+4 = -5, -1, 6; CR1: 3/2 * (25 + 1 + 36) /
    # 36
    half = 4.302653 * np.sqrt(3 / 2 * 62 / 36)  # t(0.975, 2)
    assert (estimate.value, estimate.low, estimate.high) == (
        4.0,
        pytest.approx(4 - half, abs=1e-5),
        pytest.approx(4 + half, abs=1e-5),
    )
    assert note.startswith("3 groups: fewer than 10")
    assert stats.two_way(np.arange(20.0), np.arange(20), np.arange(20) // 2)[1] == "", (
        "ten countries"
    )
    assert np.isnan(stats.two_way(x, place, np.zeros(6))[0].low), "one country has no interval"
    assert stats.two_way([], [], [])[0].n == 0


def test_two_way_of_crossed_groups_adds_both_and_takes_off_what_both_share() -> None:
    one, two = [0, 0, 1, 1], [0, 1, 0, 1]
    # residuals -2, 0, 0, 2: sums -2, 2 either way, each row its own cell. G/(G-1) = 2, 2, 4/3; over
    # 4^2
    variance = 2 * 8 / 16 + 2 * 8 / 16 - 4 / 3 * 8 / 16
    estimate, _ = stats.two_way([1.0, 3.0, 3.0, 5.0], one, two)
    assert estimate.high - estimate.value == pytest.approx(
        12.7062 * variance**0.5, rel=1e-5
    )  # t(0.975, 1)
    # residuals -2, -1, 0, 3: 2 * 18 / 16 one way; the three together would be less than that, so
    # that is what stands
    estimate, _ = stats.two_way([1.0, 2.0, 3.0, 6.0], one, two)
    assert estimate.high - estimate.value == pytest.approx(12.7062 * (2 * 18 / 16) ** 0.5, rel=1e-5)


def test_macro_weighs_classes_alike() -> None:
    values, classes = [1.0, 1.0, 1.0, 5.0], ["a", "a", "a", "b"]
    e = stats.macro(values, classes, [1, 2, 3, 4])
    assert (e.value, e.n) == ((1 + 5) / 2, 4)
    assert stats.macro([1.0, 3.0, np.nan], ["a", "a", "b"], [1, 2, 3]).value == 2.0, (
        "a class without numbers doesn't count"
    )
    e = stats.macro([1.0, 3.0, 5.0], ["a", "a", "b"], [1, 2, 3])
    # contributions (1 - 2) / (2 * 2), (3 - 2) / (2 * 2) and 0; three places: 3/2 of their squares;
    # t(0.975, 2)
    assert e.high - e.value == pytest.approx(4.302653 * (3 / 2 * 2 * 0.25**2) ** 0.5, rel=1e-5)
    even = stats.macro([1.0, 2.0, 4.0, 7.0], ["a", "b", "a", "b"], [1, 2, 3, 4])
    assert even.value == stats.mean([1.0, 2.0, 4.0, 7.0], [1, 2, 3, 4]).value, (
        "classes of one size: macro is micro"
    )


def test_one_cluster_counts_as_one_row() -> None:
    """Wilson at p = 1/2, n = 1: centre 1/2, half z / (1 + z^2) x (1/4 + z^2 / 4)^0.5 =
    z / 2 / (1 + z^2)^0.5."""
    z = 1.959964
    e = stats.share([True, False] * 10, [7] * 20)
    assert (e.value, e.n) == (0.5, 20)
    assert e.low == pytest.approx(0.5 - z / 2 / (1 + z**2) ** 0.5, abs=1e-6)
    assert e.high == pytest.approx(0.5 + z / 2 / (1 + z**2) ** 0.5, abs=1e-6)
