"""A benchmark folder that is damaged is told apart from one that isn't there."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import suites
from sdgbias.errors import InputError
from sdgbias.suites import sdg

PROMPT = {
    "task": "mcq",
    "item_id": 1,
    "test": "T5",
    "text": "How many?",
    "image_id": "i",
    "candidates": "ABC",
}


def test_no_card_and_a_broken_card_are_two_messages(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.json"
    with pytest.raises(InputError, match="no benchmark here; build one first"):
        suites.benchmark_card(tmp_path)
    for text in ('{"benchmark_id": "0123', "[]", "{}", "\x00"):
        path.write_text(text)
        with pytest.raises(InputError, match="can't be read as a benchmark's card") as told:
            suites.benchmark_card(tmp_path)
        assert "sdgbias build --out" in str(told.value) and "\n" not in str(told.value)
    path.write_text(json.dumps({"benchmark_id": "0123"}))
    assert suites.benchmark_card(tmp_path)["benchmark_id"] == "0123"


@pytest.mark.parametrize("column", list(PROMPT))
def test_prompts_without_a_column_are_one_line(tmp_path: Path, column: str) -> None:
    pd.DataFrame([PROMPT]).drop(columns=column).to_parquet(tmp_path / "prompts.parquet")
    with pytest.raises(InputError, match=rf"prompts.parquet: missing column\(s\) {column}; build"):
        sdg.load_prompts(tmp_path)
