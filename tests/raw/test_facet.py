"""FACET's rows and the stand-in folders: who is kept, in which group, and why the others are
not."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InputError
from sdgbias.raw.facet import (
    CLASSES,
    COLUMNS,
    SELECTED,
    clip_box,
    find_files,
    normalise,
    read_annotations,
    read_box,
)


def line(person: str, file: str = "", **more: object) -> dict[str, object]:
    box = '{"x": 1, "y": 2, "width": 30, "height": 40}'
    named = {"person_id": person, "filename": file or f"{person}.jpg", "class1": "nurse"}
    return dict.fromkeys(COLUMNS, "") | named | {"bounding_box": box} | more


def read(tmp_path: Path, *lines: dict[str, object]) -> tuple[pd.DataFrame, dict[str, str]]:
    path = tmp_path / "annotations.csv"
    pd.DataFrame(lines).to_csv(path, index=False)
    found = read_annotations(path)
    return found.people.set_index("person_id"), dict(
        zip(found.quarantine["key"], found.quarantine["rule"], strict=True)
    )


def test_the_paper_has_52_classes_and_reports_13_however_they_are_spelt() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 52
    assert len(SELECTED) == 13 and set(SELECTED) <= set(CLASSES)
    names = ("tennis_player", "Tennis Player", "skate-boarder", "Labourer", "Disc Jockey", "pilot")
    meant = ["tennis_player", "tennis_player", "skateboarder", "laborer", "disk_jockey", "", ""]
    assert [normalise(name) for name in (*names, "")] == meant


@pytest.mark.parametrize(
    ("votes", "groups", "whys"),
    [
        ("gender_masc=1 skin_2=2 skin_3=1 skin_4=2 age_older=1", "male light old", "- - -"),
        ("gender_fem=1 skin_3=2 skin_4=2 age_young=1", "female unknown young", "- tie -"),
        ("gender_non_binary=1 age_na=1", "unknown unknown unknown", "non-binary no-votes na"),
        (
            "gender_masc=1 gender_fem=1 skin_7=1 skin_10=1 skin_5=1 age_middle=1",
            *("unknown dark middle", "tie - -"),
        ),
        ("gender_masc=yes skin_1=-1", "unknown unknown unknown", "unread unread no-votes"),
    ],
)
def test_votes_become_groups_by_strict_maximum(
    tmp_path: Path, votes: str, groups: str, whys: str
) -> None:
    """Three votes for light and two for medium are light; two and two are a tie."""
    for short, whole in (("gender_", "gender_presentation_"), ("skin_", "skin_tone_")):
        votes = votes.replace(short, whole)
    votes = votes.replace("age_", "age_presentation_")
    people, _ = read(tmp_path, line("1", **dict(vote.split("=") for vote in votes.split())))
    assert people.loc["1", ["gender", "skin", "age"]].tolist() == groups.split()
    reasons = people.loc["1", ["gender_why", "skin_why", "age_why"]]
    assert [why or "-" for why in reasons] == whys.split()


def test_every_row_that_leaves_says_why(tmp_path: Path) -> None:
    people, gone = read(
        tmp_path,
        line("1"),
        line("2", "shared.jpg"),
        line("3", "shared.jpg"),
        line("4", "4a.jpg"),
        line("4", "4b.jpg"),
        line("5", class1="pilot"),
        line("6", bounding_box="{'x': 1}"),
        line("7", bounding_box="__import__('os').system('true')"),
        line(""),
    )
    assert list(people.index) == ["1"]
    assert gone == {
        "2": "several-persons",
        "3": "several-persons",
        "4": "person-twice",
        "5": "unknown-class",
        "6": "box-unreadable",
        "7": "box-unreadable",
        "row 10": "no-person-id",
    }


def test_the_published_header_is_read(shared: Path) -> None:
    found = read_annotations(shared / "people" / "facet_annotations_header_only.csv")
    assert found.n_rows == 0 and found.people.empty and found.quarantine.empty


def test_boxes() -> None:
    assert read_box("{'x': 1.5, 'y': 0, 'width': 3, 'height': 4}") == (1.5, 0.0, 3.0, 4.0)
    assert read_box('{"x": 1, "y": 0, "width": 0, "height": 4}') is None
    assert read_box('{"x": 1, "y": 0, "width": 1e999, "height": 4}') is None
    assert read_box(f'{{"x": 1, "y": 0, "width": {"9" * 400}, "height": 4}}') is None
    assert clip_box((-5, 90, 20, 20), 100, 100) == (0, 90, 15, 10)
    assert clip_box((100, 0, 5, 5), 100, 100) is None


def test_files_are_found_in_the_archives_and_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder imgs_1"):
        find_files(tmp_path, pd.Series(["a.jpg"]))
    for folder, name in (("imgs_1", "a.jpg"), ("imgs_1", "twice.jpg"), ("imgs_3", "twice.jpg")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(b"x")
    outside = tmp_path.parent / "secret.jpg"
    outside.write_bytes(b"x")
    (tmp_path / "imgs_1" / "link.jpg").symlink_to(outside)
    found, lost = find_files(
        tmp_path, pd.Series(["a.jpg", "twice.jpg", "gone.jpg", "../secret.jpg", "link.jpg"])
    )
    assert list(found) == ["a.jpg"]
    assert lost == {
        "twice.jpg": "image-twice",
        "gone.jpg": "missing-image",
        "../secret.jpg": "bad-name",
        "link.jpg": "bad-name",
    }
