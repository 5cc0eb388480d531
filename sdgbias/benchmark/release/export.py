"""A benchmark folder as files in the layout of the authors' release (`sdgbias release export`); the
inverse is import_.

data/<task>_T<k>.jsonl (7), views/<task>_T<k>.jsonl and <task>_T<k>_text.jsonl (14), images/,
images/blank.png, release.json. A view file contains the prompts sent to a model: those of the Full
view, or of CTX+Q without the image (`none`) or with a blank one (`blank-image`, METHODS 3.4). An
imported benchmark is exported with its original records.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from sdgbias.benchmark.build import write_json
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.release.check import database
from sdgbias.benchmark.release.import_ import Imported, import_
from sdgbias.benchmark.release.records import (
    AUTHORS_FIELDS,
    BLANK,
    FIELD_OF,
    IGNORE,
    MANIFEST,
    ONWARD,
    OWN_FIELDS,
    PARTS,
    TEXT_VIEWS,
    json_lines,
    read_manifest,
    refuse_foreign,
    stem,
    write_lines,
)
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import confine, write_atomically, writing
from sdgbias.progress import Progress, silent
from sdgbias.raw.images.composite import encode_png
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.types import Task

__all__ = ["Exported", "Imported", "export", "import_"]

_BATCH = 20_000


@dataclass(frozen=True)
class Exported:
    """records: number of records per data file (its stem); images: number of images, blank.png not
    counted."""

    folder: Path
    records: dict[str, int]
    images: int
    text_view: str

    def lines(self) -> list[str]:
        total, kind = (
            sum(self.records.values()),
            "no image" if self.text_view == "none" else "the blank image",
        )
        said = [
            f"{total:,} records in {len(self.records)} data files, {2 * len(self.records)} view"
            f" files (text views with {kind}), {self.images:,} images in {self.folder}"
        ]
        absent = [stem(task, test) for task, test in PARTS if stem(task, test) not in self.records]
        return said + ([f"no items, hence no file: {', '.join(absent)}"] if absent else [])


def export(
    benchmark: Path, out: Path, text_view: str = "none", progress: Progress = silent
) -> Exported:
    """Write the release files of ``benchmark`` into ``out``; the same benchmark gives the same
    bytes.

    ``out`` must be empty, new, or an earlier (perhaps interrupted) export of the same benchmark and
    text view: then existing images stay. Raises UsageError (text view, foreign folder), InputError
    (no benchmark, or one without images), StoreError.
    """
    if text_view not in TEXT_VIEWS:
        raise UsageError(one_of("text view", text_view, TEXT_VIEWS))
    card = read_manifest(benchmark, "benchmark.json")
    if "benchmark_id" not in card:
        raise InputError(
            f"{benchmark / 'benchmark.json'}: no benchmark here; build one first: sdgbias build"
            f" --out {benchmark}"
        )
    if card.get("images") == "none":
        raise InputError(
            f"{benchmark}: built with --no-images, a release needs them; build it again with"
            " images: sdgbias build"
        )
    identity = {"benchmark_id": card["benchmark_id"], "text_view": text_view}
    earlier = read_manifest(out, MANIFEST)
    refuse_foreign(out, mine={name: earlier.get(name) for name in identity} == identity)
    about = {name: card.get(name) for name in ("licence", "sources", "synthetic")}
    about["intended_use"] = intended_use().record()
    write_json(out / MANIFEST, {**identity, **about, "complete": False})
    imported = (benchmark / "records.parquet").is_file()
    paths = _recorded_paths(benchmark) if imported else _own_paths(benchmark)
    count = _write_images(benchmark, out, paths, progress)
    parts = (
        _recorded(benchmark, text_view, progress)
        if imported
        else _composed(benchmark, text_view, paths, progress)
    )
    records = _write_records(out, parts)
    write_json(
        out / MANIFEST, {**identity, **about, "complete": True, "records": records, "images": count}
    )
    return Exported(out, records, count, text_view)


#: (stem, lines of the data file, of the Full view, of the text view), equally long
Lines = tuple[str, pa.Array, pa.Array, pa.Array]


def _write_records(out: Path, parts: Iterator[Lines]) -> dict[str, int]:
    """All files of all parts are renamed together; a file of an earlier export that now has no
    records is removed."""
    names = {stem(task, test): _files(out, stem(task, test)) for task, test in PARTS}
    records = dict.fromkeys(names, 0)
    with ExitStack() as stack:
        own: dict[str, list[BinaryIO]] = {}
        for name, paths in names.items():
            drafts = [stack.enter_context(writing(path, ONWARD)) for path in paths]
            own[name] = [stack.enter_context(draft.open("wb")) for draft in drafts]
        for name, *blocks in parts:
            records[name] += len(blocks[0])
            for file, lines in zip(own[name], blocks, strict=True):
                write_lines(file, lines)
    for name, count in records.items():
        for path in names[name] if not count else ():
            path.unlink()
    return {name: count for name, count in records.items() if count}


def _files(out: Path, name: str) -> tuple[Path, Path, Path]:
    return (
        out / "data" / f"{name}.jsonl",
        out / "views" / f"{name}.jsonl",
        out / "views" / f"{name}_text.jsonl",
    )


def _table(benchmark: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    path = benchmark / f"{name}.parquet"
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, ValueError, KeyError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path}: can't be read ({cause}); build the benchmark again: sdgbias build --out"
            f" {benchmark}"
        ) from None


# ---------------------------------------------------------------------------------- records of
# built items


def _own_paths(benchmark: Path) -> pd.DataFrame:
    """image_id, paths (tuple of its files), photo_id of every image that an item shows, in the
    store's order."""
    wanted = set().union(
        *(_table(benchmark, f"items_{task}", ["image_id"])["image_id"].to_pylist() for task in Task)
    )
    index = _table(
        benchmark, "images", ["cluster_id", "image_id", "photo_id", "n_parts"]
    ).to_pandas()
    lost = sorted(wanted - set(index["image_id"]))
    if lost:
        raise InputError(
            f"{benchmark}/images.parquet: no image {lost[0]} ({len(lost)} missing); build the"
            " benchmark again: sdgbias build"
        )
    index = (
        index[index["image_id"].isin(wanted)]
        .sort_values("cluster_id")
        .drop_duplicates("image_id", ignore_index=True)
    )
    index["paths"] = [
        tuple(f"images/{i}_{k}.png" for k in range(1, n + 1)) if n > 1 else (f"images/{i}.png",)
        for i, n in zip(index["image_id"], index["n_parts"], strict=True)
    ]
    return index[["image_id", "paths", "photo_id"]]


