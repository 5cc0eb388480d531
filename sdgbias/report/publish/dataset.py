"""A benchmark as a dataset folder of the hub: a question a row with its picture, its prompts at all
context tests and its answer, as Parquet whose picture columns are Image features, and a README.md
whose metadata `datasets.load_dataset(FOLDER)` follows.

Columns are an allow-list: coordinates, raw series and quarantined rows stay where they are.
Questions whose gold value comes from a source that may not be passed on are withheld.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from sdgbias import suites, wording
from sdgbias.benchmark.card.figures import source_ids
from sdgbias.errors import InputError, UsageError, argument
from sdgbias.files import build_command, is_release, reading, understood
from sdgbias.raw.images.shards import FOLDER, ImageReader
from sdgbias.report.publish.runs import PublishedFile
from sdgbias.types import Task

COLUMNS = (
    *("item_id", "cluster_id", "country", "iso3", "year", "urban", "pillar", "indicator"),
    *("indicator_title", "sdg", "unit", "target", "tolerance", "value_year", "source", "level"),
    *("polarity", "question", "option_a", "option_b", "option_c", "answer", "split_place"),
    *("modalities", "photo_id", "image_id"),
)
DATASET = "dataset"
SPLITS = {"val": "validation", "test": "test"}
_PER_FILE = 500
_PER_GROUP = 50


class Benchmark(NamedTuple):
    """A finished benchmark of the first suite. ``withheld``: item_id and source of multiple-choice
    questions that may not be passed on; ``notes``: a sentence for each source."""

    folder: Path
    id: str
    card: dict[str, Any]
    withheld: pd.DataFrame
    notes: list[str]


def read(folder: Path) -> Benchmark:
    """Raises InputError (no benchmark, unreadable), UsageError (a suite that isn't exported)."""
    card: dict[str, Any] = dict(suites.benchmark_card(folder))
    if suites.named(suites.suite_of(card)).unpublished:
        raise UsageError(
            f"{folder}: only benchmarks of sustainable development are published; pictures of"
            " people and your own questions are not ours to pass on; numbers alone: sdgbias publish"
            " model-card every-eval-ever"
        )
    if card.get("synthetic") or is_release(folder):
        return Benchmark(folder, card["benchmark_id"], card, pd.DataFrame({"item_id": []}), [])
    with understood(folder, "no whole benchmark", _again(folder)):
        free = [row["id"] for row in card["sources_used"] if row["redistributable"]]
    items = read_table(folder, "items_mcq", ["item_id", "source"])
    series = read_table(folder, "series", ["series", "source"])
    items["source"] = source_ids(items["source"], series)
    withheld = items[~items["source"].isin(free)]
    notes = [
        f"{wording.many(n, 'question')} from {source}, with the answers: its terms don't allow"
        " passing them on"
        for source, n in withheld.groupby("source").size().items()
    ]
    return Benchmark(folder, card["benchmark_id"], card, withheld, notes)


def files(benchmark: Benchmark) -> list[PublishedFile]:
    """The card, and a file per 500 questions of a task and split. Raises InputError for a benchmark
    without pictures."""
    folder = benchmark.folder
    if benchmark.card.get("images") == "none":
        raise InputError(
            f"{folder}: built with --no-images, a dataset needs them; build it again with images:"
            f" sdgbias build --out {argument(folder)}"
        )
    index = read_table(folder, "images", ["image_id", "photo_id", "n_parts"])
    index = index.drop_duplicates("image_id").set_index("image_id")
    several = bool((index["n_parts"] > 1).any())
    shown = sum(p.stat().st_size for p in (folder / FOLDER).glob("*.parquet")) / max(len(index), 1)
    published, configs = [], []
    reader = cache(partial(ImageReader, folder))
    for task in Task:
        with understood(folder, "no whole benchmark", _again(folder)):
            questions, splits = _questions(benchmark, task, index["photo_id"]), []
        for split, name in SPLITS.items():
            table = questions.filter(pc.field("split") == split).drop_columns("split")
            starts = range(0, len(table), _PER_FILE)
            for k, start in enumerate(starts):
                rows = table.slice(start, _PER_FILE)
                path = f"{DATASET}/data/{task}/{name}-{k:05}-of-{len(starts):05}.parquet"
                size = int(len(rows) * shown + rows.nbytes // 2)
                content = partial(_parquet, reader, rows, several)
                published.append(PublishedFile(path, content, size))
            if starts:
                splits.append({"split": name, "path": f"data/{task}/{name}-*.parquet"})
        if splits:
            default = {"default": True} if task is Task.MCQ else {}
            configs.append({"config_name": task.value, "data_files": splits, **default})
    readme = partial(_readme, benchmark, configs)
    return [PublishedFile(f"{DATASET}/README.md", readme), *published]


def _again(folder: Path) -> str:
    return f"build the benchmark again: {build_command(folder)}"


def read_table(folder: Path, name: str, columns: list[str] | None = None) -> pd.DataFrame:
    """A table of a benchmark. Raises InputError."""
    path = folder / f"{name}.parquet"
    with reading(path, _again(folder)):
        return pd.read_parquet(path, columns=columns, dtype_backend="pyarrow")


def _questions(benchmark: Benchmark, task: Task, photos: pd.Series) -> pa.Table:
    """COLUMNS, split and the prompts (``prompt_T1``, ...) of a task's questions, in the order of
    their pictures' ids, so that a picture that several questions show is read once. Text is plain
    text: dictionaries and large strings are other features. ``photos``: picture -> photo_id."""
    items = read_table(benchmark.folder, f"items_{task}").sort_values(["image_id", "item_id"])
    if task is Task.MCQ:
        items = items[~items["item_id"].isin(benchmark.withheld["item_id"])]
    prompts = read_table(benchmark.folder, "prompts", ["task", "item_id", "test", "text"])
    prompts = prompts[prompts["task"] == task.value]
    texts = prompts.pivot(index="item_id", columns="test", values="text").add_prefix("prompt_")
    rows = items.join(photos, on="image_id").fillna({"photo_id": ""})
    columns = [name for name in COLUMNS if name in rows]
    rows = rows[[*columns, "split"]].join(texts, on="item_id")
    table = pa.Table.from_pandas(rows, preserve_index=False)
    kinds = [t if pa.types.is_primitive(t) else pa.string() for t in table.schema.types]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _parquet(pictures_of: Callable[[], ImageReader], rows: pa.Table, several: bool) -> list[bytes]:
    """One file. Readers take the features of the columns beside the pictures from their types."""
    name, kind = "image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    feature: dict[str, Any] = {"_type": "Image"}
    if several:
        name, kind, feature = "images", pa.list_(kind), {"feature": feature, "_type": "List"}
    features = json.dumps({"info": {"features": {name: feature}}})
    schema = pa.schema([(name, kind), *rows.schema], metadata={"huggingface": features})
    reader = pictures_of()
    shown = [
        [{"bytes": part, "path": None} for part in reader[key]]
        for key in rows["image_id"].to_pylist()
    ]
    pictures = pa.array(shown if several else [parts[0] for parts in shown], kind)
    table = pa.table([pictures, *rows.columns], schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=_PER_GROUP, compression="zstd")
    return [sink.getvalue()]


def _readme(benchmark: Benchmark, configs: list[dict[str, Any]]) -> list[bytes]:
    """The benchmark's card with the configurations of this folder."""
    from huggingface_hub import DatasetCard

    path = benchmark.folder / "README.md"
    try:
        card = DatasetCard.load(path)
    except (OSError, ValueError, yaml.YAMLError):
        raise InputError(
            f"{path}: no dataset card; write it again: {build_command(benchmark.folder)}"
        ) from None
    card.data["configs"] = configs
    note = (
        "> This folder holds the questions with their pictures and prompts. The card below is of"
        " the whole benchmark: the other tables that it names, coordinates among them, are not"
        " here.\n"
    )
    held = "".join(f"- {sentence}\n" for sentence in benchmark.notes)
    parts = [note, *(["Withheld:\n", held] if held else []), card.text.lstrip()]
    card.text = "\n" + "\n".join(parts)
    return [str(card).encode()]
