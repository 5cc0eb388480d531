"""The net under every rebuild: the numbers that stored scores give, and the questions that the
sample gives, are those of the golden files, or `scripts/golden.py` says why they changed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from scripts import golden
from sdgbias.benchmark.quality import run_gate

#: Runs of all suites, of which no study compares one with those of the slow tier.
QUICK = {"varied-places", "varied-people", "own-tiny-llava"}


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(golden.runs().keys() - QUICK, marks=pytest.mark.slow)]
)
def test_stored_scores_give_the_golden_numbers(names: set[str], tmp_path: Path) -> None:
    expected = pd.read_parquet(golden.FOLDER / "numbers.parquet")
    expected = expected[expected["run_id"].isin(names)]

    lines = golden.differences(expected, golden.numbers(tmp_path, names))

    assert not lines, (
        f"{len(lines)} of {len(expected)} golden numbers differ; if they should:"
        ' python scripts/golden.py numbers "the reason"\n' + "\n".join(lines[:40])
    )


@pytest.mark.parametrize("size", ["a hundredth", pytest.param("full size", marks=pytest.mark.long)])
def test_the_sample_gives_the_golden_questions(size: str, tmp_path: Path) -> None:
    counts = json.loads((golden.FOLDER / "full_size.json").read_text("utf-8"))[size]

    assert golden.build_counts(*golden.SIZES[size], tmp_path) == counts
    if size == "full size":
        run_gate(tmp_path / "benchmark")  # raises where a rule is broken


def test_the_files_are_small() -> None:
    size = sum(path.stat().st_size for path in golden.FOLDER.rglob("*") if path.is_file())

    assert size <= 2_000_000
