"""What the studies of CADE's hyper-parameters share: a cell as rows to tune on and rows to report
on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sdgbias.analysis.run import Cell, RunData
from sdgbias.methods import stats
from sdgbias.methods.cade import Divergence, Floats, Ints, Stream, Streams
from sdgbias.methods.search import (
    RANGES,
    Packed,
    draw_settings,
    mean_payoff,
    pack,
    row_payoff,
    take,
)
from sdgbias.types import CadeParams, Task

PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")


@dataclass(frozen=True)
class Problem:
    """One task under one context test. usable: the cell's rows with an image view and a known
    payoff for every candidate; s, payoff and place (n,) are theirs alone. val, test: indices among
    them. place: codes of clusters, the same in all problems of a run."""

    cell: Cell
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
        """task and test, as study rows name them."""
        return {"task": self.cell.task.value, "test": self.cell.test.value}

    def tunable(self) -> tuple[Streams, Floats]:
        """Streams and payoff of the val rows."""
        return take(self.s, self.val), self.payoff[self.val]

    def rows(self, which: Ints) -> Packed:
        return pack(take(self.s, which), self.payoff[which])


def problems(run: RunData) -> list[Problem]:
    """Every cell of a run with rows to tune on and rows to report on, in the order of tasks and
    tests."""
    cells = [*run.mcq, *run.regression]
    if not cells:
        return []
    code = pd.factorize(np.concatenate([cell.items["cluster_id"] for cell in cells]), sort=True)[
        0
    ].astype(np.int64)
    places = np.split(code, np.cumsum([len(cell.items) for cell in cells])[:-1])
    found = []
    for cell, place in zip(cells, places, strict=True):
        s = cell.streams()
        usable = np.flatnonzero(s.valid.any(axis=1) & np.isfinite(cell.payoff).all(axis=1))
        val, test = np.flatnonzero(cell.val[usable]), np.flatnonzero(cell.test_rows[usable])
        if val.size and test.size:
            found.append(
                Problem(
                    cell, usable, take(s, usable), cell.payoff[usable], place[usable], val, test
                )
            )
    return found


def with_streams(p: Problem, stream: Stream, divergence: Divergence) -> Problem:
    """The same rows with another image stream or divergence; neither changes which rows are
    usable."""
    return replace(p, s=take(p.cell.streams(stream=stream, divergence=divergence), p.usable))


def metric_of(task: Task) -> str:
    return "accuracy" if task is Task.MCQ else "mae"


def estimate(task: Task, payoff: Floats, place: Ints) -> stats.Estimate:
    """Accuracy, or MAE, of rows that earned `payoff`."""
    return stats.share(payoff, place) if task is Task.MCQ else stats.amount(-payoff, place)


def display_value(task: Task, payoff: float) -> float:
    """A mean payoff as accuracy or MAE."""
    return payoff if task is Task.MCQ else -payoff


def as_vector(params: CadeParams) -> Floats:
    """(4,) alpha, lambda_kl, beta, tau."""
    return np.array([params.alpha, params.lambda_kl, params.beta, params.tau])


def format_setting(setting: Iterable[float]) -> str:
    """A setting, or the first parameters of one, in words for a note."""
    return ", ".join(
        f"{name} {value:.4g}" for name, value in zip(PARAMETERS, setting, strict=False)
    )


def draws_of(task: Task, draws: int, seed: int) -> Floats:
    """(draws, 4) settings in Table G's ranges, the same for every problem of a task."""
    return draw_settings(RANGES[task], draws, np.random.default_rng(seed))


def payoff_sums(rows: Packed, settings: Floats) -> Floats:
    """(C,) summed payoff of each setting."""
    return mean_payoff(rows, settings) * rows.n


def payoffs(rows: Packed, setting: Floats) -> Floats:
    """(n,) what each row earns under one setting."""
    return row_payoff(rows, setting[None])[0]
