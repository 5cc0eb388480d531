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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pandas as pd
import pyarrow.parquet as pq
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.prompts import IGNORE
from sdgbias.benchmark.release.check import database
from sdgbias.benchmark.release.records import (
    AUTHORS_FIELDS,
    BLANK,
    FIELD_OF,
    MANIFEST,
    ONWARD,
    OWN_FIELDS,
    PARTS,
    TEXT_VIEWS,
    refuse_foreign,
    stem,
)
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import confine, json_object, write_atomically, write_json, writing
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_png
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.types import Task

_BATCH = 20_000
_TABLES = ("images", "items_mcq", "items_regression", "prompts")
_SHOWN = """(SELECT item_id, image_id, 'mcq' AS task FROM items_mcq
    UNION ALL SELECT item_id, image_id, 'regression' FROM items_regression)"""
#: image_id, photo_id, n_parts of every picture that an item shows, in the store's order.
_OWN_PICTURES = f"""
    SELECT DISTINCT ON (image_id) image_id, photo_id, n_parts, cluster_id
    FROM {_SHOWN} LEFT JOIN images USING (image_id) ORDER BY cluster_id, image_id"""
#: image_id, paths as the imported records name them.
_RECORDED_PICTURES = f"""
    SELECT DISTINCT image_id, cluster_id, paths
    FROM records JOIN {_SHOWN} USING (task, item_id) LEFT JOIN images USING (image_id)
    ORDER BY cluster_id, paths"""
_OWN_RECORDS = """
    SELECT p.text AS prompt_text, i.* FROM prompts p LEFT JOIN items_{task} i USING (item_id)
    WHERE p.task = '{task}' AND p.test = '{test}' ORDER BY p.item_id"""
_IMPORTED_RECORDS = """
    SELECT text AS prompt_text, record FROM records JOIN prompts USING (task, test, item_id)
    WHERE task = '{task}' AND test = '{test}' ORDER BY line"""
#: (stem of the data file, line of the data file, its record, the prompt).
Line = tuple[str, str, dict[str, Any], str]


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
    if text_view not in TEXT_VIEWS:
        raise UsageError(one_of("text view", text_view, TEXT_VIEWS))
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
    with _opened(benchmark) as con:
        pictures = _pictures(con, benchmark)
        count = _write_images(benchmark, out, pictures, progress)
        records = _write_records(out, _lines(con, benchmark, pictures, progress), text_view)
    write_json(out / MANIFEST, {**about, "complete": True, "records": records, "images": count})
    return Exported(out, records, count, text_view)


