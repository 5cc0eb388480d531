"""The statistics against other people's: statsmodels (clustered errors, McNemar, Holm,
Wilson, power) and scipy (bootstrap)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats import multitest

from sdgbias.methods import stats
from tests.builders.resampled import resampled


def clustered(rng: np.random.Generator, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Values of clusters of these sizes, alike within a cluster, in mixed order; cluster codes."""
    code = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return 0.3 + rng.normal(size=len(sizes))[code] + rng.normal(size=code.size), code


def test_clusters_of_one_size_are_the_clustered_errors_of_statsmodels() -> None:
    from statsmodels.regression.linear_model import OLS

    values, code = clustered(np.random.default_rng(1), [7] * 30)
    theirs = OLS(values, np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": code}, use_t=True
    )
    ours = stats.paired(values, code)
    assert ours.se == pytest.approx(theirs.bse[0], rel=1e-12) and ours.df == 29
    assert ours.p == pytest.approx(theirs.pvalues[0], rel=1e-9)
    low, high = theirs.conf_int()[0]
    assert (ours.estimate.low, ours.estimate.high) == pytest.approx((low, high), rel=1e-9)


def test_clusters_of_many_sizes_are_the_jackknife_of_regressions_without_each() -> None:
    from statsmodels.regression.linear_model import OLS

    values, code = clustered(np.random.default_rng(2), [1, 2, 3, 5, 8, 40, 4, 4, 9])
    whole = values.mean()
    left = [OLS(values[code != g], np.ones((code != g).sum())).fit().params[0] for g in range(9)]
    variance = 8 / 9 * np.sum((np.array(left) - whole) ** 2)
    assert stats.paired(values, code).se == pytest.approx(variance**0.5, rel=1e-12)


@pytest.mark.parametrize(("fixed", "broken"), [(1, 9), (14, 3), (30, 30)])
def test_mcnemar(fixed: int, broken: int) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    theirs = mcnemar([[20, broken], [fixed, 5]], exact=True)
    assert stats.sign_test(fixed, broken) == pytest.approx(theirs.pvalue, rel=1e-12)


def test_families_of_tests() -> None:
    p = np.random.default_rng(3).uniform(size=40) ** 3
    p[7] = p[5]
    theirs = multitest.multipletests(p, method="holm")[1]
    assert stats.holm(p) == pytest.approx(theirs, rel=1e-12)


def test_wilson_of_independent_rows() -> None:
    from statsmodels.stats.proportion import proportion_confint

    hits = np.arange(4_000) % 9 == 0
    ours = stats.share(hits, np.arange(4_000))
    theirs = proportion_confint(int(hits.sum()), 4_000, method="wilson")
    # the t quantile on 3,999 degrees of freedom, and n - 1 for n
    assert (ours.low, ours.high) == pytest.approx(theirs, rel=5e-4)


def test_the_smallest_difference_that_a_test_finds() -> None:
    from statsmodels.stats.power import TTestPower

    theirs = TTestPower().solve_power(nobs=200, alpha=0.05, power=0.8)
    # two t quantiles stand for the noncentral t
    assert stats.minimum_detectable(200**-0.5, 199) == pytest.approx(theirs, rel=2e-3)


def test_bootstrap_over_clusters_is_scipys_of_their_means() -> None:
    """Clusters of one size: drawing them is drawing their means."""
    rng = np.random.default_rng(4)
    means = rng.exponential(size=40)
    values, code = np.repeat(means, 6), np.repeat(np.arange(40), 6)
    theirs = scipy_stats.bootstrap(
        (means,), np.mean, n_resamples=9_999, method="percentile", rng=np.random.default_rng(5)
    )
    ours = resampled(values, code, 9_999, 6)
    error = float(theirs.standard_error)
    assert ours.draws.std(ddof=1) == pytest.approx(error, rel=0.03)
    length = theirs.confidence_interval.high - theirs.confidence_interval.low
    low, high = np.quantile(ours.draws, [0.025, 0.975])
    assert high - low == pytest.approx(length, rel=0.04)
    assert low == pytest.approx(theirs.confidence_interval.low, abs=0.08 * error)