def _composed(
    benchmark: Path, text_view: str, paths: pd.DataFrame, progress: Progress
) -> Iterator[Lines]:
    """The records of items built by the package, in the order of prompts.parquet."""
    several = paths["paths"].str.len() > 1
    pictures = pa.table(
        {
            "image": pa.array([p[0] for p in paths["paths"]], pa.string()),
            "images": pa.array(
                [
                    '["' + '","'.join(p) + '"]' if s else None
                    for p, s in zip(paths["paths"], several, strict=True)
                ],
                pa.string(),
            ),
            "photo_id": pa.array(paths["photo_id"], pa.string()),
        }
    )
    known = pa.array(paths["image_id"], pa.string())
    items = {}
    for task in Task:
        table = _table(benchmark, f"items_{task}")
        at = pc.index_in(table["image_id"].cast(pa.string()), known)
        for name in pictures.column_names:
            table = table.append_column(name, pictures[name].take(at))
        items[task] = table.combine_chunks()
    path = benchmark / "prompts.parquet"
    with pq.ParquetFile(path) as file:
        done, total = 0, file.metadata.num_rows
        for batch in file.iter_batches(_BATCH, columns=["task", "item_id", "test", "text"]):
            for task, test in PARTS:
                asked = batch.filter(
                    pc.and_(
                        pc.equal(batch["task"], task.value), pc.equal(batch["test"], test.value)
                    )
                )
                if not len(asked):
                    continue
                at = pc.index_in(asked["item_id"], items[task]["item_id"].combine_chunks())
                if at.null_count:
                    raise InputError(
                        f"{path}: prompts of items that items_{task} lacks; build the benchmark"
                        " again: sdgbias build"
                    )
                yield (
                    stem(task, test),
                    *_own_lines(task, test, items[task].take(at), asked["text"], text_view),
                )
            done += len(batch)
            progress("writing records", done, total)


def _own_lines(
    task: Task, test: str, items: pa.Table, text: pa.Array, text_view: str
) -> tuple[pa.Array, pa.Array, pa.Array]:
    ids = items["item_id"].combine_chunks()
    fields: dict[str, Any] = {
        FIELD_OF.get(name, name): _without_blanks(items[name].combine_chunks())
        for name in items.column_names
    }
    asked = text.cast(pa.string())
    prefix, glue = pa.scalar(f'"{stem(task, test)}_'), pa.scalar("")
    fields |= {
        "id": pc.binary_join_element_wise(prefix, ids.cast(pa.string()), pa.scalar('"'), glue),
        "question": asked,
        "level": pa.array([str(test)] * len(ids)),
        "task": pa.array([task.value] * len(ids)),
    }
    if task is Task.MCQ:
        fields["num_options"] = pc.add(
            pc.add(*(pc.is_valid(fields[c]).cast(pa.int8()) for c in "AB")),
            pc.is_valid(fields["C"]).cast(pa.int8()),
        )
    raw = ("id", "images")
    shown = [name for name in (*AUTHORS_FIELDS, *OWN_FIELDS) if name in fields]
    return json_lines({name: fields[name] for name in shown}, raw), *_views(
        fields, asked, text_view, raw
    )


