"""Results that the pages of `sdgbias serve` show, and their text."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from sdgbias import store
from tests.builders.nights import publish_nights

RUN, BEFORE = "fake-optimist-3", "fake-optimist-2"


def publish_served(folder: Path) -> Path:
    """Nights of three models in FOLDER, and one regression answer at test T2 of `RUN`."""
    path = publish_nights(folder / "sdgbias.duckdb")
    answers = store.query(
        path, "SELECT * EXCLUDE (run_id) FROM predictions WHERE run_id = ?", [RUN]
    )
    scores = store.query(path, "SELECT * EXCLUDE (run_id) FROM scores WHERE run_id = ?", [RUN])
    estimate = pd.DataFrame(
        [
            {
                "task": "regression",
                "item_id": 1060,
                "test": "T2",
                "method": "full",
                "split": "test",
                "pred": "4",
                "value": 41.5,
                "error": 1.5,
                "correct": True,
            }
        ]
    )
    store.replace(
        path,
        RUN,
        {"predictions": pd.concat([answers, estimate], ignore_index=True), "scores": scores},
    )
    return path


def text(html: str) -> str:
    """What a reader reads: no tags, single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("<main")[1])).replace(
        "\u00a0", " "
    )
