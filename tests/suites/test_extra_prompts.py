"""Extra passes: what they ask, to the letter, how few prompts they are, and the way back from
position to meaning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdgbias.benchmark.prompts import build_prompts, view_cells
from sdgbias.errors import InputError, UsageError
from sdgbias.scoring.plan import make_plan
from sdgbias.suites import extra_prompts
from sdgbias.types import Task

#: What commands score by default; the third kind, paraphrases, wants the questions of
#: indicators.yaml (test_paraphrases.py).
DEFAULT = ("table_j", "content_free")
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


def test_content_free_snapshots(cells: pd.DataFrame) -> None:
    head, tail = (
        "Question: How many?\n",
        "\nOptions: A. few; B. some; C. many\nVALID OPTIONS: A, B, C\n",
    )
    for k, context in enumerate(["N/A", "", "[MASK]"]):
        assert text_of(cells, f"content_free:{k}", 100).startswith(
            head + f"Context: {context}" + tail
        )
        assert "Context" not in text_of(cells, f"content_free:{k}", 100, "T5")
    assert (
        text_of(cells, "content_free:0", 100, "T2", "regression")
        == "Question: How women_bmi?\nContext: N/A\nAnswer strictly with a single numerical value."
        " Round to 1 decimal place."
    )


def test_what_is_shared_is_asked_once(
    items: dict[Task, pd.DataFrame], prompts: pd.DataFrame, cells: pd.DataFrame
) -> None:
    """Two indicators and options, five tests; two targets, two tests."""
    rows = cells[cells["view"] == "content_free:0"]
    assert rows.groupby("task").size().to_dict() == {"mcq": 2 * 5, "regression": 2 * 2}
    assert set(rows["item_id"]) == {100, 101} and (cells["image_id"] == "").all()
    twice = item_tables(24)
    more = pd.concat(
        [build_prompts(table, task) for task, table in twice.items()], ignore_index=True
    )
    few, many = (
        make_plan(extra_prompts.extra_cells(i, p, DEFAULT), "f").planned
        for i, p in ((items, prompts), (twice, more))
    )
    # three contexts (T1 to T4 alike) and none (T5) of two indicators and of two targets, and
    # Table J: 3! orders or 2!, reversed being one of them, a to c, and 1 to 3
    most = 2 * (3 + 1) + 2 * (3 + 1) + (6 + 1 + 1) + (2 + 1 + 1)
    assert few <= many <= most


def test_spread_gives_a_groups_scores_to_all_of_it(items: dict[Task, pd.DataFrame]) -> None:
    table = items[Task.MCQ]
    asked = np.full((12, 3), np.nan)
    asked[0], asked[1] = [1.0, 2.0, 3.0], [4.0, 5.0, np.nan]
    found = extra_prompts.spread(table, asked)
    assert (found[::2] == [1.0, 2.0, 3.0]).all()
    np.testing.assert_array_equal(found[1::2], [[4.0, 5.0, np.nan]] * 6)
    as_stored = table[["item_id", "indicator"]].assign(
        target="", options=table["option_a"], n_options=3
    )  # as the laboratory has items
    np.testing.assert_array_equal(extra_prompts.spread(as_stored, asked), found)
    asked[1] = np.nan
    assert np.isnan(extra_prompts.spread(table, asked)[1::2]).all()


def test_the_order_of_columns_and_rows_is_that_of_view_cells(
    prompts: pd.DataFrame, cells: pd.DataFrame
) -> None:
    assert list(cells.columns) == list(view_cells(prompts).columns)
    assert (cells.dtypes == view_cells(prompts).dtypes).all()
    assert not cells.duplicated(["task", "item_id", "test", "view"]).any()


@given(st.sampled_from(["q_reversed", "q_random", "q_abc"]), st.integers(0, 3))
def test_every_order_shows_each_content_once(view: str, seed: int) -> None:
    table = item_tables()[Task.MCQ]
    order = extra_prompts.orders(table, view, seed)
    n = extra_prompts.n_options(table)
    assert np.array_equal(order >= 0, np.arange(3) < n[:, None])
    assert all(sorted(row[row >= 0]) == list(range(k)) for row, k in zip(order, n, strict=True))


def test_random_orders_are_drawn_from_all_and_per_item() -> None:
    table = item_tables(1200)[Task.MCQ]
    order = extra_prompts.orders(table, "q_random")
    _, counts = np.unique(order[::2], axis=0, return_counts=True)
    assert len(counts) == 6 and counts.min() > 60  # 600 items, 100 each expected
    shuffled = table.sample(frac=1.0, random_state=0)
    assert np.array_equal(extra_prompts.orders(shuffled, "q_random"), order[shuffled.index])


def test_choosing() -> None:
    assert extra_prompts.choose("none") == extra_prompts.choose("") == ()
    assert extra_prompts.choose("content_free, table_j") == DEFAULT
    assert extra_prompts.choose("all") == tuple(extra_prompts.VIEWS)
    assert extra_prompts.choose("paraphrases,none") == ("paraphrases",)
    names = "all, content_free, none, paraphrases, table_j"
    with pytest.raises(UsageError, match=f"--passes: unknown pass 'vdx'; valid: {names}"):
        extra_prompts.choose("table_j,vdx")


def test_a_foreign_prompt_without_the_line_is_named(
    items: dict[Task, pd.DataFrame], prompts: pd.DataFrame
) -> None:
    foreign = prompts.assign(text=prompts["text"].str.replace("Options: ", "Choices: "))
    for name in DEFAULT:
        with pytest.raises(InputError, match="item 100 has no line 'Options: .*--passes none"):
            extra_prompts.extra_cells(items, foreign, (name,))


def test_no_items_no_cells(items: dict[Task, pd.DataFrame], prompts: pd.DataFrame) -> None:
    only = {**items, Task.MCQ: items[Task.MCQ][:0]}
    made = extra_prompts.extra_cells(
        only, prompts[prompts["task"] == "regression"], extra_prompts.choose("all")
    )
    assert set(made["task"]) == {"regression"}
    assert extra_prompts.extra_cells(items, prompts, ()).empty


def test_a_tokenizer_may_lack_the_letters_of_table_j() -> None:
    from sdgbias.engines.hf.tokens import find_candidates
    from sdgbias.errors import ModelError

    class Tokenizer:
        all_special_tokens: tuple[str, ...] = ()

        def get_vocab(self) -> dict[str, int]:
            return {"A": 0, " A": 1, "a": 2}

    found = find_candidates(Tokenizer(), "A", optional="ab")
    assert found.ids == {"A": (0, 1), "a": (2,)}
    with pytest.raises(ModelError, match="no single token for 'b'"):
        find_candidates(Tokenizer(), "Ab", optional="a")


def test_a_benchmark_without_numbers_has_its_passes() -> None:
    items = item_tables()
    items[Task.REGRESSION] = pd.DataFrame(columns=["item_id", "indicator", "split"])
    prompts = build_prompts(items[Task.MCQ], Task.MCQ)
    assert set(extra_prompts.extra_cells(items, prompts, DEFAULT)["task"]) == {"mcq"}
