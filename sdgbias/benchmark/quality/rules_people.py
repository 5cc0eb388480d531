"""Rules of the second suite's tables that Great Expectations has no expectation for, as flag
columns. Tables go by the names of their suites: people, items_people, and images_people and
prompts_people, which are images.parquet and prompts.parquet of its folder."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.benchmark import people_items
from sdgbias.benchmark.quality.rules_raw import Flag, Judged, RuleContext, known, missing_table
from sdgbias.raw.facet import CLASSES, GROUPS, UNKNOWN

_YES_NO = ("yes", "no")
_CHOICES = ("p2", "p3")


def _groups_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    ok = np.ones(len(frame), dtype=bool)
    for attribute, names in GROUPS.items():
        ok &= frame[attribute].isin([*names, UNKNOWN]).to_numpy()
    return ok


def _unknown_has_reason(frame: pd.DataFrame, given: RuleContext) -> Judged:
    ok = np.ones(len(frame), dtype=bool)
    for attribute in GROUPS:
        ok &= ((frame[attribute] == UNKNOWN) == (frame[f"{attribute}_why"] != "")).to_numpy()
    return ok


def _has_class_or_attribute(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """The person has a class, a gender or an age; otherwise there is no question about them."""
    return frame["class1"].isin(CLASSES) | (
        (frame["class1"] == "") & ((frame["gender"] != UNKNOWN) | (frame["age"] != UNKNOWN))
    )


def _box_has_area(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return (frame[["x", "y"]] >= 0).all(axis=1) & (frame[["w", "h"]] > 0).all(axis=1)


def _gold_fits(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """yes for the annotated class, no for another one, the class name for the prompt that asks for
    it."""
    choice = frame["prompt"].isin(_CHOICES)
    right = frame["asked"] == frame["class1"]
    chosen = (
        choice
        & frame["gold"].isin(_YES_NO)
        & ((frame["gold"] == "yes") == right)
        & frame["asked"].isin(CLASSES)
    )
    free = (frame["prompt"] == "p1") & (frame["gold"] == frame["class1"]) & (frame["asked"] == "")
    attribute = pd.Series(False, index=frame.index)
    for name in ("gender", "age"):
        attribute |= (
            (frame["prompt"] == name) & (frame["gold"] == frame[name]) & (frame["gold"] != UNKNOWN)
        )
    return chosen | free | attribute


def _negative_is_no(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return frame["negative"].astype(bool) == (frame["gold"] == "no")


def _repeats(name: str, table: str, key: str, own: str = "") -> Flag:
    """Column ``name`` equals that of the matching row in ``table``, joined by ``key`` (called
    ``own`` in this table)."""

    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        if table not in given.tables:
            return missing_table(table)
        other = given.tables[table].drop_duplicates(key).set_index(key)[name]
        return frame[name].to_numpy() == other.reindex(frame[own or key]).to_numpy()

    return flag


def _item_has_prompt(frame: pd.DataFrame, given: RuleContext) -> Judged:
    if "prompts_people" not in given.tables:
        return missing_table("prompts_people")
    return frame["item_id"].isin(given.tables["prompts_people"]["item_id"])


def _person_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return (
        frame["cluster_id"].isin(given.tables["people"]["person_id"])
        if "people" in given.tables
        else missing_table("people")
    )


def _stored(fact: str) -> Flag:
    """A fact about the stored image (rules_raw.stored_facts)."""
    return lambda frame, given: frame.get(fact, "the pictures aren't available")


def _of_item(frame: pd.DataFrame, given: RuleContext) -> pd.DataFrame | None:
    """prompt and asked of each row's question, '' for an unknown one."""
    if "items_people" not in given.tables:
        return None
    items = (
        given.tables["items_people"]
        .drop_duplicates("item_id")
        .set_index("item_id")[["prompt", "asked"]]
    )
    return items.reindex(frame["item_id"]).fillna("").reset_index(drop=True)


def _prompt_of_item(frame: pd.DataFrame, given: RuleContext) -> Judged:
    item = _of_item(frame, given)
    if item is None:
        return missing_table("items_people")
    task = np.where(item["prompt"].isin(_CHOICES), people_items.CHOICE, people_items.DIRECT)
    return (frame["test"].to_numpy() == item["prompt"].to_numpy()) & (
        frame["task"].to_numpy() == task
    )


def _as_specified(text: str, prompt: str, asked: str) -> bool:
    """p1's class list may be in any order: it is shuffled by a seed."""
    if prompt in people_items.CHOICES:
        return text == people_items.CHOICES[prompt].format(name=asked)
    if prompt in people_items.ATTRIBUTES:
        return text == people_items.ATTRIBUTE.format(
            what=people_items.ATTRIBUTES[prompt], list=", ".join(GROUPS[prompt])
        )
    before, _, after = people_items.P1.partition("{list}")
    listed = text.removeprefix(before).removesuffix(after).split(", ")
    return text.startswith(before) and text.endswith(after) and sorted(listed) == sorted(CLASSES)


def _text_as_specified(frame: pd.DataFrame, given: RuleContext) -> Judged:
    item = _of_item(frame, given)
    if item is None:
        return missing_table("items_people")
    distinct: dict[tuple[str, str, str], bool] = {}
    rows = list(zip(frame["text"].astype("str"), item["prompt"], item["asked"], strict=True))
    for row in rows:
        if row not in distinct:
            distinct[row] = _as_specified(*row)
    return np.array([distinct[row] for row in rows], dtype=bool)


def _candidates_of_task(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return frame["candidates"].fillna("").to_numpy() == np.where(
        frame["task"] == people_items.CHOICE, people_items.CANDIDATES, ""
    )


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
        "question-once": lambda frame, given: (
            ~frame.duplicated(["person_id", "prompt", "asked"], keep=False)
        ),
        "class-of-person": _repeats("class1", "people", "person_id"),
        "picture-of-person": _repeats("image_id", "people", "person_id"),
        "split-of-person": _repeats("split", "people", "person_id"),
        "item-has-prompt": _item_has_prompt,
    },
    "images_people": {
        "person-known": _person_known,
        "image-of-person": _repeats("image_id", "people", "person_id", "cluster_id"),
        "one-part": lambda frame, given: (frame["n_parts"] == 1) & (frame["n_photos"] == 1),
        "image-stored": _stored("stored"),
        "image-id-is-sha256": _stored("id_is_sha256"),
        "image-is-whole": _stored("is_whole"),
    },
    "prompts_people": {
        "item-known": known("item_id", "items_people"),
        "prompt-of-item": _prompt_of_item,
        "text-as-specified": _text_as_specified,
        "image-of-item": _repeats("image_id", "items_people", "item_id"),
        "candidates-of-task": _candidates_of_task,
    },
}
