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
from sdgbias.methods.bounds import Bounds, alone, payoff_bounds, verdict
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
    unanswered (no candidate was returned; NaN for cade), certain, low, high (payoff bounds).
    payoff (N, K) and usable (N,) as in `methods/search`; a view without scores for an item gives no
    row."""
    test = (items["split"] == "test").to_numpy()

    def block(
        method: str, answers: Bools, censored: Bools, unanswered: Floats, possible: Bools
    ) -> pd.DataFrame:
        rows = items[["item_id", "cluster_id", "pillar", "indicator"]].assign(method=method)
        rows["censored"], rows["unanswered"] = censored, unanswered
        rows["certain"] = possible.sum(axis=1) == 1
        rows["low"], rows["high"] = payoff_bounds(possible, payoff)
        return rows[answers & test]

    hidden = {view: np.any((b.low == -np.inf) & present, axis=1) for view, b in views.items()}
    named = {view: np.any((b.low > -np.inf) & present, axis=1) for view, b in views.items()}
    blocks = [
        block(v.value, hidden[v] | named[v], hidden[v], 1.0 - named[v], alone(b, present))
        for v, b in views.items()
    ]
    if params is not None:
        full, ctx, img, q = (views[v] for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY))
        possible = verdict(full, ctx, img, q, params, present)
        in_any_view, never = np.any([*hidden.values()], axis=0), np.full(len(items), np.nan)
        blocks.append(block("cade", usable, in_any_view, never, possible))
    return pd.concat(blocks, ignore_index=True)


def _of_scored(values: Callable[[Answers], np.ndarray]) -> Callable[[Answers], np.ndarray]:
    """Of CADE alone: a view's number is decoded freely, so no score bears on it."""
    return lambda a: np.where(a["method"] == "cade", values(a), np.nan)


#: (metric, its values by row, their range), by task.
METRICS: Mapping[Task, Sequence[tuple[str, Callable[[Answers], np.ndarray], stats.Kind]]] = {
    Task.MCQ: (
        ("censored_rate", lambda a: a["censored"], "share"),
        ("unanswered_rate", lambda a: a["unanswered"], "share"),
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
