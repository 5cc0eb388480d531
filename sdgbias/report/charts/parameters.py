"""Figures of the page Parameters: the contribution of each part of CADE, sweeps, and the search."""

from __future__ import annotations

import pandas as pd

from sdgbias.report.charts import Figure, both_tasks, drawn, figure, named, of_study
from sdgbias.report.data import Studies

PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")


def figures(s: Studies) -> list[Figure]:
    before, after = ("ablation", "streams", "divergence"), ("search", "search-optimism")
    return drawn(s, *map(of_study, before), _sweep, *map(of_study, after))


def _sweep(s: Studies) -> Figure:
    own = s.of("sweep", "accuracy", "mae")
    key = ["model", "task", "test", "parameter"]
    best = s.of("sweep", "optimum").set_index(key)["value"].to_dict()
    optimum = [best.get(at) for at in own[key].itertuples(index=False, name=None)]
    frame = both_tasks(
        own.assign(
            best=pd.Series(optimum, index=own.index, dtype=float),
            optimum=[words_of(x) for x in optimum],
        )
    )
    frame = frame.sort_values("parameter", key=lambda c: c.map(PARAMETERS.index), kind="stable")
    return figure("sweep", named(frame, "sweep").assign(at=frame["x"].map(words_of)))


def words_of(value: object) -> str:
    return "" if value is None or value != value else f"{float(value):.4g}"  # type: ignore[arg-type]
