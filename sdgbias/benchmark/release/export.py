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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.prompts import IGNORE
from sdgbias.benchmark.release.check import database
from sdgbias.benchmark.release.import_ import Imported, import_
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
    imported = (benchmark / "records.parquet").is_file()
    paths = _recorded_paths(benchmark) if imported else _own_paths(benchmark)
    count = _write_images(benchmark, out, paths, progress)
    if imported:
        parts = _recorded(benchmark, text_view, progress)
    else:
        parts = _composed(benchmark, text_view, paths, progress)
    records = _write_records(out, parts)
    write_json(out / MANIFEST, {**about, "complete": True, "records": records, "images": count})
    return Exported(out, records, count, text_view)


#: (stem, lines of the data file, of the Full view, of the text view), equally long
Lines = tuple[str, list[str], list[str], list[str]]


def _write_records(out: Path, parts: Iterator[Lines]) -> dict[str, int]:
    """All files of all parts are renamed together; a file of an earlier export that now has no
    records is removed."""
    names = [stem(*part) for part in PARTS]
    paths = {
        name: [out / "data" / f"{name}.jsonl"]
        + [out / "views" / f"{name}{text}.jsonl" for text in ("", "_text")]
        for name in names
    }
    records = dict.fromkeys(names, 0)
    with ExitStack() as stack:
        own: dict[str, list[BinaryIO]] = {}
        for name in names:
            drafts = [stack.enter_context(writing(path, ONWARD)) for path in paths[name]]
            own[name] = [stack.enter_context(draft.open("wb")) for draft in drafts]
        for name, *blocks in parts:
            records[name] += len(blocks[0])
            for file, lines in zip(own[name], blocks, strict=True):
                file.writelines(f"{line}\n".encode() for line in lines)
    for name in names:
        for path in paths[name] if not records[name] else ():
            path.unlink()
    return {name: count for name, count in records.items() if count}


# ----------------------------------------------------------------------
# records of built items


def _own_paths(benchmark: Path) -> pd.DataFrame:
    """image_id, paths (tuple of its files), photo_id of every image that an item shows, in the
    store's order."""
    with _opened(benchmark) as con:
        index = con.sql(
            """SELECT image_id, n_parts, photo_id, cluster_id
               FROM (SELECT image_id FROM items_mcq UNION SELECT image_id FROM items_regression)
                 LEFT JOIN images USING (image_id)
               QUALIFY row_number() OVER (PARTITION BY image_id ORDER BY cluster_id) = 1
               ORDER BY cluster_id"""
        ).df()
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


