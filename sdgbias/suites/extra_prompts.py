"""Extra prompts: what Table J and the study of wordings need beyond the four views x five tests.
All are text alone.

Each kind ("pass") adds cells with the columns of `prompts.view_cells`; their ``view`` is a name of
the pass, so that plan, scores and store treat them as any other. Passes and their names:

* table_j (multiple choice, under T1): Q-only with options reversed (q_reversed), in an order drawn
  per item (q_random), as a, b, c (q_abc) or 1, 2, 3 (q_123). The text changes with the tokens;
* wording:0..7 (multiple choice, under T1): Q-only paraphrased (paraphrases.py); one item represents
  all items of its indicator and options.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

import numpy as np
import pandas as pd

from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.suites import paraphrases
from sdgbias.types import LETTERS, ContextTest, Task

#: Table J: name of its pass -> the characters shown instead of A, B, C.
TOKENS = {"q_reversed": "ABC", "q_random": "ABC", "q_abc": "abc", "q_123": "123"}
TABLE_J_TEST = ContextTest.T1

#: Task -> its items; blocks of cells.
Items = Mapping[Task, pd.DataFrame]
Blocks = Iterator[pd.DataFrame]

#: Pass -> names of its cells.
VIEWS: dict[str, tuple[str, ...]] = {
    "table_j": tuple(TOKENS),
    "paraphrases": paraphrases.VIEWS,
}
#: What `--passes` takes beside the names.
BUNDLES: dict[str, tuple[str, ...]] = {"none": (), "all": tuple(VIEWS)}
COLUMNS = ("task", "item_id", "test", "view", "text", "image_id", "candidates")
_OPTIONS = re.compile(r"^Options: .*$", re.MULTILINE)
_VALID = re.compile(r"^VALID OPTIONS: .*$", re.MULTILINE)
#: Wording about letters in a prompt -> its replacement when the options are named otherwise.
_WORDS = {
    "abc": (("ONE uppercase letter", "ONE lowercase letter"),),
    "123": (("ONE uppercase letter", "ONE number"), ("(no words, numbers,", "(no words, letters,")),
}


def choose(text: str) -> tuple[str, ...]:
    """Passes, in a fixed order, of a comma-separated list of bundles and passes. Raises
    UsageError."""
    wanted: set[str] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in BUNDLES and name not in VIEWS:
            raise UsageError(f"--passes: {one_of('pass', name, [*BUNDLES, *VIEWS])}")
        wanted.update(BUNDLES.get(name, (name,)))
    return tuple(name for name in VIEWS if name in wanted)


def extra_cells(
    items: Items, prompts: pd.DataFrame, passes: tuple[str, ...], seed: int = 0
) -> pd.DataFrame:
    """Cells of the given passes, columns as `prompts.view_cells` has them. items: items_<task>
    tables; prompts: prompts.parquet.

    Raises InputError where an imported prompt lacks the line that a pass changes.
    """
    blocks = [block for name in passes for block in _MAKERS[name](items, prompts, seed)]
    empty = pd.DataFrame(
        {name: pd.Series(dtype="int64" if name == "item_id" else "str") for name in COLUMNS}
    )
    return pd.concat([empty, *blocks], ignore_index=True) if blocks else empty


def orders(items: pd.DataFrame, view: str, seed: int = 0) -> np.ndarray:
    """(N, 3) index of the option whose content a pass shows at each position, -1 where the item has
    no such position."""
    n = n_options(items)[:, None]
    at = np.arange(len(LETTERS))[None, :]
    if view == "q_reversed":
        order = n - 1 - at
    elif view == "q_random":
        every = {
            k: [(*order, *range(k, len(LETTERS))) for order in permutations(range(k))]
            for k in range(1, len(LETTERS) + 1)
        }
        drawn = _hashes(items, f"order-{seed}")
        order = np.array(
            [every[k][h % len(every[k])] for k, h in zip(n[:, 0], drawn, strict=True)],
            dtype=np.int64,
        ).reshape(-1, len(LETTERS))
    else:
        order = np.broadcast_to(at, (len(items), len(LETTERS)))
    return np.where(at < n, order, -1)


def n_options(items: pd.DataFrame) -> np.ndarray:
    """(N,) number of options; `items` with n_options, or with option_a, option_b, option_c."""
    if "n_options" in items:
        return items["n_options"].to_numpy(dtype=np.int64)
    return (items[[f"option_{c.lower()}" for c in LETTERS]] != "").to_numpy().sum(axis=1)


# ----------------------------------------------------------------------
# builders


def _table_j(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    rows = _without_context(prompts, items[Task.MCQ]["item_id"])
    table = items[Task.MCQ].set_index("item_id").loc[rows["item_id"]].reset_index()
    for view, tokens in TOKENS.items():
        text = _with_options(rows["text"], table, orders(table, view, seed), tokens)
        candidates = np.array([tokens[:k] for k in range(len(tokens) + 1)], dtype=object)[
            n_options(table)
        ]
        yield _cells(rows, view, text, test=TABLE_J_TEST.value, candidates=candidates)


def _reworded(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    table = items[Task.MCQ]
    if table.empty:
        return
    bare = _without_context(prompts, _representatives(table))
    for view, rows in paraphrases.texts(table, bare):
        yield _cells(rows, view, rows["text"], test=TABLE_J_TEST.value)


_MAKERS: dict[str, Callable[[Items, pd.DataFrame, int], Blocks]] = {
    "table_j": _table_j,
    "paraphrases": _reworded,
}


# ----------------------------------------------------------------------
# helpers


def _cells(rows: pd.DataFrame, view: str, text: pd.Series, **columns: object) -> pd.DataFrame:
    kept = {name: rows[name] for name in ("task", "item_id", "test", "candidates")}
    frame = pd.DataFrame(
        {**kept, "view": view, "text": text, "image_id": ""} | columns, index=rows.index
    )
    return frame[list(COLUMNS)].astype({name: "str" for name in COLUMNS if name != "item_id"})


def _without_context(prompts: pd.DataFrame, item_ids: pd.Series) -> pd.DataFrame:
    """The prompts without context of these multiple-choice items."""
    bare = (prompts["task"] == Task.MCQ.value) & (prompts["test"] == ContextTest.T5.value)
    return prompts[bare & prompts["item_id"].isin(item_ids)].reset_index(drop=True)


def _representatives(items: pd.DataFrame) -> pd.Series:
    """item_id of the first item of each indicator with its options."""
    names = ["indicator", *(f"option_{c.lower()}" for c in LETTERS)]
    return items.sort_values("item_id").drop_duplicates(names)["item_id"]


def _hashes(items: pd.DataFrame, key: str) -> np.ndarray:
    """(N,) 63 bits per item_id, independent of the order of rows."""
    digests = (hashlib.sha256(f"{key}|{item}".encode()).digest() for item in items["item_id"])
    return np.fromiter(
        (int.from_bytes(d[:8], "big") >> 1 for d in digests), dtype=np.int64, count=len(items)
    )


def _with_options(
    texts: pd.Series, items: pd.DataFrame, order: np.ndarray, tokens: str
) -> pd.Series:
    """Prompts with their options in another order or named by other tokens; the wording about
    letters changes with the tokens."""
    options = items[[f"option_{c.lower()}" for c in LETTERS]].to_numpy(dtype=object)
    line = np.full(len(items), "Options: ", dtype=object)
    for j, token in enumerate(tokens):
        content = options[np.arange(len(items)), np.maximum(order[:, j], 0)]
        part = ("; " if j else "") + f"{token}. " + content
        line = line + np.where(order[:, j] >= 0, part, "")
    valid = ["VALID OPTIONS: " + ", ".join(tokens[:k]) for k in n_options(items)]
    prompts = pd.DataFrame({"text": texts.to_numpy(dtype=object), "line": line, "valid": valid})
    distinct = prompts.drop_duplicates()
    changed = [_renamed(text, shown, names, tokens) for text, shown, names in distinct.to_numpy()]
    renamed = prompts.merge(distinct.assign(renamed=changed), how="left")["renamed"]
    if (lost := (renamed == "").to_numpy()).any():
        raise InputError(
            f"prompts: item {items['item_id'].iloc[int(lost.argmax())]} has no line 'Options: or"
            " VALID OPTIONS:', which this pass changes; leave it out: --passes none"
        )
    return pd.Series(renamed.to_numpy(dtype=object), index=texts.index)


def _renamed(text: str, options: str, valid: str, tokens: str) -> str:
    """One prompt with these lines, '' where it lacks a line or a word to be replaced."""
    text, some = _OPTIONS.subn(lambda _: options, text, count=1)
    text, more = _VALID.subn(lambda _: valid, text, count=1)
    complete = bool(some and more)
    for old, new in _WORDS.get(tokens, ()):
        complete &= old in text
        text = text.replace(old, new, 1)
    return text if complete else ""
