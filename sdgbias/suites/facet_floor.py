"""The floor of a text encoder: the similarity that an answer needs to be mapped to a class.

The paper has no floor and takes the nearest class for every answer (App. A.2). Here it is
calibrated on answers with known labels (data/people_answers.yaml and misspellings of the class
names), by one rule for every encoder: the lowest floor at which at most ``WRONG`` of the answers
that mean no class of the list, or that class in another language, are mapped to a wrong class. Its
cost is reported too: the share of misspelt class names that are still recognised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdgbias.files import packaged_yaml
from sdgbias.methods import stats
from sdgbias.methods.labels import TextEncoder, by_form, plain_form
from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import CLASSES

WRONG = 0.01
FLOORS = tuple(round(0.05 * k, 2) for k in range(1, 20))
SLIPS = 6


@dataclass(frozen=True)
class Answer:
    """text; labels: the list in the prompt; right: the label that it means, '' for none; strict:
    leaving it unmapped is a miss."""

    text: str
    labels: tuple[str, ...]
    right: str
    strict: bool


@dataclass(frozen=True)
class Curve:
    """By floor: wrong (share of the non-strict answers mapped to a wrong class), read (share of the
    misspelt names mapped to their class)."""

    floors: tuple[float, ...]
    wrong: tuple[Estimate, ...]
    read: tuple[Estimate, ...]

    @property
    def floor(self) -> float:
        """The lowest floor with at most WRONG wrong; the highest of all if none qualifies."""
        return next(
            (f for f, e in zip(self.floors, self.wrong, strict=True) if e.value <= WRONG),
            self.floors[-1],
        )


def slips(name: str) -> list[str]:
    """Six misspellings of a name with one slip each: a letter omitted, doubled, changed, or swapped
    with the next; by hash of the name."""
    words: list[str] = []
    for turn in range(40):
        digest = hashlib.sha256(f"{name}|{turn}".encode()).digest()
        at, kind, letter = 1 + digest[0] % (len(name) - 2), digest[1] % 4, chr(97 + digest[2] % 26)
        rest = name[at + 1 :]
        word = (
            name[:at] + rest,
            name[: at + 1] + name[at] + rest,
            name[:at] + letter + rest,
            name[:at] + rest[:1] + name[at] + rest[1:],
        )[kind]
        if word != name and word not in words:
            words.append(word)
    return words[:SLIPS]


def answers() -> list[Answer]:
    """Every answer that its form alone doesn't settle (methods/labels.by_form): only these reach an
    encoder."""
    file = packaged_yaml("people_answers.yaml")
    everything = tuple(CLASSES)
    cases = [Answer(text, everything, "", False) for text in (*file["others"], *file["sentences"])]
    cases += [
        Answer(text, everything, name, False)
        for name, texts in file["elsewhere"].items()
        for text in texts
    ]
    for name in CLASSES:
        rest = tuple(c for c in CLASSES if c != name)
        for text in slips(plain_form(name)):
            cases += [Answer(text, everything, name, True), Answer(text, rest, "", False)]
        cases.append(Answer(plain_form(name), rest, "", False))
    return [a for a in cases if by_form(a.text, a.labels) is None]


def calibrate(encoder: TextEncoder, floors: Sequence[float] = FLOORS) -> Curve:
    """The curve of an encoder. Each distinct text is embedded once."""
    cases = answers()
    texts = list(dict.fromkeys(a.text for a in cases))
    classes = encoder.embed([plain_form(name) for name in CLASSES])  # (52, D)
    similar = dict(zip(texts, encoder.embed(texts) @ classes.T, strict=True))  # text -> (52,)
    place = {name: i for i, name in enumerate(CLASSES)}
    nearest, close = [], []
    for a in cases:
        row = similar[a.text][[place[name] for name in a.labels]]
        nearest.append(a.labels[int(row.argmax())])
        close.append(float(row.max()))
    near, strict = np.array(close), np.array([a.strict for a in cases])
    right = np.array([name == a.right for name, a in zip(nearest, cases, strict=True)])
    text_of = np.array([a.text for a in cases])

    def share(hits: np.ndarray, rows: np.ndarray) -> Estimate:
        return stats.share(hits[rows], text_of[rows])

    wrong = tuple(share(~right & (near >= f), ~strict) for f in floors)
    return Curve(tuple(floors), wrong, tuple(share(right & (near >= f), strict) for f in floors))
