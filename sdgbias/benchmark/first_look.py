"""A few questions of a benchmark as a benchmark of its own, for a first look at a model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pandas as pd

from sdgbias.errors import InputError
from sdgbias.files import writable

#: One question in so many is of the validation split, if the benchmark has one.
VAL = 5


def first_look(benchmark: Path, folder: Path, n: int) -> Path:
    """A benchmark of ``n`` questions of each kind below ``folder``, written unless it is there; its
    path.

    The questions are those with the smallest sha256 of their id, a fifth of them of the validation
    split, so that the same call gives the same questions and a larger ``n`` contains them. Pictures
    are hard links where the file system has them. The card keeps its suite and gets an id of its
    own, with ``first_look``. Raises InputError for a folder without questions, StoreError where
    nothing can be written.
    """
    card = json.loads((benchmark / "benchmark.json").read_text(encoding="utf-8"))
    out = folder / f"{card['benchmark_id']}-{n}"
    if (out / "benchmark.json").is_file():
        return out
    tables = sorted(benchmark.glob("items*.parquet"))
    if not tables:
        raise InputError(f"{benchmark}: no table of questions; build the benchmark again")
    part = out.with_name(f"{out.name}.part")
    with writable(out, "name a results file in a folder that can be: --results FILE"):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        kept = {}
        for path in tables:
            items = pd.read_parquet(path)
            chosen = items[items["item_id"].isin(_draw(items, n))]
            chosen.to_parquet(part / path.name, index=False)
            kept[path.stem.removeprefix("items").removeprefix("_")] = set(chosen["item_id"])
        anywhere = set().union(*kept.values())
        for path in benchmark.glob("prompts*.parquet"):
            prompts = pd.read_parquet(path)
            chosen_rows = [
                item in kept.get(task, anywhere)
                for task, item in zip(prompts["task"], prompts["item_id"], strict=True)
            ]
            prompts[chosen_rows].to_parquet(part / path.name, index=False)
        for path in benchmark.glob("*.parquet"):
            if not (part / path.name).exists():
                _link(path, part / path.name)
        for path in benchmark.glob("images/*.parquet"):
            _link(path, part / "images" / path.name)
        again = f"{card['benchmark_id']} {n}".encode()
        card |= {"benchmark_id": hashlib.sha256(again).hexdigest()[:16], "first_look": n}
        (part / "benchmark.json").write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
        part.rename(out)
    return out


def _draw(items: pd.DataFrame, n: int) -> list[object]:
    ids = items["item_id"].astype(str).map(lambda i: hashlib.sha256(i.encode()).hexdigest())
    ranked = items.assign(rank=ids).sort_values("rank")
    if "split" not in items:
        return ranked["item_id"].head(n).tolist()
    val = ranked[ranked["split"] == "val"].head(n // VAL)
    rest = ranked[ranked["split"] != "val"].head(n - len(val))
    return [*val["item_id"], *rest["item_id"]]


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
