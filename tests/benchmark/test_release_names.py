"""Tables of a release and of predictions that others wrote: a table that isn't there, columns in
other letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.benchmark.release.check import stage_records
from sdgbias.benchmark.release.predictions import reservations, run
from sdgbias.errors import InputError
from sdgbias.types import ContextTest, Task
from tests.benchmark.test_release_predictions import APPLY, edit, tables


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=20)
    (pred / "mcq_T5_text.csv").unlink()
    config = run(pred, Task.MCQ, ContextTest.T2, tmp_path / "out", params=APPLY)
    assert reservations(config)[0].startswith("no table mcq_T5_text.csv or .parquet")


def test_a_column_in_other_letters_is_refused(tmp_path: Path) -> None:
    """Split would be passed over, and every question split by the rule."""
    pred = tmp_path / "pred"
    tables(pred, n=20)
    edit(pred / "mcq_T2.csv", lambda f: f.rename(columns={"split": "Split"}))
    with pytest.raises(InputError, match=r"mcq_T2\.csv: column 'Split' has to be spelt 'split'"):
        run(pred, Task.MCQ, ContextTest.T2, tmp_path / "out", params=APPLY)


def test_a_field_in_other_letters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mcq_T2.jsonl"
    path.write_text('{"item_id": 1, "Answer": "A"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="'Answer' has to be spelt 'answer'"):
        stage_records(path, tmp_path / "staged.parquet")
