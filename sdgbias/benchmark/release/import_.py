"""A folder in the layout of the authors' release -> a benchmark folder that `sdgbias evaluate`
accepts like a built one.

Records are parsed, compared and joined by DuckDB, without a Python object per record. Every
imported line is stored unchanged in records.parquet (task, test, line, item_id, paths, record), so
that export loses nothing. Unusable rows go to quarantine/release.parquet with the broken rule; a
broken item is removed from all its tests.
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
    MANIFEST,
    ONWARD,
    PARTS,
    refuse_foreign,
    stem,
)
from sdgbias.errors import InputError, StoreError
from sdgbias.files import confine, json_object, write_atomically, write_json, writing
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images import near_duplicates
from sdgbias.raw.images.composite import MAX_PIXELS
from sdgbias.raw.images.image_store import store_images
from sdgbias.types import LETTERS, QUARANTINE_COLUMNS, ContextTest, Task, View

_PICTURES = ("PNG", "JPEG")
_PLACE = "\x1f"


@dataclass(frozen=True)
class Imported:
    """items per task; files: data file -> (records, kind of its question); missing: missing data
    files; uncompared: tasks whose question texts differ between files by more than the context, for
    most items; quarantined: rule -> rows; unknown: items whose indicator isn't in our table, so
    that the polarity of their answers is unknown."""

    out: Path
    items: dict[str, int]
    files: dict[str, tuple[int, str]]
    missing: list[str]
    uncompared: list[str]
    quarantined: dict[str, int]
    unknown: int
    benchmark_id: str

    def lines(self) -> list[str]:
        return templates.lines("release_import", r=self)


def import_(folder: Path, out: Path, progress: Progress = silent) -> Imported:
    """Build the benchmark folder ``out`` from ``folder``/data/*.jsonl (or ``folder``/*.jsonl) and
    the images they name.

    A partial release is imported as far as possible; a missing T5 is derived from another test by
    removing the context, because two views need it. Raises InputError (no data file, a line that is
    no JSON record, nothing usable), UsageError (``out`` holds something else), StoreError.
    """
    manifest = json_object(folder / MANIFEST)
    if manifest.get("complete") is False:
        raise InputError(
            f"{folder / MANIFEST}: this export was interrupted; finish it: sdgbias release export"
            f" --out {folder}"
        )
    found = find_parts(folder)
    sizes = [(stem(*part), path.stat().st_size) for part, path in found.items()]
    origin = {
        "synthetic": bool(manifest.get("synthetic")),
        "release": True,
        "source": hashlib.sha256(repr(sizes).encode()).hexdigest(),
    }
    refuse_foreign(out, mine=json_object(out / "origin.json") == origin)
    write_json(out / "origin.json", origin)
    for name in (
        "benchmark.json",
        "quality.json",
    ):  # until the end, this is not a complete benchmark
        (out / name).unlink(missing_ok=True)
    work = out / ".import"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        with database(temp_directory=str(work / "spill"), memory_limit="1GB") as con:
            return _run(
                ReleaseImport(con, folder, out, work, found, progress),
                manifest.get("records") or {},
            )
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
        records[part] = stage_records(con, path, Path(job.staged(part)))
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
    _write_prompts(job, items, kinds)
    _write_records(job, items)
    missing = [stem(*part) for part in PARTS if part not in job.found]
    about = {
        "files": {stem(*p): {"records": records[p], "question": kinds[p]} for p in job.found},
        "missing": missing,
        "questions_not_compared": uncompared,
        **notes,
    }
    write_json(
        job.out / "items_notes.json",
        {"release": about, "series_not_found": [], "asked": {}, "review": {}},
    )
    card = build_card(job.out)
    mcq = items[Task.MCQ]
    return Imported(
        job.out,
        {task.value: len(table) for task, table in items.items()},
        {stem(*p): (records[p], kinds[p]) for p in job.found},
        missing,
        uncompared,
        by_rule,
        int((mcq["polarity"] == "").sum()),
        str(card["benchmark_id"]),
    )


# ----------------------------------------------------------------------
# items


def _one_per_item(job: ReleaseImport, task: Task) -> pd.DataFrame:
    """One record per good item with all its fields, from the last test's file, whose question has
    the least context."""
    parts = job.parts(task)
    if not parts:
        names = [
            "item_id",
            "paths",
            "bare",
            *(name for name in FIELDS if name not in ("item_id", "images")),
        ]
        return pd.DataFrame(
            {name: pd.Series(dtype="int64" if name == "item_id" else "str") for name in names}
        )
    return (
        job.con.sql(
            f"""SELECT * EXCLUDE (number, said, line, digest, question, id, image, level, task,
                num_options) REPLACE (array_to_string(paths, chr(31)) AS paths)
            FROM '{job.staged(parts[-1])}' SEMI JOIN (SELECT item_id FROM good WHERE task =
            '{task}') USING (item_id)
            QUALIFY row_number() OVER (PARTITION BY item_id ORDER BY number) = 1 ORDER BY item_id"""
        )
        .to_arrow_table()
        .to_pandas()
    )


# --------------------------------------------------------------------------------------- items and
# images


def _with_images(
    job: ReleaseImport, rows: Mapping[Task, pd.DataFrame]
) -> tuple[dict[Task, pd.DataFrame], pd.DataFrame, dict[str, Any]]:
    """(item tables, quarantine rows, notes). Writes the image shards and images.parquet."""
    both = pd.concat(
        [table[["paths", "cluster_id", "photo_id", "modalities"]] for table in rows.values()],
        ignore_index=True,
    )
    pictures = both.drop_duplicates("paths").sort_values("paths", ignore_index=True)
    given = pictures["cluster_id"].astype("str").where(pictures["cluster_id"].notna(), "")
    alone = (given != "") & ~given.duplicated(keep=False)
    pictures["place"] = given.where(
        alone, place_of_paths(pictures["paths"].str.split(_PLACE).str[0].astype("str"))
    )
    pictures["place"] = pictures["place"].where(
        ~pictures["place"].duplicated(keep=False), pictures["paths"]
    )
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
        lost.append(_lost(task, table.loc[~shown, "item_id"], why.str[0], why.str[1]))
        if task is Task.REGRESSION:
            odd = items[task]["tolerance"].isna()
            target = items[task].loc[odd, "target"]
            lost.append(
                _lost(
                    task,
                    items[task].loc[odd, "item_id"],
                    "unknown-target",
                    "target " + target.where(target != "", "missing"),
                )
            )
            items[task] = items[task][~odd].reset_index(drop=True)
    return items, pd.concat(lost, ignore_index=True), notes


def _lost(
    task: Task, ids: pd.Series, rule: pd.Series | str, detail: pd.Series | str
) -> pd.DataFrame:
    return pd.DataFrame(
        {"table": f"items_{task}", "key": ids.astype("str"), "rule": rule, "detail": detail},
        columns=QUARANTINE_COLUMNS,
    )


def _pictures(
    job: ReleaseImport, pictures: pd.DataFrame, bad: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, str, Sequence[bytes]]]:
    """(cluster id, photo id, encoded images) of all usable images; rule and detail of the others go
    into ``bad``."""
    photo = pictures["photo_id"].astype("str").where(pictures["photo_id"].notna(), "")
    rows = list(zip(pictures["paths"], pictures["place"], photo, strict=True))
    for paths, place, photo_id in each(job.progress, "storing images", rows, every=500):
        found = _picture(job.folder, paths)
        if isinstance(found, list):
            yield str(place), str(photo_id), found
        else:
            bad[paths] = found


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
        data = path.read_bytes()
        try:
            with Image.open(io.BytesIO(data), formats=_PICTURES) as image:
                if image.width * image.height > MAX_PIXELS:
                    return (
                        "broken-image",
                        (
                            f"{name} has {image.width} x {image.height} pixels, at most"
                            f" {MAX_PIXELS} are decoded"
                        ),
                    )
                if image.format == "PNG":
                    image.verify()
                # a JPEG has no checksum; decoding it at an eighth of its size shows whether it is
                # truncated
                else:
                    image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
                    image.load()
        except Exception:  # Pillow raises whatever its decoders raise
            return "broken-image", f"{name} is no readable PNG or JPEG"
        parts.append(data)
    return parts


# ------------------------------------------------------------------------------------- prompts and
# records


def _write_prompts(
    job: ReleaseImport, items: Mapping[Task, pd.DataFrame], kinds: Mapping[Part, str]
) -> None:
    """prompts.parquet: the original question when it is complete, else completed by prompts.py."""
    con = job.con
    schema = pa.schema(
        [
            (n, pa.int64() if n == "item_id" else pa.string())
            for n in ("task", "item_id", "test", "text", "image_id", "candidates")
        ]
    )
    with (
        writing(job.out / "prompts.parquet", ONWARD) as part,
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for task, table in items.items():
            parts = job.parts(task)
            if table.empty:
                continue
            sides = (
                np.where(table["option_c"] == "", "AB", LETTERS)
                if task is Task.MCQ
                else "0123456789"
            )
            con.register(
                "items",
                pa.table(
                    {
                        "item_id": table["item_id"],
                        "image_id": table["image_id"].astype("str"),
                        "candidates": pd.Series(sides, index=table.index, dtype="str"),
                    }
                ),
            )
            asked = [_asked(job, part, table, kinds[part]) for part in parts]
            if (task, ContextTest.T5) not in job.found:
                asked.append(_asked_without_context(job, parts[-1], table, kinds[parts[-1]]))
            rows = con.sql(
                f"""SELECT '{task}' AS task, item_id, test, text, image_id::VARCHAR AS image_id,
                    candidates::VARCHAR AS candidates
                    FROM ({" UNION ALL ".join(asked)}) JOIN items USING (item_id) ORDER BY item_id,
                    test"""
            ).to_arrow_reader(65_536)
            for batch in rows:
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))


def _first_records(job: ReleaseImport, part: Part, columns: str) -> str:
    return (
        f"SELECT {columns} FROM '{job.staged(part)}' QUALIFY row_number() OVER (PARTITION BY"
        " item_id ORDER BY number) = 1"
    )


def _asked(job: ReleaseImport, part: Part, items: pd.DataFrame, kind: str) -> str:
    """SQL that gives item_id, test, text of one part."""
    task, test = part
    if kind == "complete":
        return _first_records(
            job, part, f"item_id, '{test}' AS test, coalesce(question, '') AS text"
        )
    said = job.con.execute(
        _first_records(
            job,
            part,
            "item_id, regexp_replace(coalesce(question, ''), '^Question: ?', '') AS question",
        )
    ).df()
    question = items["item_id"].map(said.set_index("item_id")["question"]).astype("str")
    view = (
        View.FULL if kind == "bare" else View.Q_ONLY
    )  # a context that is already in the question isn't added again
    return _registered(
        job, test, items["item_id"], prompt_texts(items.assign(question=question), task, test, view)
    )


def _asked_without_context(job: ReleaseImport, part: Part, items: pd.DataFrame, kind: str) -> str:
    """SQL for the T5 that a partial release lacks, derived from another test."""
    test = ContextTest.T5
    if kind == "complete":
        text = "regexp_replace(coalesce(question, ''), '(?m)^Context:.*\n?', '')"
        return _first_records(job, part, f"item_id, '{test}' AS test, {text} AS text")
    return _registered(job, test, items["item_id"], prompt_texts(items, part[0], test, View.FULL))


def _registered(job: ReleaseImport, test: ContextTest, ids: pd.Series, texts: pd.Series) -> str:
    job.con.register(f"texts_{test}", pa.table({"item_id": ids, "text": texts.astype("str")}))
    return f"SELECT item_id, '{test}' AS test, text FROM texts_{test}"


def _write_records(job: ReleaseImport, items: Mapping[Task, pd.DataFrame]) -> None:
    """records.parquet: the lines of all retained items, file by file in their order, without
    repeated lines."""
    names = ("task", "test", "line", "item_id", "paths", "record")
    kinds = {"line": pa.int64(), "item_id": pa.int64(), "paths": pa.list_(pa.string())}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
    with (
        writing(job.out / "records.parquet", ONWARD) as part,
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for task, test in job.found:
            job.con.register("kept", pa.table({"item_id": items[task]["item_id"]}))
            rows = job.con.sql(
                f"""SELECT '{task}' AS task, '{test}' AS test, number AS line, item_id, paths, line
                    AS record
                    FROM '{job.staged((task, test))}' SEMI JOIN kept USING (item_id)
                    QUALIFY row_number() OVER (PARTITION BY item_id ORDER BY number) = 1 ORDER BY
                    number"""
            ).to_arrow_reader(65_536)
            for batch in rows:
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))
