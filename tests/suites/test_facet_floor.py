"""The floor of a text encoder: set by one rule on answers whose right reading is known, and what it
costs stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from sdgbias.methods.labels import LetterGrams, by_form, encode, plain_form
from sdgbias.raw.facet import CLASSES
from sdgbias.suites.facet_floor import WRONG, answers, calibrate, slips


class Blind:
    """Finds every text equally close to the first class."""

    name, floor = "blind", None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.tile(np.array([1.0, 0.0], dtype=np.float32), (len(texts), 1))


class Knowing:
    """Knows misspelt classes for what they are, at a cosine of 0.8, and nothing else: the best that
    there is."""

    name, floor = "knowing", None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        of = {text: i for i, c in enumerate(CLASSES) for text in slips(plain_form(c))}
        rows = np.zeros((len(texts), len(CLASSES) + 1), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            named = [i for i, c in enumerate(CLASSES) if plain_form(c) == text]
            if named:
                row[named[0]] = 1.0
            else:
                row[of.get(text, -1)], row[-1] = 0.8, 0.6
        return rows


def test_answers_are_those_that_form_leaves_open() -> None:
    asked = answers()
    assert all(by_form(a.text, a.labels) is None for a in asked)
    strict = [a for a in asked if a.strict]
    assert {a.right for a in strict} == set(CLASSES) and all(a.right in a.labels for a in strict)
    lacking = [a for a in asked if len(a.labels) == 51]
    assert len(lacking) > 200 and all(a.right == "" for a in lacking)
    assert {a.right for a in asked if a.text == "infirmière"} == {"nurse"} and {
        a.right for a in asked if a.text == "pilot"
    } == {""}
    assert asked == answers()


def test_the_packaged_floor_is_the_calibrated_one() -> None:
    curve = calibrate(LetterGrams())
    assert curve.floor == LetterGrams.floor
    at = dict(zip(curve.floors, zip(curve.wrong, curve.read, strict=True), strict=True))
    assert at[0.65][0].value <= WRONG < at[0.6][0].value
    # the figures that encoding.py and docs/explanation/fairness.md quote
    assert [
        (f"{100 * w.value:.1f}", f"{100 * r.value:.0f}", w.n, r.n) for w, r in (at[0.65], at[0.5])
    ] == [("0.4", "25", 526, 308), ("5.7", "55", 526, 308)]
    assert all(
        a.value >= b.value for curve_of in (curve.wrong, curve.read) for a, b in pairwise(curve_of)
    )


def test_an_encoder_without_a_floor_reads_nothing_by_meaning() -> None:
    assert calibrate(Blind()).floor == 0.95, (
        "no floor is high enough: the highest, with its share of wrong ones beside it"
    )
    best = calibrate(Knowing(), [0.1, 0.5, 0.9])
    assert [e.value for e in best.read] == [1.0, 1.0, 0.0]
    with pytest.raises(Exception, match=r"text encoder blind has no floor; put options.floor"):
        encode(["skiing"], CLASSES, Blind())
    assert encode(["skiing"], CLASSES, Blind(), floor=0.9)[0].name == CLASSES[0]
