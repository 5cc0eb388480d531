"""What the quality gate asks of prompts.parquet: one boolean column per rule, True = the row keeps it. Pure pandas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from sdgbias.types import CONTEXT_NAMES, REDUCED_CONTEXT, TESTS, TOLERANCES, ContextTest, Task, View

LABELS = tuple(TOLERANCES)


def item_facts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """What prompts must agree with, per (task, item_id): image_id, target, candidates, and known_full/known_reduced (a
    context value is known that the prompt may show). None without both item tables."""
    parts = []
    for task, name in ((Task.MCQ, "items_mcq"), (Task.REGRESSION, "items_regression")):
        if name not in tables:
            return None
        items = tables[name].drop_duplicates("item_id")
        target = items["target"] if task is Task.REGRESSION else pd.Series("", index=items.index)
        facts = pd.DataFrame({"task": task.value, "item_id": items["item_id"], "item_image": items["image_id"]})
        facts["target"] = target
        if task is Task.MCQ:
            facts["item_candidates"] = np.where(items["option_c"].fillna("") == "", "AB", "ABC")
        else:
            facts["item_candidates"] = "0123456789"
        for column_name, variables in (("known_full", tuple(CONTEXT_NAMES)), ("known_reduced", REDUCED_CONTEXT)):
            known = pd.Series(False, index=items.index)
            for name_ in variables:
                has = items[name_].isin(["U", "R"]) if name_ == "urban" else items[name_].notna()
                known |= has & (target != name_)
            facts[column_name] = known
        parts.append(facts)
    return pd.concat(parts, ignore_index=True)


def prompt_flags(frame: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.Series | np.ndarray | None]:
    """All prompt rules at once. Texts are looked at once per distinct text: a benchmark repeats each of them often."""
    codes, distinct = pd.factorize(frame["text"].fillna("").astype(str))
    texts = pd.Series(np.asarray(distinct, dtype=object), dtype="str")
    line = texts.str.extract(r"(?m)^Context: (.*)$", expand=False).fillna("")
    view, test, task = frame["view"], frame["test"], frame["task"]
    shows = (line != "").to_numpy(dtype=bool)[codes]
    wants = view.isin([v.value for v in View if v.has_context]) & (test != ContextTest.T5.value)
    image_view = view.isin([v.value for v in View if v.has_image])
    has_image = frame["image_id"].fillna("") != ""
    cells = frame.groupby(["task", "item_id"], sort=False)["test"].transform("size")
    asked = task.map({t.value: len(TESTS[t]) * len(View) for t in Task})
    valid_test = pd.Series(False, index=frame.index)
    for each in Task:
        valid_test |= (task == each.value) & test.isin([t.value for t in TESTS[each]])
    flags: dict[str, pd.Series | np.ndarray | None] = {
        "prompt-key-unique": ~frame.duplicated(["task", "item_id", "test", "view"], keep=False),
        "prompt-test-of-task": valid_test,
        "prompts-complete": cells == asked,
        "image-follows-view": image_view == has_image,
        "context-line-unexpected": ~shows | wants,
        "t5-views-agree": _t5_agrees(frame, codes),
    }
    late = ("prompt-item-exists", "prompt-image-of-item", "candidates-match-options", "context-line-missing")
    facts = item_facts(tables)
    if facts is None:
        return flags | dict.fromkeys((*late, "target-leak"))
    own = frame[["task", "item_id"]].merge(facts, on=["task", "item_id"], how="left").set_index(frame.index)
    exists = own["item_image"].notna()
    reduced = test.isin([ContextTest.T2.value])
    known = pd.Series(np.where(reduced, own["known_reduced"], own["known_full"]), index=frame.index) == True  # noqa: E712
    named_only = test.isin([ContextTest.T3.value, ContextTest.T4.value])  # names are shown whether known or not
    leak = np.zeros(len(frame), dtype=bool)
    for target in LABELS:
        named = line.str.contains(rf"\b{CONTEXT_NAMES[target]}\b", regex=True).to_numpy(dtype=bool)[codes]
        leak |= named & (own["target"] == target).to_numpy(dtype=bool)
    return flags | {
        "prompt-item-exists": exists,
        "prompt-image-of-item": ~exists | ~has_image | (frame["image_id"] == own["item_image"]),
        "candidates-match-options": ~exists | (frame["candidates"] == own["item_candidates"]),
        "context-line-missing": ~exists | shows | ~(wants & (known | named_only)),
        "target-leak": ~leak,
    }


def _t5_agrees(frame: pd.DataFrame, codes: np.ndarray) -> pd.Series:
    """At T5 Full asks what IMG+Q asks and CTX+Q what Q-only asks, letter for letter."""
    rows = pd.DataFrame({"task": frame["task"], "item_id": frame["item_id"], "view": frame["view"], "code": codes})
    rows = rows[frame["test"] == ContextTest.T5.value]
    ok = pd.Series(True, index=frame.index)
    for with_context, without in ((View.FULL, View.IMG_Q), (View.CTX_Q, View.Q_ONLY)):
        bare = rows[rows["view"] == without.value].drop_duplicates(["task", "item_id"])
        mine = rows[rows["view"] == with_context.value]
        pairs = mine[["task", "item_id", "code"]].merge(bare, on=["task", "item_id"], how="left", suffixes=("", "_bare"))
        ok[mine.index] = (pairs["code"] == pairs["code_bare"]).to_numpy(dtype=bool)
    return ok
