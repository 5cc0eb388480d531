"""Kernels that were compiled ahead are those that a real search runs."""

from __future__ import annotations

import numpy as np

from sdgbias.methods import cade, compiled, stats, tuning
from sdgbias.methods.search import SearchSettings, exact_search, kernel, lines, random_search
from sdgbias.methods.stats import _loops
from sdgbias.types import Task

KERNELS = (kernel._sum, kernel._each, lines._walk, tuning.baseline_payoff, _loops.fill)


def test_a_search_compiles_nothing_more() -> None:
    compiled.compile_kernels()
    before = [list(k.signatures) for k in KERNELS]
    assert all(before)
    for task, k in ((Task.MCQ, 3), (Task.REGRESSION, 10)):
        rng = np.random.default_rng(k)
        views = [rng.normal(size=(40, k)) for _ in range(4)]
        rows, payoff = cade.streams(*views), np.eye(k)[rng.integers(k, size=40)]
        random_search(rows, payoff, task, SearchSettings(draws=20))
        exact_search(rows, payoff, task, SearchSettings(draws=20))
    stats.replicates(np.random.default_rng(0).random((9, 2)), 9, seed=0)
    assert [list(k.signatures) for k in KERNELS] == before
