"""A folder in the layout of the authors' release -> a benchmark folder that `sdgbias evaluate`
accepts like a built one.

DuckDB reads, compares, joins and completes the records (data/release_import.sql; the rules that
they must keep are data/release_faults.sql). Fields that a record lacks are filled from our tables,
or left blank: the indicator table gives polarity, unit, title and pillar when a name in the record
matches (slug, title or SDG code, ignoring case and punctuation), a cluster id in DHS's form gives
country and survey year. Every imported line is stored unchanged in records.parquet (task, test,
line, item_id, paths, record), so that export loses nothing. Unusable rows go to
quarantine/release.parquet with the broken rule; a broken item is removed from all its tests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sdgbias import templates
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import build_card
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.prompts import prompt_texts
from sdgbias.benchmark.release.records import (
    BLANK,
    COLUMNS,
    FETCHED,
    FIELD_OF,
    FIELDS,
    MANIFEST,
    ONWARD,
    PARTS,
    check_text_view,
    refuse_foreign,
    stem,
)
from sdgbias.benchmark.splits import authors_split, split_by_country
from sdgbias.errors import InputError, StoreError
from sdgbias.files import (
    FileError,
    json_object,
    packaged_sql,
    refuse_other_case,
    write_atomically,
    write_json,
    writing,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.clusters import ID_PATTERN, LABELS, UNKNOWN_ADM1, countries
from sdgbias.raw.images import near_duplicates
from sdgbias.raw.images.composite import MAX_PIXELS
from sdgbias.raw.images.named import find_picture
from sdgbias.raw.images.shards import image_id, store_images
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import (
    CONTEXT_NAMES,
    DIGITS,
    LETTERS,
    PILLARS,
    QUARANTINE_COLUMNS,
    TOLERANCES,
    ContextTest,
    Task,
    View,
)

_COPY_AGAIN = "copy that file again from its source"
_NO_PICTURE = f"is no readable PNG or JPEG of at most {MAX_PIXELS:,} pixels"
#: Type of every field of a record that isn't text; an `answer` is a number where it is asked for.
_NUMBERS = {
    **dict.fromkeys(("year", "value_year"), "INTEGER"),
    **dict.fromkeys(("value", "tolerance", *LABELS), "DOUBLE"),
}
_CLUSTER = ("cluster_id", "cname", "iso3", "country", "year", "urban", *LABELS)
_ENTRY = ("slug", "title", "sdg", "unit", "polarity", "pillar", "target")


_SQL = packaged_sql("release_import.sql")


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
    """Build the benchmark folder ``out`` from ``folder``/data/*.jsonl and the images they name.

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
    names = [stem(*part) for part in PARTS]
    paths = {n: path for n in names if (path := folder / "data" / f"{n}.jsonl").is_file()}
    if not paths:
        raise InputError(
            f"{folder}: no data file; expected data/{names[0]}.jsonl to data/{names[-1]}.jsonl of"
            " the release"
        )
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
    try:
        with (
            TemporaryDirectory(dir=out, prefix=".import-") as work,
            duckdb.connect(f"{work}/records.duckdb", config={"memory_limit": "600MB"}) as con,
        ):
            con.execute("SET enable_progress_bar = false")
            con.execute(_SQL["tables"])
            for name, path in each(progress, "reading records", paths.items()):
                records = _read_records(con, path)
                announced = (manifest.get("records") or {}).get(name, records)
                if announced != records:
                    raise InputError(
                        f"{path}: {records} records, release.json says {announced}; {_COPY_AGAIN}"
                    )
            return _write_benchmark(con, folder, out, text_view, progress)
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        line = str(error).splitlines()[0]
        raise StoreError(
            f"{out}: can't be written ({line}); free the disk or name another --out"
        ) from None


def _read_records(con: duckdb.DuckDBPyConnection, path: Path) -> int:
    """Parse a data file into table `records`; returns how many there are. Raises InputError with
    the first bad line."""
    con.execute("TRUNCATE lines")
    try:
        con.execute(_SQL["lines"], {"path": str(path)})
        [(damaged,)] = con.execute(_SQL["damaged"]).fetchall()
    except duckdb.InvalidInputException as error:  # bytes that are no text
        line = re.search(r"on Line: (\d+)", str(error))
        damaged = line[1] if line else "1 or later"
    if damaged is not None:
        raise InputError(
            f"{path} line {damaged}: no JSON record (cut off or damaged); {_COPY_AGAIN}"
        )
    first = con.execute("SELECT line FROM lines ORDER BY number LIMIT 1").fetchone()
    if first is None:
        raise InputError(f"{path}: no record in it; {_COPY_AGAIN}, or remove it")
    refuse_other_case(path, json.loads(first[0]), FIELDS)
    task, test = path.stem.split("_")
    [(records,)] = con.execute(_SQL["parse"], {"task": task, "test": test}).fetchall()
    return int(records)


def _write_benchmark(
    con: duckdb.DuckDBPyConnection, folder: Path, out: Path, text_view: str, progress: Progress
) -> Imported:
    """All files of the benchmark, from table `records`."""
    kinds = {(task, test): (n, k) for task, test, n, k in con.execute(_SQL["kinds"]).fetchall()}
    con.execute(_SQL["differ"])
    uncompared = [task for (task,) in con.execute("FROM by_design").fetchall()]
    for rule, select in packaged_sql("release_faults.sql").items():
        con.execute(
            f"INSERT INTO faults SELECT 'items_' || task, item_id, key, '{rule}', detail FROM"
            f" ({select})"
        )
    con.execute(_SQL["keep"])
    _store_pictures(con, folder, out, progress)
    _register_names(con)
    tables = {task: _complete_items(con, task) for task in Task}
    items = {task: table for task, (table, _) in tables.items()}
    quarantine = con.execute('SELECT tbl AS "table", key, rule, detail FROM faults').df()
    quarantine = quarantine.astype("str").sort_values(QUARANTINE_COLUMNS, ignore_index=True)
    write_table(out / "quarantine", "release", quarantine)
    by_rule = counts(quarantine["rule"])
    if not sum(map(len, items.values())):
        raise InputError(
            f"{folder}: no usable item ({', '.join(f'{k} {v}' for k, v in by_rule.items())});"
            f" see {out}/quarantine"
        )
    for task, table in items.items():
        write_table(out, f"items_{task}", table)
    write_table(out, "clusters", _clusters_of(items))
    _make_prompts(con, items, {part: kind for part, (_, kind) in kinds.items()})
    blank = [] if text_view == "none" else [image_id([(folder / BLANK).read_bytes()])]
    for name in ("prompts", "records"):
        with writing(out / f"{name}.parquet", ONWARD) as draft:
            rows = con.sql(_SQL[name])
            if name == "prompts" and blank:
                rows = rows.project(f"*, '{blank[0]}' AS blank_id")
            rows.write_parquet(str(draft), compression="zstd")
    files = {stem(*part): kinds[part] for part in PARTS if part in kinds}
    missing = [stem(*part) for part in PARTS if part not in kinds]
    release: dict[str, Any] = {
        "files": {name: {"records": n, "question": kind} for name, (n, kind) in files.items()},
        "missing": missing,
        "questions_not_compared": uncompared,
        **{task.value: notes for task, (_, notes) in tables.items()},
    }
    item_notes = {"release": release, "series_not_found": [], "asked": {}, "review": {}}
    write_json(out / "items_notes.json", item_notes)
    return Imported(
        out,
        {task.value: len(table) for task, table in items.items()},
        files,
        missing,
        uncompared,
        by_rule,
        unknown=int((items[Task.MCQ]["polarity"] == "").sum()),
        without_tolerance=release[Task.REGRESSION.value]["without_tolerance"],
        benchmark_id=str(build_card(out)["benchmark_id"]),
    )


# ----------------------------------------------------------------------
# pictures


def _store_pictures(
    con: duckdb.DuckDBPyConnection, folder: Path, out: Path, progress: Progress
) -> None:
    """Write the image shards and images.parquet; view `places` (paths, cluster_id, image_id) holds
    what is stored, table `faults` the items whose picture can't be shown."""
    pictures = con.execute(_SQL["pictures"]).df().fillna("")
    broken: list[tuple[str, str, str]] = []
    undecodable: list[str] = []

    def readable() -> Iterator[tuple[str, str, list[bytes]]]:
        rows = pictures[["key", "paths", "place", "photo_id"]].to_numpy(dtype=object)
        for key, paths, place, photo_id in each(progress, "storing images", rows, every=500):
            try:
                yield place, photo_id, [find_picture(folder, path).read_bytes() for path in paths]
            except FileError as fault:
                broken.append((key, fault.rule, str(fault)))

    index = store_images(out, readable(), undecodable)
    keys = pictures.set_index("place")
    for key, paths in keys.loc[undecodable, ["key", "paths"]].to_numpy(dtype=object):
        broken.append((key, "broken-image", f"{', '.join(paths)} {_NO_PICTURE}"))
    index["image_group"] = near_duplicates.groups(
        index["image_id"].tolist(), index[["tile_hash", "photo_hash"]].to_numpy().tolist()
    )
    index["modalities"] = index["cluster_id"].map(keys["modalities"]).astype("str")
    write_table(out, "images", index)
    if (folder / BLANK).is_file():
        write_atomically(out / "blank.png", find_picture(folder, BLANK).read_bytes(), ONWARD)
    places = index.assign(key=index["cluster_id"].map(keys["key"]))
    con.register("places", places[["key", "cluster_id", "image_id"]])
    con.register("broken", pd.DataFrame(broken, columns=["key", "rule", "detail"], dtype="str"))
    con.execute(_SQL["broken"])


# ----------------------------------------------------------------------
# items


def _register_names(con: duckdb.DuckDBPyConnection) -> None:
    """Tables `names` and `countries` of what our own tables know: by kind (mcq, regression, target,
    pillar) what a name means. Of two entries of one name the first wins."""
    tasks = load_regression_tasks()
    rows: list[dict[str, str]] = []
    for task, entries in ((Task.MCQ, load_indicators()), (Task.REGRESSION, tasks)):
        codes = Counter(entry.sdg for entry in entries)
        for by in ("slug", "title", "sdg"):
            for entry in entries:
                if by != "sdg" or codes[entry.sdg] == 1:  # else the code names neither
                    fields = {name: str(getattr(entry, name, "")) for name in _ENTRY}
                    rows.append({"kind": task.value, "name": getattr(entry, by), **fields})
    targets = [(n, t) for t, c in CONTEXT_NAMES.items() if t in TOLERANCES for n in (t, c)]
    targets += [(name, task.target) for task in tasks for name in (task.slug, task.title)]
    rows += [{"kind": "target", "name": name, "target": target} for name, target in targets]
    rows += [{"kind": "pillar", "name": pillar, "pillar": pillar} for pillar in PILLARS]
    con.register("listed", pd.DataFrame(rows).fillna("").reset_index(names="rank"))
    con.execute(_SQL["names"])
    con.register("countries", countries())


def _complete_items(
    con: duckdb.DuckDBPyConnection, task: Task
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(the columns of items_<task> sorted by item_id, notes)."""
    fields = {name: _NUMBERS.get(name, "VARCHAR") for name in FIELDS}
    fields["answer"] = "DOUBLE" if task is Task.REGRESSION else "VARCHAR"
    del fields["item_id"], fields["images"]
    values = {"task": task.value, "fields": json.dumps(fields), "dhs_id": ID_PATTERN.pattern}
    rows = con.execute(_SQL["items"], values).df()
    not_ours = counts(rows["not_ours"].dropna())
    empty = {"VARCHAR": "", "INTEGER": 0}  # year 0 is unknown
    rows = rows.fillna({name: empty[kind] for name, kind in fields.items() if kind in empty})
    by_rule = rows["split"] == ""
    rows["split"] = rows["split"].where(~by_rule, authors_split(task.value, rows["item_id"]))
    codes = countries()[["cname", "official_split"]]
    sides, _ = split_by_country(codes[codes["cname"].isin(rows["cname"])])
    stated = rows["split_place"] != ""
    rows["split_place"] = rows["split_place"].where(stated, rows["cname"].map(sides).fillna(""))
    fields |= {"item_id": "BIGINT", "image_id": "VARCHAR"}
    dtypes = {"VARCHAR": "str", "BIGINT": "int64", "INTEGER": "int32", "DOUBLE": "float64"}
    named = {name: FIELD_OF.get(name, name) for name in COLUMNS[task]}
    items = pd.DataFrame({name: rows[f].astype(dtypes[fields[f]]) for name, f in named.items()})
    notes: dict[str, Any] = {"indicators_not_ours": not_ours, "split_by_rule": int(by_rule.sum())}
    if task is Task.REGRESSION:
        limits = items["target"].map(TOLERANCES).astype("float64")
        items["tolerance"] = items["tolerance"].fillna(limits)
        without = items.loc[items["tolerance"].isna(), "target"]
        notes["without_tolerance"] = counts(without.replace("", "missing"))
    return items, notes


def _clusters_of(items: Mapping[Task, pd.DataFrame]) -> pd.DataFrame:
    """clusters.parquet: the places as far as the items contain them, sorted; coordinates
    unknown."""
    tables = [table[list(_CLUSTER)] for table in items.values() if len(table)]
    rows = pd.concat(tables).groupby("cluster_id", sort=True).first().reset_index()
    official = rows["cname"].map(countries().set_index("cname")["official_split"]).fillna("")
    is_dhs_id = rows["cluster_id"].str.fullmatch(ID_PATTERN.pattern)
    table = rows.assign(
        survey=rows["cluster_id"].str[:10].where(is_dhs_id, ""),
        lat=np.nan,
        lon=np.nan,
        adm1dhs=np.int32(UNKNOWN_ADM1),
        official_split=official.astype("str"),
    )
    first = ("cluster_id", "cname", "iso3", "country", "survey", "year", "lat", "lon", "urban")
    return table[[*first, "adm1dhs", "official_split", *LABELS]].astype({"year": "int32"})


def _make_prompts(
    con: duckdb.DuckDBPyConnection,
    items: Mapping[Task, pd.DataFrame],
    kinds: Mapping[tuple[str, str], str],
) -> None:
    """Table `prompts`: the original question where it is complete, else completed by prompts.py;
    view `shown`: the picture and the candidates of every item."""
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
            kind, values = kinds[task, of_file], {"task": task.value, "test": test}
            if kind == "complete":
                source = {"of_file": of_file, "bare": of_file != test}
                con.execute(_SQL["prompts-complete"], values | source)
                continue
            view, questions = View.FULL, table
            if of_file == test:
                of_records = {"task": task.value, "of_file": of_file}
                rows = con.execute(_SQL["questions"], of_records).df().set_index("item_id")
                texts = table["item_id"].map(rows["question"])
                questions = table.assign(question=texts.astype("str"))
                # a context that is already in the question isn't added again
                view = View.FULL if kind == "bare" else View.Q_ONLY
            texts = prompt_texts(questions, task, ContextTest(test), view).astype("str")
            con.register("texts", pd.DataFrame({"item_id": table["item_id"], "text": texts}))
            con.execute(_SQL["prompts-completed"], values)
    con.register("shown", pd.concat(shown))
