"""From annotated pictures to a benchmark folder of the second suite: people, images, questions,
prompts, card.

The folder has the layout of the first suite (images in shards, quarantine, benchmark.json), so that
plan, engines, cache and store work on it unchanged. The questions are in people_items.py; a person
without a usable image is quarantined with a reason.

The second suite asks about images of people with annotated, perceived attributes (Wu et al.,
FACET).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.benchmark import people_items, quality
from sdgbias.benchmark.build import refuse_other_suite, write_table
from sdgbias.benchmark.card import content_digest
from sdgbias.benchmark.card.figures import counts
from sdgbias.errors import InputError
from sdgbias.files import FileError, writable, write_json
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.facet import GROUPS, Annotations, clip_box, find_files, read_annotations
from sdgbias.raw.images.composite import open_picture
from sdgbias.raw.images.shards import store_images
from sdgbias.raw.sources import sample_note
from sdgbias.types import FACET, QUARANTINE_COLUMNS

#: Licence of the pictures and labels; a synthetic folder says so in its README.txt.
LICENCE = "FACET, for evaluation only (Meta's terms)"
TABLES = ("people", "items_people", "prompts")
VAL_SHARE = 0.2
Box = tuple[float, float, float, float]


def split_of(image_id: str) -> str:
    """'val' for a fifth of the images, by hash; all questions about an image are on one side."""
    number = int(hashlib.sha256(f"split|{image_id}".encode()).hexdigest()[:15], 16)
    return "val" if number / 16**15 < VAL_SHARE else "test"


def read_people(source: Path) -> tuple[Annotations, dict[str, Path], dict[str, str]]:
    """(annotations, file name -> image path, file name -> rule of the unavailable ones). Raises
    InputError."""
    places = (source / "annotations" / "annotations.csv", source / "annotations.csv")
    tables = [path for path in places if path.is_file()]
    if not tables:
        raise InputError(
            f"{source}: no annotations/annotations.csv; unpack FACET's annotations there"
        )
    annotations = read_annotations(tables[0])
    files, lost = find_files(source, annotations.people["file"])
    return annotations, files, lost


@dataclass(frozen=True)
class PeopleDraw:
    """Which questions are asked of the people. selected_only: about people of the 13 classes of
    Table 2 alone; negatives: also about a class that the person doesn't have. list_seed: shuffles
    the list of classes in p1 for each question; None: one order for all."""

    seed: int = 0
    selected_only: bool = False
    negatives: bool = True
    list_seed: int | None = None


def build_people(
    source: Path,
    out: Path,
    *,
    draw: PeopleDraw = PeopleDraw(),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Build the benchmark folder ``out`` and return its card. The same source and questions give
    the same bytes.

    Raises InputError (source), UsageError (``out`` is another suite's), DataValidationError (a
    table rule of expectations/ is broken), StoreError (``out`` can't be written).
    """
    refuse_other_suite(out, FACET)
    annotations, files, lost = read_people(source)
    people = annotations.people
    missing = people["file"].map(lost).dropna()
    absent = people.loc[missing.index]
    gone = [annotations.quarantine, _left(absent["person_id"], missing, absent["file"])]
    people = people[people["file"].isin(files)].sort_values("person_id", ignore_index=True)
    faults: list[tuple[str, ...]] = []
    boxes: dict[str, Box] = {}

    def pictures() -> Iterator[tuple[str, str, list[bytes]]]:
        for row in each(progress, "reading pictures", people.to_dict("records")):
            person = row["person_id"]
            try:
                data, boxes[person] = _picture(files[row["file"]], row)
            except FileError as fault:
                faults.append(("people", person, fault.rule, str(fault)))
            else:
                yield person, row["file"], [data]

    with writable(out):
        (out / "benchmark.json").unlink(missing_ok=True)
    index = store_images(out, pictures())
    gone.append(pd.DataFrame(faults, columns=QUARANTINE_COLUMNS))
    people = people[people["person_id"].isin(boxes)].reset_index(drop=True)
    if people.empty:
        found_why = counts(pd.concat(gone, ignore_index=True)["rule"])
        reasons = ", ".join(f"{rule} {n}" for rule, n in found_why.items())
        raise InputError(
            f"{source}: no usable person; the reasons: {reasons or 'the table is empty'}"
        )
    people["image_id"] = people["person_id"].map(index.set_index("cluster_id")["image_id"])
    shared = people["image_id"].duplicated(keep=False)
    gone.append(_left(people["person_id"][shared], "picture-twice", people["image_id"][shared]))
    people = people[~shared].reset_index(drop=True)
    for at, name in enumerate("xywh"):
        people[name] = [boxes[person][at] for person in people["person_id"]]
    synthetic = bool(sample_note(source))
    people["dataset"] = "synthetic" if synthetic else "facet"
    people["split"] = people["image_id"].map(split_of)
    people, sifted = quality.sift("people", people)
    items = people_items.build_items(
        people, seed=draw.seed, selected_only=draw.selected_only, negatives=draw.negatives
    )
    items, sifted_items = quality.sift("items_people", items, {"people": people})
    prompts = people_items.build_prompts(items, list_seed=draw.list_seed)
    index = index[index["cluster_id"].isin(people["person_id"])]
    index = index.assign(image_group=index["image_id"])
    write_table(out, "people", people)
    write_table(out, "images", index)
    write_table(out, "items_people", items)
    write_table(out, "prompts", prompts)
    left = pd.concat([*gone, sifted, sifted_items], ignore_index=True).astype("str")
    left = left.sort_values(["table", "key", "rule"], kind="stable", ignore_index=True)
    write_table(out, "quarantine", left)
    card = _card(out, people, items, left, annotations.n_rows, synthetic)
    write_json(out / "benchmark.json", card)  # last: its presence marks the folder as complete
    return card


