"""Answers to labels: which step reads what, and what stays unread."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods.labels import OPTIONS, Label, LetterGrams, encode
from sdgbias.raw.facet import CLASSES, SPELLINGS


@pytest.mark.parametrize(
    ("said", "name", "how"),
    [
        ("nurse", "nurse", "exact"),
        ('"nurse"', "nurse", "exact"),
        ("'nurse'.", "nurse", "exact"),
        ("Nurse", "nurse", "normalised"),
        ("basketball player", "basketball_player", "normalised"),
        ("A basketball-player.", "basketball_player", "normalised"),
        ("The person is a nurse.", "nurse", "normalised"),
        ("nurses", "nurse", "normalised"),
        ("Nurse, doctor", "", "several"),
        ("", "", "empty"),
        (' "" ', "", "empty"),
        ("I'm sorry, I can't help with identifying people.", "", "refusal"),
        ("A hair dresser.", "hairdresser", "normalised"),
        ("basketballplayer", "basketball_player", "normalised"),
        ("A labourer", "laborer", "normalised"),
        ("I see a flautist.", "flutist", "normalised"),
        ("DJ", "disk_jockey", "normalised"),
        ("infirmière", "", "unparsed"),
        ("pilot", "", "unparsed"),
        ("guardian", "", "unparsed"),
    ],
)
def test_direct_answers(said: str, name: str, how: str) -> None:
    found = encode([said], CLASSES, spellings=SPELLINGS)[0]
    assert (found.name, found.how) == (name, how)


@pytest.mark.parametrize(
    ("said", "name", "how"),
    [
        ("A", "yes", "option"),
        ("B. No", "no", "option"),
        ("(C)", "unknown", "option"),
        ("Yes", "yes", "normalised"),
        ("Yes, there is a nurse in the image.", "yes", "normalised"),
        ("No, this is not a nurse", "no", "normalised"),
        ("It is hard to tell from the picture", "unknown", "normalised"),
        ("I cannot identify people.", "", "refusal"),
        ("The answer is B", "no", "option"),
        ("A nurse stands there", "", "unparsed"),
        ("oui", "", "unparsed"),
    ],
)
def test_choices(said: str, name: str, how: str) -> None:
    found = encode([said], ["yes", "no", "unknown"], options=OPTIONS)[0]
    assert (found.name, found.how) == (name, how)


class Toy:
    """Two axes: 'medical' words and the rest."""

    name = "toy"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.array(
            [[1.0, 0.0] if any(w in t for w in ("nurse", "infirm")) else [0.6, 0.8] for t in texts],
            dtype=np.float32,
        )


def test_meaning_comes_last_has_a_floor_and_is_asked_once_per_text() -> None:
    toy = Toy()
    said = ["infirmière", "nurse", "infirmière", "boat"]
    found = encode(said, ["nurse", "sailor"], toy, floor=0.9)
    assert [label.how for label in found] == ["cosine", "exact", "cosine", "cosine"]
    assert [label.name for label in found] == ["nurse", "nurse", "nurse", "sailor"]
    assert toy.asked == ["nurse", "sailor", "infirmière", "boat"]
    low = encode(["infirmière"], ["sailor"], toy, floor=0.9)[0]
    assert (low.name, low.how) == ("", "unparsed") and low.similarity == pytest.approx(0.6)


def test_the_nearest_label_of_every_answer_is_the_papers_reading() -> None:
    said = ["a tall ship", "nurse, sailor", "I'm sorry, I can't help with that", "", "nurse"]
    found = encode(said, ["sailor", "nurse"], Toy(), nearest=True)
    assert [label.name for label in found] == ["sailor", "nurse", "sailor", "sailor", "nurse"]
    assert [label.how for label in found] == ["cosine", "cosine", "cosine", "cosine", "exact"]
    alike = encode(["12.5"], ["sailor", "pilot"], Toy(), nearest=True)[0]
    assert (alike.name, alike.how) == ("sailor", "cosine"), "the first of two that are equally near"
    assert encode(["stud"], CLASSES, LetterGrams(), nearest=True)[0].name == "student"


def test_the_packaged_encoder_reads_spelling() -> None:
    encoder = LetterGrams()
    vectors = encoder.embed(["guitarist", "gitarist", "nurse", ""])
    assert np.allclose(np.linalg.norm(vectors, axis=1), [1, 1, 1, 0])
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    assert encode(["gitarrist"], CLASSES, encoder, floor=0.3)[0] == Label(
        "guitarist", "cosine", pytest.approx(0.375)
    )
    assert encode(["zzz"], CLASSES, encoder)[0].how == "unparsed"


def test_a_label_inside_thoughts_is_none() -> None:
    aloud = "<think>A nurse? No.</think>"
    found = encode(
        [f"{aloud}a doctor", f"{aloud}dokctor", aloud],
        ["nurse", "doctor"],
        LetterGrams(),
        floor=0.3,
    )
    assert [label.name for label in found] == ["doctor", "doctor", ""]
    assert [label.how for label in found] == ["normalised", "cosine", "empty"]
