"""Metrics that know no groups: calibration, selection and proper scores, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods import metrics


def test_proper_scores() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0]])
    gold = np.array([0, 2])
    assert metrics.brier(p, gold) == pytest.approx([0.3**2 + 0.2**2 + 0.1**2, 1 + 1])
    with np.errstate(divide="ignore"):
        assert metrics.negative_log_likelihood(np.log(p), gold) == pytest.approx(
            [-np.log(0.7), np.nan], nan_ok=True
        )


def test_bins() -> None:
    assert list(metrics.equal_width(np.array([0.0, 0.2, 0.21, 1.0]), 5)) == [
        0,
        0,
        1,
        4,
    ], "an edge belongs to the bin below"
    assert list(metrics.equal_mass(np.array([0.9, 0.1, 0.5, 0.7]), 2)) == [1, 0, 0, 1]
    assert list(metrics.equal_mass(np.array([0.5, 0.5, 0.5, 0.9]), 2)) == [
        0,
        0,
        0,
        1,
    ], "equal confidences stay together"
    assert metrics.equal_mass(np.zeros(0), 3).size == 0


def test_calibration_error_weighs_bins_by_their_rows() -> None:
    # three rows sure to 0.9 of which two are right, one row sure to 0.5 that is right: |2.7 - 2| +
    # |0.5 - 1| over 4 rows
    assert metrics.calibration_error(np.array([2.7 - 2, 0.5 - 1]), np.array(4)) == pytest.approx(
        (0.7 + 0.5) / 4
    )


def test_a_decimal_error_of_exactly_the_tolerance_is_within_it() -> None:
    error = np.array([0.4 - 0.3, 0.1002, np.nan])
    assert error[0] > 0.1, "in binary 0.4 - 0.3 is 0.10000000000000003"
    assert metrics.within_tolerance(error, np.full(3, 0.1)).tolist() == [True, False, False]


def test_margins_and_ties_leave_out_what_is_not_known() -> None:
    nan, gone = np.nan, -np.inf
    logits = np.array(
        [[1.0, 1.0, 0.5], [2.0, 1.98, nan], [3.0, gone, gone], [nan] * 3, [0.0, 4.0, 4.04]]
    )
    assert metrics.margin(logits) == pytest.approx([0.0, 0.02, nan, nan, 0.04], nan_ok=True)
    tie, near = metrics.tie_flags(logits, 0.03)
    assert tie == pytest.approx([1.0, 0.0, nan, nan, 0.0], nan_ok=True)
    assert near == pytest.approx([1.0, 1.0, nan, nan, 0.0], nan_ok=True)
    assert np.isnan(metrics.margin(np.ones((2, 1)))).all()