def _left(people: pd.Series, rule: pd.Series | str, detail: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"table": "people", "key": people, "rule": rule, "detail": detail})


def _picture(path: Path, row: dict[Any, Any]) -> tuple[bytes, Box]:
    """(the unchanged bytes of the image, the person's box inside it). Raises FileError where it
    doesn't decode or the box lies outside."""
    try:
        data = path.read_bytes()
        width, height = open_picture(data).size
    except Exception as error:  # any decoder error: the image can't be sent to a model
        raise FileError("image-corrupt", f"{row['file']}: {type(error).__name__}") from None
    box = (row["x"], row["y"], row["w"], row["h"])
    whole = (0.0, 0.0, float(width), float(height))
    clipped = clip_box(box, width, height) if row["w"] else whole
    if clipped is None:
        detail = f"{row['file']}: box {box} of a picture of {width} x {height}"
        raise FileError("box-outside", detail)
    return data, clipped


def _card(
    out: Path,
    people: pd.DataFrame,
    items: pd.DataFrame,
    left: pd.DataFrame,
    n_rows: int,
    synthetic: bool,
) -> dict[str, Any]:
    tables = "".join(content_digest(out / f"{name}.parquet") for name in TABLES)
    groups = {
        attribute: {group: int((people[attribute] == group).sum()) for group in (*names, "unknown")}
        for attribute, names in GROUPS.items()
    }
    why = {name: counts(people.loc[people[f"{name}_why"] != "", f"{name}_why"]) for name in GROUPS}
    return {
        "benchmark_id": hashlib.sha256(tables.encode()).hexdigest()[:16],
        "suite": FACET,
        "dataset": "synthetic" if synthetic else "facet",
        "synthetic": synthetic,
        "licence": "CC0 1.0" if synthetic else LICENCE,
        "counts": {
            "rows_annotated": n_rows,
            "people": len(people),
            "items_people": len(items),
            "classes": int(people.loc[people["class1"] != "", "class1"].nunique()),
            "splits": counts(people["split"]),
        },
        "groups": groups,
        "unknown_because": why,
        "quarantined": counts(left["rule"]),
    }
