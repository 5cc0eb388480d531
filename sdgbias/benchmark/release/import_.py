"""A folder in the layout of the authors' release -> a benchmark folder that `sdgbias evaluate`
accepts like a built one.

DuckDB compares and joins the records; only one block of them is in memory. Every imported line is
stored unchanged in records.parquet (task, test, line, item_id, paths, record), so that export loses
nothing. Unusable rows go to quarantine/release.parquet with the broken rule; a broken item is
removed from all its tests.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import build_card
from sdgbias.benchmark.card.figures import counts as counted
from sdgbias.benchmark.prompts import prompt_texts
from sdgbias.benchmark.release.check import (
    FIELDS,
    Part,
    ReleaseImport,
    database,
    find_faults,
    find_parts,
    question_kind,
    stage_records,
)
from sdgbias.benchmark.release.items import clusters_of, item_table, place_of_paths
from sdgbias.benchmark.release.records import (
    BLANK,
    FETCHED,
    MANIFEST,
    ONWARD,
    PARTS,
    TEXT_VIEWS,
    refuse_foreign,
    stem,
)
from sdgbias.errors import InputError, StoreError, UsageError, one_of
from sdgbias.files import confine, json_object, write_atomically, write_json, writing
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images import near_duplicates
from sdgbias.raw.images.composite import MAX_PIXELS
from sdgbias.raw.images.image_store import store_images
from sdgbias.raw.images.shards import image_id
from sdgbias.types import DIGITS, LETTERS, QUARANTINE_COLUMNS, ContextTest, Task, View

_PICTURES = ("PNG", "JPEG")
_PLACE = "\x1f"
#: SQL: the first record of each item in a file.
ONCE = "QUALIFY row_number() OVER (PARTITION BY item_id ORDER BY number) = 1"


@dataclass(frozen=True)
class Imported:
    """items per task; files: data file -> (records, kind of its question); missing: missing data
    files; uncompared: tasks whose question texts differ between files by more than the context, for
    most items; quarantined: rule -> rows; unknown: items whose indicator isn't in our table, so
    that the polarity of their answers is unknown; without_tolerance: target -> items that count
    in the MAE, not in interval accuracy."""

    out: Path
    items: dict[str, int]
    files: dict[str, tuple[int, str]]
    missing: list[str]
    uncompared: list[str]
    quarantined: dict[str, int]
    unknown: int
    without_tolerance: dict[str, int]
    benchmark_id: str

    def lines(self) -> list[str]:
        return templates.lines("release_import", r=self)


def import_(
    folder: Path, out: Path, text_view: str = "none", progress: Progress = silent
) -> Imported:
    """Build the benchmark folder ``out`` from ``folder``/data/*.jsonl (or ``folder``/*.jsonl) and
    the images they name.

    A partial release is imported as far as possible; a missing T5 is derived from another test by
    removing the context, because two views need it. ``text_view``: whether the views without the
    picture show none, or the release's blank one with a line "Ignore the image.", as the authors'
    code does. Raises InputError (no data file, a line that is no JSON record, nothing usable),
    UsageError (text view, ``out`` holds something else), StoreError.
    """
    if text_view not in TEXT_VIEWS:
        raise UsageError(one_of("text view", text_view, TEXT_VIEWS))
    if text_view != "none" and not (folder / BLANK).is_file():
        raise InputError(
            f"{folder / BLANK}: not there; the authors' blank picture is needed for --text-view"
            f" {text_view}: fetch the whole release, or leave the option out"
        )
    manifest, fetched = (json_object(folder / name) for name in (MANIFEST, FETCHED))
    for name, what, command in ((MANIFEST, "export", "export"), (FETCHED, "download", "fetch")):
        if json_object(folder / name).get("complete") is False:
            raise InputError(
                f"{folder / name}: this {what} was interrupted; finish it: sdgbias release"
                f" {command} --out {folder}"
            )
    parts = find_parts(folder)
    sizes = [(stem(*part), path.stat().st_size) for part, path in parts.items()]
    origin = {
        "synthetic": bool(manifest.get("synthetic")),
        "release": True,
        "source": hashlib.sha256(repr(sizes).encode()).hexdigest(),
    }
    if fetched:
        origin["hub"] = {name: fetched.get(name) for name in ("repo", "commit", "licence")}
    if text_view != "none":
        origin["text_view"] = text_view
    refuse_foreign(out, mine=json_object(out / "origin.json") == origin)
    write_json(out / "origin.json", origin)
    for name in ("benchmark.json", "quality.json"):  # until the end, this is no whole benchmark
        (out / name).unlink(missing_ok=True)
    work = out / ".import"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        with database(temp_directory=str(work / "spill"), memory_limit="1GB") as con:
            job = ReleaseImport(con, folder, out, work, parts, progress, text_view)
            return _run(job, manifest.get("records") or {})
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        line = str(error).splitlines()[0]
        raise StoreError(
            f"{out}: can't be written ({line}); free the disk or name another --out"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(job: ReleaseImport, counts: Mapping[str, int]) -> Imported:
    con, kinds, records = job.con, {}, {}
    for part, path in each(job.progress, "reading records", job.found.items()):
        records[part] = stage_records(path, job.work / f"{stem(*part)}.parquet")
        wanted = counts.get(stem(*part))
        if wanted is not None and wanted != records[part]:
            raise InputError(
                f"{path}: {records[part]} records, release.json says {wanted}; copy that file again"
            )
        kinds[part] = question_kind(con, part[0], job.staged(part))
    uncompared = find_faults(job)
    items, lost, notes = _with_images(job, {task: _one_per_item(job, task) for task in Task})
    faults = con.execute('SELECT tbl AS "table", key, rule, detail FROM faults').df()
    quarantine = pd.concat([faults, lost], ignore_index=True)[QUARANTINE_COLUMNS].astype("str")
    quarantine = quarantine.sort_values(QUARANTINE_COLUMNS, ignore_index=True)
    write_table(job.out / "quarantine", "release", quarantine)
    by_rule = counted(quarantine["rule"])
    if not sum(map(len, items.values())):
        raise InputError(
            f"{job.folder}: no usable item ({', '.join(f'{k} {v}' for k, v in by_rule.items())});"
            f" see {job.out}/quarantine"
        )
    for task, table in items.items():
        write_table(job.out, f"items_{task}", table)
    write_table(job.out, "clusters", clusters_of(items))
    columns = ["task", "item_id", "test", "text", "image_id", "candidates"]
    columns += ["blank_id"] if _blank_id(job) else []
    _write(job, "prompts", columns, _prompts(job, items, kinds))
    kept = ("task", "test", "line", "item_id", "paths", "record")
    _write(job, "records", kept, _records(job, items))
    files = {stem(*part): (records[part], kinds[part]) for part in job.found}
    missing = [stem(*part) for part in PARTS if part not in job.found]
    about = {
        "files": {name: {"records": n, "question": kind} for name, (n, kind) in files.items()},
        "missing": missing,
        "questions_not_compared": uncompared,
        **notes,
    }
    item_notes = {"release": about, "series_not_found": [], "asked": {}, "review": {}}
    write_json(job.out / "items_notes.json", item_notes)
    card = build_card(job.out)
    sizes = {task.value: len(table) for task, table in items.items()}
    unknown = int((items[Task.MCQ]["polarity"] == "").sum())
    identity = str(card["benchmark_id"])
    odd = notes[Task.REGRESSION.value]["without_tolerance"]
    return Imported(job.out, sizes, files, missing, uncompared, by_rule, unknown, odd, identity)


# ----------------------------------------------------------------------
# items


def _one_per_item(job: ReleaseImport, task: Task) -> pd.DataFrame:
    """One record per good item with all its fields, from the last test's file, whose question has
    the least context."""
    parts = job.parts(task)
    if not parts:
        names = ["paths", "bare", *FIELDS]
        none = pd.DataFrame(columns=names, dtype="str").drop(columns="images")
        return none.astype({"item_id": "int64"})
    query = f"""SELECT * EXCLUDE (number, said, line, question, id, image, level, task,
            num_options) REPLACE (array_to_string(paths, chr(31)) AS paths)
        FROM '{job.staged(parts[-1])}'
            SEMI JOIN (SELECT item_id FROM good WHERE task = '{task}') USING (item_id)
        {ONCE} ORDER BY item_id"""
    frame: pd.DataFrame = job.con.sql(query).to_arrow_table().to_pandas()
    return frame


# ----------------------------------------------------------------------
# items and images


def _with_images(
    job: ReleaseImport, rows: Mapping[Task, pd.DataFrame]
) -> tuple[dict[Task, pd.DataFrame], pd.DataFrame, dict[str, Any]]:
    """(item tables, quarantine rows, notes). Writes the image shards and images.parquet."""
    wanted = ["paths", "cluster_id", "photo_id", "modalities"]
    both = pd.concat([table[wanted] for table in rows.values()], ignore_index=True)
    pictures = both.drop_duplicates("paths").sort_values("paths", ignore_index=True)
    given = pictures["cluster_id"].astype("str").where(pictures["cluster_id"].notna(), "")
    alone = (given != "") & ~given.duplicated(keep=False)
    first = pictures["paths"].str.split(_PLACE).str[0].astype("str")
    place = given.where(alone, place_of_paths(first))
    pictures["place"] = place.where(~place.duplicated(keep=False), pictures["paths"])
    bad: dict[str, tuple[str, str]] = {}
    index = store_images(job.out, _pictures(job, pictures.sort_values("place"), bad))
    index["image_group"] = near_duplicates.groups(
        index["image_id"].tolist(), index[["tile_hash", "photo_hash"]].to_numpy().tolist()
    )
    shown_in = pictures.drop_duplicates("place").set_index("place")["modalities"]
    index["modalities"] = index["cluster_id"].map(shown_in).fillna("").astype("str")
    write_table(job.out, "images", index)
    if (job.folder / BLANK).is_file():
        blank = confine(job.folder, BLANK).read_bytes()
        write_atomically(job.out / "blank.png", blank, ONWARD)
    place = pictures.set_index("paths")["place"]
    ids = index.set_index("cluster_id")["image_id"]
    items, lost, notes = {}, [], {}
    for task, table in rows.items():
        table = table.assign(cluster_id=table["paths"].map(place).astype("str"))
        table["image_id"] = table["cluster_id"].map(ids)
        shown = table["image_id"].notna()
        items[task], notes[task.value] = item_table(task, table[shown].reset_index(drop=True))
        why = table.loc[~shown, "paths"].map(bad)
        key = table.loc[~shown, "item_id"].astype("str")
        about = {"key": key, "rule": why.str[0], "detail": why.str[1]}
        lost.append(pd.DataFrame({"table": f"items_{task}", **about}, columns=QUARANTINE_COLUMNS))
        if task is Task.REGRESSION:
            odd = items[task].loc[items[task]["tolerance"].isna(), "target"]
            notes[task.value]["without_tolerance"] = counted(odd.replace("", "missing"))
    return items, pd.concat(lost, ignore_index=True), notes


def _pictures(
    job: ReleaseImport, pictures: pd.DataFrame, bad: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, str, Sequence[bytes]]]:
    """(cluster id, photo id, encoded images) of all usable images; rule and detail of the others go
    into ``bad``."""
    photo = pictures["photo_id"].astype("str").where(pictures["photo_id"].notna(), "")
    rows = list(zip(pictures["paths"], pictures["place"], photo, strict=True))
    for paths, place, photo_id in each(job.progress, "storing images", rows, every=500):
        picture = _picture(job.folder, paths)
        if isinstance(picture, list):
            yield str(place), str(photo_id), picture
        else:
            bad[paths] = picture


def _picture(folder: Path, paths: str) -> list[bytes] | tuple[str, str]:
    """The bytes of one image's files, or (rule, detail)."""
    parts = []
    for name in paths.split(_PLACE):
        if not name:
            return "missing-modality", "no image named"
        try:
            path = confine(folder, name)
        except InputError:
            return "image-outside-folder", f"image {name!r} is no path inside the release"
        if not path.is_file():
            return "missing-modality", f"no file {name}"
        parts.append(path.read_bytes())
        if fault := _undecodable(parts[-1]):
            return "broken-image", f"{name} {fault}"
    return parts


def _undecodable(data: bytes) -> str:
    """Why a picture can't be decoded; '' when it can."""
    try:
        with Image.open(io.BytesIO(data), formats=_PICTURES) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                return f"has {width} x {height} pixels, at most {MAX_PIXELS} are decoded"
            if image.format == "PNG":
                image.verify()
            else:  # a JPEG has no checksum; an eighth of its size shows whether it is truncated
                image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
                image.load()
    except Exception:  # Pillow raises whatever its decoders raise
        return "is no readable PNG or JPEG"
    return ""


# ----------------------------------------------------------------------
# prompts and records


def _blank_id(job: ReleaseImport) -> str:
    """The image id of the blank picture that the views without the picture show; '' none."""
    return image_id([(job.folder / BLANK).read_bytes()]) if job.text_view != "none" else ""


def _write(job: ReleaseImport, name: str, columns: Sequence[str], queries: Iterator[str]) -> None:
    """A table from the rows of several queries, each of which is run before the next one is
    made."""
    kinds = {"item_id": pa.int64(), "line": pa.int64(), "paths": pa.list_(pa.string())}
    schema = pa.schema([(column, kinds.get(column, pa.string())) for column in columns])
    with (
        writing(job.out / f"{name}.parquet", ONWARD) as part,
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for query in queries:
            for batch in job.con.sql(query).to_arrow_reader(65_536):
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))


def _prompts(
    job: ReleaseImport, items: Mapping[Task, pd.DataFrame], kinds: Mapping[Part, str]
) -> Iterator[str]:
    """SQL of prompts.parquet per task: the original question when it is complete, else completed by
    prompts.py."""
    for task, table in items.items():
        if table.empty:
            continue
        mcq = task is Task.MCQ
        candidates = np.where(table["option_c"] == "", "AB", LETTERS) if mcq else DIGITS
        shown = table[["item_id", "image_id"]].assign(candidates=candidates)
        texts = dict.fromkeys(("image_id", "candidates"), "str")
        job.con.register("items", pa.Table.from_pandas(shown.astype(texts), preserve_index=False))
        parts = job.parts(task)
        selects = [_asked(job, part, part[1], table, kinds[part]) for part in parts]
        if (task, ContextTest.T5) not in job.found:  # a partial release
            selects.append(_asked(job, parts[-1], ContextTest.T5, table, kinds[parts[-1]]))
        blank = f", '{blank_id}' AS blank_id" if (blank_id := _blank_id(job)) else ""
        yield f"""SELECT '{task}' AS task, item_id, test, text, image_id::VARCHAR AS image_id,
            candidates::VARCHAR AS candidates{blank}
            FROM ({" UNION ALL ".join(selects)}) JOIN items USING (item_id)
            ORDER BY item_id, test"""


def _asked(
    job: ReleaseImport, part: Part, test: ContextTest, items: pd.DataFrame, kind: str
) -> str:
    """SQL that gives item_id, test, text of one part; of a ``test`` that isn't the part's, which is
    T5, without the context."""
    task, of_part = part
    first = f"FROM '{job.staged(part)}' {ONCE}"
    text = "coalesce(question, '')"
    if kind == "complete":
        if test is not of_part:
            text = f"regexp_replace({text}, '(?m)^Context:.*\n?', '')"
        return f"SELECT item_id, '{test}' AS test, {text} AS text {first}"
    view = View.FULL
    if test is of_part:
        bare = f"regexp_replace({text}, '^Question: ?', '')"
        questions = job.con.execute(f"SELECT item_id, {bare} AS question {first}").df()
        question = items["item_id"].map(questions.set_index("item_id")["question"]).astype("str")
        items = items.assign(question=question)
        # a context that is already in the question isn't added again
        view = View.FULL if kind == "bare" else View.Q_ONLY
    texts = prompt_texts(items, task, test, view).astype("str")
    job.con.register(f"texts_{test}", pa.table({"item_id": items["item_id"], "text": texts}))
    return f"SELECT item_id, '{test}' AS test, text FROM texts_{test}"


def _records(job: ReleaseImport, items: Mapping[Task, pd.DataFrame]) -> Iterator[str]:
    """SQL of records.parquet: the lines of all retained items, file by file in their order, without
    repeated lines."""
    for part in job.found:
        task, test = part
        job.con.register("kept", pa.table({"item_id": items[task]["item_id"]}))
        yield f"""SELECT '{task}' AS task, '{test}' AS test, number AS line, item_id, paths,
            line AS record
            FROM '{job.staged(part)}' SEMI JOIN kept USING (item_id) {ONCE} ORDER BY number"""
