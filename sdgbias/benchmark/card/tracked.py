"""What `dvc metrics` and `dvc plots` show of a benchmark: metrics.json, and a CSV per plot in
plots/. All of it is in benchmark.json too, among much that changes with every build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.files import write_atomically, write_json

METRICS, PLOTS = "metrics.json", "plots"


def write(out: Path, card: Mapping[str, Any]) -> None:
    """Writes both into the benchmark folder ``out``."""
    write_json(out / METRICS, metrics(card))
    for name, rows in plots(card).items():
        table = pd.DataFrame(rows, columns=None if rows else ["rule", "rows"])
        text = table.to_csv(index=False, lineterminator="\n")
        write_atomically(out / PLOTS / f"{name}.csv", text)


def metrics(card: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, answers in percent of each pillar's questions, rows left out by rule."""
    return {
        "counts": card["counts"],
        "answers_percent": card["label_shares_percent"],
        "left_out": card["quarantined"],
    }


def plots(card: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """answers: percent of each letter by pillar with n and a 95 % interval; questions: number by
    indicator; left_out: rows by rule."""
    answers = [
        {
            "answer": f"{row['pillar']}: {row['answer']}",
            "percent": row["share"],
            "low": row["share_low"],
            "high": row["share_high"],
            "n": row["n"],
        }
        for row in card["table_b"]
    ]
    counts = card["counts"]
    questions = {**counts["mcq_by_indicator"], **counts["regression_by_task"]}
    return {
        "answers": answers,
        "questions": [{"indicator": k, "questions": n} for k, n in questions.items()],
        "left_out": [{"rule": k, "rows": n} for k, n in card["quarantined"].items()],
    }
