"""A finished run on a real small benchmark: drawn answers to its own questions, and numbers that
follow from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import store
from sdgbias.methods import stats
from tests.builders.numbers import numbers_of

METHODS = ("q_only", "full", "cade")


def publish_answers(results: Path, benchmark: Path, run_id: str = "r1", **more: object) -> Path:
    """One run of all methods on every prompt of the benchmark; ``more``: columns of the run."""
    card = json.loads((benchmark / "benchmark.json").read_text())
    prompts = pd.read_parquet(benchmark / "prompts.parquet", columns=["task", "item_id", "test"])
    items = _items(benchmark)
    rng = np.random.default_rng(0)
    rows = prompts.merge(items, on=["task", "item_id"]).merge(
        pd.DataFrame({"method": METHODS}), how="cross"
    )
    right = rng.random(len(rows)) < 0.6
    mcq = rows["task"] == "mcq"
    digit = rows["gold_value"].astype(str).str.extract(r"(\d)", expand=False)
    pred = np.where(mcq, rows["gold"], digit)
    rows["pred"] = np.where(right, pred, np.where(mcq, "A", "9"))
    rows["value"] = np.where(mcq, np.nan, np.where(right, rows["gold_value"], 999.0))
    rows["correct"] = np.where(mcq, rows["pred"] == pred, right)
    test = rows[rows["split"] == "test"]
    pooled = pd.concat([test, test.assign(test="all")])
    metrics = []
    for (task, name, method), part in pooled.groupby(["task", "test", "method"]):
        e = stats.share(part["correct"], part["cluster_id"])
        metric = "accuracy" if task == "mcq" else "interval_accuracy"
        for what in (metric, "share_optimistic"):
            metrics.append(
                {
                    **{"task": task, "test": name, "method": method, "metric": what},
                    **{"pillar": "all", "indicator": "all", "value": e.value, "n": e.n},
                    **{"ci_low": e.low, "ci_high": e.high, "clusters": e.clusters},
                }
            )
    spec = {"repo": "demo/tiny", "licence": "apache-2.0"}
    run = {
        **{"run_id": run_id, "model": "tiny", "title": "Tiny", "backend": "hf"},
        **{"benchmark_id": card["benchmark_id"], "benchmark_path": str(benchmark)},
        **{"revision": "abc", "licence": card["licence"], "n_failed": 0, "numerics": "exact"},
        **{"started_at": "2026-11-20T01:00:00", "finished_at": "2026-11-20T02:00:00"},
        "config": {"spec": spec, "sdgbias": "0.1.0"},
    }
    names = ["task", "item_id", "test", "method", "split", "pred", "value", "correct"]
    tables = {
        "items": items,
        "predictions": rows[names],
        "numbers": numbers_of(metrics),
    }
    store.publish(results, run | more, tables)
    return results


def _items(benchmark: Path) -> pd.DataFrame:
    """The questions as a run stores them."""
    mcq = pd.read_parquet(benchmark / "items_mcq.parquet").assign(task="mcq")
    mcq["options"] = [
        [v for v in row if v] for row in mcq[["option_a", "option_b", "option_c"]].to_numpy()
    ]
    regression = pd.read_parquet(benchmark / "items_regression.parquet").assign(task="regression")
    frame = pd.concat(
        [
            mcq.assign(gold=mcq["answer"], gold_value=mcq["value"]),
            regression.assign(
                gold=regression["answer"].astype(str), gold_value=regression["answer"], options=None
            ),
        ]
    )
    names = ["task", "item_id", "cluster_id", "country", "year", "urban", "pillar", "indicator"]
    more = ["unit", "question", "options", "gold", "gold_value", "split", "image_id", "tolerance"]
    return frame[names + more]
