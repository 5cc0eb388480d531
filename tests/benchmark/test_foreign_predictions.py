"""Prediction tables as other people's tools write them, and tables that don't belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.release.prediction_tables import read_tables
from sdgbias.errors import InputError
from sdgbias.types import ContextTest, Task
from tests.benchmark.test_release_predictions import tables

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
