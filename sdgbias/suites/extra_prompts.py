"""Extra prompts: what some baselines and Table J need beyond the four views x five tests. Works on
text and picture ids only.

Each kind ("pass") adds cells with the columns of `views.view_cells`; their ``view`` is a name of
the pass, so that plan, scores and store treat them as any other. Passes and their names:

* table_j (multiple choice, under T1): Q-only with options reversed (q_reversed), in an order drawn
  per item (q_random), as a, b, c (q_abc) or 1, 2, 3 (q_123). The text changes with the tokens;
* content_free:0..2: the context is "N/A", "" or "[MASK]", no picture. random_words:0..19: the
  context is a bag of words drawn from the contexts of that test. One item represents all items of
  its indicator and options (`spread` copies its scores to them). T5 has no context, so there both
  are Q-only;
* noise: Full with a noised picture. icd:0..5: Full after a disturbing instruction;
* perm:1, perm:2 (multiple choice): Full with the options' contents shifted under the same letters,
  on all rows ('perm') or on 5 % of val ('pride');
* blank:ctx_q, blank:q_only: the text-only views in the form of the authors' code, with a blank
  picture and "Ignore the image.";
* wording:0..7 (multiple choice, under T1): Q-only paraphrased (paraphrases.py); one item represents
  all items of its indicator and options.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import permutations

import numpy as np
import pandas as pd

from sdgbias.benchmark.prompts import REGRESSION_TAIL, view_cells
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import packaged_yaml
from sdgbias.methods.baselines import METHODS
from sdgbias.raw.images.variants import blank_id, noise_id
from sdgbias.suites import paraphrases
from sdgbias.types import LETTERS, TESTS, ContextTest, Task, View

#: Contexts without information (METHODS 1.7).
CONTENT_FREE = ("N/A", "", "[MASK]")
RANDOM_BAGS = 20
#: Disturbing instructions (METHODS 1.4), which precede the question.
DISTURBANCES: list[str] = packaged_yaml("disturbances.yaml")
NOISE_STEP = 500
#: Appended by the authors' code to a prompt that shows a blank picture (METHODS 3.4).
IGNORE_IMAGE = "\nIgnore the image."
#: Share of the val rows that PriDe estimates its prior from (METHODS 1.10).
PRIDE_SHARE = 0.05
#: Table J: name of its pass -> the characters shown instead of A, B, C.
TOKENS = {"q_reversed": "ABC", "q_random": "ABC", "q_abc": "abc", "q_123": "123"}
TABLE_J_TEST = ContextTest.T1

#: Task -> its items; blocks of cells.
Items = Mapping[Task, pd.DataFrame]
Blocks = Iterator[pd.DataFrame]

#: Pass -> names of its cells.
VIEWS: dict[str, tuple[str, ...]] = {
    "table_j": tuple(TOKENS),
    "content_free": tuple(f"content_free:{k}" for k in range(len(CONTENT_FREE))),
    "random_words": tuple(f"random_words:{k}" for k in range(RANDOM_BAGS)),
    "noise": ("noise",),
    "icd": tuple(f"icd:{k}" for k in range(len(DISTURBANCES))),
    "perm": ("perm:1", "perm:2"),
    "pride": ("perm:1", "perm:2"),
    "blank": ("blank:ctx_q", "blank:q_only"),
    "paraphrases": paraphrases.VIEWS,
}
CHEAP = ("table_j", "content_free", "random_words")
#: Passes that serve methods on the Full view alone.
CALIBRATING = ("content_free", "random_words")
COSTLY = ("noise", "icd", "perm", "pride", "blank")
#: The prompts needed by the paper's methods and tables. `paraphrases` is included only if named.
BUNDLES = {"none": (), "cheap": CHEAP, "costly": COSTLY, "all": CHEAP + COSTLY}
COLUMNS = ("task", "item_id", "test", "view", "text", "image_id", "candidates")
_OPTIONS = re.compile(r"^Options: .*$", re.MULTILINE)
_VALID = re.compile(r"^VALID OPTIONS: .*$", re.MULTILINE)
_CONTEXT, _BREAK = r"(?m)^Context: (.*)$", "\x1f"
#: Wording about letters in a prompt -> its replacement when the options are named otherwise.
_WORDS = {
    "abc": (("ONE uppercase letter", "ONE lowercase letter"),),
    "123": (("ONE uppercase letter", "ONE number"), ("(no words, numbers,", "(no words, letters,")),
}


def choose(text: str) -> tuple[str, ...]:
    """Passes, in a fixed order, of a comma-separated list of bundles, passes and methods of
    methods/baselines.py. Raises UsageError."""
    wanted: set[str] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in BUNDLES:
            wanted.update(BUNDLES[name])
        elif name in VIEWS:
            wanted.add(name)
        elif name in METHODS:
            wanted.update(need.split("|")[0] for need in METHODS[name].needs)
        else:
            raise UsageError(
                f"--passes: {one_of('pass', name, [*BUNDLES, *VIEWS])}; or a method:"
                f" {', '.join(METHODS)}"
            )
    return tuple(
        name for name in VIEWS if name in wanted and not (name == "pride" and "perm" in wanted)
    )


def extra_cells(
    items: Items, prompts: pd.DataFrame, passes: tuple[str, ...], seed: int = 0
) -> pd.DataFrame:
    """Cells of the given passes, columns as `views.view_cells` has them. items: items_<task>
    tables; prompts: prompts.parquet.

    Raises InputError where an imported prompt lacks the line that a pass changes.
    """
    made = [block for name in passes for block in _MAKERS[name](items, prompts, seed)]
    empty = pd.DataFrame(
        {name: pd.Series(dtype="int64" if name == "item_id" else "str") for name in COLUMNS}
    )
    return pd.concat([empty, *made], ignore_index=True) if made else empty


def lacking(method: str, extra: Mapping[str, np.ndarray]) -> str:
    """Name of the pass that a method needs and that ``extra`` lacks, '' if the method can run."""
    for need in METHODS[method].needs:
        if not any(VIEWS[name][0] in extra for name in need.split("|")):
            return need.split("|")[0]
    return ""


def orders(items: pd.DataFrame, view: str, seed: int = 0) -> np.ndarray:
    """(N, 3) index of the option whose content a pass shows at each position, -1 where the item has
    no such position."""
    n = n_options(items)[:, None]
    at = np.arange(len(LETTERS))[None, :]
    if view == "q_reversed":
        order = n - 1 - at
    elif view.startswith("perm:"):
        order = (at + int(view.removeprefix("perm:"))) % n
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


def is_shared(view: str) -> bool:
    """Whether one item represents all items of its indicator and options."""
    return view.startswith(("content_free:", "random_words:", "wording:"))


def spread(items: pd.DataFrame, logits: np.ndarray) -> np.ndarray:
    """Scores (N, K) of a shared pass, NaN except for the representative items -> those of each
    item's group."""
    group = _groups(items)
    asked = np.flatnonzero(np.isfinite(logits).any(axis=1))[::-1]
    source = np.full(int(group.max(initial=-1)) + 1, -1)
    source[group[asked]] = asked
    return np.where((source[group] >= 0)[:, None], logits[source[group]], np.nan)


