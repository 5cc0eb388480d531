"""The score plan: distinct prompts, their order and their keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import suites
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.plan import askable, chunk_end, make_plan, prompt_key
from sdgbias.suites.extra_prompts import choose
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import IMAGE_FREE, VIEWS

COLUMNS = ["task", "item_id", "test", "view", "text", "image_id", "candidates"]
ROWS = [
    ("mcq", 1, "T1", "full", "long text with context", "i1", "ABC"),
    ("mcq", 1, "T5", "full", "text", "i1", "ABC"),
    ("mcq", 1, "T5", "img_q", "text", "i1", "ABC"),
    ("mcq", 2, "T5", "img_q", "text", "i2", "ABC"),
    ("mcq", 1, "T5", "q_only", "text", "", "ABC"),
    ("mcq", 2, "T5", "q_only", "text", "", "ABC"),
    ("mcq", 3, "T5", "q_only", "text", "", "AB"),
]


def table(*more: tuple[object, ...], rows: list[tuple[object, ...]] = ROWS) -> pd.DataFrame:
    return pd.DataFrame([*rows, *more], columns=COLUMNS)


def test_equal_prompts_are_planned_once_and_answer_every_cell() -> None:
    plan = make_plan(table(), "f")
    assert (plan.naive, plan.planned, plan.distinct["uses"].sum()) == (7, 5, 7)
    assert set(plan.cells["key"]) == set(plan.distinct["key"])
    cell = plan.cells.set_index(["item_id", "test", "view"])["key"]
    assert cell[(1, "T5", "full")] == cell[(1, "T5", "img_q")] != cell[(2, "T5", "img_q")]
    assert cell[(1, "T5", "q_only")] == cell[(2, "T5", "q_only")] != cell[(3, "T5", "q_only")]


def test_prompts_of_extra_passes_alone_are_none_of_the_papers() -> None:
    noise = ("mcq", 1, "T1", "noise", "long text with context", "i1-noise", "ABC")
    again = ("mcq", 1, "T5", "q_again", "text", "", "ABC")  # the paper asks this one, too
    plan = make_plan(table(noise, again), "f")
    assert (plan.planned, len(plan.paper())) == (6, 5)


def test_the_plan_depends_neither_on_the_order_nor_on_the_type_of_its_rows() -> None:
    plan = make_plan(table(), "f").distinct
    for rows in (table(), table().astype({"text": "category"})):
        shuffled = rows.sample(frac=1, random_state=1).reset_index(drop=True)
        pd.testing.assert_frame_equal(make_plan(shuffled, "f").distinct, plan)


def test_pictures_stand_together_the_longest_prompt_first_and_no_picture_last() -> None:
    texts = {"a": ["short"], "z": ["a much longer text", "the"], "m": ["middling text"]}
    texts[""] = ["no picture, but the longest text of all"]
    shown = [(picture, text) for picture in texts for text in texts[picture]]
    rows = [("mcq", n, "T1", "full", t, p, "ABC") for n, (p, t) in enumerate(shown)]

    order = make_plan(table(rows=rows), "f").distinct

    assert order["image_id"].tolist() == ["z", "z", "m", "a", ""]
    assert order["text"].tolist()[:2] == ["a much longer text", "the"]


@pytest.mark.parametrize(
    ("pictures", "size", "ends"),
    [
        # of c there are more prompts than a chunk holds: parted where it must be
        ("aaabbbccccccccc.....", 4, [3, 6, 10, 14, 18, 20]),
        ("aaabbb", 100, [6]),
        ("abcd", 3, [3, 4]),
        ("abbc", 2, [1, 3, 4]),
    ],
)
def test_chunks_part_no_picture_that_fits(pictures: str, size: int, ends: list[int]) -> None:
    ids, found = [p.strip(".") for p in pictures], [0]
    while found[-1] < len(ids):
        found.append(chunk_end(ids, found[-1], size))
    assert found[1:] == ends


def test_a_key_covers_each_part_and_where_it_ends() -> None:
    parts = [("f", "ABC", "i", "t"), ("fx", "ABC", "i", "t"), ("f", "ABCx", "i", "t")]
    parts += [("f", "ABC", "ix", "t"), ("f", "ABC", "i", "tx"), ("fA", "BC", "i", "t")]
    parts += [("f", "AB", "Ci", "t"), ("f", "ABC", "", "it")]
    assert len({prompt_key(*p) for p in parts}) == len(parts)


def test_a_language_model_is_asked_no_picture_and_no_prompt_that_only_serves_pictures(
    small_benchmark: Path,
) -> None:
    spec = ModelSpec("m", "M", "planted", "planted", "1", "enabled", views=IMAGE_FREE)
    passes = tuple(choose("all"))
    cells = suites.of(small_benchmark).cells(small_benchmark, EvalSettings(passes=passes))
    kept = askable(cells, spec)
    assert (kept["image_id"] == "").all()
    orders = {"q_reversed", "q_random", "q_abc", "q_123"}
    assert {view.split(":")[0] for view in kept["view"]} == {*IMAGE_FREE, *orders, "wording"}
    assert kept["view"].isin(IMAGE_FREE).sum() == cells["view"].isin(IMAGE_FREE).sum()
    assert askable(cells, replace(spec, views=VIEWS)) is cells
