"""Custom questions: a folder with suite.yaml and a table is read, checked and made into a benchmark
(items_own, images, prompts, card). docs/how-to/own-questions.md describes the format. The rules of
rows are data/own_faults.sql. The same folder gives the same bytes of a benchmark.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias import files, templates
from sdgbias.benchmark import quality
from sdgbias.benchmark.build import refuse_other_suite, write_table
from sdgbias.benchmark.card import content_digest
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.own_spec import FILE, UNKNOWN, Fault, FolderFaults, SuiteFile, read_suite
from sdgbias.benchmark.prompts import own_prompts
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.named import find_picture
from sdgbias.raw.images.photos import read_photo
from sdgbias.raw.images.shards import image_id, store_images
from sdgbias.types import OPTION_LETTERS, View
from sdgbias.wording import many

#: Field `kind` of the card.
KIND = "own"
#: The tables that define such a benchmark's identity, and the columns of those that count in part.
TABLES = {"items_own": (), "images": ("cluster_id", "image_id"), "prompts": ()}
VAL_SHARE = 0.2
OPTIONS = [f"option_{letter.lower()}" for letter in OPTION_LETTERS]
ITEM_COLUMNS = [
    *("item_id", "own_id", "cluster_id", "question", "context", *OPTIONS),
    *("answer", "polarity", "split", "image_id", "picture", "groups"),
]
#: Why a view is left out of a folder, and why CADE is.
NO_PICTURES, NO_CONTEXT = "no question has a picture", "no question has a context"
NO_IMAGE_VIEW = "CADE needs a view with a picture, and " + NO_PICTURES
NO_VAL = "CADE is tuned on split val, and no question with a picture is in it"
#: Characters that no text has; half of a surrogate pair can be written in JSON alone.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
#: What a spreadsheet saves for a formula that it can't compute.
_NO_RESULT = ("#N/A", "#REF!", "#VALUE!", "#NAME?", "#DIV/0!", "#NUM!", "#NULL!")


def read_folder(root: Path, progress: Progress = silent) -> tuple[SuiteFile, pd.DataFrame]:
    """(suite.yaml, the questions by line of the table, ITEM_COLUMNS). picture: a path inside the
    folder, '' none; groups: the question's levels, as JSON. Raises FolderFaults: with the faults of
    suite.yaml alone, else with those of the columns and of every row."""
    suite, fields = read_suite(root)
    try:
        path = files.confine(root, suite.items)
        if not path.is_file() or path.suffix.lower() not in _READERS:
            beside = filter(Path.is_file, root.iterdir())
            tables = [file.name for file in beside if file.suffix.lower() in _READERS]
            kinds = f"a table is one of {', '.join(_READERS)}"
            raise InputError(f"{one_of('table', suite.items, tables)}; {kinds}")
    except InputError as error:
        fault = Fault(FILE, fields["items",][0], f"items: {error}")
        raise FolderFaults(root, [fault]) from None
    table, wrong_lines = read_table(path)
    faults = [
        Fault(FILE, line, f"{place[0]}: {one_of('column', name, map(str, table))}")
        for place, (line, name) in fields.items()
        if place[0] in ("columns", "cluster_by", "groups") and name
        if len(table) and name not in table
    ]
    if len(table) and not faults:
        items, wrong_rows = _items(root, suite, table, progress)
        wrong_lines += wrong_rows
    faults += [Fault(suite.items, line, message) for line, message in wrong_lines]
    if faults:
        raise FolderFaults(root, faults)
    return suite, items


def read_table(path: Path) -> tuple[pd.DataFrame, list[tuple[int, str]]]:
    """(the rows that could be read, cells as stripped text ('' empty) indexed by line; line and
    message of every fault). Numbers of CSV and JSONL stay as written ('0.50'), so that an answer is
    compared with an option as both read on paper."""
    rows: dict[int, dict[str, str]] = {}
    faults: list[tuple[int, str]] = []
    try:
        for line, row in _READERS[path.suffix.lower()](path.read_bytes()):
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                rows[line] = {_cell(name, name): _cell(name, value) for name, value in row.items()}
            except ValueError as error:
                faults.append((line, str(error)))
    except UnicodeDecodeError as error:
        if path.suffix.lower() == ".parquet":  # the bytes are those of a name or a cell
            return pd.DataFrame(), [(0, f"{error.object!r:.80} is not UTF-8; write it again")]
        line = error.object.count(b"\n", 0, error.start) + 1
        faults = [(line, f"byte 0x{error.object[error.start]:02X} is not UTF-8; save it as UTF-8")]
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:  # a date of year 10^6
        why = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        faults = [(0, f"can't be read ({why}); write it again")]
    if not rows and not faults:
        faults = [(0, "holds no question; add a row below the header")]
    return pd.DataFrame(list(rows.values()), index=list(rows), dtype=object).fillna(""), faults


def _cell(name: str, value: Any) -> str:
    """A value as text: 3.0 is '3', because pandas stores whole numbers with gaps as floats."""
    if isinstance(value, list | dict | bytes):
        kind = type(value).__name__
        raise ValueError(f"column {name!r} holds a {kind}; give each option a column of its own")
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    if hidden := _CONTROL.search(str(value)):
        raise ValueError(f"column {name!r} holds the control character {hidden[0]!r}; remove it")
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if text in _NO_RESULT:
        raise ValueError(f"column {name!r} holds {text!r}, a spreadsheet's error; correct it")
    return text


def _parquet_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    """(row, row); a float of 32 bits as its shortest text ('0.1'), not as that of 64 bits."""
    table = pq.read_table(io.BytesIO(data))
    for at, field in enumerate(table.schema):
        if field.type == pa.float32():
            shortest = table.column(at).cast(pa.string()).cast(pa.float64())
            table = table.set_column(at, field.name, shortest)
    yield from enumerate(table.to_pylist(), 1)


def _csv_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    """(line of the file, row or fault); DuckDB's reader counts rows, not lines."""
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            if start == 1 and cells == ["sep=", ""]:  # of Excel
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                if mark := next((m for m in ";\t" if len(header) == 1 and m in header[0]), ""):
                    yield start, f"separates columns by {mark!r}; save it with commas"
                    return
                if not all(header) or len(set(header)) < len(header):
                    yield start, "a column has no name, or that of another; give each its own"
                    return
            elif cells and len(cells) != len(header):
                message = f"has {len(cells)} cells, the header {len(header)}; put double quotes"
                yield start, f"{message} around a cell that holds a comma"
            elif cells:
                yield start, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        yield line, f"not CSV ({error}): is a double quote not closed? No row from here was read"


