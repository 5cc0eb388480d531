"""Paired differences of right and wrong answers: intervals and tests that hold where few answers
change."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from sdgbias.methods import stats


def changes(
    rng: np.random.Generator, places: int, rows: int, fixed: float, broken: float, alike: float
) -> np.ndarray:
    """(places * rows,) 1 fixed, -1 broken, 0 neither; ``alike``: the share of a place's rows that
    share one draw."""
    draw = rng.random((places, rows))
    shared = rng.random((places, rows)) < alike
    draw = np.where(shared, rng.random((places, 1)), draw).ravel()
    return (draw < fixed).astype(float) - ((draw >= fixed) & (draw < fixed + broken))


def measured(draws: list[np.ndarray], place: np.ndarray) -> stats.MeansByGroup:
    """The mean difference of each draw."""
    by, places = np.repeat(np.arange(len(draws)), len(place)), np.tile(place, len(draws))
    column = stats.ValueColumn("", np.concatenate(draws), "difference")
    (found,) = stats.measure([column], by, len(draws), [places])
    return found


@pytest.mark.parametrize("gain", [0.0, 0.02, 0.10])
@pytest.mark.parametrize(("places", "rows", "alike"), [(17, 4, 0.5), (68, 1, 0.0), (90, 1, 0.0)])
def test_intervals_of_a_paired_gain_cover_it(
    places: int, rows: int, gain: float, alike: float
) -> None:
    """Between 93 and 97 % of 1,000 draws, give or take 2.6 standard errors of that count and, for
    17 places, the step between one count of changes and the next."""
    rng = np.random.default_rng([places, rows, round(100 * gain), round(10 * alike)])
    draws = [changes(rng, places, rows, 0.10 + gain, 0.10, alike) for _ in range(1_000)]
    each = measured(draws, np.repeat(np.arange(places), rows))
    assert (each.low < each.high).all(), "no interval has width zero"
    slack = 2.6 * (0.95 * 0.05 / 1_000) ** 0.5
    ceiling = 0.97 if places > 20 else 0.98
    covered = ((each.low <= gain) & (gain <= each.high)).mean()
    assert 0.93 - slack <= covered <= ceiling + slack


@pytest.mark.parametrize("places", [17, 68, 90])
def test_a_gain_without_any_loss_is_covered_however_rare(places: int) -> None:
    """Two questions of a hundred are fixed, none is broken: most draws show no change at all."""
    rng = np.random.default_rng(places)
    each = measured(
        [changes(rng, places, 1, 0.02, 0.0, 0.0) for _ in range(600)], np.arange(places)
    )
    assert ((each.low <= 0.02) & (each.high >= 0.02)).mean() >= 0.93


def test_the_interval_of_independent_rows_is_bonett_and_prices() -> None:
    """7 gains and 2 losses among 60 rows: one of each is added; t for the normal quantile."""
    difference = np.array([1.0] * 7 + [-1.0] * 2 + [0.0] * 51)

    e = stats.mean(difference, np.arange(60), "difference")

    spread = difference.var() * 60 / 59 / 60  # of independent rows, as the clustered variance
    rows = min(60.0, 60 * (9 / 60 - (5 / 60) ** 2) / 60 / spread)
    centre, moved = 5 / 60 * rows / (rows + 2), (9 / 60 * rows + 2) / (rows + 2)
    half = scipy_stats.t.ppf(0.975, 59) * ((moved - centre**2) / (rows + 2)) ** 0.5
    assert (e.low, e.high) == (pytest.approx(centre - half), pytest.approx(centre + half))


@pytest.mark.parametrize("sums", [(2, 1), (3, 2, 1, -1), (1, 1, 1, 1, 1, 1, 1, -1), (5, -2, 2)])
def test_the_flip_test_counts_all_signs(sums: tuple[int, ...]) -> None:
    every = [abs(np.dot(signs, sums)) for signs in product((1, -1), repeat=len(sums))]

    assert stats.flip_test(sums) == pytest.approx(np.mean(np.array(every) >= abs(sum(sums))))


def test_where_nothing_differs_at_most_five_in_a_hundred_tests_say_so() -> None:
    rng, place, draws = np.random.default_rng(3), np.repeat(np.arange(12), 3), 1_000
    rejected = [
        stats.paired(changes(rng, 12, 3, 0.1, 0.1, 0.5), place, "difference").p < 0.05
        for _ in range(draws)
    ]
    assert np.mean(rejected) <= 0.05 + 2.6 * (0.05 * 0.95 / draws) ** 0.5


def test_many_changed_places_are_judged_by_t() -> None:
    difference = np.where(np.arange(400) % 3 == 0, 1.0, np.where(np.arange(400) % 3 == 1, -1, 0))
    assert (
        stats.paired(difference, np.arange(400), "difference").p
        == stats.paired(difference, np.arange(400)).p
    )


def test_numbers_that_do_not_vary_have_no_interval_and_say_why() -> None:
    for kind in ("mean", "amount", "fraction"):
        e = stats.mean(np.full(6, 0.1), np.arange(6), kind)
        assert np.isnan(e.low) and np.isnan(e.high)
        assert e.missing_interval("place") == "no interval: the value is the same in every place"
    assert stats.mean([1.0] * 4, np.arange(4)).missing_interval("place") == (
        "4 places: too few for an interval"
    )
    assert stats.paired(np.full(5, 2.5), np.arange(5)).p == 0.0625


@pytest.mark.parametrize(("right", "rows"), [(2, 5), (1, 3), (1, 5), (7, 25)])
def test_places_that_all_have_one_rate_count_as_rows(right: int, rows: int) -> None:
    """Eight places of 7/25: 25 x 0.28 is not 7, and a variance of 1e-34 is rounding."""
    hits = np.tile([1.0] * right + [0.0] * (rows - right), 8)

    e = stats.share(hits, np.repeat(np.arange(8), rows))

    p, z = right / rows, scipy_stats.t.ppf(0.975, 7)
    centre = (p + z * z / 16) / (1 + z * z / 8)
    half = z / (1 + z * z / 8) * (p * (1 - p) / 8 + z * z / 256) ** 0.5
    assert (e.low, e.high) == (pytest.approx(centre - half), pytest.approx(centre + half))


def test_classes_that_do_not_vary_share_their_wilson_intervals() -> None:
    """Always yes: all of the one class are right, none of the other."""
    hits, classes = np.repeat([1.0, 0.0], 30), np.repeat([0, 1], 30)

    e = stats.macro(hits, classes, np.arange(60), "share")

    low = stats.share(np.ones(30), np.arange(30)).low
    assert e.value == 0.5
    assert (e.low, e.high) == (
        pytest.approx(0.5 - (1 - low) / 2),
        pytest.approx(0.5 + (1 - low) / 2),
    )
