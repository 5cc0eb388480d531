"""Quality rules for predictions (the frame of suites.sdg.Summary, and the store's table), one
boolean column per rule.

One row per task, item, test and method: pred (letter, or first digit), value and error
(regression), correct, and CADE's confidence, kl and kept.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.benchmark.prompts import option_letters, option_lines
from sdgbias.benchmark.quality.rules_raw import Flag, Judged, RuleContext, missing_table
from sdgbias.types import DIGITS, GENERATED, LETTERS, TESTS, Task

_TABLES = {Task.MCQ: "items_mcq", Task.REGRESSION: "items_regression"}


def _facts(frame: pd.DataFrame, given: RuleContext) -> pd.DataFrame | None:
    """The item's fields per row of ``frame``: split, gold (letter), number, tolerance, letters;
    NaN/'' where there's no such item (known False). None without both item tables."""
    parts = []
    for task, name in _TABLES.items():
        if name not in given.tables:
            return None
        items = given.tables[name].drop_duplicates("item_id")
        facts = pd.DataFrame(
            {
                "task": task.value,
                "item_id": items["item_id"],
                "item_split": items["split"],
                "known": True,
            }
        )
        if task is Task.MCQ:
            letters = option_lines(items)[1]
            facts = facts.assign(
                gold=items["answer"], letters=letters, number=np.nan, tolerance=np.nan
            )
        else:
            facts = facts.assign(
                gold="",
                letters=DIGITS,
                number=items["answer"].astype(float),
                tolerance=items["tolerance"],
            )
        parts.append(facts)
    both = pd.concat(parts, ignore_index=True).astype({"task": "str", "item_id": "int64"})
    own = (
        frame[["task", "item_id"]]
        .astype({"task": "str"})
        .merge(both, on=["task", "item_id"], how="left")
    )
    own["known"] = own["known"].notna()
    return own.set_index(frame.index)


def _against(judge: Flag) -> Flag:
    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        return (
            judge(frame, given)
            if set(_TABLES.values()) <= set(given.tables)
            else missing_table("an item table")
        )

    return flag


def _mcq(frame: pd.DataFrame) -> pd.Series:
    return frame["task"] == Task.MCQ.value


def _test_of_task(frame: pd.DataFrame, given: RuleContext) -> Judged:
    ok = pd.Series(False, index=frame.index)
    for task in Task:
        ok |= (frame["task"] == task.value) & frame["test"].isin([t.value for t in TESTS[task]])
    return ok


def _pred_known(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """A letter for multiple choice, or '' where a generated answer states none; a digit, or '' when
    no digit was chosen, for regression."""
    pred = frame["pred"].fillna("").astype("str")
    unread = (pred == "") & frame["method"].astype("str").str.endswith(GENERATED)
    return np.where(
        _mcq(frame), pred.isin(list(_letters(given))) | unread, pred.isin([*DIGITS, ""])
    )


def _letters(given: RuleContext) -> str:
    """The letters that the questions have columns for."""
    items = given.tables.get(_TABLES[Task.MCQ])
    return LETTERS if items is None else option_letters(items)


def _value_fits(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Regression has a finite value and an error of at least 0, multiple choice neither."""
    value, error = frame["value"].to_numpy(dtype=float), frame["error"].to_numpy(dtype=float)
    return np.where(
        _mcq(frame), np.isnan(value) & np.isnan(error), np.isfinite(value) & (error >= 0)
    )


def _kept_only_by_cade(frame: pd.DataFrame, given: RuleContext) -> Judged:
    return (frame["method"] == "cade") | frame["kept"].fillna(False).astype(bool)


def _of_facts(name: str) -> Flag:
    def flag(frame: pd.DataFrame, given: RuleContext) -> Judged:
        own = _facts(frame, given)
        if own is None:
            return missing_table("an item table")
        mcq, number = _mcq(frame), frame["value"].to_numpy(dtype=float)
        if name == "known":
            return own["known"]
        if name == "split":
            return ~own["known"] | (frame["split"] == own["item_split"])
        if name == "option":
            lacking = pd.Series(False, index=frame.index)
            for letters in own.loc[mcq & own["known"], "letters"].unique():
                others = [c for c in _letters(given) if c not in letters]
                lacking |= (own["letters"] == letters) & frame["pred"].isin(others)
            return ~(mcq & lacking)
        error = np.abs(number - own["number"].to_numpy(dtype=float))
        if name == "error":
            return (
                mcq | ~own["known"] | (np.abs(frame["error"].to_numpy(dtype=float) - error) <= 1e-6)
            )
        right = np.where(
            mcq,
            frame["pred"] == own["gold"],
            error <= own["tolerance"].to_numpy(dtype=float) + 1e-9,
        )
        edge = ~mcq & (
            np.abs(error - own["tolerance"].to_numpy(dtype=float)) <= 1e-6
        )  # decided by the last bit
        return ~own["known"] | edge | (frame["correct"].fillna(False).astype(bool) == right)

    return _against(flag)


def _all_items(frame: pd.DataFrame, given: RuleContext) -> Judged:
    """Every method of a task and test answers all items of the task; False on the rows of an
    incomplete one."""
    items = {task.value: given.tables[name]["item_id"].nunique() for task, name in _TABLES.items()}
    answered = frame.groupby(["task", "test", "method"], sort=False)["item_id"].transform("nunique")
    return answered >= frame["task"].map(items).astype(float)


FLAGS: dict[str, dict[str, Flag]] = {
    "predictions": {
        "prediction-key-unique": lambda frame, given: (
            ~frame.duplicated(["task", "item_id", "test", "method"], keep=False)
        ),
        "prediction-test-of-task": _test_of_task,
        "pred-known": _pred_known,
        "value-fits-task": _value_fits,
        "kept-only-by-cade": _kept_only_by_cade,
        "prediction-item-exists": _of_facts("known"),
        "prediction-split-of-item": _of_facts("split"),
        "pred-among-options": _of_facts("option"),
        "error-of-value": _of_facts("error"),
        "correct-of-pred": _of_facts("correct"),
        "predictions-complete": _against(_all_items),
    }
}
