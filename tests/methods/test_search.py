"""The compiled search against `cade.decide`, operation for operation, and the protocol around
it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias.methods.cade import decide, streams
from sdgbias.methods.protocol import two_stage
from sdgbias.methods.search import (
    RANGES,
    SearchSettings,
    mean_payoff,
    pack,
    random_search,
    row_payoff,
)
from sdgbias.methods.search.kernel import count_kept, one_payoff
from sdgbias.types import CadeParams, Task


def problem(seed: int, n: int = 200, k: int = 3):
    rng = np.random.default_rng(seed)
    gold = rng.integers(k, size=n)
    prior, evidence = rng.normal(0, 1.5, k), np.eye(k)[gold] * 1.5
    noise = lambda: rng.normal(0, 1, (n, k))  # noqa: E731
    full, ctx = prior * 2 + evidence + noise(), prior * 2 + noise() * 0.3
    img, q = prior + evidence + noise(), np.tile(prior, (n, 1))
    return streams(full, ctx, img, q), (np.arange(k) == gold[:, None]).astype(float)


def test_search_beats_the_biased_baseline_and_is_reproducible() -> None:
    s, payoff = problem(5, 400)
    found = random_search(s, payoff, Task.MCQ, SearchSettings(draws=500, seed=3))
    assert found == random_search(s, payoff, Task.MCQ, SearchSettings(draws=500, seed=3))
    assert found.value > found.baseline + 0.05
    assert found.n_val == 400
    assert found.n_search == 80
    assert found.value == pytest.approx(
        payoff[np.arange(400), decide(s, found.params).choice].mean()
    )
    for value, (low, high) in zip(vars(found.params).values(), RANGES[Task.MCQ], strict=True):
        assert low <= value <= high


def choices(s, draws):
    return np.array([decide(s, CadeParams(*d)).choice for d in draws])


@settings(deadline=None, max_examples=30)  # the first of each width is compiled
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 70),
    k=st.sampled_from([2, 3, 10]),
    c=st.sampled_from([1, 33, 300]),
    grain=st.sampled_from([0.5, 1e-3]),
)
def test_every_choice_is_that_of_decide(seed: int, n: int, k: int, c: int, grain: float) -> None:
    """Each candidate pays another number, so that a payoff tells the choice. Coarse logits make
    ties, gaps make missing views."""
    rng = np.random.default_rng(seed)
    full, ctx, img, q = (np.round(rng.normal(0, 2, (n, k)) / grain) * grain for _ in range(4))
    present = rng.random((n, k)) < 0.8
    present[:, 0] = True
    for view in (full, ctx, q):
        view[rng.random(n) < 0.2] = np.nan
    s = streams(full, ctx, img, q, present)
    payoff = np.tile(np.arange(1.0, k + 1), (n, 1)) * 2.0 ** rng.integers(-3, 3, size=(n, 1))
    low, high = np.array(RANGES[Task.MCQ]).T
    draws = rng.uniform(low * 0, high * 1.1, (c, 4))
    draws[0, 3] = s.confidence[0]  # a gate exactly at a confidence keeps that row
    draws[1:2] = (0.0, 0.0, 0.0, 2.0)  # only the image stream is left: coarse logits tie
    want = payoff[np.arange(n), choices(s, draws)]
    rows = pack(s, payoff)
    assert np.array_equal(row_payoff(rows, draws), want)
    got = mean_payoff(rows, draws)
    assert np.array_equal(got, want.sum(axis=1) / n)  # small binary fractions add without rounding
    assert [one_payoff(rows, d) for d in draws] == got.tolist()


def test_a_gate_keeps_the_rows_that_are_sure_enough() -> None:
    s, payoff = problem(8, 90)
    rows = pack(s, payoff)
    for tau in (0.0, float(s.confidence[7]), 0.8, 2.0):
        assert count_kept(rows, tau) == (s.confidence >= tau).sum()


#: The payoff of pickled rows and draws, by two threads.
TWO_THREADS = """
import pickle, sys, numba
from sdgbias.methods.search import mean_payoff
payoff = mean_payoff(*pickle.load(sys.stdin.buffer))
assert numba.get_num_threads() == 2
sys.stdout.buffer.write(pickle.dumps(payoff))
"""


def test_threads_and_company_never_change_a_score() -> None:
    s, payoff = problem(2, 400, 10)
    payoff = -np.abs(np.arange(10) - payoff.argmax(axis=1)[:, None]) - np.random.default_rng(
        0
    ).random((400, 10))
    low, high = np.array(RANGES[Task.REGRESSION]).T
    draws = np.random.default_rng(4).uniform(low, high, (1100, 4))
    rows = pack(s, payoff)
    whole = mean_payoff(rows, draws)
    by_two = subprocess.run(
        [sys.executable, "-c", TWO_THREADS],
        input=pickle.dumps((rows, draws)),
        env=os.environ | {"NUMBA_NUM_THREADS": "2"},  # the tests themselves have one (Makefile)
        stdout=subprocess.PIPE,
        check=True,
    )
    assert np.array_equal(pickle.loads(by_two.stdout), whole)
    some = np.random.default_rng(5).permutation(1100)[:77]
    assert np.array_equal(mean_payoff(rows, draws[some]), whole[some])
    assert whole == pytest.approx(
        [payoff[np.arange(400), c].mean() for c in choices(s, draws)], rel=1e-13
    )


@pytest.mark.parametrize(("n", "first"), [(3, 1), (7, 1), (8, 2), (12, 2), (13, 3)])
def test_a_fifth_of_the_rows_is_rounded_to_the_nearest_whole(n: int, first: int) -> None:
    """0.2 x 8 = 1.6 and 0.2 x 13 = 2.6 round up, 0.2 x 7 = 1.4 and 0.2 x 12 = 2.4 down."""
    s, payoff = problem(4, n)
    assert random_search(s, payoff, Task.MCQ, SearchSettings(draws=20)).n_search == first


@pytest.mark.parametrize("stage", [0, 1])
def test_a_payoff_that_is_nan_is_refused_and_does_not_win(stage: int) -> None:
    rows, settings_ = np.arange(50), np.arange(200.0)[:, None]
    calls = iter(range(2))

    def value(some: np.ndarray, of: np.ndarray) -> np.ndarray:
        payoff = np.zeros(len(of))
        payoff[7] = np.nan if next(calls) == stage else 0.0
        return payoff

    with pytest.raises(ValueError, match="a payoff is NaN"):
        two_stage(rows, settings_, value, np.random.default_rng(0))
