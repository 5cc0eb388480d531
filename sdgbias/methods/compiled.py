"""Compiles the kernels of searches and bootstraps into numba's cache. In a fresh clone this takes
some seconds, which a command can spend while another one runs:

    python -m sdgbias.methods.compiled
"""

from __future__ import annotations

import numpy as np

from sdgbias.methods import stats, tuning
from sdgbias.methods.baselines import Evidence
from sdgbias.methods.cade import Streams
from sdgbias.methods.search import kernel, lines

#: Candidates of a question for which kernels are compiled: letters and digits.
CANDIDATES = (3, 10)


def compile_kernels() -> None:
    """Run every kernel once on a few random rows, with the types that real rows have."""
    rng, n = np.random.default_rng(0), 8
    draws = rng.uniform(0.1, 0.9, size=(4, 4))
    for k in CANDIDATES:
        img, ctx, q = (np.log(rng.dirichlet(np.ones(k), size=n)) for _ in range(3))
        valid = np.ones((n, k), dtype=bool)
        streams = Streams(valid, img, ctx, q, rng.random(n), img.argmax(axis=1), rng.random(n))
        payoff = rng.random((n, k))
        rows = kernel.pack(streams, payoff)
        kernel.mean_payoff(rows, draws)
        kernel.one_payoff(rows, draws[0])
        lines.along(rows, np.zeros(3), np.ones(3), 0.0, 1.0, 0.5)
    view = rng.normal(size=(n, k))
    evidence = Evidence(view, view, view, view, valid, np.zeros(n, dtype=np.int64), valid[:, 0])
    tuning.tune("pmi_tuned", evidence, payoff, valid[:, 0], draws=4)
    stats.replicates(rng.random((n, 1)), 4, seed=0)


if __name__ == "__main__":
    compile_kernels()
