"""A folder in the layout of the authors' release -> a benchmark folder that `sdgbias evaluate`
accepts like a built one.

DuckDB reads, compares and joins the records (data/release_import.sql; the rules that they must keep
are data/release_faults.sql). Every imported line is stored unchanged in records.parquet (task,
test, line, item_id, paths, record), so that export loses nothing. Unusable rows go to
quarantine/release.parquet with the broken rule; a broken item is removed from all its tests.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import build_card
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.prompts import prompt_texts
from sdgbias.benchmark.release.items import (
    clusters_of,
    complete_items,
    place_of_paths,
    register,
    register_names,
)
from sdgbias.benchmark.release.records import (
    BLANK,
    FETCHED,
    FIELDS,
    MANIFEST,
    ONWARD,
    PARTS,
    check_text_view,
    refuse_foreign,
    stem,
)
from sdgbias.errors import InputError, StoreError
from sdgbias.files import (
    confine,
    json_object,
    packaged_sql,
    refuse_other_case,
    write_atomically,
    write_json,
    writing,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images import near_duplicates
from sdgbias.raw.images.composite import MAX_PIXELS
from sdgbias.raw.images.image_store import store_images
from sdgbias.raw.images.shards import image_id
from sdgbias.types import (
    DIGITS,
    LETTERS,
    QUARANTINE_COLUMNS,
    ContextTest,
    Task,
    View,
)

_COPY_AGAIN = "copy that file again from its source"
_PATH_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class ReleaseImport:
    con: duckdb.DuckDBPyConnection
    folder: Path
    out: Path
    text_view: str
    progress: Progress

    def run(self, query: str, **values: object) -> Any:
        """The result of a query of release_import.sql."""
        return self.con.execute(packaged_sql("release_import.sql")[query], values)


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
    check_text_view(text_view)
    if text_view != "none" and not (folder / BLANK).is_file():
        raise InputError(
            f"{folder / BLANK}: not there; the authors' blank picture is needed for --text-view"
            f" {text_view}: fetch the whole release, or leave the option out"
        )
    manifest, fetched = (json_object(folder / name) for name in (MANIFEST, FETCHED))
    for name, step, command in ((MANIFEST, "export", "export"), (FETCHED, "download", "fetch")):
        if json_object(folder / name).get("complete") is False:
            raise InputError(
                f"{folder / name}: this {step} was interrupted; finish it: sdgbias release"
                f" {command} --out {folder}"
            )
    paths = _data_files(folder)
    sizes = [(name, path.stat().st_size) for name, path in paths.items()]
    origin: dict[str, Any] = {"synthetic": bool(manifest.get("synthetic")), "release": True}
    origin["source"] = hashlib.sha256(repr(sizes).encode()).hexdigest()
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
        with duckdb.connect(work / "records.duckdb", config={"memory_limit": "600MB"}) as con:
            con.execute("SET enable_progress_bar = false")
            job = ReleaseImport(con, folder, out, text_view, progress)
            return _import(job, paths, manifest.get("records") or {})
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        line = str(error).splitlines()[0]
        raise StoreError(
            f"{out}: can't be written ({line}); free the disk or name another --out"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _data_files(folder: Path) -> dict[str, Path]:
    """Stem -> path of the existing data files, in the order of PARTS."""
    paths = {}
    for name in (stem(*part) for part in PARTS):
        for path in (folder / f"{name}.jsonl", folder / "data" / f"{name}.jsonl"):
            if path.is_file():
                paths[name] = path
    if not paths:
        raise InputError(
            f"{folder}: no data file; expected data/{stem(*PARTS[0])}.jsonl to"
            f" data/{stem(*PARTS[-1])}.jsonl of the release"
        )
    return paths


def _import(
    job: ReleaseImport, paths: Mapping[str, Path], announced: Mapping[str, int]
) -> Imported:
    con = job.con
    job.run("tables")
    for name, path in each(job.progress, "reading records", paths.items()):
        records = _read_records(job, path)
        if announced.get(name, records) != records:
            raise InputError(
                f"{path}: {records} records, release.json says {announced[name]}; copy that file"
                " again"
            )
    kinds = {(task, test): (n, kind) for task, test, n, kind in job.run("kinds").fetchall()}
    job.run("differ")
    uncompared = [task for (task,) in con.execute("FROM by_design").fetchall()]
    for rule, select in packaged_sql("release_faults.sql").items():
        con.execute(
            f"INSERT INTO faults SELECT 'items_' || task, item_id, key, '{rule}', detail FROM"
            f" ({select})"
        )
    job.run("keep")
    register_names(con)
    _store_pictures(job)
    tables = [complete_items(con, task) for task in Task]
    items = {task: table for task, (table, _) in zip(Task, tables, strict=True)}
    quarantine = con.execute('SELECT tbl AS "table", key, rule, detail FROM faults').df()
    quarantine = quarantine.astype("str").sort_values(QUARANTINE_COLUMNS, ignore_index=True)
    write_table(job.out / "quarantine", "release", quarantine)
    by_rule = counts(quarantine["rule"])
    if not sum(map(len, items.values())):
        raise InputError(
            f"{job.folder}: no usable item ({', '.join(f'{k} {v}' for k, v in by_rule.items())});"
            f" see {job.out}/quarantine"
        )
    for task, table in items.items():
        write_table(job.out, f"items_{task}", table)
    write_table(job.out, "clusters", clusters_of(items))
    _write_prompts_and_records(job, items, {part: kind for part, (_, kind) in kinds.items()})
    files = {stem(*part): kinds[part] for part in PARTS if part in kinds}
    missing = [stem(*part) for part in PARTS if part not in kinds]
    release: dict[str, Any] = {
        "files": {name: {"records": n, "question": kind} for name, (n, kind) in files.items()},
        "missing": missing,
        "questions_not_compared": uncompared,
        **{task.value: notes for task, (_, notes) in zip(Task, tables, strict=True)},
    }
    item_notes = {"release": release, "series_not_found": [], "asked": {}, "review": {}}
    write_json(job.out / "items_notes.json", item_notes)
    return Imported(
        job.out,
        {task.value: len(table) for task, table in items.items()},
        files,
        missing,
        uncompared,
        by_rule,
        unknown=int((items[Task.MCQ]["polarity"] == "").sum()),
        without_tolerance=release[Task.REGRESSION.value]["without_tolerance"],
        benchmark_id=str(build_card(job.out)["benchmark_id"]),
    )


def _read_records(job: ReleaseImport, path: Path) -> int:
    """Parse a data file into table `records`; returns how many there are. Raises InputError with
    the first bad line."""
    job.con.execute("TRUNCATE lines")
    try:
        job.run("lines", path=str(path))
        [(damaged,)] = job.run("damaged").fetchall()
    except duckdb.InvalidInputException as error:  # bytes that are no text
        line = re.search(r"on Line: (\d+)", str(error))
        damaged = line[1] if line else "1 or later"
    if damaged is not None:
        raise InputError(
            f"{path} line {damaged}: no JSON record (cut off or damaged); {_COPY_AGAIN}"
        )
    first = job.con.execute("SELECT line FROM lines ORDER BY number LIMIT 1").fetchone()
    if first is None:
        raise InputError(f"{path}: no record in it; {_COPY_AGAIN}, or remove it")
    refuse_other_case(path, json.loads(first[0]), FIELDS)
    task, test = path.stem.split("_")
    [(records,)] = job.run("parse", task=task, test=test).fetchall()
    return int(records)


# ----------------------------------------------------------------------
# pictures


def _store_pictures(job: ReleaseImport) -> None:
    """Write the image shards and images.parquet; table `places` (paths, cluster_id, image_id) holds
    what is stored, table `faults` the items whose picture can't be."""
    pictures = job.run("pictures").df().astype("str").fillna("")
    named = pictures["cluster_id"]
    unique = (named != "") & ~named.duplicated(keep=False)
    place = named.where(unique, place_of_paths(pictures["paths"].str.split(_PATH_SEPARATOR).str[0]))
    pictures["place"] = place.where(~place.duplicated(keep=False), pictures["paths"])
    pictures = pictures.sort_values("place")
    broken: list[tuple[str, str, str]] = []
    index = store_images(job.out, _pictures(job, pictures, broken))
    index["image_group"] = near_duplicates.groups(
        index["image_id"].tolist(), index[["tile_hash", "photo_hash"]].to_numpy().tolist()
    )
    modalities = pictures.set_index("place")["modalities"]
    index["modalities"] = index["cluster_id"].map(modalities).astype("str")
    write_table(job.out, "images", index)
    if (job.folder / BLANK).is_file():
        blank = confine(job.folder, BLANK).read_bytes()
        write_atomically(job.out / "blank.png", blank, ONWARD)
    stored = pictures.rename(columns={"place": "cluster_id", "cluster_id": "named"})
    places = stored.merge(index, on="cluster_id")[["paths", "cluster_id", "image_id"]]
    register(job.con, "places", places)
    register(job.con, "broken", pd.DataFrame(broken, columns=["paths", "rule", "detail"]))
    job.run("broken")


