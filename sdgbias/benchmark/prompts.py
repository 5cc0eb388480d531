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

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add

import numpy as np
import pandas as pd
import pyarrow as pa

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
#: What the authors' code adds to a prompt that it shows with a blank picture.
IGNORE = "\nIgnore the image."
#: The columns of an item table that its prompts are made of.
READ = (
    *("item_id", "question", "target", "image_id", *CONTEXT_NAMES),
    *("option_a", "option_b", "option_c"),
)
URBAN_WORDS = {"U": "Urban", "R": "Rural"}


def context_variables(test: ContextTest, target: str = "") -> tuple[str, ...]:
    """Label columns that a context test shows, in Table E's order, without the regression
    target."""
    if test is ContextTest.T5:
        return ()
    shown = CONTEXT_NAMES if test in (ContextTest.T1, ContextTest.T3) else REDUCED_CONTEXT
    return tuple(name for name in shown if name != target)


def _listed(parts: Iterable[pd.Series], by: str) -> pd.Series:
    """The parts of every row that aren't '', joined by `by`."""
    return reduce(add, (part.where(part == "", by + part) for part in parts)).str[len(by) :]


def shown_values(name: str, values: pd.Series) -> pd.Series:
    """``name=value`` strings of one context variable, '' where unknown. Values of `urban` are
    'U', 'R' or ''."""
    label = CONTEXT_NAMES[name]
    if name == "urban":
        texts = {code: f"{label}={word}" for code, word in URBAN_WORDS.items()}
        return values.map(texts).astype("str").fillna("")
    numbers = values.astype("float64").round(1) + 0.0  # turns -0.0 into 0.0
    texts = {n: f"{label}={n:.1f}" for n in numbers[np.isfinite(numbers)].unique()}
    if name == "under5_mort":
        texts = {n: text.removesuffix(".0") for n, text in texts.items()}
    return numbers.map(texts).astype("str").fillna("")


def context_lines(items: pd.DataFrame, test: ContextTest, target: str = "") -> pd.Series:
    """The context of every item under one test ('' = no Context line). `items` holds the six label
    columns and `urban`."""
    names = context_variables(test, target)
    if test.has_values:
        values = _listed((shown_values(name, items[name]) for name in names), ", ")
        return values.where(values == "", "Given: " + values)
    hint = "You may consider: " + ", ".join(CONTEXT_NAMES[name] for name in names)
    return pd.Series(hint if names else "", index=items.index, dtype="str")


def task_contexts(items: pd.DataFrame, task: Task, test: ContextTest) -> pd.Series:
    """context_lines without the regression target of each item (column `target`)."""
    if task is Task.MCQ or test is ContextTest.T5 or items.empty:
        return context_lines(items, test)
    places = items.groupby("target", sort=True).indices
    lines = [context_lines(items.iloc[at], test, str(name)) for name, at in places.items()]
    order = np.argsort(np.concatenate([*places.values()]))
    return pd.concat(lines).iloc[order]


def option_letters(items: pd.DataFrame) -> str:
    """The letters of a table's option columns: 'ABC' of SDGBiasBench, up to 'ABCDEFGHIJ' of own
    questions."""
    return "".join(c for c in OPTION_LETTERS if f"option_{c.lower()}" in items)


def option_lines(items: pd.DataFrame, by: str = "") -> tuple[pd.Series, pd.Series]:
    """(options line, candidates joined by `by`, such as 'ABC') per item; an empty option text means
    that the item lacks the option."""
    texts = {c: items[f"option_{c.lower()}"].astype("str") for c in option_letters(items)}
    lines = [text.where(text == "", f"{c}. " + text) for c, text in texts.items()]
    letters = [text.where(text == "", c) for c, text in texts.items()]
    return _listed(lines, "; "), _listed(letters, by)


def question_lines(items: pd.DataFrame, context: pd.Series) -> pd.Series:
    """The first lines of every prompt: the question, and its context where that is not ''."""
    context = context.astype("str")
    shown = context.where(context == "", "Context: " + context + "\n")
    return "Question: " + items["question"].astype("str") + "\n" + shown


