"""From items to prompts: four views x five context tests (Tables C, D and E). Pure text,
independent of models and chat templates.

The only choices that the paper leaves open are made here and pinned by snapshots in the tests:

* options are written ``A. <text>; B. <text>; C. <text>`` and the valid letters ``A, B, C``;
* values carry one decimal, the under-5 mortality rate drops a trailing ``.0`` (Table E prints ``0``
beside ``1.0``);
* a variable whose value is unknown is left out of ``Given:``; with nothing known the Context line
is left out (App. B.6);
* a regression target never appears in its own context, neither as a value nor as a name.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.errors import InputError
from sdgbias.types import (
    CONTEXT_NAMES,
    DIGITS,
    OPTION_LETTERS,
    REDUCED_CONTEXT,
    TESTS,
    ContextTest,
    Task,
    View,
)

MCQ_TAIL = (
    "STRICT OUTPUT: Return EXACTLY ONE uppercase letter from VALID OPTIONS.\n"
    "Output nothing else (no words, numbers, symbols, spaces, or newlines)."
)
REGRESSION_TAIL = "Answer strictly with a single numerical value. Round to 1 decimal place."
URBAN_WORDS = {"U": "Urban", "R": "Rural"}


def context_variables(test: ContextTest, target: str = "") -> tuple[str, ...]:
    """Label columns that a context test shows, in Table E's order, without the regression
    target."""
    if test is ContextTest.T5:
        return ()
    shown = CONTEXT_NAMES if test in (ContextTest.T1, ContextTest.T3) else REDUCED_CONTEXT
    return tuple(name for name in shown if name != target)


def format_values(name: str, values: pd.Series) -> pd.Series:
    """``name=value`` strings of one context variable, '' where unknown. Values of `urban` are 'U',
    'R' or ''."""
    label = CONTEXT_NAMES[name]
    if name == "urban":
        words = values.map(URBAN_WORDS)
        return (f"{label}=" + words).fillna("").astype(str)
    numbers = values.to_numpy(dtype=float)
    known = np.isfinite(numbers)
    rounded = np.round(np.where(known, numbers, 0.0), 1) + 0.0  # + 0.0 turns -0.0 into 0.0
    text = np.char.mod("%.1f", rounded).astype(object)
    if name == "under5_mort":
        text = np.array([t.removesuffix(".0") for t in text], dtype=object)
    return pd.Series(np.where(known, f"{label}=" + text, ""), index=values.index, dtype=object)


def context_lines(items: pd.DataFrame, test: ContextTest, target: str = "") -> pd.Series:
    """The context of every item under one test ('' = no Context line). `items` holds the six label
    columns and `urban`."""
    names = context_variables(test, target)
    if not names:
        return pd.Series("", index=items.index, dtype=object)
    if test in (ContextTest.T3, ContextTest.T4):
        hint = "You may consider: " + ", ".join(CONTEXT_NAMES[name] for name in names)
        return pd.Series(hint, index=items.index, dtype=object)
    line = pd.Series("", index=items.index, dtype=object)
    for name in names:
        part = format_values(name, items[name]).astype(object)
        glue = np.where((line != "") & (part != ""), ", ", "")
        line = line + glue + part
    return pd.Series(np.where(line != "", "Given: " + line, ""), index=items.index, dtype=object)


def option_letters(items: pd.DataFrame) -> str:
    """The letters of a table's option columns: 'ABC' of SDGBiasBench, up to 'ABCDEFGHIJ' of own
    questions."""
    return "".join(c for c in OPTION_LETTERS if f"option_{c.lower()}" in items)


def option_lines(items: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """(options line, candidates such as 'ABC') per item; an empty option text means that the item
    lacks the option."""
    options = pd.Series("", index=items.index, dtype=object)
    letters = pd.Series("", index=items.index, dtype=object)
    for letter in option_letters(items):
        text = items[f"option_{letter.lower()}"].astype(object)
        present = text != ""
        glue = np.where((options != "") & present, "; ", "")
        options = options + glue + np.where(present, f"{letter}. " + text, "")
        letters = letters + np.where(present, letter, "")
    return options, letters


def prompt_texts(items: pd.DataFrame, task: Task, test: ContextTest, view: View) -> pd.Series:
    """Prompt text of every item under one view x test (Tables C and D). Regression items hold one
    `target` each."""
    if not view.has_context:
        context = pd.Series("", index=items.index, dtype=object)
    elif task is Task.MCQ:
        context = context_lines(items, test)
    else:
        parts = [
            context_lines(group, test, str(target))
            for target, group in items.groupby("target", sort=True)
        ]
        context = (
            pd.concat(parts).reindex(items.index)
            if parts
            else pd.Series("", index=items.index, dtype=object)
        )
    if task is Task.REGRESSION:
        return question_lines(items, context) + REGRESSION_TAIL
    return choice_texts(items, context)


def question_lines(items: pd.DataFrame, context: pd.Series) -> pd.Series:
    """The first lines of every prompt: the question, and its context where that is not ''."""
    context_part = np.where(context != "", "Context: " + context.astype(object) + "\n", "")
    return "Question: " + items["question"].astype(object) + "\n" + context_part


def choice_texts(items: pd.DataFrame, context: pd.Series) -> pd.Series:
    """Prompt text of every multiple-choice question with a context ('' none)."""
    text = question_lines(items, context)
    options, letters = option_lines(items)
    valid = letters.map({c: ", ".join(c) for c in set(letters)}) if len(letters) else letters
    return (
        text + "Options: " + options + "\nVALID OPTIONS: " + valid.astype(object) + "\n" + MCQ_TAIL
    )


def build_prompts(items: pd.DataFrame, task: Task) -> pd.DataFrame:
    """prompts.parquet of a task: one row per item x context test, sorted by item_id and test.

    Columns: task, item_id, test, text (with the test's context; T5 has none), image_id, candidates.
    The four views are not stored, because they follow: see view_cells.
    """
    candidates = (
        option_lines(items)[1]
        if task is Task.MCQ
        else pd.Series(DIGITS, index=items.index, dtype=object)
    )
    blocks = [
        pd.DataFrame(
            {
                "task": task.value,
                "item_id": items["item_id"].to_numpy(),
                "test": test.value,
                "text": prompt_texts(items, task, test, View.FULL).array,
                "image_id": items["image_id"].array,
                "candidates": candidates.array,
            }
        ).astype(dict.fromkeys(("task", "test", "text", "image_id", "candidates"), "str"))
        for test in TESTS[task]
    ]
    return pd.concat(blocks, ignore_index=True).sort_values(
        ["item_id", "test"], kind="stable", ignore_index=True
    )


def view_cells(prompts: pd.DataFrame) -> pd.DataFrame:
    """The paper's cells, duplicates included (plan.py removes them): four rows per row of
    prompts.parquet (Sec. 3.1).

    Full is (text, image), CTX+Q (text, no image), IMG+Q (text of T5, image), Q-only (text of T5, no
    image); hence at T5 Full has the prompt of IMG+Q and CTX+Q that of Q-only. Columns: task,
    item_id, test, view, text, image_id ('' for the image-free views), candidates; sorted by
    item_id, test, view within a task. Raises InputError for an item without a T5 row.
    """
    bare = prompts[prompts["test"] == ContextTest.T5.value][["task", "item_id", "text"]]
    rows = prompts.merge(bare.rename(columns={"text": "bare"}), on=["task", "item_id"], how="left")
    lost = rows["bare"].isna()
    if lost.any():
        first = rows[lost].iloc[0]
        raise InputError(
            f"prompts: {first['task']} item {first['item_id']} has no row for T5; build the"
            " benchmark again: sdgbias build"
        )
    blocks = [
        pd.DataFrame(
            {
                **{name: rows[name] for name in ("task", "item_id", "test")},
                "view": view.value,
                "text": rows["text"] if view.has_context else rows["bare"],
                "image_id": rows["image_id"] if view.has_image else "",
                "candidates": rows["candidates"],
            }
        )
        for view in View
    ]
    cells = pd.concat(blocks, ignore_index=True)
    rank = {t.value: at for at, t in enumerate(Task)}
    cells = cells.assign(rank=cells["task"].map(rank)).sort_values(
        ["rank", "item_id", "test", "view"], kind="stable", ignore_index=True
    )
    return cells.drop(columns="rank")
