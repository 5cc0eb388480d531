"""Kernels that were compiled ahead are those that a real search runs."""

from __future__ import annotations

import sys

import numpy as np
from numba.core.registry import CPUDispatcher

from sdgbias.methods import cade, compiled, stats
from sdgbias.methods.search import SearchSettings, exact_search, random_search
from sdgbias.types import Task


def test_a_search_compiles_nothing_more() -> None:
    compiled.compile_kernels()
    before = signatures()
    assert sum(map(bool, before.values())) >= 5, "those that no other one inlines"
    for task, k in ((Task.MCQ, 3), (Task.REGRESSION, 10)):
        rng = np.random.default_rng(k)
        views = [rng.normal(size=(40, k)) for _ in range(4)]
        rows, payoff = cade.streams(*views), np.eye(k)[rng.integers(k, size=40)]
        random_search(rows, payoff, task, SearchSettings(draws=20))
        exact_search(rows, payoff, task, SearchSettings(draws=20))
    stats.replicates(np.random.default_rng(0).random((9, 2)), 9, seed=0)
    assert signatures() == before


def signatures() -> dict[str, list[object]]:
    """The types for which each kernel of sdgbias.methods is compiled."""
    modules = [m for name, m in sys.modules.items() if name.startswith("sdgbias.methods")]
    kernels = {k for m in modules for k in vars(m).values() if isinstance(k, CPUDispatcher)}
    return {f"{k.py_func.__module__}.{k.__name__}": list(k.signatures) for k in kernels}
