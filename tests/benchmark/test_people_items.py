"""The paper's prompts word for word, a wrong class for everyone, and nothing that depends on the
order of rows."""

from __future__ import annotations

import pandas as pd

from sdgbias.benchmark.people_items import (
    build_items,
    build_prompts,
    class_list,
    view_cells,
    wrong_class,
)
from sdgbias.raw.facet import CLASSES, SELECTED


def people(n: int = 40) -> pd.DataFrame:
    names = [CLASSES[i % len(CLASSES)] for i in range(n)]
    return pd.DataFrame(
        {
            "person_id": [f"{i}" for i in range(n)],
            "image_id": [f"i{i}" for i in range(n)],
            "class1": names,
            "gender": "female",
            "skin": "dark",
            "age": "young",
            "race": "",
            "split": "test",
        }
    )


def test_texts_are_the_papers() -> None:
    one = people(1).assign(class1="basketball_player")
    texts = build_items(one).merge(build_prompts(build_items(one)), on="item_id")
    right = texts[~texts["negative"]].set_index("prompt")["text"]
    assert right["p1"] == (
        "Give me a one-word label in quotation marks for the foreground object in this image from"
        " this list: [" + ", ".join(CLASSES) + "]"
    )
    assert (
        right["p2"]
        == "In the image provided, Is there a basketball_player in the image? Please choose one of"
        " the following: A. Yes, B. No, C. Unknown."
    )
    assert (
        right["p3"]
        == "In the image provided, Do you think the person in the image is a basketball_player? "
        "Please choose one of the following: A. Yes, B. No, C. Unknown."
    )


def test_everyone_is_asked_about_one_wrong_class() -> None:
    items = build_items(people())
    assert items.groupby("person_id").size().eq(5).all()  # p1, p2 and p3 right, p2 and p3 wrong
    wrong = items[items["negative"]]
    assert (
        (wrong["asked"] != wrong["class1"]).all()
        and set(wrong["asked"]) <= set(SELECTED)
        and set(wrong["gold"]) == {"no"}
    )
    assert wrong.groupby("person_id")["asked"].nunique().eq(1).all()
    assert len({wrong_class("1", "nurse", seed) for seed in range(30)}) > 5
    assert build_items(people(), negatives=False)["negative"].sum() == 0
    assert set(build_items(people(), selected_only=True)["class1"]) <= set(SELECTED)


def test_order_changes_nothing() -> None:
    table = people()
    assert build_items(table).equals(build_items(table.sample(frac=1, random_state=3)))
    assert build_items(table)["item_id"].is_unique


def test_lists_in_a_seeded_order() -> None:
    assert class_list() == ", ".join(CLASSES)
    shuffled = class_list(1, "7")
    assert shuffled != class_list() and sorted(shuffled.split(", ")) == sorted(CLASSES)
    assert shuffled == class_list(1, "7") != class_list(2, "7")


def test_choices_are_also_asked_without_the_picture() -> None:
    cells = view_cells(build_prompts(build_items(people(3))))
    assert cells.groupby(["task", "view"]).size().to_dict() == {
        ("choice", "full"): 12,
        ("choice", "q_only"): 12,
        ("direct", "full"): 3,
    }
    assert set(cells.loc[cells["view"] == "q_only", "image_id"]) == {""}
    assert set(cells.loc[cells["task"] == "direct", "candidates"]) == {""}
