"""Kinds of questions and places in the record files of the authors' release, and options beyond
the third in tables of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdgbias.benchmark.release.check import question_kind
from sdgbias.benchmark.release.items import place_of_paths
from sdgbias.benchmark.release.predictions import run
from sdgbias.errors import InputError
from sdgbias.types import CadeParams, ContextTest, Task


def test_a_file_of_half_complete_questions_is_complete(tmp_path: Path) -> None:
    staged = tmp_path / "staged.parquet"
    texts = ["How many?\nOptions: A. few; B. some; C. many\nVALID OPTIONS: A, B, C", "How many?"]
    pq.write_table(pa.table({"question": texts}), staged)
    with duckdb.connect() as con:
        assert question_kind(con, Task.MCQ, str(staged)) == "complete"
    pq.write_table(pa.table({"question": [*texts, "How much?"]}), staged)
    with duckdb.connect() as con:
        assert question_kind(con, Task.MCQ, str(staged)) != "complete"


def test_paths_become_distinct_clusters() -> None:
    paths = pd.Series(
        ["images/a.png", "images/b.png", "images/b.jpg", "other/a.png", "images/.png"]
    )
    assert list(place_of_paths(paths)) == ["a", "images/b.png", "images/b.jpg", "other/a", ".png"]


@pytest.mark.parametrize("named", [True, False])
def test_more_than_three_options_are_candidates_like_the_first(tmp_path: Path, named: bool) -> None:
    gold = np.array(list("ABCDE" * 20))
    table = pd.DataFrame({"index": range(100), "answer": gold, "prediction": gold})
    for letter in "ABCDE":
        table[f"logit_{letter}"] = np.where(gold == letter, 3.0, 0.0)
        if named:
            table[letter] = f"text of {letter}"
    for name in ("mcq_T1", "mcq_T1_text", "mcq_T5", "mcq_T5_text"):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    params = CadeParams(0.9, 1, 1, 0.9)
    config: Any = run(tmp_path, Task.MCQ, ContextTest.T1, tmp_path / "out", params=params)
    assert config["notes"]["gold_missing_or_not_an_option"] == 0
    found = {k: config["metrics"][k]["baseline_accuracy"] for k in ("val", "test")}
    assert found["val"]["n"] + found["test"]["n"] == 100 and found["test"]["value"] == 1
    rows = pd.read_csv(tmp_path / "out" / "cade_predictions.csv")
    assert list(rows["baseline_pred"]) == list(gold)
    table.drop(columns="logit_D").to_csv(tmp_path / "mcq_T5.csv", index=False)
    with pytest.raises(InputError, match="mcq_T5: no logit in column logit_D, which 100 of 100"):
        run(tmp_path, Task.MCQ, ContextTest.T1, tmp_path / "again", params=params)
