"""A benchmark folder as files in the layout of the authors' release (`sdgbias release export`); the
inverse is import_.

data/<task>_T<k>.jsonl (7), views/<task>_T<k>.jsonl and <task>_T<k>_text.jsonl (14), images/,
images/blank.png, release.json. A view file contains the prompts sent to a model: those of the Full
view, or of CTX+Q without the image (`none`) or with a blank one (`blank-image`, METHODS 3.4). An
imported benchmark is exported with its original records.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.prompts import IGNORE
from sdgbias.benchmark.release.records import (
    AUTHORS_FIELDS,
    BLANK,
    FIELD_OF,
    FIELDS,
    MANIFEST,
    ONWARD,
    PARTS,
    check_text_view,
    refuse_foreign,
    stem,
)
from sdgbias.errors import InputError
from sdgbias.files import confine, json_object, packaged_sql, write_atomically, write_json, writing
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_png
from sdgbias.raw.images.shards import ImageReader
from sdgbias.types import Task

#: The files of a part: its records, and the inputs of a model runner with the picture and without.
_FILES = ("data/{}.jsonl", "views/{}.jsonl", "views/{}_text.jsonl")
#: A record as a line and as fields, and its prompt.
Line = tuple[str, Mapping[str, Any], str]


@dataclass(frozen=True)
class Exported:
    """records: number of records per data file (its stem); images: number of images, blank.png not
    counted."""

    folder: Path
    records: dict[str, int]
    images: int
    text_view: str

    def lines(self) -> list[str]:
        absent = [stem(*part) for part in PARTS if stem(*part) not in self.records]
        return templates.lines("release_export", r=self, absent=absent)


def export(
    benchmark: Path, out: Path, text_view: str = "none", progress: Progress = silent
) -> Exported:
    """Write the release files of ``benchmark`` into ``out``; the same benchmark gives the same
    bytes.

    ``out`` must be empty, new, or an earlier (perhaps interrupted) export of the same benchmark and
    text view: then existing images stay. Raises UsageError (text view, foreign folder), InputError
    (no benchmark, or one without images), StoreError.
    """
    check_text_view(text_view)
    card = json_object(benchmark / "benchmark.json")
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
    earlier = json_object(out / MANIFEST)
    refuse_foreign(out, mine={name: earlier.get(name) for name in identity} == identity)
    about = {**identity, "intended_use": intended_use()}
    about |= {name: card.get(name) for name in ("licence", "sources", "synthetic")}
    write_json(out / MANIFEST, {**about, "complete": False})
    origin = "imported" if (benchmark / "records.parquet").is_file() else "built"
    tables = ["images", "items_mcq", "items_regression", "prompts"]
    tables += ["records"] if origin == "imported" else []
    try:
        with duckdb.connect() as con:
            con.execute("SET enable_progress_bar = false")
            for name in tables:
                con.sql(f"FROM read_parquet({str(benchmark / name)!r} || '.parquet')").create_view(
                    name
                )
            con.execute(packaged_sql("release_export.sql")[f"{origin}-pictures"])
            images = _write_images(con, benchmark, out, progress)
            lines = {stem(*part): _records(con, benchmark, origin, *part) for part in PARTS}
            records = _write_records(out, lines, text_view, progress)
    except duckdb.Error as error:
        raise InputError(
            f"{benchmark}: can't be read ({str(error).splitlines()[0]}); build the benchmark again:"
            f" sdgbias build --out {benchmark}"
        ) from None
    write_json(out / MANIFEST, {**about, "complete": True, "records": records, "images": images})
    return Exported(out, records, images, text_view)


def own_record(task: Task, test: str, item: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """The record of an item (with `photo_id` and `paths` of its picture) under a test: the authors'
    fields, then ours; fields without a value are left out."""
    paths = item["paths"]
    values = {FIELD_OF.get(name, name): value for name, value in item.items()}
    values |= {
        **{"id": f"{stem(task, test)}_{item['item_id']}", "image": paths[0], "question": prompt},
        **{"level": str(test), "task": str(task), "images": paths if len(paths) > 1 else None},
    }
    if task is Task.MCQ:
        values["num_options"] = sum(bool(item.get(f"option_{letter}")) for letter in "abc")
    return {name: values[name] for name in FIELDS if not _is_blank(values.get(name))}


def _is_blank(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def dump(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _records(
    con: duckdb.DuckDBPyConnection, benchmark: Path, origin: str, task: Task, test: str
) -> Iterator[Line]:
    """The records of a file: as they were imported, else composed of the items."""
    query = packaged_sql("release_export.sql")[f"{origin}-records"].format(task=task)
    for batch in con.sql(query, params={"test": test}).to_arrow_reader(20_000):
        for row in batch.to_pylist():
            prompt = row.pop("text")
            if origin == "imported":
                yield row["record"], json.loads(row["record"]), prompt
            elif row["item_id"] is not None:
                record = own_record(task, test, row, prompt)
                yield dump(record), record, prompt
            else:
                raise InputError(
                    f"{benchmark / 'prompts.parquet'}: prompts of items that items_{task} lacks;"
                    " build the benchmark again: sdgbias build"
                )


def _write_records(
    out: Path, lines: Mapping[str, Iterator[Line]], text_view: str, progress: Progress
) -> dict[str, int]:
    """Number of records by file. All files are renamed together; a file of an earlier export that
    now has no records is removed. The views have the authors' fields, with the prompt as
    `question`."""
    blank, suffix = ("", "") if text_view == "none" else (BLANK, IGNORE)
    written: dict[str, int] = {}
    with ExitStack() as stack:
        for name in each(progress, "writing records", lines):
            paths = [out / path.format(name) for path in _FILES]
            drafts = [stack.enter_context(writing(path, ONWARD)) for path in paths]
            with ExitStack() as opened:
                files = [opened.enter_context(draft.open("wb")) for draft in drafts]
                for line, record, prompt in lines[name]:
                    shown = {field: record[field] for field in AUTHORS_FIELDS if field in record}
                    shown["question"] = prompt
                    full = shown | ({"images": record["images"]} if "images" in record else {})
                    blind = shown | {"image": blank, "question": prompt + suffix}
                    for file, text in zip(files, (line, dump(full), dump(blind)), strict=True):
                        file.write(f"{text}\n".encode())
                    written[name] = written.get(name, 0) + 1
    for path in (
        out / path.format(name) for name in lines if name not in written for path in _FILES
    ):
        path.unlink()
    return written


def _write_images(
    con: duckdb.DuckDBPyConnection, benchmark: Path, out: Path, progress: Progress
) -> int:
    """Write every picture under its paths, and blank.png: that of the imported release, else white
    in the size of the first picture; returns their number, blank.png not counted.

    An existing picture was written completely by an earlier run.
    """
    query = "SELECT image_id, paths, cluster_id FROM pictures ORDER BY cluster_id, paths"
    pictures = con.execute(query).fetchall()
    lost = sorted(key for key, _, cluster in pictures if cluster is None)
    if lost:
        raise InputError(
            f"{benchmark}/images.parquet: no image {lost[0]} ({len(lost)} missing); build the"
            " benchmark again: sdgbias build"
        )
    reader = ImageReader(benchmark)
    for key, paths, _ in each(progress, "writing images", pictures, every=500):
        targets = [confine(out, path) for path in paths]
        if not all(target.is_file() for target in targets):
            for target, picture in zip(targets, reader[key], strict=True):
                write_atomically(target, picture, ONWARD)
    blank = benchmark / "blank.png"
    if blank.is_file():
        write_atomically(out / BLANK, blank.read_bytes(), ONWARD)
    elif pictures:
        with Image.open(io.BytesIO(reader[pictures[0][0]][0])) as first:
            white = encode_png(Image.new("RGB", first.size, "white"))
        write_atomically(out / BLANK, white, ONWARD)
    return sum(len(paths) for _, paths, _ in pictures)