@contextmanager
def _opened(benchmark: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that sees the tables of a benchmark under their names. Raises InputError."""
    path = benchmark
    try:
        with database() as con:
            for name in ("images", "items_mcq", "items_regression", "prompts"):
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


def _composed(
    benchmark: Path, text_view: str, paths: pd.DataFrame, progress: Progress
) -> Iterator[Lines]:
    """The records of items built by the package, in the order of prompts.parquet."""
    listed = [json.dumps(p, separators=(",", ":")) if len(p) > 1 else None for p in paths["paths"]]
    pictures = pa.table(
        {
            **{name: paths[name] for name in ("image_id", "photo_id")},
            "image": [parts[0] for parts in paths["paths"]],
            "images": pa.array(listed, pa.string()),
        }
    )
    with _opened(benchmark) as con, pq.ParquetFile(benchmark / "prompts.parquet") as file:
        con.register("pictures", pictures)
        for task in Task:
            con.execute(
                f"CREATE TABLE own_{task} AS FROM items_{task} LEFT JOIN pictures USING (image_id)"
            )
        done, total = 0, file.metadata.num_rows
        for batch in file.iter_batches(_BATCH, columns=["task", "item_id", "test", "text"]):
            places = pa.array(range(len(batch)))
            con.register("asked", pa.Table.from_batches([batch]).append_column("at", places))
            there = {*zip(batch["task"].to_pylist(), batch["test"].to_pylist(), strict=True)}
            for task, test in (part for part in PARTS if part in there):
                record, *views = _own_fields(con, task, test, text_view)
                found = con.sql(
                    f"""SELECT {record}, {", ".join(views)}, i.item_id
                        FROM asked a LEFT JOIN own_{task} i USING (item_id)
                        WHERE a.task = '{task}' AND a.test = '{test}' ORDER BY a.at"""
                ).to_arrow_table()
                if found.column(3).null_count:
                    raise InputError(
                        f"{benchmark / 'prompts.parquet'}: prompts of items that items_{task}"
                        " lacks; build the benchmark again: sdgbias build"
                    )
                yield stem(task, test), *(found.column(at).to_pylist() for at in range(3))
            done += len(batch)
            progress("writing records", done, total)


def _own_fields(
    con: duckdb.DuckDBPyConnection, task: Task, test: str, text_view: str
) -> tuple[str, str, str]:
    """SQL of the lines of a part: the record, and its two views."""
    table = con.table(f"own_{task}")
    fields = {
        FIELD_OF.get(name, name): _json(f"i.{name}", str(kind))
        for name, kind in zip(table.columns, table.types, strict=True)
    }
    fields |= {
        "id": f"to_json('{stem(task, test)}_' || i.item_id)",
        "images": "i.images",
        "question": "to_json(a.text)",
        "level": f"to_json('{test}')",
        "task": f"to_json('{task}')",
    }
    if task is Task.MCQ:
        there = (f"coalesce(i.option_{c} <> '', false)::INT" for c in "abc")
        fields["num_options"] = f"({' + '.join(there)})::VARCHAR"
    shown = [name for name in (*AUTHORS_FIELDS, *OWN_FIELDS) if name in fields]
    return _object({name: fields[name] for name in shown}), *_views(fields, "a.text", text_view)


def _json(column: str, kind: str) -> str:
    """SQL of a value's JSON; NULL for a blank: a record omits fields without a value."""
    if kind == "VARCHAR":
        return f"CASE WHEN {column} <> '' THEN to_json({column}) END"
    if kind == "DOUBLE":  # a whole number has no .0
        whole = f"{column} = trunc({column}) AND abs({column}) < 1e15"
        shown = f"if({whole}, {column}::BIGINT::VARCHAR, {column}::VARCHAR)"
        return f"CASE WHEN isfinite({column}) THEN {shown} END"
    return f"{column}::VARCHAR"


def _object(fields: Mapping[str, str]) -> str:
    """SQL of a JSON object, written as json.dumps does; fields that are NULL are left out."""
    listed = ", ".join(f"""'"{name}": ' || {value}""" for name, value in fields.items())
    return f"'{{' || concat_ws(', ', {listed}) || '}}'"


def _views(fields: Mapping[str, str], text: str, text_view: str) -> tuple[str, str]:
    """SQL of the lines of the Full view and of the text view: the authors' fields, with the prompt
    as `question`."""
    picture, suffix = ("", "") if text_view == "none" else (BLANK, IGNORE)
    own = {name: fields[name] for name in AUTHORS_FIELDS if name in fields}
    own["question"] = f"to_json({text})"
    question = f"to_json({text} || '{suffix}')"
    blind = {**own, "image": f"to_json('{picture}')", "question": question}
    return _object({**own, "images": fields["images"]}), _object(blind)


# ----------------------------------------------------------------------
# records of an imported release


def _recorded_paths(benchmark: Path) -> pd.DataFrame:
    """image_id, paths: the image paths in the imported records."""
    with _opened(benchmark) as con:
        table = con.sql(
            """SELECT DISTINCT i.image_id, i.cluster_id, r.paths FROM read_parquet($records) r JOIN
               (
                 SELECT 'mcq' AS task, item_id, image_id, cluster_id FROM items_mcq
                 UNION ALL SELECT 'regression', item_id, image_id, cluster_id FROM items_regression
               ) i USING (task, item_id)
               ORDER BY i.cluster_id, r.paths""",
            params={"records": str(benchmark / "records.parquet")},
        ).to_arrow_table()
    paths = map(tuple, table["paths"].to_pylist())
    return pd.DataFrame({"image_id": table["image_id"].to_pylist(), "paths": list(paths)})


def _recorded(benchmark: Path, text_view: str, progress: Progress) -> Iterator[Lines]:
    """The imported records unchanged and in their order; in the views the authors' fields, with our
    question and image."""
    names = (*AUTHORS_FIELDS, "images")
    struct = "{" + ", ".join(f'"{name}": "JSON"' for name in names) + "}"
    views = _views({name: f'r."{name}"::VARCHAR' for name in names}, "text", text_view)
    records = benchmark / "records.parquet"
    given = {"struct": struct, "records": str(records)}
    done, total = 0, int(pq.read_metadata(records).num_rows)
    with _opened(benchmark) as con:
        for task, test in PARTS:
            found = con.sql(
                f"""WITH asked AS (SELECT line, record, text, from_json(record, $struct) AS r
                      FROM read_parquet($records) r JOIN prompts p USING (task, test, item_id)
                      WHERE task = $task AND test = $test)
                    SELECT record, {", ".join(views)} FROM asked ORDER BY line""",
                params={**given, "task": task.value, "test": test.value},
            ).to_arrow_reader(_BATCH)
            for batch in found:
                yield stem(task, test), *(batch.column(at).to_pylist() for at in range(3))
                done += len(batch)
                progress("writing records", done, total)


# ----------------------------------------------------------------------
# images


def _write_images(benchmark: Path, out: Path, paths: pd.DataFrame, progress: Progress) -> int:
    """Write every image under its path, and blank.png: that of the imported release, else white in
    the size of the first image.

    An existing image was written completely by an earlier run.
    """
    reader = ImageReader(benchmark)
    count = 0
    rows = list(zip(paths["image_id"], paths["paths"], strict=True))
    for key, names in each(progress, "writing images", rows, every=500):
        targets = [confine(out, name) for name in names]
        count += len(targets)
        if not all(target.is_file() for target in targets):
            for target, picture in zip(targets, reader[key], strict=True):
                write_atomically(target, picture, ONWARD)
    own = benchmark / "blank.png"
    if own.is_file():
        write_atomically(out / BLANK, own.read_bytes(), ONWARD)
    elif len(paths):
        with Image.open(io.BytesIO(reader[paths["image_id"].iloc[0]][0])) as first:
            white = encode_png(Image.new("RGB", first.size, "white"))
        write_atomically(out / BLANK, white, ONWARD)
    return count
