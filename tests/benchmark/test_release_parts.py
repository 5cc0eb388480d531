"""Kinds of questions and places in the record files of the authors' release."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark.release.check import question_kind
from sdgbias.benchmark.release.items import place_of_paths
from sdgbias.types import Task


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
