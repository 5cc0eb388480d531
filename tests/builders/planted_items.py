"""Items of the planted process as arrays alone, without a benchmark, and what a planted model must
score on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sdgbias.analysis.selfcheck import truth
from sdgbias.analysis.selfcheck.plants import PLANTS, Plant
from sdgbias.analysis.selfcheck.truth import Population
from sdgbias.engines.planted import Habits
from sdgbias.types import ContextTest, View


def plant(name: str) -> Plant:
    return next(p for p in PLANTS if p.name == name)


def draw_items(rng: np.random.Generator, n: int) -> Population:
    """n items with three answers, each right equally often, five items per place; a fifth of them
    for tuning."""
    gold = rng.integers(0, 3, n)
    rising = rng.random(n) < 0.5
    onehot = np.eye(3)[gold]
    return Population(
        gold=gold,
        says=np.where(rising[:, None], [0, 1, 2], [2, 1, 0]),
        present=np.ones((n, 3), dtype=bool),
        image_share=onehot,
        context_share={ContextTest.T1: onehot},
        pillar=np.full(n, "all", dtype=object),
        place=(np.arange(n) // 5).astype(object),
        split=np.where(rng.random(n) < 0.2, "val", "test").astype(object),
        item_id=np.arange(n),
        answer=np.full(n, np.nan),
        tolerance=np.full(n, np.nan),
        number=np.full((n, 3), np.nan),
        alone={ContextTest.T1: np.ones(n, dtype=bool)},
    )


def expected_shares(
    h: Habits, view: View, test: ContextTest = ContextTest.T1
) -> tuple[float, float]:
    """(accuracy, share of optimistic answers) of one view on `draw_items`, in closed form: over one
    item of each kind, three gold answers times two polarities."""
    gold, rising = np.repeat(np.arange(3), 2), np.tile([True, False], 3)
    onehot = np.eye(3)[gold]
    p = replace(
        draw_items(np.random.default_rng(0), 6),
        gold=gold,
        says=np.where(rising[:, None], [0, 1, 2], [2, 1, 0]),
        image_share=onehot,
        context_share={ContextTest.T1: onehot},
    )
    chance = truth.choice_probability(*truth.expected_logits(h, p, test, view), p.present)
    optimistic = np.where(p.says == 2, chance, 0.0).sum(axis=1)
    return float(chance[np.arange(6), gold].mean()), float(optimistic.mean())
