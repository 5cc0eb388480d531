"""Cluster bootstrap: against weights counted by hand, against the t interval, by simulation, and at
the edges."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods import stats
from sdgbias.methods.stats import bootstrap
from tests.builders.resampled import resampled

HITS = np.repeat(np.random.default_rng(3).normal(0.6, 0.2, 200), 4) + np.random.default_rng(
    4
).normal(0, 0.3, 800)
PLACE = np.repeat(np.arange(200), 4)


def test_weights_are_whole_and_add_up_to_the_number_of_clusters() -> None:
    weights = stats.replicates(np.eye(7), 500, seed=1)
    assert (weights == weights.round()).all() and (weights.sum(axis=1) == 7).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(7), abs=4 * np.sqrt(6 / 7 / 500)), (
        "each is drawn once on average"
    )
    assert weights.var() == pytest.approx(6 / 7, rel=0.1), (
        "a multinomial of 7 draws over 7: variance 7 * 1/7 * 6/7"
    )


def test_draws_do_not_depend_on_other_columns_or_on_row_order() -> None:
    one = resampled(HITS, PLACE, 300, seed=5)
    many = resampled(np.column_stack([HITS, HITS**2, np.arange(800.0)]), PLACE, 300, seed=5)
    assert one.draws[:, 0] == pytest.approx(many.draws[:, 0], abs=1e-12)
    order = np.random.default_rng(0).permutation(800)
    names = np.array([f"place-{i:03d}" for i in PLACE])
    assert resampled(HITS[order], names[order], 300, seed=5).draws == pytest.approx(
        one.draws, abs=1e-12
    )
    assert not np.array_equal(resampled(HITS, PLACE, 300, seed=6).draws, one.draws)


def test_blocks_and_sparse_sums_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy import sparse

    sums = np.where(np.random.default_rng(0).random((200, 30)) < 0.04, 1.0, 0.0)
    whole = sums @ np.eye(30)
    found = stats.replicates(whole, 150, seed=2)
    assert stats.replicates(sparse.csr_array(whole), 150, seed=2) == pytest.approx(found)
    monkeypatch.setattr(bootstrap, "SPARSE", 0.0)
    monkeypatch.setattr(bootstrap, "BLOCK", 200 * 7)
    assert stats.replicates(whole, 150, seed=2) == pytest.approx(found)


def test_bounds_are_percentiles() -> None:
    draws, value = np.arange(1, 1000)[:, None] / 1000, np.array([0.4])

    low, high = stats.interval(value, draws, sizes=np.ones(10**6))

    assert (low[0], high[0]) == pytest.approx(
        (0.001 + 0.025 * 0.998, 0.001 + 0.975 * 0.998), abs=2e-6
    )


@pytest.mark.parametrize("places", [5, 8])
def test_coverage_with_few_places(places: int) -> None:
    """Without the widening 83 to 88 % of these intervals cover."""
    rng = np.random.default_rng(places)
    covered = 0
    for k in range(300):
        place = np.repeat(np.arange(places), rng.integers(5, 30, places))
        x = rng.normal(0, 0.5, places)[place] + rng.normal(0, 1, place.size)
        e = resampled(x, place, 400, seed=k)
        covered += e.low[0] <= 0 <= e.high[0]
    assert covered / 300 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300), covered / 300


def test_widening_is_that_of_t_and_nothing_below_five() -> None:
    wide = stats.widening([1.5, 5, 10, 10**6])
    assert wide[0] == stats.widening(2)
    assert wide[1] == pytest.approx(2.776445 * np.sqrt(5 / 4) / 1.959964, abs=1e-6)
    assert wide[2] == pytest.approx(2.262157 * np.sqrt(10 / 9) / 1.959964, abs=1e-6)
    assert wide[3] == pytest.approx(1.0, abs=1e-5)
    few = resampled(np.arange(8.0), [1, 2, 3, 4] * 2, 50)
    assert np.isnan([few.low, few.high]).all()


def test_clusters_without_rows_are_no_clusters_of_an_interval() -> None:
    """Four places with rows and two without: too few for an interval."""
    draws = np.random.default_rng(0).normal(size=(100, 1))

    low, high = stats.interval(np.array([0.0]), draws, sizes=[5, 5, 5, 5, 0, 0])

    assert np.isnan([low[0], high[0]]).all()
    low, high = stats.interval(np.array([0.0]), draws, sizes=[5, 5, 5, 5, 5, 0])
    assert low[0] < high[0]
