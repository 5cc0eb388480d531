"""Paired tests against binomial arithmetic, scipy and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods import stats
from sdgbias.methods.stats.paired import p_of_draws
from tests.builders.resampled import resampled


def test_paired_edges() -> None:
    assert stats.sign_test(3, 3) == stats.sign_test(0, 0) == 1.0
    assert stats.paired(np.zeros(5), np.arange(5)).p == 1.0
    assert stats.paired(np.ones(5), np.arange(5)).p == 2 / 2**5, "five signs alike"
    one = stats.paired([1.0, 0.0], [7, 7])
    assert one.estimate.value == 0.5 and np.isnan([one.p, one.se, one.estimate.low]).all()
    assert np.isnan(stats.paired([], []).p)
    assert stats.paired([np.nan, 1.0, 0.0], [1, 2, 3]).estimate.n == 2


def _bootstrap_p(d: np.ndarray, place: np.ndarray, draws: int, seed: int = 0) -> float:
    """The p by which disparities are tested, of a plain mean."""
    found = resampled(d, place, draws, seed)
    return float(p_of_draws(found.value, found.draws)[0])


def test_p_is_uniform_where_nothing_differs() -> None:
    """At 5 % the clustered tests reject a true null in 5 % of 400 draws, give or take four standard
    errors."""
    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(40), 4)
    rejected = np.zeros(2)
    for k in range(400):
        d = np.repeat(rng.normal(0, 1, 40), 4) + rng.normal(0, 1, 160)
        rejected += [
            stats.paired(d, place).p < 0.05,
            _bootstrap_p(d, place, 300, seed=k) < 0.05,
        ]
    assert np.abs(rejected / 400 - 0.05).max() < 4 * np.sqrt(0.05 * 0.95 / 400)


def test_minimum_detectable_effect_is_found_with_the_stated_power() -> None:
    assert stats.minimum_detectable(1.0, 10**9) == pytest.approx(1.959964 + 0.841621, abs=1e-4)
    assert stats.minimum_detectable(0.5, 10**9, alpha=0.01, power=0.9) == pytest.approx(
        (2.575829 + 1.281552) / 2, abs=1e-4
    )
    assert np.isnan(stats.minimum_detectable(0.1, 0))
    rng = np.random.default_rng(1)
    effect = stats.minimum_detectable(1 / np.sqrt(50), 49)
    found = np.mean(
        [stats.paired(rng.normal(effect, 1, 50), np.arange(50)).p < 0.05 for _ in range(600)]
    )
    assert abs(found - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 600)


def test_copies_of_one_question_have_one_vote() -> None:
    better = np.array([1.0] * 400 + [-1.0, np.nan, 1.0, -1.0])
    group = np.array([0] * 400 + [1, 1, 2, 2])
    assert stats.net_signs(better, group) == (1, 1), "the third is a draw"
    assert stats.sign_test(*stats.net_signs(better, group)) == 1.0


def test_a_test_of_the_sums_of_clusters_is_that_of_their_rows() -> None:
    difference = np.array([1.0, 1, 0, -1, 0, 0, 1, 0, 1, 0, 0, 1])
    place = np.repeat(np.arange(6), 2)

    of_rows = stats.paired(difference, place, "difference")
    sums, rows = np.bincount(place, weights=difference), np.bincount(place).astype(float)

    of_sums = stats.ClusterSums(sums, rows, np.zeros(6, dtype=np.int64))
    assert stats.measure_sums("m", of_sums, np.array([6 / 12])).test() == of_rows
    assert of_rows.mde == stats.minimum_detectable(of_rows.se, of_rows.df)
