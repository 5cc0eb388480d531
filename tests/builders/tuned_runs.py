"""Runs of a model with biases that CADE can take out: made of random numbers, the same for the same
seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.analysis.run import TaskCell
from sdgbias.methods.cade import decide
from sdgbias.types import LETTERS, PILLARS, CadeParams
from tests.builders.analysis_run import mcq_cell, number_cell


def letters(n: int, test: str = "T1", seed: int = 0, bias: float = 2.0) -> TaskCell:
    """n questions, two to a place, every fifth of them val; the prior speaks `bias` times as loud
    in Full and CTX+Q."""
    rng = np.random.default_rng([seed, int(test[1])])
    gold = np.random.default_rng(seed).integers(3, size=n)
    prior, evidence = np.array([1.5, -0.5, 0.2]), np.eye(3)[gold] * 1.5
    z = {
        "full": prior * bias + evidence + rng.normal(size=(n, 3)),
        "ctx_q": prior * bias + rng.normal(0, 0.3, (n, 3)),
        "img_q": prior + evidence + rng.normal(size=(n, 3)),
        "q_only": np.tile(prior, (n, 1)),
    }
    return mcq_cell(
        {k: v.tolist() for k, v in z.items()},
        "".join(LETTERS[g] for g in gold),
        test=test,
        **_places(n),
    )  # type: ignore[arg-type]


def numbers(n: int, test: str = "T2", seed: int = 0) -> TaskCell:
    """n numbers of one digit; by_digit is that digit and a tenth."""
    rng = np.random.default_rng([seed, int(test[1])])
    gold = np.random.default_rng(seed).integers(10, size=n)
    prior, evidence = np.linspace(2, -2, 10), np.eye(10)[gold] * 2
    z = {
        "full": prior * 2 + evidence + rng.normal(size=(n, 10)),
        "ctx_q": prior * 2 + rng.normal(0, 0.3, (n, 10)),
        "img_q": prior + evidence + rng.normal(size=(n, 10)),
        "q_only": np.tile(prior, (n, 1)),
    }
    by_digit = np.tile(np.arange(10) + 0.1, (n, 1))
    free = {"full": by_digit[np.arange(n), z["full"].argmax(axis=1)].tolist()}
    return number_cell(
        free,
        gold.tolist(),
        by_digit.tolist(),
        {k: v.tolist() for k, v in z.items()},
        test=test,
        **_places(n),
    )  # type: ignore[arg-type]


def _places(n: int) -> dict[str, list[object]]:
    return {
        "cluster_id": [f"place-{i // 2:04d}" for i in range(n)],
        "split": ["val" if i // 2 % 5 < 2 else "test" for i in range(n)],
        "pillar": [PILLARS[i % 3] for i in range(n)],
        "country": [["Peru", "Togo", "Laos"][i // 2 % 3] for i in range(n)],
    }


def payoff_of(
    cell: TaskCell, params: CadeParams, rows: np.ndarray | None = None, **streams: str
) -> float:
    """Mean payoff on the test rows (or others) by the plain road: streams, decide, look up."""
    choice = decide(cell.streams(**streams), params).choice  # type: ignore[arg-type]
    earned = cell.payoff[np.arange(len(choice)), choice]
    return float(earned[cell.test_rows if rows is None else rows].mean())


def value(rows: pd.DataFrame, **where: object) -> float:
    """The only value with these columns."""
    for name, wanted in where.items():
        rows = rows[rows[name] == wanted]
    assert len(rows) == 1, rows
    return float(rows["value"].iloc[0])
