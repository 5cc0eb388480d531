"""Extra passes: what they ask, to the letter, how few prompts they are, and the way back from
position to meaning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdgbias.benchmark.prompts import build_prompts
from sdgbias.errors import InputError, UsageError
from sdgbias.suites import extra_prompts
from sdgbias.types import Task

#: The other kind, paraphrases, wants the questions of indicators.yaml (test_paraphrases.py).
DEFAULT = ("table_j",)
LABELS = {
    "asset_index": 1.0,
    "water_index": 3.4,
    "sanitation_index": 2.6,
    "under5_mort": 30.0,
    "women_edu": 9.5,
    "women_bmi": 24.4,
    "urban": "U",
}


def item_tables(n: int = 12) -> dict[Task, pd.DataFrame]:
    """Half the multiple-choice items have three options, half two; regression asks for two
    targets."""
    at = np.arange(n)
    three = at % 2 == 0
    mcq = pd.DataFrame(
        {
            "item_id": at + 100,
            "indicator": np.where(three, "wasting", "electricity"),
            "split": np.where(at % 3 == 0, "val", "test"),
            "question": np.where(three, "How many?", "Any?"),
            "option_a": np.where(three, "few", "no"),
            "option_b": np.where(three, "some", "yes"),
            "option_c": np.where(three, "many", ""),
            "image_id": [f"{i:064x}" for i in at],
            **LABELS,
        }
    ).assign(asset_index=at * 0.5)
    targets = np.where(three, "women_bmi", "women_edu")
    regression = mcq.drop(columns=["option_a", "option_b", "option_c"]).assign(
        indicator=targets, target=targets, question="How " + pd.Series(targets) + "?"
    )
    return {Task.MCQ: mcq, Task.REGRESSION: regression}


@pytest.fixture(scope="module")
def items() -> dict[Task, pd.DataFrame]:
    return item_tables()


@pytest.fixture(scope="module")
def prompts(items: dict[Task, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(
        [build_prompts(table, task) for task, table in items.items()], ignore_index=True
    )


@pytest.fixture(scope="module")
def cells(items: dict[Task, pd.DataFrame], prompts: pd.DataFrame) -> pd.DataFrame:
    return extra_prompts.extra_cells(items, prompts, DEFAULT)


def text_of(cells: pd.DataFrame, view: str, item: int, test: str = "T1", task: str = "mcq") -> str:
    rows = cells[
        (cells["view"] == view)
        & (cells["item_id"] == item)
        & (cells["test"] == test)
        & (cells["task"] == task)
    ]
    assert len(rows) == 1, view
    return str(rows["text"].iloc[0])


TAIL = "Output nothing else (no words, numbers, symbols, spaces, or newlines)."


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (
            "q_reversed",
            "Options: A. many; B. some; C. few\nVALID OPTIONS: A, B, C\nSTRICT OUTPUT: Return"
            " EXACTLY ONE uppercase letter from VALID OPTIONS.\n" + TAIL,
        ),
        (
            "q_abc",
            "Options: a. few; b. some; c. many\nVALID OPTIONS: a, b, c\nSTRICT OUTPUT: Return"
            " EXACTLY ONE lowercase letter from VALID OPTIONS.\n" + TAIL,
        ),
        (
            "q_123",
            (
                "Options: 1. few; 2. some; 3. many\nVALID OPTIONS: 1, 2, 3\nSTRICT OUTPUT: Return"
                " EXACTLY ONE number from VALID OPTIONS.\nOutput nothing else (no words, letters,"
                " symbols, spaces, or newlines)."
            ),
        ),
    ],
)
def test_table_j_snapshots(cells: pd.DataFrame, view: str, expected: str) -> None:
    assert text_of(cells, view, 100) == "Question: How many?\n" + expected


def test_table_j_of_two_options(cells: pd.DataFrame) -> None:
    assert "Options: A. yes; B. no\nVALID OPTIONS: A, B\n" in text_of(cells, "q_reversed", 101)
    assert "Options: 1. no; 2. yes\nVALID OPTIONS: 1, 2\n" in text_of(cells, "q_123", 101)
    candidates = cells[cells["test"].eq("T1") & cells["item_id"].eq(101)].set_index("view")[
        "candidates"
    ]
    assert [candidates[v] for v in extra_prompts.TOKENS] == ["AB", "AB", "ab", "12"]


@given(st.sampled_from(["q_reversed", "q_random", "q_abc"]), st.integers(0, 3))
def test_every_order_shows_each_content_once(view: str, seed: int) -> None:
    table = item_tables()[Task.MCQ]
    order = extra_prompts.orders(table, view, seed)
    n = extra_prompts.n_options(table)
    assert np.array_equal(order >= 0, np.arange(3) < n[:, None])
    assert all(sorted(row[row >= 0]) == list(range(k)) for row, k in zip(order, n, strict=True))


def test_choosing() -> None:
    assert extra_prompts.choose("none") == extra_prompts.choose("") == ()
    assert extra_prompts.choose(" table_j,") == DEFAULT
    assert extra_prompts.choose("all") == tuple(extra_prompts.VIEWS)
    assert extra_prompts.choose("paraphrases,none") == ("paraphrases",)
    names = "all, none, paraphrases, table_j"
    with pytest.raises(UsageError, match=f"--passes: unknown pass 'vdx'; valid: {names}"):
        extra_prompts.choose("table_j,vdx")


def test_a_foreign_prompt_without_the_line_is_named(
    items: dict[Task, pd.DataFrame], prompts: pd.DataFrame
) -> None:
    foreign = prompts.assign(text=prompts["text"].str.replace("Options: ", "Choices: "))
    for name in DEFAULT:
        with pytest.raises(InputError, match="item 100 has no line 'Options: .*--passes none"):
            extra_prompts.extra_cells(items, foreign, (name,))


def test_a_benchmark_without_numbers_has_its_passes() -> None:
    items = item_tables()
    items[Task.REGRESSION] = pd.DataFrame(columns=["item_id", "indicator", "split"])
    prompts = build_prompts(items[Task.MCQ], Task.MCQ)
    assert set(extra_prompts.extra_cells(items, prompts, DEFAULT)["task"]) == {"mcq"}
