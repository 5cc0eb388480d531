"""From free answers to labels: exact first, then by form, then by meaning, and never by force.

The paper sends every answer through a text encoder and takes the nearest class (Wu et al., App.
A.2), so an empty answer or a refusal becomes some class, too. Here an answer is read in steps and
each label says which step found it; what no step finds is ``unparsed``, and is counted:

    empty        nothing but spaces and punctuation
    exact        the answer is a label, quotes and a final stop aside
    normalised   ... but for case, underscores and an article, or it names one label and no other
    option       a choice by its letter ("B", "B. No")
    several      it names more than one label
    refusal      the model declines to say anything about people
    cosine       nearest label by the text encoder, at least as similar as its floor
    unparsed     none of these
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sdgbias.errors import InputError
from sdgbias.methods.answers import REFUSAL, answer_part, parse_letter

STEPS = ("exact", "normalised", "option", "cosine", "several", "refusal", "empty", "unparsed")
#: Letters of a single-choice question (p2, p3) and what they say.
OPTIONS: Mapping[str, str] = {"A": "yes", "B": "no", "C": "unknown"}

_EDGE = " \t\r\n\"'`*_.,;:!?()[]{}<>“”‘’«»"
_UNSURE = re.compile(
    r"\b(?:not sure|unsure|uncertain|(?:can(?:no|')t|can not|impossible to|hard to|difficult to|not"
    r" possible to) (?:tell|say|determine|know)|"
    r"don't know|do not know|unclear)\b",
    re.IGNORECASE,
)


class TextEncoder(Protocol):
    """name: how runs and reports call it. floor: how similar an answer must be to a label, None
    when none has been chosen (suites/facet_floor.py finds one). embed: N texts -> (N, D) float32,
    rows of length one (zero for a text without content)."""

    name: str

    @property
    def floor(self) -> float | None: ...

    def embed(self, texts: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class Label:
    """name: the label, '' where none was found; how: one of STEPS; similarity: cosine of the
    nearest label, NaN where not asked."""

    name: str
    how: str
    similarity: float = float("nan")


def plain_form(text: str) -> str:
    """Lower case, one space between words, no underscores or hyphens, nothing at the edges but
    letters and digits."""
    return re.sub(r"[\s_\-]+", " ", text.casefold().replace("’", "'")).strip(_EDGE)


def by_form(
    text: str,
    labels: Sequence[str],
    options: Mapping[str, str] | None = None,
    spellings: Mapping[str, str] | None = None,
) -> Label | None:
    """The label that an answer states by its form; None where only its meaning could say. Pure
    text. ``spellings``: other ways to write a label -> the label."""
    bare = text.strip().strip(_EDGE)
    if not bare:
        return Label("", "empty")
    if bare in labels:
        return Label(bare, "exact")
    plain = plain_form(text)
    names_by_form = {plain_form(name): name for name in labels}
    names_by_form |= {
        plain_form(form): name for form, name in (spellings or {}).items() if name in labels
    }
    joined = {form.replace(" ", ""): name for form, name in names_by_form.items()}
    for form in (plain, re.sub(r"^(?:a|an|the) ", "", plain)):
        if (whole := form.replace(" ", "")) in joined:  # "hair dresser" is a hairdresser
            return Label(joined[whole], "normalised")
    if options:
        letter = parse_letter(text, "".join(options))
        if letter:
            return Label(options[letter], "option")
        first = re.match(r"[a-z]+", plain)
        if first and first[0] in names_by_form:
            return Label(names_by_form[first[0]], "normalised")
        if REFUSAL.search(plain):
            return Label("", "refusal")
        if "unknown" in names_by_form and _UNSURE.search(plain):
            return Label("unknown", "normalised")
    elif REFUSAL.search(plain):
        return Label("", "refusal")
    named = {
        name
        for form, name in names_by_form.items()
        if re.search(rf"(?<![a-z]){re.escape(form)}s?(?![a-z])", plain)
    }
    if len(named) > 1:
        return Label("", "several")
    return Label(named.pop(), "normalised") if named else None


def encode(
    texts: Sequence[str],
    labels: Sequence[str],
    encoder: TextEncoder | None = None,
    *,
    options: Mapping[str, str] | None = None,
    spellings: Mapping[str, str] | None = None,
    floor: float | None = None,
    nearest: bool = False,
) -> list[Label]:
    """One Label per text. ``floor``: instead of the encoder's own; one of them must be. Equal texts
    are embedded once; ties go to the earlier label. Without an encoder nothing is found by meaning.

    ``nearest``: the papers' reading, without a floor: the nearest label of every answer, of empty
    ones, refusals and those that name several too; the first label where none is nearer.
    """
    texts = [answer_part(text) for text in texts]
    distinct = {text: by_form(text, labels, options, spellings) for text in dict.fromkeys(texts)}
    open_texts = [
        text for text, label in distinct.items() if label is None or (nearest and not label.name)
    ]
    if encoder is not None and open_texts:
        least = -np.inf if nearest else encoder.floor if floor is None else floor
        if least is None:
            raise InputError(
                f"text encoder {encoder.name} has no floor; put options.floor into its registry"
                " entry, or let `sdgbias analyse --encoder` find it"
            )
        classes = encoder.embed([plain_form(name) for name in labels])
        similar = encoder.embed(open_texts) @ classes.T  # (M, L)
        best = similar.argmax(axis=1)
        for text, at, row in zip(open_texts, best, similar, strict=True):
            close = float(row[at])
            distinct[text] = (
                Label(labels[at], "cosine", close)
                if close >= least
                else Label("", "unparsed", close)
            )
    return [distinct[text] or Label("", "unparsed") for text in texts]


class LetterGrams:
    """The packaged encoder: hashed counts of 3- to 5-letter pieces of words. It sees spelling
    ("guitarists", "gutarist"), not meaning: a synonym that is written differently stays
    ``unparsed``. Needs no weights and gives the same numbers everywhere."""

    name = "letter-grams"
    #: Of 526 answers that mean another thing 0.4 % [0.1, 1.4] are read as a class, of 308 misspelt
    #: classes 25 % [20, 30] as theirs; at 0.5 it would be 5.7 % [4.0, 8.0] and 55 % [49, 60]
    #: (suites/facet_floor.py).
    floor = 0.65
    width = 4096

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, 4096) float32 unit rows."""
        out = np.zeros((len(texts), self.width), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            for word in re.findall(r"[^\W_]+", text.casefold()):
                padded = f" {word} "
                for size in (3, 4, 5):
                    for at in range(max(1, len(padded) - size + 1)):
                        row[zlib.crc32(padded[at : at + size].encode()) % self.width] += 1.0
        length = np.linalg.norm(out, axis=1, keepdims=True)
        return np.divide(out, length, out=out, where=length > 0)
