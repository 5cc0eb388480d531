"""Quality rules for prompts.parquet (one row per item x test), one boolean column per rule.

The large column is `text`: each distinct text is parsed once, and rows are compared by integer
codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sdgbias.benchmark.quality.rules_raw import LABELS, Judged, RuleContext, missing_table
from sdgbias.types import (
    CONTEXT_NAMES,
    DIGITS,
    LETTERS,
    REDUCED_CONTEXT,
    TESTS,
    ContextTest,
    Task,
)

_GIVEN = (ContextTest.T1.value, ContextTest.T2.value)
_NAMED = (ContextTest.T3.value, ContextTest.T4.value)
_REDUCED = (ContextTest.T2.value, ContextTest.T4.value)
_URBAN = {"U": 1.0, "R": 0.0}
_WORDS = {"Urban": 1.0, "Rural": 0.0}
_BLOCK = 50_000  # texts parsed at once
_HALF = 0.05 + 1e-9  # values are shown with one decimal
#: rules that compare with the item tables
_OF_ITEMS = (
    "prompt-item-exists",
    "prompt-image-of-item",
    "candidates-match-options",
    "prompt-text-of-item",
    "context-line-missing",
    "context-values",
    "target-leak",
)


@dataclass(frozen=True)
class Texts:
    """The parsed distinct texts; ``codes`` (N,) gives each row's text. Per distinct text: line, its
    Context line ('' none), and bare, the number of the text without that line. Per number:
    question, options, letters and whether it is a complete prompt."""

    codes: np.ndarray
    line: pa.Array
    bare: np.ndarray
    question: pa.Array
    options: pa.Array
    letters: pa.Array
    form: np.ndarray

    @property
    def rest(self) -> np.ndarray:
        """(N,) number of each row's text without its Context line."""
        return self.bare[self.codes]


def _array(found: pa.Array | pa.ChunkedArray) -> pa.Array:
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _part(texts: pa.Array, pattern: str) -> pa.Array:
    """The group `x` of a pattern in every text, '' where it isn't found (RE2: linear in the
    text)."""
    found = pc.extract_regex(texts, pattern)
    return _array(pc.fill_null(pc.struct_field(found, "x"), ""))


def _bools(found: pa.Array) -> np.ndarray:
    return np.asarray(_array(found).to_numpy(zero_copy_only=False), dtype=bool)


def take_apart(text: pd.Series) -> Texts:
    """Parse the column `text`; a categorical is used as it is, so that each distinct text is parsed
    once."""
    kinds = text.astype("category")
    distinct = _array(pa.array(kinds.cat.categories.astype("str"), pa.large_string()))
    codes = kinds.cat.codes.to_numpy(dtype=np.int64)
    if (codes < 0).any():  # missing texts become one more, empty text
        codes = np.where(codes < 0, len(distinct), codes)
        distinct = pa.concat_arrays([distinct, pa.array([""], pa.large_string())])
    blocks = [_cut(distinct.slice(at, _BLOCK)) for at in range(0, max(len(distinct), 1), _BLOCK)]
    line = pa.concat_arrays([line for line, _ in blocks])
    numbered = pa.chunked_array([rest for _, rest in blocks]).unify_dictionaries().combine_chunks()
    rests = numbered.dictionary  # a few dozen: questions x options
    end = (
        r"(?:VALID OPTIONS: [A-C, ]+\nSTRICT OUTPUT: (?s:.+)|Answer strictly with a single"
        r" numerical value\..*)\z"
    )
    return Texts(
        codes,
        line,
        numbered.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        _part(rests, r"^Question: (?P<x>[^\n]*)"),
        _part(rests, r"(?m)^Options: (?P<x>.*)$"),
        _array(pc.replace_substring(_part(rests, r"(?m)^VALID OPTIONS: (?P<x>.*)$"), ", ", "")),
        _bools(
            pc.match_substring_regex(rests, r"^Question: [^\n]{10,}\n(?:Options: [^\n]+\n)?" + end)
        ),
    )


