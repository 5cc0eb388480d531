"""The classes, groups and label lists of the second suite, including alternative spellings.

FACET's annotations: one row per person, with votes for perceived gender, age and skin tone.

Rows are identified by ``person_id``, never by file name. Votes become one group by strict maximum;
a tie, no vote or a vote for "not apparent" is ``unknown``, with the reason in its own column.
Persons without a group stay in the table; only the metrics of that attribute exclude them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.errors import InputError
from sdgbias.files import packaged_yaml
from sdgbias.raw.text_tables import first_faults, numbers, read_text
from sdgbias.types import QUARANTINE_COLUMNS

_TABLE: dict[str, Any] = packaged_yaml("facet.yaml")
#: FACET's 52 person classes, and the 13 that the paper reports on, in its order (App. A.4).
CLASSES: list[str] = _TABLE["classes"]
SELECTED: list[str] = _TABLE["selected"]
#: Attribute -> its groups in the order of the paper's tables.
GROUPS: dict[str, tuple[str, ...]] = {k: tuple(names) for k, names in _TABLE["groups"].items()}
UNKNOWN = "unknown"
#: Other ways to spell a class -> its name in FACET.
SPELLINGS: dict[str, str] = _TABLE["spellings"]
#: Attribute -> group -> the vote columns that count for it.
VOTES: dict[str, dict[str, list[str]]] = _TABLE["votes"]

_LETTERS = re.compile(r"[^a-z]")
_BY_LETTERS = {
    _LETTERS.sub("", form.casefold()): name
    for form, name in [*zip(CLASSES, CLASSES, strict=True), *SPELLINGS.items()]
}


def normalise(name: str) -> str:
    """The class of a name: case, spaces, hyphens and underscores don't matter ("Tennis player"),
    nor do SPELLINGS; '' for no class."""
    return _BY_LETTERS.get(_LETTERS.sub("", name.casefold()), "")


#: Winning votes that are no group of the metrics: they become `unknown`, with the vote as the
#: reason.
NO_GROUP = ("non-binary", "na")
#: A reason in words, for people who read a count of it.
REASONS = {
    "na": "not apparent to the annotators",
    "no-votes": "no votes",
    "tie": "tied votes",
    "unread": "votes that can't be read",
}
COLUMNS = (
    "person_id",
    "filename",
    "class1",
    "bounding_box",
    *(c for groups in VOTES.values() for cs in groups.values() for c in cs),
)


@dataclass(frozen=True)
class Annotations:
    """people: one row per usable person of a picture that shows one person only, sorted
    by person_id: person_id, file, class1, class2, x, y, w, h (the box), gender, skin, age, race,
    gender_why, skin_why, age_why, persons.
    quarantine: table, key, rule, detail of every row that is left out. n_rows: rows of the file."""

    people: pd.DataFrame
    quarantine: pd.DataFrame
    n_rows: int


def read_annotations(path: Path) -> Annotations:
    """Read ``annotations.csv``. Raises InputError for a file that can't be read or lacks a
    column."""
    rows = read_text(path, COLUMNS, "give FACET's annotations.csv as published", ("class2",))
    person, file = rows["person_id"], rows["filename"]
    line = pd.Series([f"row {at}" for at in rows.index], rows.index, dtype="str")
    persons = rows.groupby("filename")["person_id"].transform("size")
    classes = rows["class1"].map(normalise)
    boxes = rows["bounding_box"].map(read_box)
    faults = [
        ("no-person-id", person == "", line),
        ("person-twice", person.duplicated(keep=False), line),
        ("no-file", file == "", line),
        ("unknown-class", classes == "", rows["class1"].map(repr)),
        ("box-unreadable", boxes.isna(), rows["bounding_box"].str[:60].map(repr)),
        ("several-persons", persons > 1, file + ": " + persons.astype(str) + " persons"),
    ]
    gone = first_faults(faults).assign(table="people", key=person.where(person != "", line))
    gone = gone[QUARANTINE_COLUMNS]
    keep = gone["rule"] == ""
    kept = rows[keep]
    groups = {name: vote(kept, name) for name in VOTES}
    corners = np.array(list(boxes[keep]), dtype=float).reshape(-1, 4)
    people = pd.DataFrame(
        {
            "person_id": kept["person_id"],
            "file": kept["filename"],
            "class1": classes[keep],
            "class2": kept["class2"].map(normalise) if "class2" in kept else "",
            **{name: corners[:, j] for j, name in enumerate("xywh")},
            **{name: votes[0] for name, votes in groups.items()},
            "race": "",
            **{f"{name}_why": votes[1] for name, votes in groups.items()},
            "persons": 1,
        }
    )
    return Annotations(
        people.sort_values("person_id", ignore_index=True),
        gone[~keep].reset_index(drop=True),
        len(rows),
    )


def vote(rows: pd.DataFrame, attribute: str) -> tuple[np.ndarray, np.ndarray]:
    """(groups (N,), reasons (N,)) of one attribute: the strict maximum of the summed votes, else
    ('unknown', why)."""
    groups = list(VOTES[attribute])
    unread = np.zeros(len(rows), dtype=bool)
    counts = np.zeros((len(rows), len(groups)))
    for j, columns in enumerate(VOTES[attribute].values()):
        for column in columns:
            given = numbers(rows[column].replace("", "0")).to_numpy()
            bad = ~np.isfinite(given) | (given < 0)
            unread |= bad
            counts[:, j] += np.where(bad, 0.0, given)
    top = counts.max(axis=1, initial=0.0)
    winner = np.array(groups, dtype=object)[counts.argmax(axis=1)]
    tie = (counts == top[:, None]).sum(axis=1) > 1
    why = np.select(
        [unread, top == 0, tie, np.isin(winner, NO_GROUP)],
        ["unread", "no-votes", "tie", winner],
        "",
    )
    return np.where(why == "", winner, UNKNOWN), why


def read_box(text: str) -> tuple[float, float, float, float] | None:
    """(x, y, width, height) in pixels of a written dictionary; None for malformed text or a box
    without area."""
    try:
        box = ast.literal_eval(text)
        x, y, w, h = (float(box[name]) for name in ("x", "y", "width", "height"))
    except (ValueError, SyntaxError, TypeError, KeyError):
        return None
    except (OverflowError, MemoryError, RecursionError):  # digits or brackets without end
        return None
    return (x, y, w, h) if np.isfinite([x, y, w, h]).all() and w > 0 and h > 0 else None


def clip_box(
    box: tuple[float, float, float, float], width: int, height: int
) -> tuple[float, float, float, float] | None:
    """The part of a box inside an image of that size; None when they don't overlap."""
    x0, y0 = max(box[0], 0.0), max(box[1], 0.0)
    x1, y1 = min(box[0] + box[2], float(width)), min(box[1] + box[3], float(height))
    return (x0, y0, x1 - x0, y1 - y0) if x1 > x0 and y1 > y0 else None


def find_files(root: Path, names: pd.Series) -> tuple[dict[str, Path], dict[str, str]]:
    """name -> file below ``imgs_*`` of FACET's folder, and name -> rule ('missing-image',
    'image-twice', 'bad-name') of the others.

    Raises InputError when no archive is unpacked there.
    """
    folders = sorted(p for p in root.glob("imgs_*") if p.is_dir())
    if not folders:
        raise InputError(
            f"{root}: no folder imgs_1, imgs_2 or imgs_3; unpack FACET's image archives there"
        )
    here: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                here.setdefault(path.name, []).append(path)
    paths, lost = {}, {}
    for name in sorted(set(names)):
        if Path(name).name != name or "\\" in name:
            lost[name] = "bad-name"
        elif name not in here:
            lost[name] = "missing-image"
        elif len(here[name]) > 1:
            lost[name] = "image-twice"
        elif not here[name][0].resolve().is_relative_to(root.resolve()):
            lost[name] = "bad-name"
        else:
            paths[name] = here[name][0]
    return paths, lost
