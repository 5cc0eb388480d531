"""Folders of labelled faces for use when FACET isn't available: FairFace's table and UTKFace's file
names.

They have attribute labels but no person class, so the questions are about the attributes
themselves. A published age range that straddles one of the suite's limits (25 and 65 years) is
``unknown``, reason ``straddles``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from sdgbias.errors import InputError
from sdgbias.files import confine
from sdgbias.raw.facet import UNKNOWN, Annotations
from sdgbias.raw.text_tables import read_text
from sdgbias.types import QUARANTINE_COLUMNS

#: Ends of the young and the middle group in years (App. A.3).
YOUNG_UNDER, MIDDLE_TO = 25, 65
_MONTHS = {
    m: k
    for k, m in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_UTK_GENDER = {"0": "male", "1": "female"}
_UTK_RACE = {"0": "White", "1": "Black", "2": "Asian", "3": "Indian", "4": "Others"}
_UTK_NAME = re.compile(r"^(\d{1,3})_([01])_([0-4])_\d+")


def age_range(text: str) -> tuple[int, int] | None:
    """Years of a written range, both included: '20-29', 'more than 70', '7', and ranges converted
    to dates by spreadsheets: '03-Sep' is 3-9, 'Oct-19' is 10-19. None for anything else."""
    clean = text.strip().casefold().replace("–", "-")
    if clean.isdigit():
        return int(clean), int(clean)
    if found := re.fullmatch(r"(?:more than|over|>)\s*(\d+)|(\d+)\s*\+", clean):
        return int(found[1] or found[2]), 130
    words = clean.split("-")
    if len(words) != 2 or not all(word.isdigit() or word in _MONTHS for word in words):
        return None
    low, high = (_MONTHS[word] if word in _MONTHS else int(word) for word in words)
    if low > high and any(word in _MONTHS for word in words):  # spreadsheets write the day first
        low, high = high, low
    return (low, high) if low <= high else None


def age_group(years: tuple[int, int] | None) -> tuple[str, str]:
    """(group, reason): 'young' below 25, 'middle' to 65, 'old' above; 'unknown' where a range
    straddles a limit."""
    if years is None:
        return UNKNOWN, "unread"
    low, high = years
    if high < YOUNG_UNDER:
        return "young", ""
    if low >= YOUNG_UNDER and high <= MIDDLE_TO:
        return "middle", ""
    return ("old", "") if low > MIDDLE_TO else (UNKNOWN, "straddles")


def read_fairface(table: Path) -> Annotations:
    """A FairFace label table (file, age, gender, race); pictures lie beside it. Raises
    InputError."""
    raw = read_text(table, ("file", "age", "gender", "race"), "give FairFace's label table")
    rows = [
        (r["file"], r["gender"].casefold(), *age_group(age_range(r["age"])), r["race"])
        for r in raw.to_dict("records")
    ]
    return _people(rows, table.parent, len(raw))


def read_utkface(folder: Path) -> Annotations:
    """UTKFace's folder: pictures named age_gender_race_time. Others are left out with a reason.
    Raises InputError when it is empty."""
    files = (
        sorted(p.name for p in folder.iterdir() if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        if folder.is_dir()
        else []
    )
    if not files:
        raise InputError(
            f"{folder}: no pictures; give UTKFace's folder, files named like"
            " 25_1_0_20170116174525125.jpg"
        )
    rows = []
    for name in files:
        years, gender, race = found.groups() if (found := _UTK_NAME.match(name)) else ("", "", "")
        group = age_group(age_range(years))
        rows.append((name, _UTK_GENDER.get(gender, ""), *group, _UTK_RACE.get(race, "")))
    return _people(rows, folder, len(files))


def _people(rows: list[tuple[str, str, str, str, str]], root: Path, n_rows: int) -> Annotations:
    """file, gender, age group, its reason, race -> people with one person per file; a file named
    twice leaves both rows out."""
    table = pd.DataFrame(rows, columns=["file", "gender", "age", "age_why", "race"], dtype="str")
    unnamed = (table["age_why"] == "unread") & (table["gender"] == "")
    twice = table["file"].duplicated(keep=False)
    found = [_fault(root, *row) for row in zip(table["file"], twice, unnamed, strict=True)]
    gone = pd.DataFrame(found, columns=["rule", "detail"]).assign(table="people", key=table["file"])
    kept = table[gone["rule"] == ""]
    known = kept["gender"].isin(["male", "female"])
    people = pd.DataFrame(
        {
            **{"person_id": kept["file"], "file": kept["file"], "class1": "", "class2": ""},
            **dict.fromkeys("xywh", 0.0),
            **{"gender": kept["gender"].where(known, UNKNOWN), "skin": UNKNOWN, "age": kept["age"]},
            "race": kept["race"],
            "gender_why": known.map({True: "", False: "unread"}),
            **{"skin_why": "not-labelled", "age_why": kept["age_why"], "persons": 1},
        }
    )
    return Annotations(
        people.sort_values("person_id", ignore_index=True),
        gone.loc[gone["rule"] != "", QUARANTINE_COLUMNS].reset_index(drop=True),
        n_rows,
    )


def _fault(root: Path, file: str, twice: bool, unnamed: bool) -> tuple[str, str]:
    """(rule, detail) of why a picture can't be used; rule '' where it can."""
    try:
        path = confine(root, file)
    except InputError as error:
        return "bad-name", str(error)
    if twice:
        return "file-twice", file
    if not path.is_file():
        return "missing-image", file
    return ("bad-name" if unnamed else ""), file
