"""Re-reads the answers of a published run with another text encoder: the paper's two, beside the
packaged one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from sdgbias import store
from sdgbias.errors import InputError
from sdgbias.methods.labels import TextEncoder
from sdgbias.suites import facet
from sdgbias.suites.rows import numbers


def read_again(
    results: Path,
    run_id: str,
    encoder: TextEncoder,
    floor: float,
    *,
    draws: int = 2_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Add the metrics of the methods ``full:ENCODER`` and ``full:ENCODER:paper`` (the paper's own
    reading with that encoder) to a run of the second suite, replacing those of an earlier reading,
    and return them.

    One additional row per prompt, metric ``floor``, holds the minimum similarity of an answer. The
    answers and the packaged encoder's reading stay unchanged. Publishing the run again discards
    this reading. Raises InputError for a run without free answers.
    """
    texts = store.query(
        results,
        'SELECT task, item_id, test, "view", text FROM spoken WHERE run_id = ? ORDER BY ALL',
        [run_id],
    )
    items = store.query(
        results,
        "SELECT p.* EXCLUDE (benchmark_id) FROM people p JOIN runs r USING (benchmark_id) WHERE"
        " run_id = ?",
        [run_id],
    )
    if texts.empty:
        raise InputError(
            f"{results}: run {run_id} has no free answers to read; sdgbias evaluate MODEL"
            " --benchmark PEOPLE makes one that has"
        )
    method = f"full:{encoder.name}"
    table = facet.predictions(items, facet.labelled(texts, encoder, floor)).assign(method=method)
    rows = facet.metric_rows(items, table, draws=draws, seed=seed)
    counts = table.groupby(["task", "test"], sort=True).size().rename("n").reset_index()
    floors = numbers(counts.assign(method=method, metric="floor", value=floor))
    printed = facet.printed_rows(items, texts, encoder, method)
    rows = pd.concat([rows, floors, printed], ignore_index=True)
    kept = store.query(
        results,
        "SELECT * EXCLUDE (run_id) FROM numbers WHERE run_id = ? AND NOT list_contains(?, method)",
        [run_id, sorted(set(rows["method"]))],
    )
    store.replace(results, run_id, {"numbers": pd.concat([kept, rows], ignore_index=True)})
    return rows
