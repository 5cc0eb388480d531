"""Flips: questions whose answer changed from right to wrong, or back, between two runs; selection
of the stored examples."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.run import missing
from sdgbias.types import NEEDS_SCORES

COLUMNS = ["task", "test", "method", "item_id", "gold", "was", "now", "better"]
#: Methods whose flips are stored: the answer with all evidence, and CADE's.
METHODS = ("full", "cade")
#: Of a model that gives no scores.
TEXT_ONLY = ("full", "full_generated")


def examples(
    results: Path, old: str, new: str, suite: str, limit: int, breached: Collection[str] = ()
) -> pd.DataFrame:
    """At most ``limit`` rows of table ``flips`` without night, model, suite and runs. Order: right
    to wrong first; every question once before any question twice; methods in ``breached`` before
    others; highest confidence first (of the Full view, sum of both runs). Deterministic: the same
    runs give the same rows."""
    methods = TEXT_ONLY if NEEDS_SCORES in missing(results, new).values() else METHODS
    answer = (
        "coalesce(CASE WHEN {0}.task = 'regression' THEN format('{{:.1f}}', {0}.\"value\") ELSE"
        " {0}.pred END, '')"
    )
    frame = store.query(
        results,
        f"""SELECT p.task, p.test, p.method, p.item_id, p.gold, {answer.format("b")} AS was,
            {answer.format("p")} AS now, p.correct AS better,
                   coalesce(p.confidence, 0) + coalesce(b.confidence, 0) AS sure
            FROM answers p JOIN answers b ON b.task = p.task AND b.item_id = p.item_id AND
            b.test = p.test AND b.method = p.method AND b.content_key = p.content_key
            WHERE p.run_id = $new AND b.run_id = $old AND list_contains($methods, p.method) AND
            p.correct <> b.correct{suites.named(suite).reported("p")}
            ORDER BY better, list_contains($breached, p.method) DESC, sure DESC, p.item_id, p.test,
            p.method DESC""",
        {"new": new, "old": old, "methods": list(methods), "breached": sorted(breached)},
        runs=[new, old],
    )
    turn = frame.groupby(["better", "item_id"]).cumcount()
    order = frame.assign(turn=turn).sort_values(
        ["better", "turn"], kind="stable", ignore_index=True
    )
    return order.head(limit)[COLUMNS]