def _pictures(
    job: ReleaseImport, pictures: pd.DataFrame, broken: list[tuple[str, str, str]]
) -> Iterator[tuple[str, str, Sequence[bytes]]]:
    """(cluster id, photo id, encoded images) of all usable pictures; paths, rule and detail of the
    others go into ``broken``."""
    rows = list(zip(pictures["paths"], pictures["place"], pictures["photo_id"], strict=True))
    for paths, place, photo_id in each(job.progress, "storing images", rows, every=500):
        parts = []
        for name in paths.split(_PATH_SEPARATOR):
            data, rule, detail = _picture(job.folder, name)
            if rule:
                broken.append((paths, rule, detail))
                break
            parts.append(data)
        else:
            yield place, photo_id, parts


def _picture(folder: Path, name: str) -> tuple[bytes, str, str]:
    """The bytes of one picture, and the rule that it breaks ('' none) with the detail."""
    if not name:
        return b"", "missing-modality", "no image named"
    try:
        path = confine(folder, name)
    except InputError:
        return b"", "image-outside-folder", f"image {name!r} is no path inside the release"
    if not path.is_file():
        return b"", "missing-modality", f"no file {name}"
    data = path.read_bytes()
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                large = f"has {width} x {height} pixels, at most {MAX_PIXELS} are decoded"
                return b"", "broken-image", f"{name} {large}"
            if image.format == "PNG":
                image.verify()
            else:  # a JPEG has no checksum; an eighth of its size shows whether it is truncated
                image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
                image.load()
    except Exception:  # Pillow raises whatever its decoders raise
        return b"", "broken-image", f"{name} is no readable PNG or JPEG"
    return data, "", ""


