"""CADE on logits of one's own, without a benchmark: the example of the docs, shapes and masks."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods import cade
from sdgbias.methods.search import SearchSettings, random_search
from sdgbias.types import Task


def views(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """((4, n, 3) logits that prefer A, (n,) gold)."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 3, n)
    logits = rng.normal(size=(4, n, 3)) + np.array([2.0, 0.0, 0.0])
    logits[0, np.arange(n), gold] += 1.5
    return logits, gold


def test_gold_indices_and_payoffs_are_the_same_search() -> None:
    logits, gold = views(120)
    s = cade.streams(*logits)
    payoff = (np.arange(3) == gold[:, None]).astype(float)

    by_index = cade.search(s, gold, draws=500, seed=3)
    by_payoff = cade.search(s, payoff, "mcq", draws=500, seed=3)

    assert (
        by_index
        == by_payoff
        == random_search(s, payoff, Task.MCQ, SearchSettings(draws=500, seed=3))
    )


def test_rows_without_a_right_answer_are_left_out() -> None:
    logits, gold = views(60)
    payoff = (np.arange(3) == gold[:, None]).astype(float)
    payoff[40:] = np.nan

    found = cade.search(cade.streams(*logits), payoff, draws=200)

    assert found.n_val == 40


@pytest.mark.parametrize(
    ("right", "fault"),
    [
        (np.zeros((10, 2)), r"shape \(10, 2\); the views are \(10, 3\)"),
        (np.full((10, 3), np.nan), "no row has a picture view"),
    ],
)
def test_what_does_not_fit_is_said(right: np.ndarray, fault: str) -> None:
    logits, _ = views(10)

    with pytest.raises(ValueError, match=fault):
        cade.search(cade.streams(*logits), right)
