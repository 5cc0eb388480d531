"""Cluster bootstrap: against weights counted by hand and the t quantile."""

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


def test_widening_is_that_of_t() -> None:
    wide = stats.widening([1.5, 5, 10, 10**6])
    assert wide[0] == stats.widening(2)
    assert wide[1] == pytest.approx(2.776445 * np.sqrt(5 / 4) / 1.959964, abs=1e-6)
    assert wide[2] == pytest.approx(2.262157 * np.sqrt(10 / 9) / 1.959964, abs=1e-6)
    assert wide[3] == pytest.approx(1.0, abs=1e-5)
