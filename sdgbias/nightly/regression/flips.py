"""Flips: questions whose answer changed from right to wrong, or back, between two runs; selection
of the stored examples."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.asked import gives_scores

COLUMNS = ["task", "test", "method", "item_id", "gold", "was", "now", "better"]
#: Methods whose flips are stored: the answer with all evidence, and CADE's.
METHODS = ("full", "cade")
#: Of a model that gives no scores.
TEXT_ONLY = ("full", "full_generated")
_SAME = {
    "items": (
        "n.gold IS NOT DISTINCT FROM o.gold AND n.question = o.question AND n.options::VARCHAR IS"
        " NOT DISTINCT FROM o.options::VARCHAR AND (n.source_id IS NULL OR (n.image_id IS NOT"
        " DISTINCT FROM o.image_id AND n.context::VARCHAR IS NOT DISTINCT FROM o.context::VARCHAR))"
    ),
    "people": (
        "n.gold = o.gold AND n.asked = o.asked AND n.image_id = o.image_id AND n.prompt = o.prompt"
    ),
}


def examples(
    results: Path, old: str, new: str, suite: str, limit: int, breached: Collection[str] = ()
) -> pd.DataFrame:
    """At most ``limit`` rows of table ``flips`` without night, model, suite and runs. Order: right
    to wrong first; every question once before any question twice; methods in ``breached`` before
    others; highest confidence first (of the Full view, sum of both runs). Deterministic: the same
    runs give the same rows."""
    of = suites.named(suite)
    table = of.items_table
    config = store.query(results, "SELECT config FROM runs WHERE run_id = ?", [new])["config"]
    methods = METHODS if all(map(gives_scores, config)) else TEXT_ONLY
    said = (
        "coalesce(CASE WHEN {0}.task = 'regression' THEN format('{{:.1f}}', {0}.\"value\") ELSE"
        " {0}.pred END, '')"
    )
    frame = store.query(
        results,
        f"""SELECT p.task, p.test, p.method, p.item_id, n.gold, {said.format("b")} AS was,
            {said.format("p")} AS now, p.correct AS better,
                   coalesce(p.confidence, 0) + coalesce(b.confidence, 0) AS sure
            FROM predictions p JOIN predictions b ON b.task = p.task AND b.item_id = p.item_id AND
            b.test = p.test AND b.method = p.method
            JOIN runs rn ON rn.run_id = p.run_id JOIN runs ro ON ro.run_id = b.run_id
            JOIN {table} n ON n.benchmark_id = rn.benchmark_id AND {of.same_question("n", "p")}
            JOIN {table} o ON o.benchmark_id = ro.benchmark_id AND {of.same_question("o", "p")}
            WHERE p.run_id = $new AND b.run_id = $old AND list_contains($methods, p.method) AND
            p.correct <> b.correct AND {_SAME[table]}{of.reported("p")}
            ORDER BY better, list_contains($breached, p.method) DESC, sure DESC, p.item_id, p.test,
            p.method DESC""",
        {"new": new, "old": old, "methods": list(methods), "breached": sorted(breached)},
    )
    turn = frame.groupby(["better", "item_id"]).cumcount()
    order = frame.assign(turn=turn).sort_values(
        ["better", "turn"], kind="stable", ignore_index=True
    )
    return order.head(limit)[COLUMNS]
