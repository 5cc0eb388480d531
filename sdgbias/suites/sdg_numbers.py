"""What was decoded for suite sdg: numbers by first digit, free answers, letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from sdgbias.methods.answers import TRUNCATED, parse_number, read_letter, with_first_digit
from sdgbias.suites.suite import StoredScores
from sdgbias.types import DIGITS

#: Start of an answer -> key of a prompt -> the text generated after it (StoredScores.spoken).
Spoken = Mapping[str, Mapping[str, str]]


def free_values(
    keys: np.ndarray, spoken: Spoken, cut: Collection[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """(values (N,), how (N,)) of freely generated numbers; an answer without a number is 0.0
    (reference) and counted."""
    free = spoken.get("", {})
    texts = [free.get(key) for key in keys]
    numbers = [None if t is None else parse_number(t) for t in texts]
    values = [
        np.nan if t is None else (0.0 if n is None else n)
        for t, n in zip(texts, numbers, strict=True)
    ]
    how = [
        "" if t is None else "number" if n is not None else TRUNCATED if key in cut else "unparsed"
        for key, t, n in zip(keys, texts, numbers, strict=True)
    ]
    return np.array(values, dtype=float), np.array(how, dtype=object)


def sign_of(free: str) -> str:
    """The sign of a freely generated number: '-' or ''."""
    return "-" if (parse_number(free) or 0.0) < 0 else ""


def generated_letters(
    keys: np.ndarray, valid: Sequence[str], scored: StoredScores
) -> tuple[np.ndarray, np.ndarray]:
    """(choice (N,), how (N,)) of generated multiple-choice answers; ``valid``: the letters of each
    item's options. choice is -1 where the answer states no letter (how says why) or none was
    generated (how is '')."""
    free = scored.spoken.get("", {})
    choice = np.full(len(keys), -1, dtype=np.int64)
    how = np.full(len(keys), "", dtype=object)
    for i, (key, letters) in enumerate(zip(keys, valid, strict=True)):
        if (text := free.get(key)) is None:
            continue
        letter, how[i] = read_letter(text, letters, key in scored.cut)
        choice[i] = letters.index(letter) if letter else -1
    return choice, how


def digit_values(keys: np.ndarray, spoken: Spoken, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """(values, unparsed), both (N, 10): the number that each first digit leads to. `continue` =
    greedy decoding after the forced digit, `replace` = the free answer with its first digit
    exchanged (the reference), which stands in where nothing was decoded after a digit. Both keep
    the free answer's sign. Where the text contains no number the value is 0.0 (the reference) and
    unparsed is True."""
    values = np.full((len(keys), len(DIGITS)), np.nan)
    unparsed = np.zeros(values.shape, dtype=bool)
    for i, key in enumerate(keys):
        if (free := spoken.get("", {}).get(key)) is None:
            continue
        stated, sign = parse_number(free), sign_of(free)
        for j, digit in enumerate(DIGITS):
            text = spoken.get(sign + digit, {}).get(key) if mode == "continue" else None
            number = parse_number(text) if text is not None else None
            values[i, j] = with_first_digit(free, digit) if number is None else number
            unparsed[i, j] = number is None and stated is None
    return values, unparsed
