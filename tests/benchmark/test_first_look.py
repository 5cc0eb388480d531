"""A few questions of a benchmark: the same ones each time, whole, and a benchmark of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import suites
from sdgbias.benchmark.first_look import first_look
from sdgbias.errors import InputError
from sdgbias.raw.images.shards import ImageReader


def ids(folder: Path, kind: str) -> set[int]:
    return set(pd.read_parquet(folder / f"items_{kind}.parquet")["item_id"])


def test_the_same_questions_and_more_with_a_larger_number(
    small_benchmark: Path, tmp_path: Path
) -> None:
    small = first_look(small_benchmark, tmp_path / "a", 10)
    again = first_look(small_benchmark, tmp_path / "b", 10)
    larger = first_look(small_benchmark, tmp_path / "a", 15)
    for name in ("items_mcq", "items_regression", "prompts"):
        one, two = ((f / f"{name}.parquet").read_bytes() for f in (small, again))
        assert one == two
    assert len(ids(small, "mcq")) == 10
    assert ids(small, "mcq") < ids(larger, "mcq") <= ids(small_benchmark, "mcq")
    items = pd.read_parquet(small / "items_mcq.parquet")
    assert (items["split"] == "val").sum() == 2  # a fifth, so that CADE can be tuned


def test_it_is_a_benchmark_of_its_own(small_benchmark: Path, tmp_path: Path) -> None:
    made = first_look(small_benchmark, tmp_path, 10)
    cards = [suites.benchmark_card(f) for f in (small_benchmark, made)]
    assert cards[0]["benchmark_id"] != cards[1]["benchmark_id"] and cards[1]["first_look"] == 10
    prompts = pd.read_parquet(made / "prompts.parquet")
    for task in ("mcq", "regression"):
        assert set(prompts.loc[prompts["task"] == task, "item_id"]) == ids(made, task)
    pictures, shown = ImageReader(made), ImageReader(small_benchmark)
    assert all(pictures[i] == shown[i] for i in set(prompts["image_id"]) - {"", None})


def test_what_was_cut_short_is_made_again(small_benchmark: Path, tmp_path: Path) -> None:
    card = json.loads((small_benchmark / "benchmark.json").read_text())
    part = tmp_path / f"{card['benchmark_id']}-10.part"
    part.mkdir()
    (part / "items_mcq.parquet").write_bytes(b"half")
    assert len(ids(first_look(small_benchmark, tmp_path, 10), "mcq")) == 10 and not part.exists()


def test_a_folder_without_questions_is_named(tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text('{"benchmark_id": "x"}')
    with pytest.raises(InputError, match="no table of questions"):
        first_look(tmp_path, tmp_path / "out", 10)
