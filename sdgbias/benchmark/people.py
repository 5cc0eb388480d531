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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.benchmark import people_items, quality
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import content_digest
from sdgbias.benchmark.card.figures import counts
from sdgbias.errors import InputError
from sdgbias.files import write_json
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.faces import read_fairface, read_utkface
from sdgbias.raw.facet import GROUPS, Annotations, clip_box, find_files, read_annotations
from sdgbias.raw.folders import sample_note
from sdgbias.raw.images.composite import open_picture
from sdgbias.raw.images.shards import store_images
from sdgbias.types import FACET, QUARANTINE_COLUMNS

DATASETS = ("facet", "fairface", "utkface")
#: Licences of the pictures and labels; a synthetic folder says so in its README.txt.
LICENCES = {
    "facet": "FACET, for evaluation only (Meta's terms)",
    "fairface": "CC BY 4.0",
    "utkface": "non-commercial research",
}
TABLES = ("people", "items_people", "prompts")
VAL_SHARE = 0.2


def split_of(image_id: str) -> str:
    """'val' for a fifth of the images, by hash; all questions about an image are on one side."""
    return (
        "val"
        if int(hashlib.sha256(f"split|{image_id}".encode()).hexdigest()[:15], 16) / 16**15
        < VAL_SHARE
        else "test"
    )


def read_people(source: Path, dataset: str) -> tuple[Annotations, dict[str, Path], dict[str, str]]:
    """(annotations, file name -> image path, file name -> rule of the unavailable ones). Raises
    InputError."""
    if dataset == "facet":
        table = next(
            (
                p
                for p in (source / "annotations" / "annotations.csv", source / "annotations.csv")
                if p.is_file()
            ),
            None,
        )
        if table is None:
            raise InputError(
                f"{source}: no annotations/annotations.csv; unpack FACET's annotations there"
            )
        found = read_annotations(table)
        files, lost = find_files(source, found.people["file"])
        return found, files, lost
    if dataset == "fairface":
        tables = sorted(source.glob("*label*.csv")) if source.is_dir() else [source]
        if len(tables) != 1:
            raise InputError(
                f"{source}: {len(tables)} label tables; name FairFace's table itself, e.g."
                " fairface_label_val.csv"
            )
        found, root = read_fairface(tables[0]), tables[0].parent
    else:
        found, root = read_utkface(source), source
    return found, {name: root / name for name in found.people["file"]}, {}