def _cut(texts: pa.Array) -> tuple[pa.Array, pa.DictionaryArray]:
    """(the Context line when the second line is one, the text without it, dictionary-encoded)."""
    end, none = pa.scalar("\n", pa.large_string()), pa.scalar("", pa.large_string())
    whole = pc.binary_join_element_wise(texts, end, end, none)  # at least three lines
    lines = pc.split_pattern(whole, "\n", max_splits=2)
    first, second, third = (pc.list_element(lines, at) for at in range(3))
    context = pc.starts_with(second, "Context: ")
    line = pc.if_else(context, pc.utf8_slice_codeunits(second, len("Context: ")), none)
    rest = pc.binary_join_element_wise(
        first, pc.if_else(context, third, pc.binary_join_element_wise(second, third, end)), end
    )
    return _array(line), _array(pc.utf8_rtrim(rest, "\n")).dictionary_encode()


def item_facts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """The item facts that prompts must agree with, one row per task and item; None without both
    item tables."""
    parts = []
    for task, name in ((Task.MCQ, "items_mcq"), (Task.REGRESSION, "items_regression")):
        if name not in tables:
            return None
        items = tables[name].drop_duplicates("item_id")
        facts = items[["item_id", "image_id", "question", "urban", *LABELS]].assign(task=task.value)
        if task is Task.MCQ:
            options = pd.Series("", index=items.index, dtype="str")
            for letter in LETTERS:
                text = items[f"option_{letter.lower()}"].fillna("").astype("str")
                options = options + (f"; {letter}. " + text).where(text != "", "")
            letters = np.where(items["option_c"].fillna("") == "", "AB", "ABC")
            facts = facts.assign(target="", options=options.str[2:], candidates=letters)
        else:
            facts = facts.assign(target=items["target"].fillna(""), options="", candidates=DIGITS)
        parts.append(facts)
    both = pd.concat(parts, ignore_index=True)
    return both.set_index(_keys(both))


def _keys(frame: pd.DataFrame) -> pd.Index:
    """One number per task and item (item ids are below 2**60)."""
    number = pd.to_numeric(frame["item_id"], errors="coerce").fillna(-1).astype("int64").to_numpy()
    return pd.Index(
        number * 4
        + _mapped(frame["task"], {t.value: i for i, t in enumerate(Task)}, 3).astype(np.int64)
    )


def _mapped(values: pd.Series, table: Mapping[str, float], other: float) -> np.ndarray:
    """(N,) float: table[value], looked up once per distinct value."""
    kinds = values.astype("category")
    found = np.array(
        [*(table.get(str(kind), other) for kind in kinds.cat.categories), other], dtype=float
    )
    return found[kinds.cat.codes.to_numpy()]


def _among(test: pd.Series, tests: tuple[str, ...]) -> np.ndarray:
    return _mapped(test, dict.fromkeys(tests, 1.0), 0.0) == 1.0


def prompt_flags(frame: pd.DataFrame, given: RuleContext) -> dict[str, Judged]:
    """All prompt rules at once: rule -> (N,) bool, or the reason why it can't be evaluated."""
    texts, keys, test = take_apart(frame["text"]), _keys(frame), frame["test"].astype("category")
    shows = _bools(pc.not_equal(texts.line, ""))[texts.codes]
    task = _mapped(frame["task"], {t.value: i for i, t in enumerate(Task)}, -1)
    valid = np.zeros(len(frame), dtype=bool)
    for number, each in enumerate(Task):
        valid |= (task == number) & _among(test, tuple(t.value for t in TESTS[each]))
    bare_test = _among(test, (ContextTest.T5.value,))
    item, items = pd.factorize(keys)
    tests = np.bincount(item, minlength=len(items))[item]
    flags: dict[str, Judged] = {
        "prompt-test-of-task": valid,
        "prompts-complete": (
            tests == _mapped(frame["task"], {t.value: len(TESTS[t]) for t in Task}, -1)
        ),
        "prompt-text-form": texts.form[texts.rest],
        "context-line-unexpected": ~(shows & bare_test),
        "context-form": _context_form(texts, test, bare_test) | ~shows,
        "tests-differ-in-context-only": _same_beside_context(texts.rest, keys, bare_test),
    }
    facts = item_facts(given.tables)
    if facts is None:
        return flags | dict.fromkeys(_OF_ITEMS, missing_table("an item table"))
    return flags | _against_items(frame, texts, shows, keys, facts)


def _context_form(texts: Texts, test: pd.Series, bare_test: np.ndarray) -> np.ndarray:
    """T1 and T2 show values, T3 and T4 only names; T2 and T4 use only the reduced set of
    variables."""
    values, names = (
        _bools(pc.starts_with(texts.line, "Given: ")),
        _bools(pc.starts_with(texts.line, "You may consider: ")),
    )
    extra = "|".join(label for name, label in CONTEXT_NAMES.items() if name not in REDUCED_CONTEXT)
    more = _bools(pc.match_substring_regex(texts.line, rf"\b(?:{extra})\b"))
    right = (
        (_among(test, _GIVEN) & values[texts.codes])
        | (_among(test, _NAMED) & names[texts.codes])
        | bare_test
    )
    ok: np.ndarray = right & ~(_among(test, _REDUCED) & more[texts.codes])
    return ok


