"""Prompts: snapshots of Tables C, D and E, and the invariants of T5."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.prompts import (
    IGNORE,
    build_prompts,
    context_lines,
    prompt_texts,
    task_contexts,
    view_cells,
)
from sdgbias.errors import InputError
from sdgbias.types import CONTEXT_NAMES, TESTS, ContextTest, Task, View

#: One item with the values of Table E, and one two-option item of which little is known.
ITEMS = pd.DataFrame(
    {
        "item_id": [11, 12],
        "question": ["How high is it?", "Is it low?"],
        "option_a": ["below 20 %", "no"],
        "option_b": ["20 % to under 30 %", "yes"],
        "option_c": ["30 % or more", ""],
        "asset_index": [1.0, np.nan],
        "water_index": [3.4, np.nan],
        "sanitation_index": [2.6, np.nan],
        "under5_mort": [0.0, np.nan],
        "women_edu": [9.5, np.nan],
        "women_bmi": [24.365, -0.04],
        "urban": ["U", ""],
        "image_id": ["a" * 64, "b" * 64],
        "target": ["asset_index", "women_bmi"],
    }
)
TAIL = (
    "STRICT OUTPUT: Return EXACTLY ONE uppercase letter from VALID OPTIONS.\n"
    "Output nothing else (no words, numbers, symbols, spaces, or newlines)."
)
SNAPSHOTS = [
    (
        (Task.MCQ, ContextTest.T1, View.FULL, 0),
        "Question: How high is it?\nContext: Given: asset_index=1.0, water_index=3.4,"
        " sanitation_index=2.6, under_5_mortality_rate=0, woman_education_years=9.5,"
        " woman_bmi=24.4, urban=Urban\nOptions: A. below 20 %; B. 20 % to under 30 %; C. 30 % or"
        f" more\nVALID OPTIONS: A, B, C\n{TAIL}",
    ),
    (  # nothing that T2 shows is known
        (Task.MCQ, ContextTest.T2, View.FULL, 1),
        f"Question: Is it low?\nOptions: A. no; B. yes\nVALID OPTIONS: A, B\n{TAIL}",
    ),
    (
        (Task.REGRESSION, ContextTest.T2, View.CTX_Q, 0),
        "Question: How high is it?\nContext: Given: sanitation_index=2.6, urban=Urban\n"
        "Answer strictly with a single numerical value. Round to 1 decimal place.",
    ),
]


@pytest.mark.parametrize(("cell", "text"), SNAPSHOTS)
def test_snapshots(cell: tuple[Task, ContextTest, View, int], text: str) -> None:
    *of, row = cell
    assert prompt_texts(ITEMS, *of)[row] == text


@pytest.mark.parametrize(
    ("test", "lines"),
    [
        (ContextTest.T2, ["Given: asset_index=1.0, sanitation_index=2.6, urban=Urban", ""]),
        (ContextTest.T3, ["You may consider: " + ", ".join(CONTEXT_NAMES.values())] * 2),
        (ContextTest.T4, ["You may consider: asset_index, sanitation_index, urban"] * 2),
        (ContextTest.T5, ["", ""]),
    ],
)
def test_table_e(test: ContextTest, lines: list[str]) -> None:
    assert context_lines(ITEMS, test).tolist() == lines
    assert context_lines(ITEMS, ContextTest.T1)[1] == "Given: woman_bmi=0.0"


@pytest.mark.parametrize("task", Task)
def test_cells_hold_the_prompt_of_each_written_out(task: Task) -> None:
    """The four views of a row of the table; T5 is IMG+Q and Q-only in any test."""
    prompts = build_prompts(ITEMS, task)
    cells = view_cells(prompts)
    assert len(cells) == 4 * len(prompts) == 4 * len(ITEMS) * len(TESTS[task])
    for test in TESTS[task]:
        for view in View:
            rows = cells.query("test == @test.value and view == @view.value")
            assert rows["text"].tolist() == prompt_texts(ITEMS, task, test, view).tolist()
            assert rows["image_id"].tolist() == (
                ITEMS["image_id"].tolist() if view.has_image else ["", ""]
            )
            if task is Task.REGRESSION:
                assert "asset_index" not in rows["text"].iloc[0], "a target is never shown"
    cell = cells.set_index(["view", "test", "item_id"]).sort_index()["text"]
    assert cell["full", "T5"].equals(cell["img_q", "T5"])
    assert cell["ctx_q", "T5"].equals(cell["q_only", "T5"])
    candidates = prompts.groupby("item_id")["candidates"].unique().map(list).tolist()
    assert task is Task.REGRESSION or candidates == [["ABC"], ["AB"]]
    pd.testing.assert_frame_equal(build_prompts(ITEMS[::-1].reset_index(drop=True), task), prompts)


def test_each_number_hides_its_own_target_in_any_order_of_targets() -> None:
    """Women's BMI, then the asset index twice: the groups by target stand in another order."""
    items = ITEMS.iloc[[1, 0, 0]].reset_index(drop=True)

    contexts = task_contexts(items, Task.REGRESSION, ContextTest.T1).tolist()

    of_asset_index = context_lines(ITEMS, ContextTest.T1, "asset_index")[0]
    assert contexts == ["", of_asset_index, of_asset_index]


def test_views_without_the_picture_show_the_blank_one_where_there_is_one() -> None:
    prompts = build_prompts(ITEMS, Task.MCQ)
    plain = view_cells(prompts)

    cells = view_cells(prompts.assign(blank_id="c" * 64))

    blind = plain["image_id"] == ""
    assert cells["image_id"].tolist() == plain["image_id"].where(~blind, "c" * 64).tolist()
    assert cells["text"].tolist() == plain["text"].where(~blind, plain["text"] + IGNORE).tolist()


def test_cells_need_a_t5_row() -> None:
    prompts = build_prompts(ITEMS, Task.MCQ)
    with pytest.raises(InputError, match=r"mcq item 12 has no row for T5; .*sdgbias build"):
        view_cells(prompts[(prompts["item_id"] != 12) | (prompts["test"] != "T5")])


def test_cells_of_both_tasks_dont_mix() -> None:
    """Ids are unique within a task only."""
    tables = {task: build_prompts(ITEMS, task) for task in Task}
    cells = view_cells(pd.concat(tables.values(), ignore_index=True))
    alone = view_cells(tables[Task.MCQ])
    assert cells["task"].tolist() == sorted(cells["task"])  # mcq before regression
    pd.testing.assert_frame_equal(cells[: len(alone)], alone)
