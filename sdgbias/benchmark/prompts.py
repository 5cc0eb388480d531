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

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

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


def _strings(values: pd.Series) -> pa.Array:
    texts = pa.array(values, pa.large_string(), from_pandas=True)
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def _text(word: str) -> pa.Scalar:
    return pa.scalar(word, pa.large_string())


def _join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _text(""))


def _listed(parts: Sequence[pa.Array], by: str) -> pa.Array:
    """The parts of every row that aren't '', joined by `by`. Not Arrow's null_handling='skip': it
    loses the rows whose parts are all missing."""
    led = [pc.if_else(pc.equal(part, ""), part, _join(_text(by), part)) for part in parts]
    return pc.utf8_slice_codeunits(_join(*led), len(by))


def _series(texts: pa.Array, index: pd.Index) -> pd.Series:
    return pd.Series(texts.to_numpy(zero_copy_only=False), index=index, dtype=object)


def shown_values(name: str, values: pd.Series) -> pa.Array:
    """``name=value`` strings of one context variable, '' where unknown. Values of `urban` are
    'U', 'R' or ''."""
    label = CONTEXT_NAMES[name]
    if name == "urban":
        codes, kinds = pd.factorize(values)
        texts = [f"{label}={URBAN_WORDS[k]}" if k in URBAN_WORDS else "" for k in kinds]
    else:
        # + 0.0 turns -0.0 into 0.0; each distinct number is formatted once
        codes, numbers = pd.factorize(np.round(values.to_numpy(dtype=float), 1) + 0.0)
        texts = [f"{label}={number:.1f}" if np.isfinite(number) else "" for number in numbers]
        if name == "under5_mort":
            texts = [text.removesuffix(".0") for text in texts]
    # the last entry is that of code -1, a missing value
    return pa.array([*texts, ""], pa.large_string()).take(pa.array(codes % (len(texts) + 1)))


def _context(items: pd.DataFrame, test: ContextTest, target: str = "") -> pa.Array:
    """context_lines as an Arrow array."""
    names = context_variables(test, target)
    if not names or test in (ContextTest.T3, ContextTest.T4):
        hint = "You may consider: " + ", ".join(CONTEXT_NAMES[name] for name in names)
        return pa.repeat(_text(hint if names else ""), len(items))
    values = _listed([shown_values(name, items[name]) for name in names], ", ")
    return pc.if_else(pc.equal(values, ""), values, _join(_text("Given: "), values))


def context_lines(items: pd.DataFrame, test: ContextTest, target: str = "") -> pd.Series:
    """The context of every item under one test ('' = no Context line). `items` holds the six label
    columns and `urban`."""
    return _series(_context(items, test, target), items.index)


def option_letters(items: pd.DataFrame) -> str:
    """The letters of a table's option columns: 'ABC' of SDGBiasBench, up to 'ABCDEFGHIJ' of own
    questions."""
    return "".join(c for c in OPTION_LETTERS if f"option_{c.lower()}" in items)


def _options(items: pd.DataFrame, by: str) -> tuple[pa.Array, pa.Array]:
    """(options line, valid letters joined by `by`) per item; an empty option text means that the
    item lacks the option."""
    none = pa.repeat(_text(""), len(items))
    texts = {c: _strings(items[f"option_{c.lower()}"]) for c in option_letters(items)}
    gone = {c: pc.equal(text, "") for c, text in texts.items()}
    lines = [pc.if_else(gone[c], none, _join(_text(f"{c}. "), texts[c])) for c in texts]
    letters = [pc.if_else(gone[c], none, _text(c)) for c in texts]
    return _listed([none, *lines], "; "), _listed([none, *letters], by)