def _same_beside_context(rest: np.ndarray, keys: pd.Index, bare_test: np.ndarray) -> np.ndarray:
    """Without its Context line every text of an item equals its T5 text exactly. Items without T5
    are left to another rule."""
    first = pd.Series(rest[bare_test], index=keys[bare_test])
    first = first[~first.index.duplicated()]
    at = first.index.get_indexer(keys)
    same: np.ndarray = at < 0
    return same | (first.to_numpy()[np.maximum(at, 0)] == rest) if len(first) else same


def _against_items(
    frame: pd.DataFrame, texts: Texts, shows: np.ndarray, keys: pd.Index, facts: pd.DataFrame
) -> dict[str, Judged]:
    at = facts.index.get_indexer(keys)
    exists = at >= 0
    if not len(facts):
        nothing: dict[str, Judged] = {rule: np.ones(len(frame), dtype=bool) for rule in _OF_ITEMS}
        return nothing | {"prompt-item-exists": exists}
    at = np.maximum(at, 0)
    shown, reduced = _among(frame["test"], _GIVEN), _among(frame["test"], _REDUCED)
    leak, values, known = (
        np.zeros(len(frame), dtype=bool),
        np.ones(len(frame), dtype=bool),
        np.zeros(len(frame), dtype=bool),
    )
    for name, label in CONTEXT_NAMES.items():
        value, there = _value(texts.line, label, name)
        own = (
            facts["urban"].map(_URBAN).astype(float).to_numpy()
            if name == "urban"
            else facts[name].to_numpy(dtype=float)
        )
        asked = (facts["target"] == name).to_numpy(dtype=bool)
        expected = (~np.isnan(own) & ~asked)[at] & (~reduced | (name in REDUCED_CONTEXT))
        known |= expected
        stated = there[texts.codes]
        values &= (stated == expected) & (~stated | (np.abs(value[texts.codes] - own[at]) <= _HALF))
        if name in LABELS and asked.any():
            leak |= (
                _bools(pc.match_substring_regex(texts.line, rf"\b{label}\b"))[texts.codes]
                & asked[at]
            )
    wanted = known & shown | _among(frame["test"], _NAMED)
    image = pd.Series(facts["image_id"].array.take(at), index=frame.index)
    letters = facts["candidates"].where(facts["candidates"] != DIGITS, "")
    said = _same_words(texts.question, texts.rest, facts["question"], at) & _same_words(
        texts.options, texts.rest, facts["options"], at
    )
    candidates = pd.Series(facts["candidates"].array.take(at), index=frame.index) == frame[
        "candidates"
    ].astype("str")
    agree = candidates.to_numpy(dtype=bool) & _same_words(texts.letters, texts.rest, letters, at)
    return {
        "prompt-item-exists": exists,
        "prompt-image-of-item": ~exists | (frame["image_id"] == image).to_numpy(dtype=bool),
        "candidates-match-options": ~exists | agree,
        "prompt-text-of-item": ~exists | said,
        "context-line-missing": ~exists | shows | ~wanted,
        "context-values": ~exists | ~(shows & shown) | values,
        "target-leak": ~leak | ~exists,
    }


def _value(line: pa.Array, label: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(the number that a line has for a name, 1 and 0 for urban and rural; whether it has one), per
    distinct text."""
    found = _part(line, rf"(?:^Given: |, ){label}=(?P<x>[^,]*)").to_pandas()
    number = found.map(_WORDS) if name == "urban" else pd.to_numeric(found, errors="coerce")
    return number.to_numpy(dtype=float), (found != "").to_numpy(dtype=bool)


def _same_words(
    said: pa.Array, numbers: np.ndarray, wanted: pd.Series, at: np.ndarray
) -> np.ndarray:
    """(N,) bool: the words in a row's text equal those of its item."""
    kinds = wanted.astype("category")
    theirs = kinds.cat.categories.get_indexer(pd.Index(said.to_pandas()))
    same: np.ndarray = theirs[numbers] == kinds.cat.codes.to_numpy()[at]
    return same
