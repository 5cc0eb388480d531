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
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.prompts import IGNORE
from sdgbias.benchmark.release import authors
from sdgbias.errors import InputError, UsageError, argument
from sdgbias.files import (
    build_command,
    confine,
    json_object,
    packaged_sql,
    write_atomically,
    write_json,
    writing,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_png
from sdgbias.raw.images.shards import ImageReader
from sdgbias.types import Task

#: A record as one line.
dump = partial(json.dumps, ensure_ascii=False)
_SQL = packaged_sql("release_export.sql")


def export(
    benchmark: Path, out: Path, text_view: str = "none", progress: Progress = silent
) -> list[str]:
    """Write the release files of ``benchmark`` into ``out``; the same benchmark gives the same
    bytes. Returns the lines that the command prints.

    ``out`` must be empty, new, or an earlier (perhaps interrupted) export of the same benchmark and
    text view (`none` or `blank-image`): then existing images stay. Raises UsageError (foreign
    folder, another suite), InputError (no benchmark, or one without images), StoreError.
    """
    card = json_object(benchmark / "benchmark.json")
    if suite := card.get("suite"):  # a card of questions about places names none
        raise UsageError(
            f"{benchmark}: a benchmark of suite {suite}; only questions about places have a release"
        )
    if card.get("images", "none") == "none" or "benchmark_id" not in card:
        raise InputError(
            f"{benchmark / 'benchmark.json'}: no benchmark here, or one built with --no-images;"
            f" build one with images first: sdgbias build --out {argument(benchmark)}"
        )
    identity = {"benchmark_id": card["benchmark_id"], "text_view": text_view}
    earlier = json_object(out / authors.MANIFEST)
    authors.refuse_foreign(
        out, same_source={name: earlier.get(name) for name in identity} == identity
    )
    about = {**identity, "intended_use": intended_use()}
    about |= {name: card.get(name) for name in ("licence", "sources", "synthetic")}
    write_json(out / authors.MANIFEST, {**about, "complete": False})
    origin = "imported" if (benchmark / "records.parquet").is_file() else "built"
    tables = ["images", "items_mcq", "items_regression", "prompts"]
    tables += ["records"] if origin == "imported" else []
    try:
        with duckdb.connect() as con:
            con.execute("SET enable_progress_bar = false")
            for name in tables:
                path = f"{benchmark / name}.parquet"
                con.read_parquet(path, hive_partitioning=False).create_view(name)
            con.execute(_SQL[f"{origin}-pictures"])
            images = _write_pictures(con, benchmark, out, progress)
            counted = con.execute(_SQL["parts"].format(table=tables[-1])).fetchall()
            records = {name: n for name in authors.PARTS for part, n in counted if part == name}
            for name in each(progress, "writing records", records):
                write_part(con, out, name, origin, text_view)
    except duckdb.Error as error:
        raise InputError(
            f"{benchmark}: can't be read ({str(error).splitlines()[0]}); build the benchmark again:"
            f" {build_command(benchmark)}"
        ) from None
    manifest = {**about, "complete": True, "records": records, "images": images}
    write_json(out / authors.MANIFEST, manifest)
    absent = [name for name in authors.PARTS if name not in records]
    return templates.lines("release_export", r=manifest, folder=out, absent=absent)


def own_record(task: Task, test: str, item: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """The record of an item (with `photo_id` and `paths` of its picture) under a test: the authors'
    fields, then ours; fields without a value are left out."""
    paths = item["paths"]
    values = {authors.FIELD_OF.get(name, name): value for name, value in item.items()}
    values |= {
        **{"id": f"{task}_{test}_{item['item_id']}", "image": paths[0], "question": prompt},
        **{"level": str(test), "task": str(task), "images": paths if len(paths) > 1 else None},
    }
    if task is Task.MCQ:
        values["num_options"] = sum(bool(item.get(f"option_{letter}")) for letter in "abc")
    return {name: values[name] for name in authors.FIELDS if values.get(name) not in (None, "")}


def write_part(
    con: duckdb.DuckDBPyConnection, out: Path, name: str, origin: str, text_view: str
) -> None:
    """A data file and its two views, all or none. Records are as they were imported, else composed
    of the items. The views have the authors' fields, with the prompt as `question`."""
    task, test = authors.PARTS[name]
    query = con.sql(_SQL[f"{origin}-records"].format(task=task), params={"test": test})
    paths = [out / "data" / f"{name}.jsonl"]
    paths += [out / "views" / f"{name}{suffix}.jsonl" for suffix in ("", "_text")]
    blank, tail = ("", "") if text_view == "none" else (authors.BLANK, IGNORE)
    with ExitStack() as stack:  # the files are closed before they are renamed
        drafts = [stack.enter_context(writing(path, authors.ONWARD)) for path in paths]
        files = [stack.enter_context(draft.open("wb")) for draft in drafts]
        for row in (row for batch in query.to_arrow_reader(20_000) for row in batch.to_pylist()):
            if origin == "imported":
                record, line = json.loads(row["record"]), row["record"]
            else:
                record = own_record(task, test, row, row["text"])
                line = dump(record)
            shown = {name: record[name] for name in authors.AUTHORS_FIELDS if name in record}
            shown["question"] = row["text"]
            full = shown | ({"images": record["images"]} if "images" in record else {})
            text = shown | {"image": blank, "question": row["text"] + tail}
            for file, content in zip(files, (line, dump(full), dump(text)), strict=True):
                file.write(f"{content}\n".encode())


def _write_pictures(
    con: duckdb.DuckDBPyConnection, benchmark: Path, out: Path, progress: Progress
) -> int:
    """Write every picture under its paths, and blank.png: that of the imported release, else white
    in the size of the first picture; returns their number, blank.png not counted.

    An existing picture was written completely by an earlier run.
    """
    query = "SELECT image_id, paths FROM pictures ORDER BY cluster_id, paths"
    pictures = con.execute(query).fetchall()
    reader = ImageReader(benchmark)
    reader.require(key for key, _ in pictures)
    for key, paths in each(progress, "writing images", pictures, every=500):
        targets = [confine(out, path) for path in paths]
        if not all(target.is_file() for target in targets):
            for target, picture in zip(targets, reader[key], strict=True):
                write_atomically(target, picture, authors.ONWARD)
    blank = benchmark / "blank.png"
    if blank.is_file():
        write_atomically(out / authors.BLANK, blank.read_bytes(), authors.ONWARD)
    elif pictures:
        with Image.open(io.BytesIO(reader[pictures[0][0]][0])) as first:
            white = encode_png(Image.new("RGB", first.size, "white"))
        write_atomically(out / authors.BLANK, white, authors.ONWARD)
    return sum(len(paths) for _, paths in pictures)
