"""A folder of custom questions -> a benchmark folder: items_own, images, prompts, card.

The same folder gives the same bytes. benchmark.json is removed first and written last: its presence
marks the folder as complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import templates
from sdgbias.benchmark import quality
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import content_digest
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.own import Folder, read_folder
from sdgbias.benchmark.own_spec import SuiteFile
from sdgbias.benchmark.prompts import own_prompts
from sdgbias.errors import StoreError, SuiteError, UsageError
from sdgbias.files import confine, json_object, write_atomically, write_json
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images import shards
from sdgbias.types import OPTION_LETTERS

#: Field `kind` of the card.
KIND = "own"
#: The tables that define such a benchmark's identity.
TABLES = ("items_own", "images", "prompts")
OPTIONS = [f"option_{letter.lower()}" for letter in OPTION_LETTERS]
_DIGESTED = {"images": ("cluster_id", "image_id")}


def build_own(folder: Path, out: Path, progress: Progress = silent) -> dict[str, Any]:
    """Build the benchmark folder ``out`` and return its card. The command line runs the quality
    check (quality.run_gate) afterwards.

    Raises SuiteError (the folder has faults), UsageError (``out`` is the folder itself or another
    suite's benchmark), DataValidationError (a row breaks a rule), StoreError (``out`` can't be
    written).
    """
    source = read_folder(folder, progress)
    if source.faults or source.suite is None:
        raise SuiteError(refusal(source))
    spec = source.suite
    _require_target(folder, out, spec)
    images, image_ids = _store(source, out, progress)
    items = _items(source, spec, image_ids)
    prompts = own_prompts(items, source.has_context)
    items, lost = quality.sift("items_own", items, {"images_own": images, "prompts_own": prompts})
    write_table(out, "items_own", items)
    write_table(out, "images", images)
    write_table(out, "prompts", prompts)
    write_table(out, "quarantine", lost)
    card = _card(out, source, spec, items)
    page = templates.render("benchmark/card/own_readme.md.j2", **card, summary=summary(card))
    write_atomically(out / "README.md", page)
    write_json(out / "benchmark.json", card)
    return card


def refusal(source: Folder) -> str:
    """The error line for a folder with faults."""
    n = len(source.faults)
    more = f"{n} faults, the first: " if n > 1 else ""
    return f"{source.root}: {more}{source.faults[0]}; list all: sdgbias suite check {source.root}"


def item_id(name: str, identity: str) -> int:
    """The number of a question in tables and results: 52 bits, exact in every number type."""
    digest = hashlib.sha256("\x1f".join((KIND, name, identity)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 12


def _require_target(folder: Path, out: Path, spec: SuiteFile) -> None:
    if out.resolve() == folder.resolve():
        raise UsageError(f"--out {out}: is the folder of questions itself; name another folder")
    card = out / "benchmark.json"
    if not card.exists():
        return
    earlier = json_object(card)
    if earlier.get("kind") != KIND or earlier.get("suite") != spec.name:
        raise UsageError(f"--out {out}: holds another benchmark; name another folder")
    try:
        card.unlink()
    except OSError as error:
        raise StoreError(f"{card}: can't be replaced ({error.strerror or error})") from None


def _store(source: Folder, out: Path, progress: Progress) -> tuple[pd.DataFrame, dict[str, str]]:
    """Writes the image store; returns images.parquet, in which each distinct image stands once,
    under the first path with its bytes, and the image id of every path."""
    ids, stored = {"": ""}, set()

    def pictures() -> Iterator[tuple[str, str, list[bytes]]]:
        paths = sorted(set(source.questions["image"]) - {""})
        for name in each(progress, "storing pictures", paths):
            data = confine(source.root, name).read_bytes()
            ids[name] = shards.image_id([data])
            if ids[name] not in stored:
                stored.add(ids[name])
                yield name, name, [data]

    index = shards.store_images(out, pictures())
    return index.assign(image_group=index["image_id"]), ids


def _items(source: Folder, spec: SuiteFile, image_ids: dict[str, str]) -> pd.DataFrame:
    """items_own.parquet: one row per question, sorted by item_id."""
    rows = source.questions
    padded = [(*texts, *[""] * (len(OPTIONS) - len(texts))) for texts in rows["options"]]
    groups = rows[[f"group {name}" for name in spec.groups]].set_axis(list(spec.groups), axis=1)
    items = pd.DataFrame(
        {
            "item_id": [item_id(spec.name, identity) for identity in rows["id"]],
            **{"own_id": rows["id"], "cluster_id": rows["cluster"], "question": rows["question"]},
            "context": rows["context"],
            **pd.DataFrame(padded, index=rows.index, columns=OPTIONS),
            **{"answer": rows["answer"], "polarity": spec.polarity, "split": rows["split"]},
            **{"image_id": rows["image"].map(image_ids), "picture": rows["image"]},
            "groups": [json.dumps(row, ensure_ascii=False) for row in groups.to_dict("records")],
        }
    )
    return items.sort_values("item_id", ignore_index=True)


def _card(out: Path, source: Folder, spec: SuiteFile, items: pd.DataFrame) -> dict[str, Any]:
    digest = hashlib.sha256(f"{spec.name}|{spec.version}".encode())
    for name in TABLES:
        path = out / f"{name}.parquet"
        digest.update(content_digest(path, _DIGESTED.get(name, ())).encode())
    rows = source.questions
    groups = {name: counts(rows[f"group {name}"]) for name in spec.groups}
    return {
        "benchmark_id": digest.hexdigest()[:16],
        "suite": spec.name,
        "kind": KIND,
        "title": spec.title,
        "version": spec.version,
        "licence": "",
        "synthetic": False,
        "cluster_by": spec.cluster_by,
        "polarity": spec.polarity,
        "views": [view.value for view in source.views],
        "views_left_out": {view.value: why for view, why in source.left_out.items()},
        "cade_left_out": source.no_cade,
        "notes": list(source.notes),
        "groups": groups,
        "counts": {
            "items_own": len(items),
            "clusters": int(items["cluster_id"].nunique()),
            "pictures": int(items.loc[items["image_id"] != "", "image_id"].nunique()),
            "options": counts(rows["options"].map(len)),
            "splits": counts(rows["split"]),
        },
        "quarantined": {},
    }


def summary(card: dict[str, Any]) -> str:
    """A card in one line."""
    counts = card["counts"]
    options = sorted(int(k) for k in counts["options"])
    span = f"{options[0]}" if len(options) == 1 else f"{options[0]} to {options[-1]}"
    splits = ", ".join(f"{n} {name}" for name, n in counts["splits"].items())
    return (
        f"{counts['items_own']} questions with {span} options ({splits}), {counts['pictures']}"
        f" pictures, {counts['clusters']} clusters, views {', '.join(card['views'])}"
    )
