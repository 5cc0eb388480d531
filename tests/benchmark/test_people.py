"""A folder of annotated pictures becomes a benchmark: same bytes again, every person accounted for,
real faces as a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark.people import TABLES, build_people
from sdgbias.benchmark.people_items import (
    build_items,
    build_prompts,
    class_list,
    view_cells,
    wrong_class,
)
from sdgbias.errors import InputError
from sdgbias.raw.facet import CLASSES, SELECTED
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.synthetic.schematic_people import write_people_sample


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people") / "raw"
    assert write_people_sample(folder, 200, seed=3) == 201  # picture 49 shows two persons
    return folder


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    out = source.parent / "benchmark"
    build_people(source, out)
    return out


def test_every_annotated_person_is_accounted_for(built: Path) -> None:
    card = json.loads((built / "benchmark.json").read_text())
    people = pd.read_parquet(built / "people.parquet")
    assert (
        card["counts"]["rows_annotated"] == len(people) + sum(card["quarantined"].values()) == 201
    )
    assert card["quarantined"] == {"box-outside": 1, "missing-image": 1, "several-persons": 2}
    assert card["synthetic"] and card["suite"] == "people"
    for attribute, counts in card["groups"].items():
        assert sum(counts.values()) == len(people)
        assert sum(card["unknown_because"][attribute].values()) == counts["unknown"]


def test_pictures_are_kept_as_they_are(built: Path, source: Path) -> None:
    people = pd.read_parquet(built / "people.parquet")
    reader = ImageReader(built)
    reader.require(people["image_id"])
    first = people.iloc[0]
    assert reader[first["image_id"]] == (next(source.glob(f"imgs_*/{first['file']}")).read_bytes(),)
    assert (people["w"] > 0).all() and (people["x"] + people["w"] <= 160).all()


def test_questions_about_one_picture_stand_on_one_side(built: Path) -> None:
    items = pd.read_parquet(built / "items_people.parquet")
    assert items.groupby("image_id")["split"].nunique().eq(1).all()
    assert 0.1 < (items["split"] == "val").mean() < 0.3
    prompts = pd.read_parquet(built / "prompts.parquet")
    assert set(prompts["item_id"]) == set(items["item_id"])


def test_same_source_same_bytes(built: Path, source: Path, tmp_path: Path) -> None:
    write_people_sample(tmp_path / "raw", 200, seed=3)
    build_people(tmp_path / "raw", tmp_path / "again")
    for name in (*TABLES, "images", "quarantine"):
        assert (tmp_path / "again" / f"{name}.parquet").read_bytes() == (
            built / f"{name}.parquet"
        ).read_bytes()


def test_a_broken_picture_leaves_and_the_others_stay(source: Path, tmp_path: Path) -> None:
    write_people_sample(tmp_path / "raw", 30, seed=3)
    (tmp_path / "raw" / "imgs_1" / "100000.jpg").write_bytes(b"\xff\xd8 no picture")
    (tmp_path / "raw" / "imgs_2" / "100001.jpg").write_bytes(
        (tmp_path / "raw" / "imgs_3" / "100002.jpg").read_bytes()
    )
    card = build_people(tmp_path / "raw", tmp_path / "b")
    assert card["quarantined"] == {"image-corrupt": 1, "picture-twice": 2}
    assert card["counts"]["people"] == 27


def test_nothing_usable_is_told_with_its_reasons(tmp_path: Path) -> None:
    write_people_sample(tmp_path / "raw", 3, seed=3)
    for path in (tmp_path / "raw").glob("imgs_*/*.jpg"):
        path.unlink()
    (tmp_path / "b").mkdir()
    card = tmp_path / "b" / "benchmark.json"  # of an earlier build, whose pictures go
    card.write_text('{"suite": "people"}')
    with pytest.raises(InputError, match="no usable person; the reasons: missing-image 3"):
        build_people(tmp_path / "raw", tmp_path / "b")
    assert not card.exists()
    with pytest.raises(InputError, match=r"no annotations/annotations.csv"):
        build_people(tmp_path / "nowhere", tmp_path / "b")


# -- the questions


def people(n: int = 40) -> pd.DataFrame:
    rows = [(f"{i}", f"i{i}", CLASSES[i % len(CLASSES)]) for i in range(n)]
    groups = {"gender": "female", "skin": "dark", "age": "young", "race": "", "split": "test"}
    return pd.DataFrame(rows, columns=["person_id", "image_id", "class1"]).assign(**groups)


def test_texts_are_the_papers() -> None:
    one = people(1).assign(class1="basketball_player")
    texts = build_items(one).merge(build_prompts(build_items(one)), on="item_id")
    right = texts[~texts["negative"]].set_index("prompt")["text"]
    assert right["p1"] == (
        "Give me a one-word label in quotation marks for the foreground object in this image from"
        " this list: [" + ", ".join(CLASSES) + "]"
    )
    choices = "Please choose one of the following: A. Yes, B. No, C. Unknown."
    is_there = "Is there a basketball_player in the image?"
    do_you_think = "Do you think the person in the image is a basketball_player?"
    assert right["p2"] == f"In the image provided, {is_there} {choices}"
    assert right["p3"] == f"In the image provided, {do_you_think} {choices}"


def test_everyone_is_asked_about_one_wrong_class() -> None:
    items = build_items(people())
    assert items.equals(build_items(people().sample(frac=1, random_state=3)))
    assert items["item_id"].is_unique
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