@contextmanager
def _opened(benchmark: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that sees the tables of a benchmark under their names. Raises InputError."""
    path = benchmark
    try:
        with database() as con:
            for name in (*_TABLES, *(["records"] if _is_imported(benchmark) else [])):
                path = benchmark / f"{name}.parquet"
                file = str(path).replace("'", "''")
                con.execute(f"CREATE VIEW {name} AS FROM read_parquet('{file}')")
            path = benchmark
            yield con
    except duckdb.Error as error:
        raise InputError(
            f"{path}: can't be read ({str(error).splitlines()[0]}); build the benchmark again:"
            f" sdgbias build --out {benchmark}"
        ) from None


def _is_imported(benchmark: Path) -> bool:
    return (benchmark / "records.parquet").is_file()


# ----------------------------------------------------------------------
# records


def _lines(
    con: duckdb.DuckDBPyConnection, benchmark: Path, pictures: pd.DataFrame, progress: Progress
) -> Iterator[Line]:
    """The records file by file: as they were imported, else composed of the items."""
    imported = _is_imported(benchmark)
    by_image = pictures.set_index("image_id").to_dict("index") if not imported else {}
    done, total = 0, int(pq.read_metadata(benchmark / "prompts.parquet").num_rows)
    for task, test in PARTS:
        query = (_IMPORTED_RECORDS if imported else _OWN_RECORDS).format(task=task, test=test)
        for batch in con.sql(query).to_arrow_reader(_BATCH):
            for row in batch.to_pylist():
                prompt = row.pop("prompt_text")
                if imported:
                    yield stem(task, test), row["record"], json.loads(row["record"]), prompt
                    continue
                if row["item_id"] is None:
                    raise InputError(
                        f"{benchmark / 'prompts.parquet'}: prompts of items that items_{task}"
                        " lacks; build the benchmark again: sdgbias build"
                    )
                record = own_record(task, test, row, prompt, by_image[row["image_id"]])
                yield stem(task, test), dump(record), record, prompt
            done += len(batch)
            progress("writing records", done, total)


def own_record(
    task: Task, test: str, item: Mapping[str, Any], prompt: str, picture: Mapping[Any, Any]
) -> dict[str, Any]:
    """The record of an item under a test: the authors' fields, then ours; fields without a value
    are left out. ``picture``: its photo_id and paths."""
    paths = picture["paths"]
    values = {FIELD_OF.get(name, name): value for name, value in item.items()}
    values |= {
        **{"id": f"{stem(task, test)}_{item['item_id']}", "image": paths[0], "question": prompt},
        **{"level": str(test), "task": str(task), "photo_id": picture["photo_id"]},
        "images": list(paths) if len(paths) > 1 else None,
    }
    if task is Task.MCQ:
        values["num_options"] = sum(bool(item.get(f"option_{letter}")) for letter in "abc")
    names = (*AUTHORS_FIELDS, *OWN_FIELDS)
    return {name: values[name] for name in names if not _is_blank(values.get(name))}


def _is_blank(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def dump(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _write_records(out: Path, lines: Iterator[Line], text_view: str) -> dict[str, int]:
    """All files of all parts are renamed together; a file of an earlier export that now has no
    records is removed. The views have the authors' fields, with the prompt as `question`."""
    blank, suffix = ("", "") if text_view == "none" else (BLANK, IGNORE)
    names = [stem(*part) for part in PARTS]
    views = ("views/{}.jsonl", "views/{}_text.jsonl")
    paths = {
        name: [out / kind.format(name) for kind in ("data/{}.jsonl", *views)] for name in names
    }
    records = dict.fromkeys(names, 0)
    with ExitStack() as stack:
        files: dict[str, list[BinaryIO]] = {}
        for name in names:
            drafts = [stack.enter_context(writing(path, ONWARD)) for path in paths[name]]
            files[name] = [stack.enter_context(draft.open("wb")) for draft in drafts]
        for name, line, record, prompt in lines:
            records[name] += 1
            shown = {field: record[field] for field in AUTHORS_FIELDS if field in record}
            shown["question"] = prompt
            full = shown | ({"images": record["images"]} if "images" in record else {})
            blind = shown | {"image": blank, "question": prompt + suffix}
            for file, text in zip(files[name], (line, dump(full), dump(blind)), strict=True):
                file.write(f"{text}\n".encode())
    for name in names:
        for path in paths[name] if not records[name] else ():
            path.unlink()
    return {name: count for name, count in records.items() if count}


# ----------------------------------------------------------------------
# images


def _pictures(con: duckdb.DuckDBPyConnection, benchmark: Path) -> pd.DataFrame:
    """image_id and paths (tuple of its files) of every picture that an item shows, in the store's
    order; of a built benchmark photo_id too. Raises InputError where the index lacks one."""
    if _is_imported(benchmark):
        table = con.sql(_RECORDED_PICTURES).to_arrow_table()
        paths = map(tuple, table["paths"].to_pylist())
        return pd.DataFrame({"image_id": table["image_id"].to_pylist(), "paths": list(paths)})
    index = con.sql(_OWN_PICTURES).df()
    lost = sorted(index["image_id"][index["cluster_id"].isna()])
    if lost:
        raise InputError(
            f"{benchmark}/images.parquet: no image {lost[0]} ({len(lost)} missing); build the"
            " benchmark again: sdgbias build"
        )
    index["paths"] = [
        tuple(f"images/{i}_{k}.png" for k in range(1, n + 1)) if n > 1 else (f"images/{i}.png",)
        for i, n in zip(index["image_id"], index["n_parts"].astype(int), strict=True)
    ]
    return index[["image_id", "paths", "photo_id"]]


def _write_images(benchmark: Path, out: Path, pictures: pd.DataFrame, progress: Progress) -> int:
    """Write every image under its path, and blank.png: that of the imported release, else white in
    the size of the first image.

    An existing image was written completely by an earlier run.
    """
    reader = ImageReader(benchmark)
    count = 0
    rows = list(zip(pictures["image_id"], pictures["paths"], strict=True))
    for key, names in each(progress, "writing images", rows, every=500):
        targets = [confine(out, name) for name in names]
        count += len(targets)
        if not all(target.is_file() for target in targets):
            for target, picture in zip(targets, reader[key], strict=True):
                write_atomically(target, picture, ONWARD)
    blank = benchmark / "blank.png"
    if blank.is_file():
        write_atomically(out / BLANK, blank.read_bytes(), ONWARD)
    elif rows:
        with Image.open(io.BytesIO(reader[rows[0][0]][0])) as first:
            white = encode_png(Image.new("RGB", first.size, "white"))
        write_atomically(out / BLANK, white, ONWARD)
    return count
