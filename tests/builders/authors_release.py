"""A folder in the layout of the authors' dataset on the hub, with questions of drawn places.

    write(folder, questions=100, numbers=40)

data/mcq_T1..T5.jsonl, data/regression_T2.jsonl and regression_T5.jsonl, images/, images/blank.png;
each record has the authors' 16 fields and its whole prompt as `question`."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from sdgbias.benchmark.prompts import MCQ_TAIL, REGRESSION_TAIL
from sdgbias.types import PILLARS

INDICATORS = (
    ("Stunting", "What is the stunting level of this place?"),
    ("Access to electricity (SDG 7.1.1)", "What is the level of access to electricity here?"),
    ("Female lower-secondary completion", "How many girls complete lower secondary school here?"),
)
TARGETS = ("under5_mort", "women_bmi", "asset_index", "sanitation_index", "women_edu")
CONTEXTS = {
    "T1": "Given: asset_index={v}, water_index=3.2, urban=Rural",
    "T2": "Given: asset_index={v}, urban=Rural",
    "T3": "You may consider: asset_index, water_index, urban",
    "T4": "You may consider: asset_index, urban",
}
OPTIONS = ("below 20 %", "20 % to under 30 %", "30 % or more")


def write(
    folder: Path, questions: int, numbers: int, pictures: int | None = None, seed: int = 0
) -> None:
    """``questions`` multiple-choice ones under five tests and ``numbers`` under two, about
    ``pictures`` places (default: one in four questions)."""
    places = pictures or max(5, questions // 4)
    (folder / "data").mkdir(parents=True)
    (folder / "images").mkdir()
    draw = random.Random(seed)
    for place in range(places):
        colour = draw.randrange(256), draw.randrange(256), draw.randrange(256)
        _save(folder / "images" / f"{place:06d}.jpg", Image.effect_noise((24, 24), 60), colour)
    _save(folder / "images" / "blank.png", None, (255, 255, 255))
    for test in ("T1", "T2", "T3", "T4", "T5"):
        _lines(folder / "data" / f"mcq_{test}.jsonl", _choices(questions, places, test))
    for test in ("T2", "T5"):
        _lines(folder / "data" / f"regression_{test}.jsonl", _numbers(numbers, places, test))


def _save(path: Path, noise: Image.Image | None, colour: tuple[int, int, int]) -> None:
    image = Image.new("RGB", (24, 24), colour)
    if noise is not None:
        image = Image.blend(image, noise.convert("RGB"), 0.3)
    data = io.BytesIO()
    image.save(data, "JPEG" if path.suffix == ".jpg" else "PNG")
    path.write_bytes(data.getvalue())


def _lines(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _context(test: str, value: float) -> str:
    return f"Context: {CONTEXTS[test].format(v=value)}\n" if test in CONTEXTS else ""


def _choices(n: int, places: int, test: str) -> Iterator[dict[str, Any]]:
    options = "; ".join(f"{letter}. {text}" for letter, text in zip("ABC", OPTIONS, strict=True))
    for item in range(n):
        at = item % 3
        name, question = INDICATORS[at]
        yield {
            "id": f"mcq_{test}_{item}",
            "item_id": item,
            "image": f"images/{item % places:06d}.jpg",
            "question": f"Question: {question}\n{_context(test, item % 7 / 2)}Options: {options}\n"
            f"VALID OPTIONS: A, B, C\n{MCQ_TAIL}",
            **dict(zip("ABC", OPTIONS, strict=True)),
            "answer": "ABC"[item // 3 % 3],
            "split": "val" if item % 5 == 0 else "test",
            "level": test,
            "pillar": PILLARS[at],
            "indicator": name,
            "task": "mcq",
            "task_name": name,
            "target": None,
            "num_options": 3,
        }


def _numbers(n: int, places: int, test: str) -> Iterator[dict[str, Any]]:
    for item in range(n):
        target = TARGETS[item % len(TARGETS)]
        yield {
            "id": f"regression_{test}_{item}",
            "item_id": item,
            "image": f"images/{item % places:06d}.jpg",
            "question": f"Question: What is the value of {target} here?\n"
            f"{_context(test, item % 7 / 2)}{REGRESSION_TAIL}",
            "answer": round(item % 37 * 0.7 + 1, 1),
            "split": "val" if item % 5 == 0 else "test",
            "level": test,
            "pillar": PILLARS[item % 3],
            "indicator": f"Estimation of {target}",
            "task": "regression",
            "task_name": f"Estimation of {target}",
            "target": target,
            "num_options": None,
        }
