"""Intervals: against simulation, against textbook values, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias import stats
from sdgbias.metrics import absolute_error, correct, within_tolerance


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
    """95 % intervals of clustered data cover the truth in roughly 95 % of 400 draws (between 91 % and 98.5 %)."""
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
    assert list(within_tolerance(error, np.array([5.0, 5.0]))) == [True, False], "inclusive, and a missing answer is a miss"