def option_lines(items: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """(options line, candidates such as 'ABC') per item; an empty option text means that the item
    lacks the option."""
    lines, letters = _options(items, "")
    return _series(lines, items.index), _series(letters, items.index)


def prompt_texts(items: pd.DataFrame, task: Task, test: ContextTest, view: View) -> pd.Series:
    """Prompt text of every item under one view x test (Tables C and D). Regression items hold one
    `target` each."""
    context = _context_of(items, task, test if view.has_context else ContextTest.T5)
    return _series(_join(_heads(items, context), _tails(items, task)), items.index)


def _context_of(items: pd.DataFrame, task: Task, test: ContextTest) -> pa.Array:
    if task is Task.MCQ or test is ContextTest.T5:
        return _context(items, test)
    rows = np.zeros(len(items), dtype=np.int64)
    parts, done = [_strings(pd.Series([], dtype="str"))], 0
    for target, at in items.groupby("target", sort=True).indices.items():
        parts.append(_context(items.iloc[at], test, str(target)))
        rows[at] = np.arange(done, done + len(at))
        done += len(at)
    return pa.concat_arrays(parts).take(pa.array(rows))


def _heads(items: pd.DataFrame, context: pa.Array) -> pa.Array:
    shown = pc.if_else(
        pc.equal(context, ""), context, _join(_text("Context: "), context, _text("\n"))
    )
    return _join(_text("Question: "), _strings(items["question"]), _text("\n"), shown)


def _tails(items: pd.DataFrame, task: Task) -> pa.Array:
    """What follows the context of every item."""
    if task is Task.REGRESSION:
        return pa.repeat(_text(REGRESSION_TAIL), len(items))
    lines, letters = _options(items, ", ")
    valid = _join(_text("\nVALID OPTIONS: "), letters, _text("\n" + MCQ_TAIL))
    return _join(_text("Options: "), lines, valid)


def question_lines(items: pd.DataFrame, context: pd.Series) -> pd.Series:
    """The first lines of every prompt: the question, and its context where that is not ''."""
    return _series(_heads(items, _strings(context)), items.index)


def choice_texts(items: pd.DataFrame, context: pd.Series) -> pd.Series:
    """Prompt text of every multiple-choice question with a context ('' none)."""
    return _series(_join(_heads(items, _strings(context)), _tails(items, Task.MCQ)), items.index)


def own_prompts(items: pd.DataFrame, has_context: bool) -> pd.DataFrame:
    """prompts.parquet of custom questions, in the shape of SDGBiasBench's: T1 is the question with
    its context, T5 without. A suite without contexts has T5 alone."""
    none = pd.Series("", index=items.index, dtype=object)
    contexts = {ContextTest.T1: items["context"].astype(object)} if has_context else {}
    blocks = [
        pd.DataFrame(
            {
                "task": Task.MCQ.value,
                "item_id": items["item_id"],
                "test": test.value,
                "text": choice_texts(items, context),
                "image_id": items["image_id"],
                "candidates": option_lines(items)[1],
            }
        )
        for test, context in {**contexts, ContextTest.T5: none}.items()
    ]
    frame = pd.concat(blocks, ignore_index=True)
    texts = dict.fromkeys(("task", "test", "text", "image_id", "candidates"), "str")
    return frame.astype(texts).sort_values(["item_id", "test"], kind="stable", ignore_index=True)


def prompt_table(items: pd.DataFrame, task: Task) -> pa.Table:
    """prompts.parquet of a task: one row per item x context test, sorted by item_id and test.

    Columns: task, item_id, test, text (with the test's context; T5 has none), image_id, candidates.
    The four views are not stored, because they follow: see view_cells.
    """
    items = items.sort_values("item_id", kind="stable", ignore_index=True)
    tests, n = sorted(TESTS[task], key=lambda test: test.value), len(items)
    tails = _tails(items, task)
    texts = [_join(_heads(items, _context_of(items, task, test)), tails) for test in tests]
    candidates = _options(items, "")[1] if task is Task.MCQ else pa.repeat(_text(DIGITS), n)
    # item by item: in `texts` the tests of one item stand n rows apart
    rows = pa.array(np.arange(len(tests) * n).reshape(len(tests), n).T.ravel())
    each = pa.array(np.repeat(np.arange(n), len(tests)))
    names = pa.array([test.value for test in tests], pa.large_string())
    return pa.table(
        {
            "task": pa.repeat(_text(task.value), len(rows)),
            "item_id": pa.array(items["item_id"].to_numpy()).take(each),
            "test": names.take(pa.array(np.tile(np.arange(len(tests)), n))),
            "text": pa.concat_arrays(texts).take(rows),
            "image_id": _strings(items["image_id"]).take(each),
            "candidates": candidates.take(each),
        }
    )


def build_prompts(items: pd.DataFrame, task: Task) -> pd.DataFrame:
    """prompt_table as a frame."""
    return pd.DataFrame(prompt_table(items, task).to_pandas())


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
