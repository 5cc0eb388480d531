"""Uncertainty of a run's answers due to withheld scores, for runs of an endpoint that returns only
its likeliest tokens.

An answer is certain if no value of the withheld scores can change it. Otherwise its payoff lies
between two bounds. Everything is measured on the test split, by the arithmetic of
sdgbias/methods/bounds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from sdgbias.methods import stats
from sdgbias.methods.bounds import BoundedChoice, Bounds, alone, payoff_bounds, verdict
from sdgbias.methods.cade import Bools, Floats
from sdgbias.types import CadeParams, Task, View

Answers = Mapping[str, np.ndarray]


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
        has_score = np.any(np.isfinite(b.low) & present, axis=1)
        anywhere |= hidden
        rows, v = test & (has_score | hidden), alone(b, present)
        blocks.append(_block(items, view.value, rows, hidden, ~has_score, v, payoff))
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


def _of_scored(values: Callable[[Answers], np.ndarray]) -> Callable[[Answers], np.ndarray]:
    """Of CADE alone: a view's number is decoded freely, so no score bears on it."""
    return lambda a: np.where(a["method"] == "cade", values(a), np.nan)


#: (metric, its values by row, their range), by task.
METRICS: Mapping[Task, Sequence[tuple[str, Callable[[Answers], np.ndarray], stats.Kind]]] = {
    Task.MCQ: (
        ("censored_rate", lambda a: a["censored"], "share"),
        (
            "unanswered_rate",
            lambda a: np.where(a["method"] == "cade", np.nan, a["unanswered"]),
            "share",
        ),
        ("certain_rate", lambda a: a["certain"], "share"),
        ("accuracy_low", lambda a: a["low"], "share"),
        ("accuracy_high", lambda a: a["high"], "share"),
    ),
    Task.REGRESSION: (
        ("censored_rate", lambda a: a["censored"], "share"),
        ("certain_rate", _of_scored(lambda a: a["certain"]), "share"),
        ("mae_low", _of_scored(lambda a: -a["high"]), "amount"),
        ("mae_high", _of_scored(lambda a: -a["low"]), "amount"),
    ),
}
