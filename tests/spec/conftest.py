"""A benchmark of few questions, for whole evaluations of which no number is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest


@pytest.fixture(scope="session")
def few_questions(small_benchmark: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 12 multiple-choice and 5 regression questions of the small benchmark."""
    folder = tmp_path_factory.mktemp("few") / "benchmark"
    shutil.copytree(small_benchmark, folder)
    kept = pd.DataFrame(columns=["task", "item_id"])
    for task, number in (("mcq", 12), ("regression", 5)):
        path = folder / f"items_{task}.parquet"
        items = pd.read_parquet(path).head(number)
        items.to_parquet(path, index=False)
        kept = pd.concat([kept, items[["item_id"]].assign(task=task)])
    prompts = pd.read_parquet(folder / "prompts.parquet")
    prompts.merge(kept, on=["task", "item_id"])[list(prompts)].to_parquet(
        folder / "prompts.parquet", index=False
    )
    return folder
