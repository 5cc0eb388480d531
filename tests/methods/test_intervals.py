"""Intervals: against simulation, against textbook values, and at the edges."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sdgbias.methods import stats
from sdgbias.methods.stats.intervals import wilson


def test_edges() -> None:
    all_right = stats.share(np.ones(30, bool), np.arange(30) // 3)
    assert all_right.high == pytest.approx(1.0)
    assert 0.6 < all_right.low < 0.8, "ten clusters, not thirty rows"
    assert stats.share([], []).n == 0
    assert np.isnan(stats.mean([np.nan], [1]).value)
    one = stats.mean([1.0, 2.0], [1, 1])
    assert np.isnan(one.low) and one.clusters == 1, "one cluster has no interval"
    assert stats.mean([1.0, np.nan, 3.0], [1, 2, 3]).n == 2


def test_codes_follow_the_sorted_keys_whatever_their_kind() -> None:
    for keys in (["b", "a", "b"], [900_000_000, -1, 900_000_000], [5, 2, 5]):
        assert list(stats.codes(keys)[0]) == [1, 0, 1]
    assert stats.codes([])[1] == 0


def test_macro_weighs_classes_alike() -> None:
    values, classes = [1.0, 1.0, 1.0, 5.0], ["a", "a", "a", "b"]
    e = stats.macro(values, classes, [1, 2, 3, 4])
    assert (e.value, e.n) == ((1 + 5) / 2, 4)
    assert stats.macro([1.0, 3.0, np.nan], ["a", "a", "b"], [1, 2, 3]).value == 2.0, (
        "a class without numbers doesn't count"
    )
    e = stats.macro([1.0, 3.0, 5.0, 5.0, 5.0], ["a", "a", "b", "b", "b"], [1, 2, 3, 4, 5])
    # contributions (1 - 2) / (2 * 2), (3 - 2) / (2 * 2) and 0; five places: 5/4 of their squares;
    # t(0.975, 4)
    assert e.high - e.value == pytest.approx(2.776445 * (5 / 4 * 2 * 0.25**2) ** 0.5, rel=1e-5)
    even = stats.macro([1.0, 2.0, 4.0, 7.0], ["a", "b", "a", "b"], [1, 2, 3, 4])
    assert even.value == stats.mean([1.0, 2.0, 4.0, 7.0], [1, 2, 3, 4]).value, (
        "classes of one size: macro is micro"
    )


def sizes(rng: np.random.Generator, clusters: int, kind: str) -> np.ndarray:
    """Rows of each cluster: ten each, log-normal, or one cluster with a third of all rows."""
    if kind == "even":
        return np.full(clusters, 10)
    if kind == "uneven":
        return np.maximum(1, np.round(10 * np.exp(rng.normal(0, 1, clusters)))).astype(int)
    return np.concatenate([[5 * clusters // 2], np.full(clusters - 1, 5)])


@pytest.mark.parametrize("kind", ["even", "uneven", "one"])
@pytest.mark.parametrize("clusters", [5, 12, 30])
def test_intervals_cover_with_few_and_with_unequal_clusters(clusters: int, kind: str) -> None:
    """A share of 40 %, a rare one of 5 %, a mean, and a mean of skewed amounts: 95 % intervals hold
    the truth in at least 91 % of 200 draws (95 % less 2.6 standard errors of that count) and not
    always where the cluster sizes are known to be harmless."""
    rng = np.random.default_rng([7, clusters, len(kind)])
    held = np.zeros(4)
    draws = 200
    for _ in range(draws):
        n = sizes(rng, clusters, kind)
        place = np.repeat(np.arange(clusters), n)
        level = np.repeat(rng.normal(size=clusters), n)
        latent = 0.3**0.5 * level + 0.7**0.5 * rng.normal(size=len(place))
        amounts = np.abs(rng.normal(size=len(place))) * np.exp(0.3 * level)
        found = (
            (stats.share(latent < -0.2533471, place), 0.4),
            (stats.share(latent < -1.6448536, place), 0.05),
            (stats.mean(latent, place), 0.0),
            (stats.amount(amounts, place), (2 / np.pi) ** 0.5 * np.exp(0.045)),
        )
        held += [e.low <= true <= e.high for e, true in found]
    assert (held / draws >= 0.91).all(), held / draws
    if kind == "even":
        assert held[2] / draws <= 0.985


def test_few_clusters_give_no_interval_and_say_how_many_they_are() -> None:
    for of in (stats.mean, stats.share, stats.amount, partial(stats.mean, kind="fraction")):
        four = of([1.0, 0.0, 1.0, 1.0] * 3, [1, 2, 3, 4] * 3)
        assert np.isnan(four.low) and np.isnan(four.high) and four.too_few
        assert (four.n, four.clusters) == (12, 4)
        five = of([1.0, 0.0, 1.0, 1.0, 0.0], [1, 2, 3, 4, 5])
        assert five.low < five.value < five.high and not five.too_few
    assert not stats.nothing().too_few, "no rows at all are no few places"


def test_no_interval_leaves_the_range_of_its_metric() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        place = np.repeat(np.arange(6), rng.integers(1, 30, 6))
        skewed = np.exp(rng.normal(0, 2, len(place)) + 3 * (place == 0))
        near = np.clip(rng.beta(0.1, 0.02, len(place)), 0, 1)
        a, f = stats.amount(skewed, place), stats.mean(near, place, "fraction")
        assert 0 < a.low <= a.value <= a.high
        assert 0 <= f.low <= f.value <= f.high <= 1
    assert stats.mean(skewed, place).low < 0, "which the interval of a mean does not hold to"
    none = stats.amount(np.zeros(6), np.arange(6))
    assert none.value == 0.0 and np.isnan([none.low, none.high]).all()
    all_mass = stats.mean(np.ones(6), np.arange(6), "fraction")
    assert all_mass.value == 1.0 and np.isnan([all_mass.low, all_mass.high]).all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_interval_of_none_and_of_all_reaches_them(share: float) -> None:
    """Rounding left it 7e-18 above 0, so that `at_most: 0` was a breach of 0 of 771."""
    n = np.arange(5.0, 1000.0)
    low, high = wilson(np.full(n.shape, share), n, np.zeros(n.shape), n, n - 1)
    assert ((low <= share) & (share <= high)).all()


def test_unequal_clusters_cost_degrees_of_freedom() -> None:
    even = stats.spread_of(np.array([1.0, -1, 1, -1, 1, -1]), np.full(6, 10.0))
    assert even.df[0] == pytest.approx(5.0)
    assert even.variance[0] == pytest.approx(6 / 5 * 6 / 60**2), "CR1 where clusters are alike"
    one = stats.spread_of(np.array([1.0, -1, 1, -1, 1, -1]), np.array([50.0, 2, 2, 2, 2, 2]))
    assert 1.0 <= one.df[0] < 1.5
    # six clusters of which one is left out at a time: the jackknife, worked out by hand
    w = np.array([50.0, 2, 2, 2, 2, 2]) / 60
    assert one.variance[0] == pytest.approx(5 / 6 * np.sum((1 / (60 * (1 - w))) ** 2))


def test_of_two_ways_to_cluster_the_one_that_claims_less_stands() -> None:
    hits = np.tile([1.0, 1, 1, 0, 0, 0], 20)
    prompt, place = np.tile(np.arange(6), 20), np.repeat(np.arange(20), 6)
    by_prompt, by_place = stats.share(hits, prompt), stats.share(hits, place)
    assert by_prompt.high - by_prompt.low > 1.5 * (by_place.high - by_place.low)
    assert stats.widest([by_place, by_prompt]) == by_prompt
    three, four = (stats.share(hits, np.arange(120) % k) for k in (3, 4))
    assert stats.widest([by_place, three]).too_few, "no interval claims least"
    assert stats.widest([three, four]).clusters == stats.widest([four, three]).clusters == 3


def test_fractions_at_a_fifth_and_at_four_fifths_are_mirrors() -> None:
    values = np.array([0.1, 0.3, 0.15, 0.25, 0.2, 0.2])

    low, high = (
        stats.mean(values, np.arange(6), "fraction"),
        stats.mean(1 - values, np.arange(6), "fraction"),
    )

    assert low.value == pytest.approx(0.2) and high.value == pytest.approx(0.8)
    assert (high.low, high.high) == (pytest.approx(1 - low.high), pytest.approx(1 - low.low))
    half = 2.570582 * np.sqrt(values.var(ddof=1) / 6) / (0.2 * 0.8)  # t(0.975, 5), logit scale
    assert low.high == pytest.approx(1 / (1 + np.exp(-(np.log(0.2 / 0.8) + half))), rel=1e-5)


def test_places_that_balance_themselves_are_worth_no_more_than_their_rows() -> None:
    """Every place has one right and one wrong answer, but for two places: negative correlation."""
    hits = np.array([1.0, 0.0] * 18 + [1.0, 1.0, 0.0, 0.0])

    e = stats.share(hits, np.repeat(np.arange(20), 2))

    z = 2.093024  # t(0.975, 19)
    half = z / (1 + z * z / 40) * (0.25 / 40 + z * z / (4 * 40**2)) ** 0.5
    assert (e.low, e.high) == (
        pytest.approx(0.5 - half, rel=1e-5),
        pytest.approx(0.5 + half, rel=1e-5),
    )
