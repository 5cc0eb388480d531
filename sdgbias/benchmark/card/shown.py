"""What questions of a benchmark show and rest on: modalities of the pictures, and templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import Task

Row = dict[str, Any]


def by_modalities(images: pd.DataFrame, both: pd.DataFrame) -> list[Row]:
    """Clusters and questions by what their pictures show ('' not stated, as in releases of
    others). both: the items of both tasks, with task and modalities."""
    clusters, asked = (
        images["modalities"].value_counts(),
        both[["modalities", "task"]].value_counts(),
    )
    return [
        {
            "modalities": str(shown),
            "percent": round(100 * int(clusters.get(shown, 0)) / len(images), 2),
            **{task.value: int(asked.get((shown, task.value), 0)) for task in Task},
            "clusters": int(clusters.get(shown, 0)),
        }
        for shown in sorted({*clusters.index, *both["modalities"]})
    ]


def templates(items: Mapping[Task, pd.DataFrame], quarantine: pd.DataFrame) -> list[Row]:
    """Per indicator and regression task of ours that the benchmark asks: required evidence, further
    evidence, the reasoning intended, and the clusters left out for lack of evidence. quarantine:
    table, rule, what (indicator), n."""
    lost = quarantine[quarantine["rule"] == "missing-evidence"].set_index(["table", "what"])["n"]
    found: list[Row] = []
    for task, entries in (
        (Task.MCQ, load_indicators()),
        (Task.REGRESSION, load_regression_tasks()),
    ):
        asked = set(items[task]["indicator"])
        found += [
            {
                "task": task.value,
                "indicator": entry.slug,
                "required": ", ".join(entry.template.required),
                "used": ", ".join(entry.template.used),
                "reasoning": entry.template.reasoning,
                "left_out": int(lost.get((f"items_{task}", entry.slug), 0)),
            }
            for entry in entries
            if entry.slug in asked
        ]
    return found