@dataclass(frozen=True)
class Asked:
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
    dataset: str = "facet",
    asked: Asked = Asked(),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Build the benchmark folder ``out`` and return its card. The same source and questions give
    the same bytes.

    Raises InputError (source), GateError (a table rule of expectations/ is broken), StoreError
    (``out`` can't be written).
    """
    found, files, lost = read_people(source, dataset)
    gone = [found.quarantine]
    gone.append(
        _left(
            found.people[found.people["file"].isin(lost)],
            lambda row: (lost[row["file"]], row["file"]),
        )
    )
    people = found.people[found.people["file"].isin(files)].sort_values(
        "person_id", ignore_index=True
    )
    faults: dict[str, tuple[str, str]] = {}
    boxes: dict[str, tuple[float, float, float, float]] = {}

    def pictures() -> Iterator[tuple[str, str, list[bytes]]]:
        for row in each(progress, "reading pictures", people.to_dict("records")):
            data = _picture(files[row["file"]], row, faults, boxes)
            if data is not None:
                yield row["person_id"], row["file"], [data]

    index = store_images(out, pictures())
    gone.append(
        _left(people[people["person_id"].isin(faults)], lambda row: faults[row["person_id"]])
    )
    people = people[~people["person_id"].isin(faults)].reset_index(drop=True)
    if people.empty:
        raise InputError(
            f"{source}: no usable person; the reasons:"
            f" {_reasons(pd.concat(gone, ignore_index=True))}"
        )
    people["image_id"] = people["person_id"].map(index.set_index("cluster_id")["image_id"])
    shared = people["image_id"].duplicated(keep=False)
    gone.append(_left(people[shared], lambda row: ("picture-twice", row["image_id"])))
    people = people[~shared].reset_index(drop=True)
    for at, name in enumerate("xywh"):
        people[name] = [boxes[person][at] for person in people["person_id"]]
    synthetic = bool(sample_note(source))
    people["dataset"], people["split"] = (
        "synthetic" if synthetic else dataset,
        people["image_id"].map(split_of),
    )
    people, sifted = quality.sift("people", people)
    items = people_items.build_items(
        people, seed=asked.seed, selected_only=asked.selected_only, negatives=asked.negatives
    )
    items, sifted_items = quality.sift("items_people", items, {"people": people})
    prompts = people_items.build_prompts(items, list_seed=asked.list_seed)
    index = index[index["cluster_id"].isin(people["person_id"])].assign(
        image_group=lambda t: t["image_id"]
    )
    write_table(out, "people", people)
    write_table(out, "images", index)
    write_table(out, "items_people", items)
    write_table(out, "prompts", prompts)
    left = pd.concat([*gone, sifted, sifted_items], ignore_index=True).astype("str")
    write_table(
        out,
        "quarantine",
        left.sort_values(["table", "key", "rule"], kind="stable", ignore_index=True),
    )
    card = _card(out, people, items, left, found.n_rows, dataset, synthetic)
    write_json(out / "benchmark.json", card)  # last: its presence marks the folder as complete
    return card


def _left(rows: pd.DataFrame, why: Callable[[dict[Any, Any]], tuple[str, str]]) -> pd.DataFrame:
    gone = [("people", row["person_id"], *why(row)) for row in rows.to_dict("records")]
    return pd.DataFrame(gone, columns=QUARANTINE_COLUMNS)


def _picture(
    path: Path,
    row: dict[Any, Any],
    faults: dict[str, tuple[str, str]],
    boxes: dict[str, tuple[float, float, float, float]],
) -> bytes | None:
    """The unchanged bytes of the image if they decode and the person's box lies inside; else None,
    with the fault noted."""
    person = row["person_id"]
    try:
        data = path.read_bytes()
        size = open_picture(data).size
    except Exception as error:  # any decoder error: the image can't be sent to a model
        faults[person] = ("image-corrupt", f"{row['file']}: {type(error).__name__}")
        return None
    box = (row["x"], row["y"], row["w"], row["h"])
    clipped = clip_box(box, *size) if row["w"] else (0.0, 0.0, float(size[0]), float(size[1]))
    if clipped is None:
        faults[person] = (
            "box-outside",
            f"{row['file']}: box {box} of a picture of {size[0]} x {size[1]}",
        )
        return None
    boxes[person] = clipped
    return data


def _reasons(quarantine: pd.DataFrame) -> str:
    found = counts(quarantine["rule"])
    return ", ".join(f"{rule} {n}" for rule, n in found.items()) or "the table is empty"


def _card(
    out: Path,
    people: pd.DataFrame,
    items: pd.DataFrame,
    left: pd.DataFrame,
    n_rows: int,
    dataset: str,
    synthetic: bool,
) -> dict[str, Any]:
    digest = hashlib.sha256(
        "".join(content_digest(out / f"{name}.parquet") for name in TABLES).encode()
    ).hexdigest()[:16]
    groups = {
        attribute: {group: int((people[attribute] == group).sum()) for group in (*names, "unknown")}
        for attribute, names in GROUPS.items()
    }
    why = {name: counts(people.loc[people[f"{name}_why"] != "", f"{name}_why"]) for name in GROUPS}
    return {
        "benchmark_id": digest,
        "suite": FACET,
        "dataset": "synthetic" if synthetic else dataset,
        "synthetic": synthetic,
        "licence": "CC0 1.0" if synthetic else LICENCES[dataset],
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
