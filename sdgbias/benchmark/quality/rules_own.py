"""Rules of the tables of a custom-question suite, as flag columns. Tables go by the names of their
rule files: items_own, and images_own and prompts_own, which are images.parquet and prompts.parquet
of its folder."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from sdgbias.benchmark.prompts import choice_texts, option_lines
from sdgbias.benchmark.quality.rules_raw import Flag, Judged, RuleContext, known, missing_table
from sdgbias.types import OPTION_LETTERS, ContextTest

_OPTIONS = [f"option_{letter.lower()}" for letter in OPTION_LETTERS]


def _filled(column: str) -> Flag:
    return lambda frame, given: frame[column].fillna("").astype("str").str.strip() != ""


def _counts(frame: pd.DataFrame) -> np.ndarray:
    """(N,) number of options of each question."""
    return np.asarray((frame[_OPTIONS].fillna("") != "").to_numpy().sum(axis=1))


def _options_whole(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """2 to 10 options, empty cells only after the last, no duplicates."""
    cells = frame[_OPTIONS].fillna("").to_numpy(dtype=object)
    there = cells != ""
    count = there.sum(axis=1)
    first = (np.arange(cells.shape[1]) < count[:, None]) == there
    differ = [len({c for c in row if c}) == n for row, n in zip(cells, count, strict=True)]
    return (count >= 2) & first.all(axis=1) & np.array(differ, dtype=bool)


def _answer_among(frame: pd.DataFrame, given: RuleContext) -> Judged:
    letters = (OPTION_LETTERS[:n] for n in _counts(frame))
    return np.array(
        [len(a) == 1 and a in valid for a, valid in zip(frame["answer"], letters, strict=True)],
        dtype=bool,
    )


def _groups_named(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """A JSON object of texts with the same keys in every row."""
    parsed: dict[str, tuple[str, ...] | None] = {}
    for text in frame["groups"].fillna("").unique():
        try:
            found = json.loads(text)
            whole = isinstance(found, dict) and all(
                isinstance(v, str) and v for v in found.values()
            )
            parsed[text] = tuple(found) if whole else None
        except ValueError:
            parsed[text] = None
    keys = frame["groups"].fillna("").map(parsed)
    return np.array([k is not None and k == keys.iloc[0] for k in keys], dtype=bool)


def _image_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """No image, or one in images.parquet."""
    if "images_own" not in given.tables:
        return missing_table("images_own")
    known_ids = given.tables["images_own"]["image_id"]
    return (frame["image_id"] == "") | frame["image_id"].isin(known_ids)


def _has_prompt(frame: pd.DataFrame, given: RuleContext) -> Judged:
    if "prompts_own" not in given.tables:
        return missing_table("prompts_own")
    bare = given.tables["prompts_own"]
    bare = bare[bare["test"] == ContextTest.T5.value]
    return frame["item_id"].isin(bare["item_id"])


def _of_item(frame: pd.DataFrame, given: RuleContext) -> pd.DataFrame | None:
    """The item of each row of prompts, '' when there is none."""
    if "items_own" not in given.tables:
        return None
    items = given.tables["items_own"].drop_duplicates("item_id").set_index("item_id")
    return items.reindex(frame["item_id"]).fillna("").reset_index(drop=True)


def _text_as_specified(frame: pd.DataFrame, given: RuleContext) -> Judged:
    items = _of_item(frame, given)
    if items is None:
        return missing_table("items_own")
    shows = frame["test"].astype("str").to_numpy() == ContextTest.T1.value
    context = pd.Series(np.where(shows, items["context"], ""), dtype=object)
    return frame["text"].astype("str").to_numpy() == choice_texts(items, context).to_numpy()


def _candidates_of_item(frame: pd.DataFrame, given: RuleContext) -> Judged:
    items = _of_item(frame, given)
    if items is None:
        return missing_table("items_own")
    return frame["candidates"].astype("str").to_numpy() == option_lines(items)[1].to_numpy()


def _image_of_item(frame: pd.DataFrame, given: RuleContext) -> Judged:
    items = _of_item(frame, given)
    if items is None:
        return missing_table("items_own")
    return frame["image_id"].fillna("").to_numpy() == items["image_id"].to_numpy()


def _stored(fact: str) -> Flag:
    """A fact about the stored image (rules_raw.stored_facts)."""
    return lambda frame, given: frame.get(fact, "the pictures aren't available")


def _image_used(frame: pd.DataFrame, given: RuleContext) -> Judged:
    if "items_own" not in given.tables:
        return missing_table("items_own")
    return frame["image_id"].isin(given.tables["items_own"]["image_id"])


FLAGS: dict[str, dict[str, Flag]] = {
    "items_own": {
        "question-given": _filled("question"),
        "cluster-given": _filled("cluster_id"),
        "options-whole": _options_whole,
        "answer-among-options": _answer_among,
        "groups-named": _groups_named,
        "image-known": _image_known,
        "item-has-prompt": _has_prompt,
    },
    "images_own": {
        "image-used": _image_used,
        "one-part": lambda frame, given: (frame["n_parts"] == 1) & (frame["n_photos"] == 1),
        "image-stored": _stored("stored"),
        "image-id-is-sha256": _stored("id_is_sha256"),
        "image-is-whole": _stored("is_whole"),
    },
    "prompts_own": {
        "item-known": known("item_id", "items_own"),
        "prompt-once": lambda frame, given: ~frame.duplicated(["item_id", "test"], keep=False),
        "text-as-specified": _text_as_specified,
        "image-of-item": _image_of_item,
        "candidates-of-options": _candidates_of_item,
    },
}
