"""The fixed set of prompts that a model is probed with, drawn from a benchmark or from a small
synthetic one."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias import suites
from sdgbias.errors import InputError
from sdgbias.files import json_object
from sdgbias.raw.images.shards import ImageReader
from sdgbias.scoring.plan import as_prompts, make_plan
from sdgbias.types import SDG, VIEWS, Prompt

_PER_PICTURE = 16  # probes per picture, so that prompts share a prefix


@dataclass(frozen=True)
class Probes:
    """prompts in plan order; origin: the benchmark's id, or that they were generated for this
    check; kinds: the number of each; seed: of the draw; questions, items, views: prompts of
    admission, each with its question and its view."""

    prompts: list[Prompt]
    origin: str
    kinds: dict[str, int]
    seed: int = 0
    questions: tuple[Prompt, ...] = ()
    items: tuple[str, ...] = ()
    views: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        parts = ["\x1f".join((p.text, p.candidates, p.image_id)) for p in self.prompts]
        return hashlib.sha256("\x1e".join(parts).encode()).hexdigest()[:16]


def draw(distinct: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """At most n of a plan's distinct prompts, in its order: equal shares of each kind (with and
    without a picture, by the number of candidates); of each kind the shortest, the longest, and
    then by the seed, those with pictures about a few pictures.

    distinct: text, image_id, candidates. A kind with too few prompts leaves its share to the
    others.
    """
    table = distinct[["text", "image_id", "candidates"]].reset_index(drop=True)
    keys = [_hash(seed, *row) for row in table.itertuples(index=False)]
    pictures = sorted(set(table["image_id"]) - {""}, key=lambda picture: _hash(seed, picture))
    near = table["image_id"].isin(["", *pictures[: max(1, n // _PER_PICTURE)]])
    table = table.assign(
        rank=keys, far=~near, size=table["text"].str.len(), shown=table["image_id"] != ""
    )
    queues = []
    for _, kind in table.groupby(["shown", table["candidates"].str.len()], sort=True):
        by_size = kind.sort_values(["size", "rank"]).index
        rest = kind.sort_values(["far", "rank"]).index
        queues.append(list(dict.fromkeys([by_size[0], by_size[-1], *rest])))
    turns = [queue[turn] for turn in range(n) for queue in queues if turn < len(queue)]
    return table.loc[sorted(turns[:n]), ["text", "image_id", "candidates"]].reset_index(drop=True)


def _hash(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()


def probes(
    benchmark: Path | None, n: int, seed: int, views: Sequence[str] = VIEWS, questions: int = 0
) -> Probes:
    """Probes of a benchmark folder; None: of a small temporary one, generated from synthetic
    places. ``views``: of these alone; ``questions``: how many to draw for admission, each in every
    view."""
    if benchmark is None:
        with tempfile.TemporaryDirectory() as folder:
            _make_benchmark(Path(folder))
            sdg = suites.named(SDG)
            return _probes(Path(folder), sdg, "24 synthetic places", n, seed, views, questions)
    path = benchmark / "benchmark.json"
    origin = json_object(path).get("benchmark_id")
    if origin is None:
        raise InputError(
            f"{path}: no benchmark here; build one (sdgbias build), or leave --benchmark out"
        )
    return _probes(benchmark, suites.of(benchmark), str(origin), n, seed, views, questions)


def _probes(
    benchmark: Path,
    suite: suites.Suite,
    origin: str,
    n: int,
    seed: int,
    views: Sequence[str],
    questions: int,
) -> Probes:
    cells = suite.cells(benchmark, suites.EvalSettings(passes=()))
    scored = cells["view"].isin(views) & (cells["candidates"] != "")
    cells = cells[scored].reset_index(drop=True)
    rows = draw(make_plan(cells, "").distinct, n, seed)
    if rows.empty:
        raise InputError(
            f"{benchmark}: no prompts to probe with; build the benchmark again: sdgbias build"
        )
    drawn = _draw_questions(cells, questions, seed)
    images = ImageReader(benchmark)
    images.require(pd.concat([rows["image_id"], drawn["image_id"]]))
    prompts, shown = (as_prompts(r.to_dict("records"), images) for r in (rows, drawn))
    kinds = dict(sorted(Counter(map(_kind, prompts)).items()))
    items, asked_views = tuple(drawn["item"]), tuple(drawn["view"])
    return Probes(prompts, origin, kinds, seed, tuple(shown), items, asked_views)


def _kind(p: Prompt) -> str:
    kind = "digits" if len(p.candidates) == 10 else f"{len(p.candidates)} options"
    return f"{kind} {'with a picture' if p.images else 'without'}"


def _draw_questions(cells: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """n questions by the seed, each in every view under the first test that it has; n 0: none.
    item, view, text, candidates, image_id, by picture."""
    items = cells["task"].astype(str) + "/" + cells["item_id"].astype(str)
    cells = cells.assign(item=items)[["item", "test", "view", "text", "candidates", "image_id"]]
    chosen = sorted(set(items), key=lambda item: _hash(seed, item))[:n]
    cells = cells[cells["item"].isin(chosen)].sort_values(["test", "item", "view"])
    return cells.drop_duplicates(["item", "view"]).sort_values(["image_id", "item", "view"])


def _make_benchmark(folder: Path) -> None:
    from sdgbias.benchmark import build
    from sdgbias.raw.images.image_store import ImageSettings
    from sdgbias.raw.synthetic import write_sample

    write_sample(folder / "raw", 24, 0)
    build.build_clusters(folder / "raw", folder)
    build.build_images(folder / "raw", folder, ImageSettings())
    build.build_series(folder / "raw" / "indicators", folder)
    build.build_items(folder, build.Draw(96, 48))
    build.build_prompts(folder)
