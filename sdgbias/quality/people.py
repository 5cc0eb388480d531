"""Rules of the second suite's tables (people, items_people) that Great Expectations has no expectation for, as flag columns."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.people.classes import CLASSES, GROUPS, UNKNOWN
from sdgbias.quality.flags import Flag, Given, Judged, known, lacks

_YES_NO = ("yes", "no")
_CHOICES = ("p2", "p3")


def _groups_known(frame: pd.DataFrame, given: Given) -> Judged:
    ok = np.ones(len(frame), dtype=bool)
    for attribute, names in GROUPS.items():
        ok &= frame[attribute].isin([*names, UNKNOWN]).to_numpy()
    return ok


def _unknown_has_reason(frame: pd.DataFrame, given: Given) -> Judged:
    ok = np.ones(len(frame), dtype=bool)
    for attribute in GROUPS:
        ok &= ((frame[attribute] == UNKNOWN) == (frame[f"{attribute}_why"] != "")).to_numpy()
    return ok


def _has_class_or_attribute(frame: pd.DataFrame, given: Given) -> Judged:
    """Nothing can be asked about a person without a class, a gender and an age."""
    return frame["class1"].isin(CLASSES) | ((frame["class1"] == "") & ((frame["gender"] != UNKNOWN) | (frame["age"] != UNKNOWN)))


def _box_has_area(frame: pd.DataFrame, given: Given) -> Judged:
    return (frame[["x", "y"]] >= 0).all(axis=1) & (frame[["w", "h"]] > 0).all(axis=1)


def _gold_fits(frame: pd.DataFrame, given: Given) -> Judged:
    """yes for the annotated class, no for another one, the class itself where it is asked for."""
    choice = frame["prompt"].isin(_CHOICES)
    right = frame["asked"] == frame["class1"]
    chosen = choice & frame["gold"].isin(_YES_NO) & ((frame["gold"] == "yes") == right) & frame["asked"].isin(CLASSES)
    free = (frame["prompt"] == "p1") & (frame["gold"] == frame["class1"]) & (frame["asked"] == "")
    attribute = pd.Series(False, index=frame.index)
    for name in ("gender", "age"):
        attribute |= (frame["prompt"] == name) & (frame["gold"] == frame[name]) & (frame["gold"] != UNKNOWN)
    return chosen | free | attribute


def _negative_is_no(frame: pd.DataFrame, given: Given) -> Judged:
    return frame["negative"].astype(bool) == (frame["gold"] == "no")


def _of_person(name: str) -> Flag:
    """A column of the item repeats the person's."""

    def flag(frame: pd.DataFrame, given: Given) -> Judged:
        if "people" not in given.tables:
            return lacks("people")
        person = given.tables["people"].drop_duplicates("person_id").set_index("person_id")[name]
        return frame[name].to_numpy() == person.reindex(frame["person_id"]).to_numpy()

    return flag


FLAGS: dict[str, dict[str, Flag]] = {
    "people": {
        "groups-known": _groups_known,
        "unknown-has-reason": _unknown_has_reason,
        "class-or-attribute": _has_class_or_attribute,
        "box-has-area": _box_has_area,
        "one-person": lambda frame, given: frame["persons"] == 1,
        "picture-once": lambda frame, given: ~frame["image_id"].duplicated(keep=False),
    },
    "items_people": {
        "person-known": known("person_id", "people"),
        "gold-fits": _gold_fits,
        "negative-is-no": _negative_is_no,
        "question-once": lambda frame, given: ~frame.duplicated(["person_id", "prompt", "asked"], keep=False),
        "class-of-person": _of_person("class1"),
        "picture-of-person": _of_person("image_id"),
        "split-of-person": _of_person("split"),
    },
}
