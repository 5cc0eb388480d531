"""Folders of own questions for tests, written as a person would."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

YAML = """\
name: dots
title: Counting dots
version: 1
items: items.csv
columns: {id: id, question: question, options: [a, b, c], answer: answer, image: picture, context: hint, split: split}
cluster_by: batch
groups: [colour]
"""  # noqa: E501
HEADER = "id,question,a,b,c,answer,picture,hint,split,batch,colour"
LEAST = """\
name: least
title: The least
version: 1
items: {items}
columns: {{id: id, question: question, options: [{options}], answer: answer}}
"""


def png(colour: tuple[int, int, int] = (200, 40, 40), side: int = 32) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(out, "PNG")
    return out.getvalue()


def rows(n: int = 40) -> list[str]:
    """n questions in 10 batches about 5 pictures: the answer is a letter in even rows, a text in
    odd ones."""
    found = []
    for i in range(n):
        answer = ("A", "two", "C")[i % 3] if i % 2 == 0 else ("one", "two", "three")[i % 3]
        split = "val" if i % 10 < 3 else "test"
        colour = "red" if i % 4 < 2 else "blue"
        found.append(
            f"q{i},How many dots are in picture {i}?,one,two,three,{answer},pictures/{i % 5}.png,"
            f"batch {i % 10} was scanned,{split},b{i % 10},{colour}"
        )
    return found


def write(
    folder: Path, yaml: str = YAML, table: str | None = None, name: str = "items.csv"
) -> Path:
    """A folder without faults, unless ``yaml`` or ``table`` say otherwise."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for i in range(5):
        (folder / "pictures" / f"{i}.png").write_bytes(png((40 * i, 90, 200 - 30 * i)))
    (folder / "suite.yaml").write_text(yaml, encoding="utf-8")
    text = "\n".join([HEADER, *rows()]) + "\n" if table is None else table
    (folder / name).write_text(text, encoding="utf-8")
    return folder
