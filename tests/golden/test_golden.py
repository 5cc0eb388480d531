"""The net under every rebuild: the numbers that stored scores give, and the questions that the
sample gives, are those of the golden files, or `scripts/golden.py` says why they changed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "golden.py"


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def expected(golden: ModuleType) -> pd.DataFrame:
    return pd.read_parquet(golden.FOLDER / "numbers.parquet")


def test_stored_scores_give_the_golden_numbers(
    golden: ModuleType, expected: pd.DataFrame, tmp_path: Path
) -> None:
    lines = golden.differences(expected, golden.numbers(tmp_path))

    assert not lines, (
        f"{len(lines)} of {len(expected)} golden numbers differ; if they should:"
        ' python scripts/golden.py numbers "the reason"\n' + "\n".join(lines[:40])
    )


@pytest.mark.parametrize("size", ["a thirtieth", pytest.param("full size", marks=pytest.mark.long)])
def test_the_sample_gives_the_golden_questions(
    golden: ModuleType, size: str, tmp_path: Path
) -> None:
    counts = json.loads((golden.FOLDER / "full_size.json").read_text("utf-8"))[size]

    assert golden.build_counts(*golden.SIZES[size], tmp_path) == counts


def test_the_files_are_small(golden: ModuleType) -> None:
    size = sum(path.stat().st_size for path in golden.FOLDER.rglob("*") if path.is_file())

    assert size <= 2_000_000
