"""A folder in the layout of the authors' release -> a benchmark folder that `sdgbias evaluate`
accepts like a built one.

DuckDB reads, checks, joins and completes the records (data/release_import.sql). Fields that a
record lacks are filled from our tables, or left blank: the indicator table gives polarity, unit,
title and pillar when a name in the record matches (slug, title or SDG code, ignoring case and
punctuation), a cluster id in DHS's form gives country and survey year. Every imported line is
stored unchanged in records.parquet (task, test, line, item_id, paths, record), so that export loses
nothing. Unusable rows go to quarantine/release.parquet with the broken rule; a broken item is
removed from all its tests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from sdgbias import templates
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import build_card, database
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.item_columns import column_types
from sdgbias.benchmark.prompts import prompt_texts
from sdgbias.benchmark.release import authors
from sdgbias.benchmark.splits import authors_split, split_by_country
from sdgbias.errors import InputError, StoreError, argument
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
from sdgbias.raw.clusters import ID_PATTERN, UNKNOWN_ADM1, countries
from sdgbias.raw.images import near_duplicates
from sdgbias.raw.images.composite import MAX_PIXELS
from sdgbias.raw.images.named import find_picture
from sdgbias.raw.images.shards import image_id, store_images
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import (
    CONTEXT_NAMES,
    PILLARS,
    TESTS,
    TOLERANCES,
    ContextTest,
    Task,
    View,
)

_COPY_AGAIN = "copy that file again from its source"
_SQL = packaged_sql("release_import.sql")
_SQL_TYPES = {"str": "VARCHAR", "int64": "BIGINT", "int32": "INTEGER", "float64": "DOUBLE"}


def import_(
    folder: Path, out: Path, text_view: str = "none", progress: Progress = silent
) -> list[str]:
    """Build the benchmark folder ``out`` from ``folder``/data/*.jsonl and the images they name.
    Returns the lines that the command prints.

    A partial release is imported as far as possible; a missing T5 is derived from another test by
    removing the context, because two views need it. ``text_view``: whether the views without the
    picture show none, or the release's blank one with a line "Ignore the image."
    (`blank-image`), as the authors' code does. Raises InputError (no data file, a line that is no
    JSON record, nothing usable), UsageError (``out`` holds something else), StoreError.
    """
    if text_view != "none" and not (folder / authors.BLANK).is_file():
        raise InputError(
            f"{folder / authors.BLANK}: not there, which --text-view {text_view} needs; fetch the"
            " whole release, or leave the option out"
        )
    manifest, fetched = (json_object(folder / n) for n in (authors.MANIFEST, authors.FETCHED))
    for content, command in ((manifest, "export"), (fetched, "fetch")):
        if content.get("complete") is False:
            raise InputError(
                f"{folder}: its {command} was interrupted; finish it: sdgbias release {command}"
                f" --out {argument(folder)}"
            )
    paths = {n: path for n in authors.PARTS if (path := folder / "data" / f"{n}.jsonl").is_file()}
    if not paths:
        first, *_, last = authors.PARTS
        raise InputError(
            f"{folder}: no data file; expected data/{first}.jsonl to data/{last}.jsonl of the"
            " release"
        )
    stated = manifest.get("records")
    sizes = [(name, path.stat().st_size) for name, path in paths.items()]
    origin: dict[str, Any] = {"synthetic": bool(manifest.get("synthetic")), "release": True}
    origin["source"] = hashlib.sha256(repr(sizes).encode()).hexdigest()
    if fetched:
        origin["hub"] = {name: fetched.get(name) for name in ("repo", "commit", "licence")}
    if text_view != "none":
        origin["text_view"] = text_view
    authors.refuse_foreign(out, same_source=json_object(out / "origin.json") == origin)
    write_json(out / "origin.json", origin)
    for name in ("benchmark.json", "quality.json"):  # until the end, this is no whole benchmark
        (out / name).unlink(missing_ok=True)
    try:
        with database(out) as con:
            # the records of a release, a gigabyte of text, are sorted beside what else is open
            con.execute("SET memory_limit = '1GB'")
            con.execute(_SQL["tables"])
            for name, path in each(progress, "reading records", paths.items()):
                records = _read_records(con, path)
                if isinstance(stated, dict) and stated.get(name, records) != records:
                    raise InputError(
                        f"{path}: {records} records, release.json says {stated[name]};"
                        f" {_COPY_AGAIN}"
                    )
            return _write_benchmark(con, folder, out, text_view, progress)
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        line = str(error).splitlines()[0]
        raise StoreError(f"{out}: can't be written ({line}); {authors.ONWARD}") from None


def _read_records(con: duckdb.DuckDBPyConnection, path: Path) -> int:
    """Parse a data file into table `records`; returns how many there are. Raises InputError with
    the first bad line."""
    con.execute("TRUNCATE lines")
    try:
        con.execute(_SQL["lines"], {"path": str(path)})
        [(damaged, first)] = con.execute(_SQL["check"]).fetchall()
    except duckdb.InvalidInputException as error:  # bytes that are no text
        line = re.search(r"on Line: (\d+)", str(error))
        damaged = line[1] if line else "1 or later"
    if damaged is not None:
        raise InputError(
            f"{path} line {damaged}: no JSON record (cut off, damaged or a field twice);"
            f" {_COPY_AGAIN}"
        )
    if first is None:
        raise InputError(f"{path}: no record in it; {_COPY_AGAIN}, or remove it")
    refuse_other_case(path, json.loads(first), authors.FIELDS)
    task, test = authors.PARTS[path.stem]
    [(records,)] = con.execute(_SQL["parse"], {"task": task.value, "test": test.value}).fetchall()
    return int(records)


def _write_benchmark(
    con: duckdb.DuckDBPyConnection, folder: Path, out: Path, text_view: str, progress: Progress
) -> list[str]:
    """All files of the benchmark, from table `records`; returns the lines that are printed."""
    kinds = con.execute(_SQL["kinds"]).fetchall()
    files = {name: {"records": n, "question": kind} for name, n, kind in kinds}
    con.execute(_SQL["differ"])
    con.execute(_SQL["faults"])
    con.execute(_SQL["keep"])
    _store_pictures(con, folder, out, progress)
    _register_names(con)
    release: dict[str, Any] = {
        "files": {name: files[name] for name in authors.PARTS if name in files},
        "missing": [name for name in authors.PARTS if name not in files],
        "questions_not_compared": [task for (task,) in con.execute("FROM by_design").fetchall()],
    }
    items: dict[Task, pd.DataFrame] = {}
    for task in Task:
        items[task], release[task.value] = _complete_items(con, task)
        con.register(f"items_{task}", items[task])
    quarantine = con.sql('SELECT "table", key, rule, detail FROM faults ORDER BY ALL').df()
    quarantine = quarantine.astype("str")
    write_table(out / "quarantine", "release", quarantine)
    by_rule = counts(quarantine["rule"])
    if not any(map(len, items.values())):
        raise InputError(
            f"{folder}: no usable item ({', '.join(f'{k} {v}' for k, v in by_rule.items())});"
            f" see {out}/quarantine"
        )
    for task, table in items.items():
        write_table(out, f"items_{task}", table)
    con.execute(_SQL["shown"])
    unknown = {"dhs_id": ID_PATTERN.pattern, "unknown": UNKNOWN_ADM1}
    write_table(out, "clusters", con.execute(_SQL["clusters"], unknown).df())
    _complete_prompts(con, items, files)
    blank = ""  # a further column of the prompts
    if text_view != "none":
        blank = f", '{image_id([(folder / authors.BLANK).read_bytes()])}' AS blank_id"
    for name in ("prompts", "records"):
        with writing(out / f"{name}.parquet", authors.ONWARD) as draft:
            rows = con.sql(_SQL[name].format(blank=blank))
            # of 600,000 prompts, a group of the usual size alone takes a quarter of the memory
            rows.write_parquet(str(draft), compression="zstd", row_group_size=20_000)
    item_notes = {"release": release, "series_not_found": [], "asked": {}, "review": {}}
    write_json(out / "items_notes.json", item_notes)
    return templates.lines(
        "release_import",
        out=out,
        items={task.value: len(table) for task, table in items.items()},
        release=release,
        quarantined=by_rule,
        unknown=int((items[Task.MCQ]["polarity"] == "").sum()),
        benchmark_id=build_card(out)["benchmark_id"],
    )


def _store_pictures(
    con: duckdb.DuckDBPyConnection, folder: Path, out: Path, progress: Progress
) -> None:
    """Write the image shards and images.parquet; view `places` (key, cluster_id, image_id) holds
    what is stored, table `faults` the items whose picture can't be shown."""
    pictures = con.execute(_SQL["pictures"]).df().fillna("").set_index("place")
    broken: list[tuple[str, str, str]] = []

    def readable() -> Iterator[tuple[str, str, list[bytes]]]:
        rows = pictures[["key", "paths", "photo_id"]].itertuples(name=None)
        for place, key, paths, photo_id in each(progress, "storing images", [*rows], every=500):
            try:
                yield place, photo_id, [find_picture(folder, path).read_bytes() for path in paths]
            except FileError as fault:
                broken.append((key, fault.rule, str(fault)))

    index = store_images(out, readable(), skip_undecodable=True)
    index["image_group"] = near_duplicates.groups(
        index["image_id"].tolist(), index[["tile_hash", "photo_hash"]].to_numpy().tolist()
    )
    index["modalities"] = index["cluster_id"].map(pictures["modalities"]).astype("str")
    write_table(out, "images", index)
    if (folder / authors.BLANK).is_file():
        blank = find_picture(folder, authors.BLANK).read_bytes()
        write_atomically(out / "blank.png", blank, authors.ONWARD)
    con.register("places", index[["cluster_id", "image_id"]].join(pictures["key"], on="cluster_id"))
    con.register("broken", pd.DataFrame(broken, columns=["key", "rule", "detail"], dtype="str"))
    con.execute(_SQL["broken"], {"most": f"{MAX_PIXELS:,}"})


def _register_names(con: duckdb.DuckDBPyConnection) -> None:
    """Tables `names` and `countries` of what our own tables know: by kind (mcq, regression, target,
    pillar) what a name means. Of two entries of one name the first wins."""
    tasks, targets = load_regression_tasks(), list(TOLERANCES)
    titles = [CONTEXT_NAMES[target] for target in targets]
    tables = [
        pd.DataFrame({"kind": "target", "slug": targets, "title": titles, "target": targets}),
        pd.DataFrame({"kind": "pillar", "slug": PILLARS, "pillar": PILLARS}),
    ]
    for kind, entries in (("mcq", load_indicators()), ("regression", tasks), ("target", tasks)):
        tables.append(pd.DataFrame(map(vars, entries)).assign(kind=kind))
    columns = ["kind", "slug", "title", "sdg", "unit", "polarity", "pillar", "target"]
    listed = pd.concat(tables, ignore_index=True).reindex(columns=columns).fillna("")
    con.register("listed", listed.astype("str").reset_index(names="position"))
    con.execute(_SQL["names"])
    con.register("countries", countries())


def _complete_items(
    con: duckdb.DuckDBPyConnection, task: Task
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(the columns of items_<task> sorted by item_id, notes)."""
    types = column_types(task)
    read = {**column_types(Task.MCQ), **column_types(Task.REGRESSION), **types}
    del read["item_id"], read["image_id"]
    fields = {authors.FIELD_OF.get(name, name): _SQL_TYPES[kind] for name, kind in read.items()}
    values = {"task": task.value, "fields": json.dumps(fields), "dhs_id": ID_PATTERN.pattern}
    rows = con.execute(_SQL["items"], values).df()
    notes: dict[str, Any] = {"indicators_not_ours": counts(rows["not_ours"].dropna())}
    rows = rows.rename(columns={field: name for name, field in authors.FIELD_OF.items()})
    blanks = {"str": "", "int32": 0}  # year 0 is unknown
    rows = rows.fillna({name: blanks[kind] for name, kind in types.items() if kind in blanks})
    by_rule = rows["split"] == ""
    notes["split_by_rule"] = int(by_rule.sum())
    rows["split"] = rows["split"].where(~by_rule, authors_split(task.value, rows["item_id"]))
    codes = countries()[["cname", "official_split"]]
    sides, _ = split_by_country(codes[codes["cname"].isin(rows["cname"])])
    stated = rows["split_place"] != ""
    rows["split_place"] = rows["split_place"].where(stated, rows["cname"].map(sides).fillna(""))
    if task is Task.MCQ:
        rows["answer"] = rows["answer"].str.upper()
    else:
        rows["tolerance"] = rows["tolerance"].fillna(rows["target"].map(TOLERANCES).astype(float))
        without = rows.loc[rows["tolerance"].isna(), "target"]
        notes["without_tolerance"] = counts(without.replace("", "missing"))
    return rows[[*types]].astype(types), notes


def _complete_prompts(
    con: duckdb.DuckDBPyConnection, items: Mapping[Task, pd.DataFrame], files: Mapping[str, Any]
) -> None:
    """Table `prompts`: the original question where it is complete, else completed by prompts.py.
    ``files``: by name, what kind of questions each has."""
    for task, table in items.items():
        tests = [test for test in TESTS[task] if f"{task}_{test}" in files]
        derived = [ContextTest.T5] if tests and ContextTest.T5 not in tests else []
        for test in tests + derived:  # of a partial release, T5 from another test
            source = tests[-1] if test in derived else test
            kind = files[f"{task}_{source}"]["question"]
            of_file = {"task": task.value, "source": source.value, "kind": kind, "test": test.value}
            texts = con.execute(_SQL["questions"], of_file).df()["question"]
            if kind != "complete":
                # a context that is already in the question isn't added again
                view = View.Q_ONLY if kind == "with context" and test == source else View.FULL
                texts = prompt_texts(table.assign(question=texts), task, test, view)
            of_test = {"task": task.value, "test": test.value, "text": texts.astype("str")}
            con.register("texts", table[["item_id"]].assign(**of_test))
            con.execute("INSERT INTO prompts BY NAME FROM texts")
