"""Families as the hub holds them, against the bare model called by hand; the whole table:
bench/families.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.engines import load
from sdgbias.registry.spec import ModelSpec
from tests.builders import families
from tests.builders.bare_model import Bare, four_views, largest_difference

#: Positions of its own; one picture encoder before a decoder; tiles; a Q-Former without a chat
#: template; cross attention.
FAMILIES = ("qwen2_5_vl", "llava", "internvl", "blip-2", "mllama")


@pytest.mark.parametrize(
    "name", [FAMILIES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[1:])]
)
def test_scores_and_numbers_equal_those_of_the_bare_model(name: str, tmp_path: Path) -> None:
    folder = families.write(tmp_path / name, name)
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "preprocessor_config.json", "tokenizer.json"} <= files
    engine = load(ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled"), Path())
    bare, prompts = Bare(folder), four_views()
    assert largest_difference(bare, engine, prompts) <= 1e-4
    numbers = [prompts[-2], prompts[-1]]
    ours = [answers[0] for answers in engine.generate(numbers, [""], 3).texts]
    assert ours == [bare.answer(prompt, 3) for prompt in numbers]


def test_the_page_counts_what_its_rows_say() -> None:
    from bench import families as bench

    row = {
        "difference": 1e-6,
        "answers": True,
        "batches": True,
        "shares": True,
        "tokens": 576,
        "why": "",
        "seconds": 1.6,
    }
    good = {**row, "name": "llava", "built": True, "loads": True, "scores": True}
    bad = {
        **good,
        "name": "a",
        "scores": False,
        "batches": None,
        "shares": None,
        "tokens": None,
        "why": "x | y",
    }
    lines = bench.page([good, bad]).splitlines()
    assert "2 were tried, 2 load and 1 score as the bare model does." in lines[2]
    assert lines[-2:] == [
        "| `a` | yes | no |  |  | ? |  | 2 | x \\| y |",
        "| `llava` | yes | yes | yes | yes | yes | 576 | 2 |  |",
    ]
