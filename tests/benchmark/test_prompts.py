"""Prompts: snapshots of Tables C, D and E, and the invariants of T5."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.prompts import build_prompts, context_lines, prompt_texts, view_cells
from sdgbias.errors import InputError
from sdgbias.types import CONTEXT_NAMES, TESTS, ContextTest, Task, View


@pytest.fixture
def mcq() -> pd.DataFrame:
    """One item with the values of Table E, and one two-option item of which little is known."""
    return pd.DataFrame(
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
        }
    )


@pytest.fixture
def regression(mcq: pd.DataFrame) -> pd.DataFrame:
    return mcq.assign(target=["asset_index", "women_bmi"])


TAIL = (
    "STRICT OUTPUT: Return EXACTLY ONE uppercase letter from VALID OPTIONS.\n"
    "Output nothing else (no words, numbers, symbols, spaces, or newlines)."
)


def test_mcq_full_t1_snapshot(mcq: pd.DataFrame) -> None:
    assert prompt_texts(mcq, Task.MCQ, ContextTest.T1, View.FULL)[0] == (
        "Question: How high is it?\nContext: Given: asset_index=1.0, water_index=3.4,"
        " sanitation_index=2.6, under_5_mortality_rate=0, woman_education_years=9.5,"
        " woman_bmi=24.4, urban=Urban\nOptions: A. below 20 %; B. 20 % to under 30 %; C. 30 % or"
        " more\nVALID OPTIONS: A, B, C\n" + TAIL
    )


def test_two_option_q_only_snapshot(mcq: pd.DataFrame) -> None:
    text = prompt_texts(mcq, Task.MCQ, ContextTest.T1, View.Q_ONLY)[1]
    assert text == "Question: Is it low?\nOptions: A. no; B. yes\nVALID OPTIONS: A, B\n" + TAIL


@pytest.mark.parametrize(
    ("test", "line"),
    [
        (ContextTest.T2, "Given: asset_index=1.0, sanitation_index=2.6, urban=Urban"),
        (ContextTest.T3, "You may consider: " + ", ".join(CONTEXT_NAMES.values())),
        (ContextTest.T4, "You may consider: asset_index, sanitation_index, urban"),
        (ContextTest.T5, ""),
    ],
)
def test_table_e(mcq: pd.DataFrame, test: ContextTest, line: str) -> None:
    assert context_lines(mcq, test)[0] == line


def test_unknown_values_are_left_out_and_an_empty_context_has_no_line(mcq: pd.DataFrame) -> None:
    assert context_lines(mcq, ContextTest.T1)[1] == "Given: woman_bmi=0.0"
    assert context_lines(mcq, ContextTest.T2)[1] == ""
    assert "Context" not in prompt_texts(mcq, Task.MCQ, ContextTest.T2, View.FULL)[1]


def test_regression_snapshot_hides_its_target(regression: pd.DataFrame) -> None:
    assert (
        prompt_texts(regression, Task.REGRESSION, ContextTest.T2, View.CTX_Q)[0]
        == "Question: How high is it?\nContext: Given: sanitation_index=2.6, urban=Urban\n"
        "Answer strictly with a single numerical value. Round to 1 decimal place."
    )
    for test in ContextTest:
        for view in View:
            assert "asset_index" not in prompt_texts(regression, Task.REGRESSION, test, view)[0]


@pytest.mark.parametrize("task", list(Task))
def test_t5_invariant_and_cells(mcq: pd.DataFrame, regression: pd.DataFrame, task: Task) -> None:
    items = mcq if task is Task.MCQ else regression
    prompts = build_prompts(items, task)
    assert len(prompts) == len(items) * len(TESTS[task])
    for test in TESTS[task]:
        for view in View:  # the short way gives what the prompt of each cell, written out, would be
            rows = view_cells(prompts).query("test == @test.value and view == @view.value")
            assert rows["text"].tolist() == prompt_texts(items, task, test, view).tolist()
    prompts = view_cells(prompts)
    assert len(prompts) == len(items) * len(TESTS[task]) * 4
    cell = prompts.set_index(["item_id", "test", "view"])
    for item in items["item_id"]:
        for column in ("text", "image_id", "candidates"):
            assert cell.loc[(item, "T5", "full"), column] == cell.loc[(item, "T5", "img_q"), column]
            assert (
                cell.loc[(item, "T5", "ctx_q"), column] == cell.loc[(item, "T5", "q_only"), column]
            )
        for test in TESTS[task]:
            assert (
                cell.loc[(item, test.value, "q_only"), "text"]
                == cell.loc[(item, "T5", "q_only"), "text"]
            )
    assert set(prompts.loc[prompts["view"].isin(["q_only", "ctx_q"]), "image_id"]) == {""}


def test_order_of_items_never_changes_a_prompt(regression: pd.DataFrame) -> None:
    forward = build_prompts(regression, Task.REGRESSION)
    backward = build_prompts(regression.iloc[::-1].reset_index(drop=True), Task.REGRESSION)
    pd.testing.assert_frame_equal(forward, backward)


def test_cells_need_a_t5_row(mcq: pd.DataFrame) -> None:
    prompts = build_prompts(mcq, Task.MCQ)
    with pytest.raises(InputError, match=r"mcq item 12 has no row for T5; .*sdgbias build"):
        view_cells(prompts[(prompts["item_id"] != 12) | (prompts["test"] != "T5")])


def test_cells_of_both_tasks_dont_mix(mcq: pd.DataFrame, regression: pd.DataFrame) -> None:
    """Ids are unique within a task only."""
    same = regression.assign(item_id=mcq["item_id"].to_numpy()[: len(regression)])
    both = pd.concat(
        [build_prompts(mcq, Task.MCQ), build_prompts(same, Task.REGRESSION)], ignore_index=True
    )
    cells = view_cells(both)
    assert len(cells) == 4 * len(both)
    assert cells["task"].tolist() == sorted(cells["task"])  # mcq before regression
    alone = view_cells(build_prompts(mcq, Task.MCQ))
    pd.testing.assert_frame_equal(cells[: len(alone)], alone)


def test_candidates(mcq: pd.DataFrame) -> None:
    by_item = (
        build_prompts(mcq, Task.MCQ).groupby("item_id")["candidates"].unique().map(list).to_dict()
    )
    assert by_item == {11: ["ABC"], 12: ["AB"]}