def _views(
    fields: Mapping[str, Any], asked: pa.Array, text_view: str, raw: Sequence[str]
) -> tuple[pa.Array, pa.Array]:
    """(lines of the Full view, of the text view): the authors' fields, with the prompt as
    `question`."""
    picture, suffix = ("", "") if text_view == "none" else (BLANK, IGNORE)
    plain = [name for name in raw if name not in ("question", "image")]
    own = {name: fields[name] for name in AUTHORS_FIELDS if name in fields} | {"question": asked}
    told = pc.binary_join_element_wise(asked, pa.scalar(suffix), pa.scalar(""))
    blind = {**own, "image": pa.array([picture] * len(asked)), "question": told}
    several = [*plain, "image"] if "image" in raw else plain
    return json_lines({**own, "images": fields["images"]}, several), json_lines(blind, plain)


def _without_blanks(values: pa.Array) -> pa.Array:
    """Text '' as missing: a record omits fields without a value."""
    return (
        pc.if_else(pc.equal(values, ""), None, values)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        else values
    )


# --------------------------------------------------------------------------- records of an imported
# release


def _recorded_paths(benchmark: Path) -> pd.DataFrame:
    """image_id, paths: the image paths in the imported records."""
    with database() as con:
        table = con.sql(
            """SELECT DISTINCT i.image_id, i.cluster_id, r.paths FROM read_parquet($records) r JOIN
               (
                 SELECT 'mcq' AS task, item_id, image_id, cluster_id FROM read_parquet($mcq)
                 UNION ALL SELECT 'regression', item_id, image_id, cluster_id FROM
                 read_parquet($regression)) i USING (task, item_id)
               ORDER BY i.cluster_id, r.paths""",
            params=_sources(benchmark),
        ).to_arrow_table()
    return pd.DataFrame(
        {
            "image_id": table["image_id"].to_pylist(),
            "paths": [tuple(p) for p in table["paths"].to_pylist()],
        }
    )


def _recorded(benchmark: Path, text_view: str, progress: Progress) -> Iterator[Lines]:
    """The imported records unchanged and in their order; in the views the authors' fields, with our
    question and image."""
    names = (*AUTHORS_FIELDS, "images")
    struct = "{" + ", ".join(f'"{name}": "JSON"' for name in names) + "}"
    done, total = 0, int(pq.read_metadata(benchmark / "records.parquet").num_rows)
    with database() as con:
        for task, test in PARTS:
            found = con.sql(
                """WITH asked AS (SELECT line, record, text, from_json(record, $struct) AS r
                     FROM read_parquet($records) r JOIN read_parquet($prompts) p USING (task, test,
                     item_id)
                     WHERE task = $task AND test = $test)
                   SELECT record, text, r.* FROM asked ORDER BY line""",
                params={
                    "struct": struct,
                    "records": str(benchmark / "records.parquet"),
                    "prompts": str(benchmark / "prompts.parquet"),
                    "task": task.value,
                    "test": test.value,
                },
            ).to_arrow_reader(_BATCH)
            for batch in found:
                fields: dict[str, Any] = {name: batch[name].cast(pa.string()) for name in names}
                yield (
                    stem(task, test),
                    batch["record"],
                    *_views(fields, batch["text"].cast(pa.string()), text_view, raw=names),
                )
                done += len(batch)
                progress("writing records", done, total)


def _sources(benchmark: Path) -> dict[str, str]:
    names = {"records": "records", "mcq": "items_mcq", "regression": "items_regression"}
    return {key: str(benchmark / f"{name}.parquet") for key, name in names.items()}


# ----------------------------------------------------------------------
# images


def _write_images(benchmark: Path, out: Path, paths: pd.DataFrame, progress: Progress) -> int:
    """Write every image under its path, and blank.png: that of the imported release, else white in
    the size of the first image.

    An existing image was written completely by an earlier run.
    """
    reader = ImageReader(benchmark)
    count = 0
    for done, (key, names) in enumerate(
        zip(paths["image_id"], paths["paths"], strict=True), start=1
    ):
        targets = [confine(out, name) for name in names]
        count += len(targets)
        if not all(target.is_file() for target in targets):
            for target, picture in zip(targets, reader[key], strict=True):
                write_atomically(target, picture, ONWARD)
        if done % 500 == 0 or done == len(paths):
            progress("writing images", done, len(paths))
    own = benchmark / "blank.png"
    if own.is_file():
        write_atomically(out / BLANK, own.read_bytes(), ONWARD)
    elif len(paths):
        with Image.open(io.BytesIO(reader[paths["image_id"].iloc[0]][0])) as first:
            white = encode_png(Image.new("RGB", first.size, "white"))
        write_atomically(out / BLANK, white, ONWARD)
    return count