def _tails(items: pd.DataFrame, task: Task) -> pd.Series | str:
    """What follows the context of every item."""
    if task is Task.REGRESSION:
        return REGRESSION_TAIL
    lines, letters = option_lines(items, ", ")
    return "Options: " + lines + "\nVALID OPTIONS: " + letters + "\n" + MCQ_TAIL


def choice_texts(items: pd.DataFrame, context: pd.Series) -> pd.Series:
    """Prompt text of every multiple-choice question with a context ('' none)."""
    return question_lines(items, context) + _tails(items, Task.MCQ)


def prompt_texts(items: pd.DataFrame, task: Task, test: ContextTest, view: View) -> pd.Series:
    """Prompt text of every item under one view x test (Tables C and D). Regression items hold one
    `target` each."""
    context = task_contexts(items, task, test if view.has_context else ContextTest.T5)
    return question_lines(items, context) + _tails(items, task)


def _prompts(
    items: pd.DataFrame, task: Task, contexts: Mapping[ContextTest, pd.Series]
) -> pd.DataFrame:
    """prompts.parquet of a task from the contexts of its items by test: one row per item x context
    test, sorted by item_id and test.

    Columns: task, item_id, test, text (with the test's context; T5 has none), image_id, candidates.
    The four views are not stored, because they follow: see view_cells.
    """
    tails = _tails(items, task)
    candidates = option_lines(items)[1] if task is Task.MCQ else DIGITS
    blocks = [
        pd.DataFrame(
            {
                "task": task.value,
                "item_id": items["item_id"],
                "test": test.value,
                "text": question_lines(items, context) + tails,
                "image_id": items["image_id"],
                "candidates": candidates,
            }
        )
        for test, context in contexts.items()
    ]
    texts = dict.fromkeys(("task", "test", "text", "image_id", "candidates"), "str")
    frame = pd.concat(blocks, ignore_index=True).astype(texts)
    return frame.sort_values(["item_id", "test"], kind="stable", ignore_index=True)


def own_prompts(items: pd.DataFrame, has_context: bool) -> pd.DataFrame:
    """prompts.parquet of custom questions, in the shape of SDGBiasBench's: T1 is the question with
    its context, T5 without. A suite without contexts has T5 alone."""
    contexts = {ContextTest.T1: items["context"]} if has_context else {}
    none = pd.Series("", index=items.index, dtype="str")
    return _prompts(items, Task.MCQ, {**contexts, ContextTest.T5: none})


def build_prompts(items: pd.DataFrame, task: Task) -> pd.DataFrame:
    """prompts.parquet of the items of SDGBiasBench."""
    contexts = {test: task_contexts(items, task, test) for test in TESTS[task]}
    return _prompts(items, task, contexts)


def prompt_table(items: pd.DataFrame, task: Task) -> pa.Table:
    """build_prompts as an Arrow table."""
    table = pa.Table.from_pandas(build_prompts(items, task), preserve_index=False)
    return table.replace_schema_metadata(None)


def view_cells(prompts: pd.DataFrame) -> pd.DataFrame:
    """The paper's cells, duplicates included (plan.py removes them): four rows per row of
    prompts.parquet (Sec. 3.1).

    Full is (text, image), CTX+Q (text, no image), IMG+Q (text of T5, image), Q-only (text of T5, no
    image); hence at T5 Full has the prompt of IMG+Q and CTX+Q that of Q-only. Columns: task,
    item_id, test, view, text, image_id ('' for the image-free views), candidates; sorted by
    item_id, test, view within a task. With a column blank_id (an imported release), the views
    without the picture show that one, and their text ends with IGNORE. Raises InputError for an
    item without a T5 row.
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
    blank = rows.get("blank_id", "")

    def shown(texts: pd.Series, view: View) -> pd.Series:
        return texts if view.has_image or "blank_id" not in rows else texts.astype("str") + IGNORE

    blocks = [
        pd.DataFrame(
            {
                **{name: rows[name] for name in ("task", "item_id", "test")},
                "view": view.value,
                "text": shown(rows["text"] if view.has_context else rows["bare"], view),
                "image_id": rows["image_id"] if view.has_image else blank,
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
