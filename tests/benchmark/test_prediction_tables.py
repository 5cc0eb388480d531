"""Tables of predictions as other people's tools write them: separators and encodings, absent
tables, columns in other letters, options beyond the third, tables of different questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.release.prediction_tables import read_tables
from sdgbias.benchmark.release.predictions import reservations, run
from sdgbias.errors import InputError
from sdgbias.types import CadeParams, ContextTest, Task
from tests.benchmark.test_release_predictions import APPLY, edit, tables

WRITTEN: dict[str, dict[str, Any]] = {
    "semicolons": {"sep": ";", "decimal": ","},
    "tabs": {"sep": "\t"},
    "Windows-1252": {"encoding": "cp1252"},
    "byte order mark": {"encoding": "utf-8-sig"},
}


@pytest.mark.parametrize("how", WRITTEN.values(), ids=WRITTEN)
def test_tables_as_other_tools_write_them(tmp_path: Path, how: dict[str, Any]) -> None:
    (tmp_path / "a").mkdir()
    made = tables(tmp_path / "a")
    plain = read_tables(tmp_path / "a", Task.MCQ, ContextTest.T2)
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").iterdir():
        table = pd.read_csv(path, dtype=str, keep_default_na=False).assign(note="C\u00f4te")
        if "decimal" in how:
            table = table.apply(lambda column: column.str.replace(".", ",", regex=False))
        said = {name: value for name, value in how.items() if name != "decimal"}
        table.to_csv(tmp_path / "b" / path.name, index=False, **said)
    found = read_tables(tmp_path / "b", Task.MCQ, ContextTest.T2)
    assert len(made) == 4 and found.frame.equals(plain.frame)
    assert all(np.allclose(found.views[v], plain.views[v], equal_nan=True) for v in plain.views)


def test_tables_of_different_questions_are_refused(tmp_path: Path) -> None:
    tables(tmp_path)
    [path] = tmp_path.glob("mcq_T5.csv")
    full = pd.read_csv(tmp_path / "mcq_T2.csv")
    other = full[["index", "answer"]].assign(answer=full["answer"].map({"A": "B", "B": "C"}.get))
    pd.read_csv(path).merge(other, on="index").to_csv(path, index=False)
    with pytest.raises(InputError, match="answer is '.' in mcq_T2 and '.' in mcq_T5; write both"):
        read_tables(tmp_path, Task.MCQ, ContextTest.T2)


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