def _json_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(row := dict(pairs)) < len(pairs):
            raise ValueError("a name is there twice")
        return row

    for line, text in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        row, why = None, ""
        try:
            row = json.loads(text or "null", parse_int=str, parse_float=str, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            why = f" ({getattr(error, 'msg', error)})"
        if isinstance(row, dict):
            yield line, row
        elif text.strip():
            yield line, f"not a JSON object{why}; each line is one: {{...}}"


#: Bytes of a table -> (line, or row of Parquet; row or fault).
_READERS: dict[str, Callable[[bytes], Iterable[tuple[int, Any]]]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_rows,
    ".parquet": _parquet_rows,
}


def _items(
    root: Path, suite: SuiteFile, table: pd.DataFrame, progress: Progress
) -> tuple[pd.DataFrame, list[tuple[int, str]]]:
    """(ITEM_COLUMNS of every row, line and message of the faults of rows)."""
    columns = suite.columns
    fields = {
        **{"own_id": columns.id, "question": columns.question, "answer": columns.answer},
        **{"picture": columns.image, "context": columns.context, "split": columns.split},
        "cluster_id": suite.cluster_by,
        **dict(zip(OPTIONS, columns.options, strict=False)),
    }
    fields = {name: column for name, column in fields.items() if column}
    items = pd.DataFrame({name: table[column] for name, column in fields.items()})
    items = items.reindex(columns=ITEM_COLUMNS, fill_value="")
    levels = table[list(dict.fromkeys(suite.groups))].replace("", UNKNOWN).to_dict("records")
    items["groups"] = [json.dumps(row, ensure_ascii=False) for row in levels]
    paths = sorted(set(items["picture"]) - {""})
    pictures = [(path, *_picture(root, path)) for path in each(progress, "pictures", paths, 64)]
    shown = pd.DataFrame(pictures, columns=["picture", "image_id", "message"], dtype="str")
    with duckdb.connect() as con:
        con.create_function("quoted", repr, ["VARCHAR"], "VARCHAR")
        con.create_function("one_of", one_of, ["VARCHAR", "VARCHAR", "VARCHAR[]"], "VARCHAR")
        con.register("rows", items.reset_index(names="line"))
        con.register("columns", pd.DataFrame(fields.items(), columns=["field", "name"]))
        con.register("pictures", shown)
        unit = "row" if suite.items.lower().endswith(".parquet") else "line"
        con.register("units", pd.DataFrame({"unit": [unit]}))
        definitions, *rules = files.packaged_sql("own_faults.sql").values()
        con.execute(definitions)
        faults = [fault for rule in rules for fault in con.execute(rule).fetchall()]
        golds = dict(con.execute("SELECT line, letter FROM golds").fetchall())
    if faults:
        return items, faults
    items["item_id"] = [item_id(suite.name, identity) for identity in items["own_id"]]
    items["answer"], items["polarity"] = items.index.map(golds), suite.polarity
    items["image_id"] = items["picture"].map(dict(zip(paths, shown["image_id"], strict=True)))
    items = items.fillna("")
    if not suite.cluster_by:
        items["cluster_id"] = items["own_id"]
    return items if columns.split else assign_splits(suite.name, items), faults


def _picture(root: Path, path: str) -> tuple[str, str]:
    """(the id of a picture, its fault: '' when it can be sent to a model)."""
    try:
        file = find_picture(root, path)
        read_photo(file)
        return image_id([file.read_bytes()]), ""
    except InputError as error:
        return "", str(error)


def assign_splits(name: str, items: pd.DataFrame) -> pd.DataFrame:
    """The questions with val for the first clusters by hash until a fifth of the questions is in
    val, else test; all questions of a cluster are on one side. A single cluster is test."""
    sizes = items["cluster_id"].value_counts()
    order = sorted(sizes.index, key=lambda c: hashlib.sha256(f"split|{name}|{c}".encode()).digest())
    before = sizes.reindex(order).cumsum().shift(fill_value=0)
    val = before.index[:-1][before[:-1] < VAL_SHARE * len(items)]  # test is never empty
    return items.assign(split=np.where(items["cluster_id"].isin(val), "val", "test"))


def item_id(name: str, identity: str) -> int:
    """The number of a question in tables and results: 52 bits, exact in every number type."""
    digest = hashlib.sha256("\x1f".join((KIND, name, identity)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 12


def card_of(suite: SuiteFile, items: pd.DataFrame) -> dict[str, Any]:
    """The card of a benchmark of these questions, without its id: what it holds, which views it
    can't have, whether CADE can be tuned, and why not. notes: remarks for the author."""
    pictured, val = items["picture"] != "", items["split"] == "val"
    lost = {} if pictured.any() else {View.IMG_Q: NO_PICTURES, View.FULL: NO_PICTURES}
    lost |= {} if (items["context"] != "").any() else {View.CTX_Q: NO_CONTEXT}
    no_cade = NO_IMAGE_VIEW if View.FULL in lost else "" if (pictured & val).any() else NO_VAL
    levels = pd.DataFrame([json.loads(text) for text in items["groups"]])
    notes = [f"view {view.value} is left out: {why}" for view, why in lost.items()]
    if no_cade:
        notes.append(f"CADE is left out: {no_cade}")
    elif View.CTX_Q in lost:
        notes.append("CADE takes Q-only in place of CTX+Q, as the paper does at T5 (no context)")
    mixed = int((items.groupby("cluster_id")["split"].nunique() > 1).sum())
    if not suite.columns.split:
        share = f"{val.sum()} of {len(val)} questions are val"
        notes.append(f"no column split: {share}, by a hash of the cluster")
    elif mixed:
        clusters = many(mixed, "cluster has", "clusters have")
        notes.append(f"{clusters} questions in val and in test: CADE is tuned on them")
    if not suite.cluster_by:
        notes.append("no cluster_by: each question is its own cluster")
    unknown = (levels == UNKNOWN).sum()
    for name, n in unknown[unknown > 0].items():
        empty = many(n, "question without a value counts", "questions without a value count")
        notes.append(f"group {name}: {empty} as {UNKNOWN}")
    return {
        **{"suite": suite.name, "kind": KIND, "title": suite.title, "version": suite.version},
        **{"licence": "", "synthetic": False},
        **{"cluster_by": suite.cluster_by, "polarity": suite.polarity},
        "views": [view.value for view in View if view not in lost],
        "views_left_out": {view.value: why for view, why in lost.items()},
        "cade_left_out": no_cade,
        "notes": notes,
        "groups": {name: counts(of) for name, of in levels.items()},
        "counts": {
            "items_own": len(items),
            "clusters": int(items["cluster_id"].nunique()),
            "pictures": int(items.loc[pictured, "image_id"].nunique()),
            "options": counts((items[OPTIONS] != "").sum(axis=1)),
            "splits": counts(items["split"]),
        },
        "quarantined": {},
    }


def summary(card: dict[str, Any]) -> str:
    """A card in one line."""
    n = card["counts"]
    options = sorted(map(int, n["options"]))
    span = " to ".join(dict.fromkeys((str(options[0]), str(options[-1]))))
    splits = ", ".join(f"{k} {name}" for name, k in n["splits"].items())
    return (
        f"{many(n['items_own'], 'question')} with {span} options ({splits}),"
        f" {many(n['pictures'], 'picture')}, {many(n['clusters'], 'cluster')},"
        f" views {', '.join(card['views'])}"
    )


def build_own(folder: Path, out: Path, progress: Progress = silent) -> dict[str, Any]:
    """Build the benchmark folder ``out`` and return its card. The command line runs the quality
    check (quality.run_gate) afterwards. benchmark.json is removed first and written last: its
    presence marks the folder as complete.

    Raises FolderFaults, UsageError (``out`` is the folder itself or another suite's benchmark),
    DataValidationError (a row breaks a rule), StoreError (``out`` can't be written).
    """
    suite, items = read_folder(folder, progress)
    if out.resolve() == folder.resolve():
        raise UsageError(f"--out {out}: is the folder of questions itself; name another folder")
    refuse_other_suite(out, suite.name)
    with files.writable(out):
        (out / "benchmark.json").unlink(missing_ok=True)
    card = card_of(suite, items)
    # each distinct picture stands once, under the first path with its bytes
    paths = items[items["picture"] != ""].sort_values("picture").drop_duplicates("image_id")
    stored = each(progress, "storing pictures", paths["picture"].tolist())
    images = store_images(out, ((p, p, [find_picture(folder, p).read_bytes()]) for p in stored))
    images = images.assign(image_group=images["image_id"])
    items = items.sort_values("item_id", ignore_index=True)
    prompts = own_prompts(items, View.CTX_Q.value in card["views"])
    items, lost = quality.sift("items_own", items, {"images_own": images, "prompts_own": prompts})
    for name, rows in {"items_own": items, "images": images, "prompts": prompts}.items():
        write_table(out, name, rows)
    write_table(out, "quarantine", lost)
    digest = hashlib.sha256(f"{suite.name}|{suite.version}".encode())
    for name, columns in TABLES.items():
        digest.update(content_digest(out / f"{name}.parquet", columns).encode())
    card = {"benchmark_id": digest.hexdigest()[:16], **card}
    page = templates.render("benchmark/card/own_readme.md.j2", **card, summary=summary(card))
    files.write_atomically(out / "README.md", page)
    files.write_json(out / "benchmark.json", card)
    return card
