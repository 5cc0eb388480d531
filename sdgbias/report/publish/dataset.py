"""A benchmark as a dataset folder of the hub: a question a row with its picture, its prompts at all
context tests and its answer, as Parquet whose picture columns are Image features, and a README.md
whose metadata `datasets.load_dataset(FOLDER)` follows.

Columns are an allow-list: coordinates, raw series and quarantined rows stay where they are.
Questions whose gold value comes from a source that may not be passed on are withheld.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from sdgbias import suites
from sdgbias.benchmark.card.figures import source_ids
from sdgbias.errors import InputError, UsageError
from sdgbias.files import json_object, reading
from sdgbias.raw.images.shards import FOLDER, ImageReader
from sdgbias.report.publish.runs import PublishedFile
from sdgbias.types import TESTS, Task

COLUMNS = (
    *("item_id", "cluster_id", "country", "iso3", "year", "urban", "pillar", "indicator"),
    *("indicator_title", "sdg", "unit", "target", "tolerance", "value_year", "source", "level"),
    *("polarity", "question", "option_a", "option_b", "option_c", "answer", "split_place"),
    *("modalities", "photo_id"),
)
DATASET = "dataset"
SPLITS = {"val": "validation", "test": "test"}
_PER_FILE = 1_000
_PER_GROUP = 50
_HUGGING_FACE = {"int32": "int32", "int64": "int64", "double": "float64", "bool": "bool"}


@dataclass(frozen=True)
class Benchmark:
    """A finished benchmark of the first suite. ``withheld``: source -> ids of its multiple-choice
    questions, which may not be passed on."""

    folder: Path
    card: dict[str, Any]
    withheld: dict[str, tuple[int, ...]]

    @property
    def id(self) -> str:
        return str(self.card["benchmark_id"])

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(item for items in self.withheld.values() for item in items)

    @property
    def licence(self) -> str:
        return str(self.card.get("licence") or "unknown")


def read(folder: Path) -> Benchmark:
    """Raises InputError (no benchmark, unreadable), UsageError (a suite that isn't exported)."""
    card: dict[str, Any] = dict(suites.benchmark_card(folder))
    if suites.named(suites.suite_of(card)).unpublished:
        raise UsageError(
            f"{folder}: only benchmarks of sustainable development are published; pictures of"
            " people and your own questions are not ours to pass on"
        )
    origin = json_object(folder / "origin.json")
    if card.get("synthetic") or origin.get("release"):
        return Benchmark(folder, card, {})
    free = {row["id"] for row in card["sources_used"] if row["redistributable"]}
    items = _read(folder, "items_mcq", ["item_id", "source"]).to_pandas()
    series = _read(folder, "series", ["series", "source"]).to_pandas()
    source = source_ids(items["source"], series)
    held = items[~source.isin(free)].groupby(source)["item_id"]
    return Benchmark(folder, card, {str(k): tuple(map(int, ids)) for k, ids in held})


def files(benchmark: Benchmark) -> list[PublishedFile]:
    """Raises InputError for a benchmark without pictures."""
    folder = benchmark.folder
    if benchmark.card.get("images") == "none":
        raise InputError(
            f"{folder}: built with --no-images, a dataset needs them; build it again with images:"
            " sdgbias build"
        )
    index = _read(folder, "images", ["image_id", "photo_id", "n_parts"]).to_pandas()
    index = index.drop_duplicates("image_id").set_index("image_id")
    several = bool((index["n_parts"] > 1).any())
    shown = sum(p.stat().st_size for p in (folder / FOLDER).glob("*.parquet")) / max(len(index), 1)
    tables = {(t, s): _rows(benchmark, index, t, s) for t in Task for s in SPLITS}
    counts: dict[tuple[str, str], int] = {}
    published = []
    for (task, split), table in tables.items():
        count = -(-len(table) // _PER_FILE)
        for k in range(count):
            rows = table.slice(k * _PER_FILE, _PER_FILE)
            published.append(
                PublishedFile(
                    f"{DATASET}/data/{task}/{SPLITS[split]}-{k:05}-of-{count:05}.parquet",
                    partial(_parquet, folder, rows, several),
                    int(len(rows) * shown + rows.nbytes // 2),
                )
            )
        if count:
            counts[task.value, SPLITS[split]] = len(table)
    return [PublishedFile(f"{DATASET}/README.md", partial(_readme, benchmark, counts)), *published]


def _read(folder: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    path = folder / f"{name}.parquet"
    with reading(path, f"build the benchmark again: sdgbias build --out {folder}"):
        return pq.read_table(path, columns=columns)


def _rows(benchmark: Benchmark, index: pd.DataFrame, task: Task, split: str) -> pa.Table:
    """The questions of one split without pictures, in the order of their pictures' ids, so that a
    picture that several questions show is read once."""
    items = _read(benchmark.folder, f"items_{task}")
    keep = pc.equal(items["split"], split)
    if task is Task.MCQ and benchmark.withheld:
        held = pa.array(benchmark.ids, pa.int64())
        keep = pc.and_(keep, pc.invert(pc.is_in(items["item_id"].cast(pa.int64()), held)))
    items = items.filter(keep).sort_by([("image_id", "ascending"), ("item_id", "ascending")])
    photo = index["photo_id"].reindex(items["image_id"].to_pylist()).fillna("")
    items = items.append_column("photo_id", pa.array(list(photo), pa.string()))
    prompts = _read(benchmark.folder, "prompts", ["task", "item_id", "test", "text"])
    prompts = prompts.filter(pc.equal(prompts["task"].cast(pa.string()), task.value))
    rows = items.select([c for c in (*COLUMNS, "image_id") if c in items.column_names])
    for test in TESTS[task]:
        of_test = prompts.filter(pc.equal(prompts["test"].cast(pa.string()), test.value))
        at = pc.index_in(rows["item_id"], of_test["item_id"].combine_chunks())
        text = of_test["text"].cast(pa.string()).take(at)
        rows = rows.append_column(f"prompt_{test}", text)
    return pa.table({c: _plain(rows[c]) for c in rows.column_names})


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as plain text: dictionaries and large strings are features of their own elsewhere."""
    return values if str(values.type) in _HUGGING_FACE else values.cast(pa.string())


def _parquet(folder: Path, rows: pa.Table, several: bool) -> Iterator[bytes]:
    """One file, its pictures read group by group."""
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    name = "images" if several else "image"
    features: dict[str, Any] = {
        c: {"dtype": _HUGGING_FACE.get(str(rows.schema.field(c).type), "string"), "_type": "Value"}
        for c in rows.column_names
    }
    one = {"_type": "Image"}
    features = {name: {"feature": one, "_type": "List"} if several else one} | features
    schema = pa.schema(
        [(name, pa.list_(picture) if several else picture), *rows.schema],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    reader = ImageReader(folder)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for start in range(0, len(rows), _PER_GROUP):
            group = rows.slice(start, _PER_GROUP)
            shown = [
                [{"bytes": part, "path": None} for part in reader[key]]
                for key in group["image_id"].to_pylist()
            ]
            column = pa.array(shown if several else [p[0] for p in shown], schema.field(0).type)
            writer.write_table(pa.table([column, *group.columns], schema=schema))
    yield sink.getvalue()


def _readme(benchmark: Benchmark, rows: dict[tuple[str, str], int]) -> Iterator[bytes]:
    """The benchmark's card with the configurations of this folder."""
    path = benchmark.folder / "README.md"
    try:
        text = path.read_text(encoding="utf-8")
        _, front, body = text.split("---\n", 2)
        about = yaml.safe_load(front)
    except (OSError, ValueError, yaml.YAMLError):
        raise InputError(
            f"{path}: no dataset card; write it again: sdgbias build --stage card --out"
            f" {benchmark.folder}"
        ) from None
    tasks = dict.fromkeys(task for task, _ in rows)
    about["configs"] = [
        {
            "config_name": task,
            "data_files": [
                {"split": split, "path": f"data/{task}/{split}-*.parquet"}
                for t, split in rows
                if t == task
            ],
        }
        | ({"default": True} if task == Task.MCQ else {})
        for task in tasks
    ]
    held = "".join(
        f"- {len(ids):,} questions from `{source}`, whose terms don't allow it\n"
        for source, ids in benchmark.withheld.items()
    )
    note = (
        "> This folder holds the questions with their pictures and prompts. The card below is of"
        " the whole benchmark: the other tables that it names, coordinates among them, are not"
        " here.\n" + (f"\nWithheld:\n\n{held}" if held else "")
    )
    front = yaml.safe_dump(about, sort_keys=False, allow_unicode=True, width=1000)
    yield f"---\n{front}---\n\n{note}\n{body.lstrip()}".encode()
