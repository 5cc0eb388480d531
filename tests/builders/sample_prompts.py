"""Prompts in the shape of the suite's own, over made-up pictures: what the tests of vLLM
score."""

from __future__ import annotations

import hashlib
import io
from functools import cache

import numpy as np
from PIL import Image

from sdgbias.types import DIGITS, Prompt

QUESTIONS = (
    (
        "What share of households has electricity?",
        "A. below 31 %; B. 31 to under 49 %; C. 49 % or more",
    ),
    (
        "How high is the infant mortality around this place?",
        "A. below 20 per 1,000; B. 20 to under 60 per 1,000; C. 60 per 1,000 or more",
    ),
    (
        "How many years do children go to school here?",
        "A. below 5 years; B. 5 to under 9 years; C. 9 years or more",
    ),
)
MCQ_TAIL = (
    "VALID OPTIONS: A, B, C\nSTRICT OUTPUT: Return EXACTLY ONE uppercase letter from VALID OPTIONS."
)
NUMBER_TAIL = "Answer strictly with a single numerical value. Round to 1 decimal place."


@cache
def picture(number: int) -> bytes:
    """PNG of a made-up settlement: a few bright blocks on noise."""
    random = np.random.default_rng(number)
    pixels = random.integers(0, 90, (224, 224, 3), dtype=np.uint8)
    for row, column in random.integers(0, 200, (4 + 3 * number % 20, 2)):
        pixels[row : row + 14, column : column + 14] = random.integers(90, 256, 3)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def contexts(place: int) -> list[str]:
    """Full, reduced, name-only and no context of one place."""
    known = f"asset_index={-2 + 0.3 * place:.1f}, sanitation_index={1.1 + 0.2 * place:.1f}"
    side = "Urban" if place % 2 else "Rural"
    return [
        (
            f"Context: Given: {known}, under_5_mortality_rate={40 + 7.3 * place:.1f},"
            f" woman_education_years={place % 9}.5, urban={side}\n"
        ),
        f"Context: Given: {known}, urban={side}\n",
        "Context: You may consider: asset_index, sanitation_index, urban\n",
        "",
    ]


def prompts_of(place: int) -> list[Prompt]:
    """What is asked about one place, with its picture and then without: the order of a score
    plan."""
    image = picture(place)
    shown = [((image,), hashlib.sha256(image).hexdigest()), ((), "")]
    found = []
    for images, image_id in shown:
        for question, options in QUESTIONS:
            texts = [
                f"Question: {question}\n{context}Options: {options}\n{MCQ_TAIL}"
                for context in contexts(place)
            ]
            found += [Prompt(text, "ABC", images, image_id) for text in texts]
        texts = [
            f"Question: How many children does a woman have here?\n{context}{NUMBER_TAIL}"
            for context in contexts(place)[1::2]
        ]
        found += [Prompt(text, DIGITS, images, image_id) for text in texts]
    return found


def sample_prompts(places: int) -> list[Prompt]:
    """28 prompts per place, half of them with its picture; every picture-free prompt once."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for prompt in (prompt for place in range(places) for prompt in prompts_of(place)):
        if (prompt.text, prompt.image_id) not in seen:
            seen.add((prompt.text, prompt.image_id))
            kept.append(prompt)
    return kept
