"""CADE on logits of one's own, without a benchmark: the example of the docs, shapes and masks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sdgbias.methods import cade
from sdgbias.methods.search import random_search
from sdgbias.types import Task

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "debias.md"


def views(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """((4, n, 3) logits that prefer A, (n,) gold)."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 3, n)
    logits = rng.normal(size=(4, n, 3)) + np.array([2.0, 0.0, 0.0])
    logits[0, np.arange(n), gold] += 1.5
    return logits, gold


def test_the_example_of_the_docs_runs_and_cade_gains() -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    said = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, check=True, timeout=300
    )

    debiased, plain = map(float, said.stdout.split())
    assert debiased > plain + 0.05


def test_gold_indices_and_payoffs_are_the_same_search() -> None:
    logits, gold = views(120)
    s = cade.streams(*logits)
    payoff = (np.arange(3) == gold[:, None]).astype(float)

    by_index = cade.search(s, gold, draws=500, seed=3)
    by_payoff = cade.search(s, payoff, "mcq", draws=500, seed=3)

    assert by_index == by_payoff == random_search(s, payoff, Task.MCQ, draws=500, seed=3)


def test_rows_without_a_right_answer_are_left_out() -> None:
    logits, gold = views(60)
    payoff = (np.arange(3) == gold[:, None]).astype(float)
    payoff[40:] = np.nan

    found = cade.search(cade.streams(*logits), payoff, draws=200)

    assert found.n_val == 40


def test_an_option_that_a_question_lacks_is_never_chosen() -> None:
    logits, _ = views(50)
    logits[:, :, 0] = np.nan

    decision = cade.decide(cade.streams(*logits), cade.BASELINE)

    assert set(decision.choice) <= {1, 2}


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
