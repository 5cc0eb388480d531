"""The score plan: distinct prompts, their order and their keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from sdgbias import suites
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.plan import askable, chunk_end, make_plan, prompt_key
from sdgbias.suites.extra_prompts import choose
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import IMAGE_FREE


def prompts() -> pd.DataFrame:
    rows = [
        ("mcq", 1, "T1", "full", "long text with context", "i1", "ABC"),
        ("mcq", 1, "T5", "full", "text", "i1", "ABC"),
        ("mcq", 1, "T5", "img_q", "text", "i1", "ABC"),
        ("mcq", 2, "T5", "img_q", "text", "i2", "ABC"),
        ("mcq", 1, "T5", "q_only", "text", "", "ABC"),
        ("mcq", 2, "T5", "q_only", "text", "", "ABC"),
        ("mcq", 3, "T5", "q_only", "text", "", "AB"),
    ]
    return pd.DataFrame(
        rows, columns=["task", "item_id", "test", "view", "text", "image_id", "candidates"]
    )


def test_counts_and_answers_every_cell() -> None:
    plan = make_plan(prompts(), "f")
    assert (plan.naive, plan.planned) == (7, 5)
    assert plan.distinct["uses"].sum() == 7
    assert set(plan.cells["key"]) == set(plan.distinct["key"])
    cell = plan.cells.set_index(["item_id", "test", "view"])["key"]
    assert cell[(1, "T5", "full")] == cell[(1, "T5", "img_q")] != cell[(2, "T5", "img_q")]
    assert cell[(1, "T5", "q_only")] == cell[(2, "T5", "q_only")] != cell[(3, "T5", "q_only")]


def test_prompts_of_extra_passes_are_none_of_the_papers() -> None:
    extra = [
        ("mcq", 1, "T1", "noise", "long text with context", "i1-noise", "ABC"),
        ("mcq", 1, "T5", "q_again", "text", "", "ABC"),  # the paper asks this one, too
    ]
    rows = pd.concat([prompts(), pd.DataFrame(extra, columns=prompts().columns)])
    plan = make_plan(rows, "f")
    assert (plan.planned, len(plan.paper())) == (6, make_plan(prompts(), "f").planned)


def test_longest_with_an_image_first_and_order_free() -> None:
    plan = make_plan(prompts(), "f")
    assert plan.distinct["text"].iloc[0] == "long text with context"
    shuffled = make_plan(prompts().sample(frac=1, random_state=1).reset_index(drop=True), "f")
    pd.testing.assert_frame_equal(plan.distinct, shuffled.distinct)


def test_texts_given_as_categories_make_the_same_plan() -> None:
    rows = prompts().astype({"text": "category"})
    for shuffled in (rows, rows.sample(frac=1, random_state=1)):
        found = make_plan(shuffled, "f")
        pd.testing.assert_frame_equal(found.distinct, make_plan(prompts(), "f").distinct)


def test_a_picture_stands_together_in_the_order_of_its_texts() -> None:
    rows = [
        ("mcq", n, "T1", "full", f"{'x' * (n % 3)} text {n}", f"i{n % 2}", "ABC") for n in range(8)
    ]
    rows += [
        ("mcq", n, "T1", "ctx_q", f"no picture, but the longest text of all {n}", "", "ABC")
        for n in range(3)
    ]
    names = ["task", "item_id", "test", "view", "text", "image_id", "candidates"]
    order = make_plan(pd.DataFrame(rows, columns=names), "f").distinct
    assert order["image_id"].drop_duplicates().tolist() == ["i1", "i0", ""] or order[
        "image_id"
    ].drop_duplicates().tolist() == [
        "i0",
        "i1",
        "",
    ]
    for _, own in order.groupby("image_id"):
        assert own["text"].tolist() == sorted(own["text"])


def test_chunks_dont_part_a_picture_that_fits() -> None:
    ids = ["a"] * 3 + ["b"] * 3 + ["c"] * 9 + [""] * 5
    ends, start = [], 0
    while start < len(ids):
        start = chunk_end(ids, start, 4)
        ends.append(start)
    assert ends == [
        3,
        6,
        10,
        14,
        18,
        20,
    ]  # c has more prompts than a chunk: parted where it must be
    assert chunk_end(ids, 0, 100) == len(ids)


def test_key_covers_everything() -> None:
    parts = ("f", "ABC", "i", "t")
    keys = {prompt_key(*parts)} | {
        prompt_key(*(p + "x" if i == j else p for i, p in enumerate(parts))) for j in range(4)
    }
    assert len(keys) == 5


def test_key_covers_where_one_part_ends_and_the_next_begins() -> None:
    parts = [("f", "ABC", "i", "t"), ("fA", "BC", "i", "t"), ("f", "AB", "Ci", "t")]
    assert len({prompt_key(*p) for p in [*parts, ("f", "ABC", "", "it")]}) == 4


def test_a_chunk_holds_as_many_prompts_as_wanted_where_pictures_allow() -> None:
    assert chunk_end(["a", "b", "c", "d"], 0, 3) == 3
    assert chunk_end(["a", "b", "c", "d"], 3, 3) == 4
    assert chunk_end(["a", "b", "b", "c"], 0, 2) == 1, "a picture stays whole"


def test_the_picture_with_the_longest_prompt_comes_first_whatever_its_id() -> None:
    rows = [
        ("mcq", 1, "T1", "img_q", "short", "a", "ABC"),
        ("mcq", 2, "T1", "img_q", "a much longer text", "z", "ABC"),
        ("mcq", 3, "T1", "img_q", "middling text", "m", "ABC"),
        ("mcq", 4, "T1", "img_q", "the", "z", "ABC"),
    ]

    plan = make_plan(pd.DataFrame(rows, columns=prompts().columns), "f")

    assert list(plan.distinct["image_id"]) == ["z", "z", "m", "a"]
    assert list(plan.distinct["text"]) == ["a much longer text", "the", "middling text", "short"]


def test_a_language_model_is_asked_no_picture_and_no_prompt_that_only_serves_pictures(
    small_benchmark: Path,
) -> None:
    spec = ModelSpec("m", "M", "planted", "planted", "1", "enabled", views=IMAGE_FREE)
    passes = tuple(choose("all"))
    cells = suites.of(small_benchmark).cells(small_benchmark, EvalSettings(passes=passes))
    kept = askable(cells, spec)
    assert (kept["image_id"] == "").all()
    names = {view.split(":")[0] for view in kept["view"]}
    orders = {"q_reversed", "q_random", "q_abc", "q_123"}
    assert names == {*IMAGE_FREE, *orders, "wording"}
    views = cells[cells["view"].isin(IMAGE_FREE)]
    assert kept["view"].isin(IMAGE_FREE).sum() == len(views)
    assert askable(cells, replace(spec, views=ModelSpec("", "", "", "", "", "").views)) is cells
