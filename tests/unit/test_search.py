"""The compiled search against `cade.decide`, operation for operation, and the protocol around it."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.cade import decide, streams
from sdgbias.search import RANGES, evaluate_draws, random_search, take
from sdgbias.types import CadeParams, Task


def problem(seed: int, n: int = 200, k: int = 3):
    rng = np.random.default_rng(seed)
    gold = rng.integers(k, size=n)
    prior, evidence = rng.normal(0, 1.5, k), np.eye(k)[gold] * 1.5
    noise = lambda: rng.normal(0, 1, (n, k))  # noqa: E731
    full, ctx = prior * 2 + evidence + noise(), prior * 2 + noise() * 0.3
    img, q = prior + evidence + noise(), np.tile(prior, (n, 1))
    return streams(full, ctx, img, q), (np.arange(k) == gold[:, None]).astype(float)


@pytest.mark.parametrize(("task", "k"), [(Task.MCQ, 3), (Task.REGRESSION, 10)])
def test_scores_equal_decide_exactly(task: Task, k: int) -> None:
    s, payoff = problem(0, 150, k)
    rng = np.random.default_rng(1)
    low, high = np.array(RANGES[task]).T
    draws = rng.uniform(low, high, (40, 4))
    got = evaluate_draws(s, payoff, draws)
    want = [payoff[np.arange(150), decide(s, CadeParams(*d)).choice].sum() / 150 for d in draws]
    assert got == pytest.approx(want, abs=1e-12)


def test_rows_without_a_full_view_are_decided_alike() -> None:
    rng = np.random.default_rng(3)
    full, ctx, img, q = (rng.normal(size=(30, 3)) for _ in range(4))
    full[::3] = np.nan
    s, payoff = streams(full, ctx, img, q, np.ones((30, 3), bool)), np.eye(3)[rng.integers(3, size=30)]
    for tau in (0.0, 0.7, 2.0):
        p = CadeParams(0.9, 0.4, 0.3, tau)
        want = payoff[np.arange(30), decide(s, p).choice].mean()
        assert evaluate_draws(s, payoff, np.array([[0.9, 0.4, 0.3, tau]]))[0] == pytest.approx(want)


def test_search_beats_the_biased_baseline_and_is_reproducible() -> None:
    s, payoff = problem(5, 400)
    found = random_search(s, payoff, Task.MCQ, draws=500, seed=3)
    assert found == random_search(s, payoff, Task.MCQ, draws=500, seed=3)
    assert found.value > found.baseline + 0.05
    assert found.n_val == 400
    assert found.n_search == 80
    assert found.value == pytest.approx(payoff[np.arange(400), decide(s, found.params).choice].mean())
    for value, (low, high) in zip(vars(found.params).values(), RANGES[Task.MCQ], strict=True):
        assert low <= value <= high


def test_undecidable_rows_are_left_out() -> None:
    s, payoff = problem(6, 50)
    empty = streams(*[np.full((5, 3), np.nan) for _ in range(4)], np.ones((5, 3), bool))
    both = [np.concatenate([getattr(s, f), getattr(empty, f)]) for f in vars(s)]
    found = random_search(type(s)(*both), np.concatenate([payoff, np.zeros((5, 3))]), Task.MCQ, draws=50)
    assert found.n_val == 50
    assert found.value == random_search(s, payoff, Task.MCQ, draws=50).value
    with pytest.raises(ValueError, match="validation row"):
        random_search(take(s, np.array([], dtype=int)), payoff[:0], Task.MCQ)
