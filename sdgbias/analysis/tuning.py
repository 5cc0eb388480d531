"""Shared by the studies of CADE's hyper-parameters: a cell split into rows for tuning and rows for
reporting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods import stats
from sdgbias.methods.cade import Divergence, Floats, Ints, Stream, Streams, usable
from sdgbias.methods.search import Packed, Ranges, pack, random_search, row_payoff, take
from sdgbias.types import CadeParams, Task

PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")


@dataclass(frozen=True)
class Problem:
    """One task under one context test. usable: indices of the cell's rows with an image view and a
    known payoff for every candidate; s, payoff and place (n,) cover only these rows. val, test:
    indices into them. place: cluster codes, the same in all problems of a run."""

    cell: TaskCell
    usable: Ints
    s: Streams
    payoff: Floats
    place: Ints
    val: Ints
    test: Ints

    @property
    def task(self) -> Task:
        return self.cell.task

    @property
    def columns(self) -> dict[str, object]:
        """task and test, named as in study rows."""
        return {"task": self.cell.task.value, "test": self.cell.test.value}

    def tunable(self) -> tuple[Streams, Floats]:
        """Streams and payoff of the val rows."""
        return take(self.s, self.val), self.payoff[self.val]

    def rows(self, which: Ints) -> Packed:
        return pack(take(self.s, which), self.payoff[which])


def problems(run: RunData) -> list[Problem]:
    """Every cell of a run that has rows for tuning and for reporting, in the order of tasks and
    tests."""
    cells = [*run.mcq, *run.regression]
    if not cells:
        return []
    code = pd.factorize(np.concatenate([cell.items["cluster_id"] for cell in cells]), sort=True)[
        0
    ].astype(np.int64)
    places = np.split(code, np.cumsum([len(cell.items) for cell in cells])[:-1])
    selected = []
    for cell, place in zip(cells, places, strict=True):
        s = cell.streams()
        rows = np.flatnonzero(usable(s.valid, cell.payoff))
        val, test = np.flatnonzero(cell.val[rows]), np.flatnonzero(cell.test_rows[rows])
        if val.size and test.size:
            selected.append(
                Problem(cell, rows, take(s, rows), cell.payoff[rows], place[rows], val, test)
            )
    return selected


def with_streams(p: Problem, stream: Stream, divergence: Divergence) -> Problem:
    """The same rows with another image stream or divergence; neither changes which rows are
    usable."""
    return replace(p, s=take(p.cell.streams(stream=stream, divergence=divergence), p.usable))


def metric_of(task: Task) -> str:
    return "accuracy" if task is Task.MCQ else "mae"


def estimate(task: Task, payoff: Floats, place: Ints) -> stats.Estimate:
    """Accuracy or MAE from the payoffs of rows."""
    return stats.share(payoff, place) if task is Task.MCQ else stats.amount(-payoff, place)


def difference_of(task: Task) -> Literal["difference", "mean"]:
    """What the difference of two payoffs of a row is: of right answers, or of errors."""
    return "difference" if task is Task.MCQ else "mean"


def as_vector(params: CadeParams) -> Floats:
    """(4,) alpha, lambda_kl, beta, tau."""
    return np.array([params.alpha, params.lambda_kl, params.beta, params.tau])


def searched(p: Problem, settings: AnalysisSettings, ranges: Ranges | None = None) -> Floats:
    """(4,) the setting that the paper's search finds on the val rows."""
    s, payoff = p.tunable()
    result = random_search(
        s, payoff, p.task, draws=settings.draws, seed=settings.seed, ranges=ranges
    )
    return as_vector(result.params)


def format_setting(setting: Iterable[float]) -> str:
    """A setting, or its first parameters, as text for a note."""
    return ", ".join(
        f"{name} {value:.4g}" for name, value in zip(PARAMETERS, setting, strict=False)
    )


def payoffs(rows: Packed, setting: Floats) -> Floats:
    """(n,) payoff of each row under one setting."""
    return row_payoff(rows, setting[None])[0]
