"""Uncertainty of a run's answers due to withheld scores, for runs of an endpoint that returns only
its likeliest tokens.

An answer is certain if no value of the withheld scores can change it. Otherwise its payoff lies
between two bounds. Everything is measured on the test split, by the arithmetic of
sdgbias/methods/bounds.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from sdgbias.methods import stats
from sdgbias.methods.bounds import BoundedChoice, Bounds, alone, payoff_bounds, verdict
from sdgbias.methods.cade import Bools, Floats
from sdgbias.suites.rows import RowGroup
from sdgbias.types import CadeParams, Task, View


def judged(
    items: pd.DataFrame,
    views: Mapping[View, Bounds],
    present: Bools,
    payoff: Floats,
    usable: Bools,
    params: CadeParams | None,
) -> pd.DataFrame:
    """One row per test item and method (the views, and cade if it was tuned): item_id, cluster_id,
    pillar, indicator, method, censored (a candidate's score is withheld; for cade in any view),
    unanswered (no candidate was returned), certain, low, high (payoff bounds). payoff (N, K) and
    usable (N,) as in `methods/search`; a view without scores for an item gives no row."""
    test = (items["split"] == "test").to_numpy()
    anywhere = np.zeros(len(items), dtype=bool)
    blocks = []
    for view, b in views.items():
        hidden = np.any(np.isneginf(b.low) & present, axis=1)
        known = np.any(np.isfinite(b.low) & present, axis=1)
        anywhere |= hidden
        rows, v = test & (known | hidden), alone(b, present)
        blocks.append(_block(items, view.value, rows, hidden, ~known, v, payoff))
    if params is not None:
        full, ctx, img, q = (views[v] for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY))
        v, never = verdict(full, ctx, img, q, params, present), np.zeros_like(anywhere)
        blocks.append(_block(items, "cade", test & usable, anywhere, never, v, payoff))
    return pd.concat(blocks, ignore_index=True)


def _block(
    items: pd.DataFrame,
    method: str,
    rows: Bools,
    censored: Bools,
    unanswered: Bools,
    v: BoundedChoice,
    payoff: Floats,
) -> pd.DataFrame:
    low, high = payoff_bounds(v, payoff)
    block = items[["item_id", "cluster_id", "pillar", "indicator"]].assign(
        method=method, censored=censored, unanswered=unanswered
    )
    return block.assign(certain=v.certain, low=low, high=high)[rows]


def metrics(
    method: str, part: RowGroup, task: Task
) -> Iterator[tuple[str, np.ndarray, stats.Kind]]:
    """(metric, values, their range) of the rows of one method in one group. A view's number is
    decoded freely, so no score bears on it."""
    yield "censored_rate", part["censored"], "share"
    if task is Task.MCQ and method != "cade":
        yield "unanswered_rate", part["unanswered"], "share"
    if task is Task.MCQ or method == "cade":
        yield "certain_rate", part["certain"], "share"
    if task is Task.MCQ:
        yield "accuracy_low", part["low"], "share"
        yield "accuracy_high", part["high"], "share"
    elif method == "cade":
        yield "mae_low", -part["high"], "amount"
        yield "mae_high", -part["low"], "amount"