def pride_rows(items: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """(N,) the 5 % of val rows from which PriDe estimates its prior: those with the smallest hashes
    of their item_id."""
    val = np.flatnonzero((items["split"] == "val").to_numpy())
    ranked = val[np.argsort(_hashes(items.iloc[val], f"pride-{seed}"), kind="stable")]
    chosen = np.zeros(len(items), dtype=bool)
    chosen[ranked[: math.ceil(PRIDE_SHARE * len(val))]] = True
    return chosen


def n_options(items: pd.DataFrame) -> np.ndarray:
    """(N,) number of options; `items` with n_options, or with option_a, option_b, option_c."""
    if "n_options" in items:
        return items["n_options"].to_numpy(dtype=np.int64)
    return (items[[f"option_{c.lower()}" for c in LETTERS]] != "").to_numpy().sum(axis=1)


# ----------------------------------------------------------------------
# builders


def _table_j(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    rows, table = _mcq_rows(items, prompts[prompts["test"] == ContextTest.T5.value])
    for view, tokens in TOKENS.items():
        text = _with_options(rows["text"], table, orders(table, view, seed), tokens)
        candidates = np.array([tokens[:k] for k in range(len(tokens) + 1)], dtype=object)[
            n_options(table)
        ]
        yield _cells(rows, view, text, "", test=TABLE_J_TEST.value, candidates=candidates)


def _permuted(items: Items, prompts: pd.DataFrame, seed: int, *, all_rows: bool = True) -> Blocks:
    rows, table = _mcq_rows(items, prompts)
    wanted = np.ones(len(rows), dtype=bool)
    if not all_rows:
        whole = items[Task.MCQ]
        wanted = rows["item_id"].isin(whole["item_id"][pride_rows(whole, seed)]).to_numpy()
    for view in VIEWS["perm"]:
        use = wanted & (n_options(table) > int(view[-1]))
        part, own = rows[use], table[use]
        text = _with_options(part["text"], own, orders(own, view), LETTERS)
        yield _cells(part, view, text, part["image_id"])


def _content_free(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    for rows in _shared_rows(items, prompts):
        for k, context in enumerate(CONTENT_FREE):
            yield _cells(rows, f"content_free:{k}", _with_context(rows, context), "")


def _random_words(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    """METHODS 1.8: words of the test's contexts, lower-cased and pooled with repetition; as many as
    a context has on average."""
    for rows in _shared_rows(items, prompts):
        if rows.empty:
            continue
        task, test = str(rows["task"].iloc[0]), str(rows["test"].iloc[0])
        asked = prompts[(prompts["task"] == task) & (prompts["test"] == test)]
        lines = (
            asked["text"].str.extract(_CONTEXT, expand=False).dropna().value_counts().sort_index()
        )
        words: dict[str, int] = {}
        for line, count in lines.items():
            for word in str(line).lower().split():
                words[word] = words.get(word, 0) + int(count)
        names = sorted(words)
        share = np.array([words[name] for name in names], dtype=float)
        length = math.ceil(share.sum() / max(int(lines.sum()), 1))
        contexts = []
        for view in VIEWS["random_words"]:
            digest = hashlib.sha256(f"{seed}|{task}|{test}|{view}".encode()).digest()
            rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
            bag = rng.choice(names, length, p=share / share.sum()) if names else []
            contexts.append(" ".join([*bag, "."]))
        # one frame of all passes: 20 small ones take ten times as long
        block = pd.concat([rows] * len(contexts), ignore_index=True)
        views, context = (
            pd.Series(texts, dtype="str").repeat(len(rows)).reset_index(drop=True)
            for texts in (VIEWS["random_words"], contexts)
        )
        yield _cells(block, views, _with_context(block, context), "")


def _noised(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    ids = {key: noise_id(key, NOISE_STEP) for key in prompts["image_id"].unique()}
    yield _cells(prompts, "noise", prompts["text"], prompts["image_id"].map(ids))


def _disturbed(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    for view, prefix in zip(VIEWS["icd"], DISTURBANCES, strict=True):
        yield _cells(prompts, view, prefix + "\n" + prompts["text"], prompts["image_id"])


def _blank(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    cells = view_cells(prompts)
    for view in (View.CTX_Q, View.Q_ONLY):
        rows = cells[cells["view"] == view.value]
        yield _cells(rows, f"blank:{view.value}", rows["text"] + IGNORE_IMAGE, blank_id())


def _reworded(items: Items, prompts: pd.DataFrame, seed: int) -> Blocks:
    table = items[Task.MCQ]
    if table.empty:
        return
    for view, rows in paraphrases.texts(table, paraphrases.bare(prompts, _representatives(table))):
        yield _cells(rows, view, rows["text"], "", test=TABLE_J_TEST.value)


_MAKERS: dict[str, Callable[[Items, pd.DataFrame, int], Blocks]] = {
    "table_j": _table_j,
    "content_free": _content_free,
    "random_words": _random_words,
    "noise": _noised,
    "icd": _disturbed,
    "perm": _permuted,
    "pride": partial(_permuted, all_rows=False),
    "blank": _blank,
    "paraphrases": _reworded,
}


# ----------------------------------------------------------------------
# helpers


def _cells(
    rows: pd.DataFrame, view: object, text: object, image_id: object, **columns: object
) -> pd.DataFrame:
    kept = {name: rows[name] for name in ("task", "item_id", "test", "candidates")}
    frame = pd.DataFrame(
        {**kept, "view": view, "text": text, "image_id": image_id} | columns, index=rows.index
    )
    return frame[list(COLUMNS)].astype({name: "str" for name in COLUMNS if name != "item_id"})


def _mcq_rows(items: Items, prompts: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(multiple-choice rows of `prompts`, the item of each in the same order)."""
    rows = prompts[prompts["task"] == Task.MCQ.value].reset_index(drop=True)
    return rows, items[Task.MCQ].set_index("item_id").loc[rows["item_id"]].reset_index()


def _shared_rows(items: Items, prompts: pd.DataFrame) -> Blocks:
    """Per task and test the rows that represent all items of their indicator and options; `bare` is
    their T5 text."""
    for task, table in items.items():
        if table.empty:
            continue
        first = _representatives(table)
        own = prompts[(prompts["task"] == task.value) & prompts["item_id"].isin(first)]
        bare = own[own["test"] == ContextTest.T5.value].set_index("item_id")["text"]
        for test in TESTS[task]:
            rows = own[own["test"] == test.value]
            yield rows.assign(bare=rows["item_id"].map(bare))


def _representatives(items: pd.DataFrame) -> pd.Series:
    """item_id of the first item of each indicator with its options, or with its target."""
    ordered = items.sort_values("item_id")
    return ordered["item_id"][~pd.Series(_groups(ordered), index=ordered.index).duplicated()]


def _groups(items: pd.DataFrame) -> np.ndarray:
    """(N,) code of an item's indicator with its options, or with its target."""
    if "target" in items and (items["target"] != "").any():
        names = ["indicator", "target"]
    elif "options" in items:
        names = ["indicator", "options"]
    else:
        names = ["indicator", *(f"option_{c.lower()}" for c in LETTERS)]
    return items.groupby(names, sort=True).ngroup().to_numpy()


def _hashes(items: pd.DataFrame, key: str) -> np.ndarray:
    """(N,) 63 bits per item_id, independent of the order of rows."""
    digests = (hashlib.sha256(f"{key}|{item}".encode()).digest() for item in items["item_id"])
    return np.fromiter(
        (int.from_bytes(d[:8], "big") >> 1 for d in digests), dtype=np.int64, count=len(items)
    )


def _with_context(rows: pd.DataFrame, context: str | pd.Series) -> pd.Series:
    """The text without context, with a Context line where Tables C and D have it; T5 stays without
    one."""
    if (rows["test"] == ContextTest.T5.value).all():
        return rows["bare"]
    mcq = (rows["task"] == Task.MCQ.value).all()
    place = "Options: " if mcq else REGRESSION_TAIL[: REGRESSION_TAIL.index(".")]
    found = rows["bare"].str.rpartition("\n" + place)
    _complete(rows, found[1] != "", place)
    return found[0] + "\nContext: " + context + found[1] + found[2]


def _with_options(
    texts: pd.Series, items: pd.DataFrame, order: np.ndarray, tokens: str
) -> pd.Series:
    """Prompts with their options in another order or named by other tokens; the wording about
    letters changes with the tokens."""
    options = items[[f"option_{c.lower()}" for c in LETTERS]].to_numpy(dtype=object)
    line = np.full(len(items), "Options: ", dtype=object)
    for j, token in enumerate(tokens):
        shown = order[:, j] >= 0
        content = options[np.arange(len(items)), np.maximum(order[:, j], 0)]
        line = line + np.where(shown, ("; " if j else "") + f"{token}. " + content, "")
    valid = np.array(
        ["VALID OPTIONS: " + ", ".join(tokens[:k]) for k in range(len(tokens) + 1)], dtype=object
    )[n_options(items)]
    codes, triples = pd.factorize(
        pd.Series(texts.to_numpy(dtype=object) + _BREAK + line + _BREAK + valid)
    )
    changed = []
    for triple in triples:
        text, own, letters = triple.split(_BREAK)
        changed.append(_renamed(text, own, letters, tokens))
    _complete(
        items,
        pd.Series(np.array([text != "" for text in changed], dtype=bool)[codes]),
        "Options: or VALID OPTIONS:",
    )
    return pd.Series(np.array(changed, dtype=object)[codes], index=texts.index)


def _renamed(text: str, options: str, valid: str, tokens: str) -> str:
    """One prompt with these lines, '' where it lacks a line or a word to be replaced."""
    text, some = _OPTIONS.subn(lambda _: options, text, count=1)
    text, more = _VALID.subn(lambda _: valid, text, count=1)
    found = bool(some and more)
    for old, new in _WORDS.get(tokens, ()):
        found &= old in text
        text = text.replace(old, new, 1)
    return text if found else ""


def _complete(rows: pd.DataFrame, found: pd.Series, what: str) -> None:
    if not found.all():
        item = rows["item_id"].iloc[int(np.flatnonzero(~found.to_numpy())[0])]
        raise InputError(
            f"prompts: item {item} has no line {what!r}, which this pass changes; leave it out:"
            " --passes none"
        )