# ----------------------------------------------------------------------
# prompts and records


def _write_prompts_and_records(
    job: ReleaseImport, items: Mapping[Task, pd.DataFrame], kinds: Mapping[tuple[str, str], str]
) -> None:
    """prompts.parquet: the original question where it is complete, else completed by prompts.py;
    records.parquet: the lines of all items, file by file in their order, without repeated ones."""
    shown = []
    for task, table in items.items():
        few = table["option_c"] == "" if task is Task.MCQ else None
        letters = DIGITS if few is None else few.map({True: LETTERS[:2], False: LETTERS})
        shown.append(table[["item_id", "image_id"]].assign(task=task.value, candidates=letters))
        tests = sorted(test for of_task, test in kinds if of_task == task)
        pairs = [(test, test) for test in tests]
        if tests and ContextTest.T5 not in tests:  # a partial release
            pairs.append((tests[-1], ContextTest.T5.value))
        for of_file, test in pairs:
            kind = kinds[task, of_file]
            if kind == "complete":
                bare = of_file != test
                job.run("prompts-complete", task=task, of_file=of_file, test=test, bare=bare)
                continue
            view, questions = View.FULL, table
            if of_file == test:
                rows = job.run("questions", task=task, of_file=of_file).df()
                texts = table["item_id"].map(rows.set_index("item_id")["question"])
                questions = table.assign(question=texts.astype("str"))
                # a context that is already in the question isn't added again
                view = View.FULL if kind == "bare" else View.Q_ONLY
            texts = prompt_texts(questions, task, ContextTest(test), view).astype("str")
            register(job.con, "texts", pd.DataFrame({"item_id": table["item_id"], "text": texts}))
            job.run("prompts-completed", task=task, test=test)
    register(job.con, "shown", pd.concat(shown))
    blank = {}
    if job.text_view != "none":
        blank["blank_id"] = image_id([(job.folder / BLANK).read_bytes()])
    _write(job, "prompts", [{"task": task} for task in Task], blank)
    _write(job, "records", [{"task": task, "test": test} for task, test in PARTS], {})


def _write(
    job: ReleaseImport, name: str, parts: Sequence[Mapping[str, str]], constants: Mapping[str, str]
) -> None:
    """A table from the rows of its query for every part, and columns that are the same in every
    row."""
    query = packaged_sql("release_import.sql")[name]
    with writing(job.out / f"{name}.parquet", ONWARD) as draft, ExitStack() as stack:
        writer = None
        for values in parts:
            for batch in job.con.sql(query, params=dict(values)).to_arrow_reader(65_536):
                table = pa.Table.from_batches([batch])
                for column, value in constants.items():
                    table = table.append_column(column, pa.array([value] * len(table)))
                if writer is None:
                    writer = pq.ParquetWriter(draft, table.schema, compression="zstd")
                    stack.enter_context(writer)
                writer.write_table(table)
