"""Custom questions: a folder with suite.yaml and a table of items, read, checked, and made into a
benchmark folder (items_own, images, prompts, card).

`read_folder` reads everything and reports every fault with file, line and advice (those of rows by
the rules of data/own_faults.sql); it never raises because of a folder's contents. The format is
described in docs/how-to/own-questions.md. The same folder gives the same bytes of a benchmark.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from sdgbias import templates
from sdgbias.benchmark import quality
from sdgbias.benchmark.build import write_table
from sdgbias.benchmark.card import content_digest
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.own_spec import (
    FILE,
    UNKNOWN,
    Fault,
    SuiteFile,
    columns_of,
    near,
    read_suite,
    shown_place,
)
from sdgbias.benchmark.prompts import own_prompts
from sdgbias.errors import InputError, SuiteError, UsageError
from sdgbias.files import (
    FileError,
    confine,
    json_object,
    packaged_sql,
    writable,
    write_atomically,
    write_json,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import MAX_PIXELS, open_picture
from sdgbias.raw.images.named import find_picture
from sdgbias.raw.images.shards import image_id, store_images
from sdgbias.types import OPTION_LETTERS, View

#: Field `kind` of the card.
KIND = "own"
#: The tables that define such a benchmark's identity, and the columns of those that count in part.
TABLES = {"items_own": (), "images": ("cluster_id", "image_id"), "prompts": ()}
VAL_SHARE = 0.2
#: Columns of a question's options in the item table.
OPTIONS = [f"option_{letter.lower()}" for letter in OPTION_LETTERS]
ITEM_COLUMNS = [
    *("item_id", "own_id", "cluster_id", "question", "context", *OPTIONS),
    *("answer", "polarity", "split", "image_id", "picture", "groups"),
]
#: Why a view is left out of a folder, and why CADE is.
NO_PICTURES, NO_CONTEXT = "no question has a picture", "no question has a context"
NO_IMAGE_VIEW = "CADE needs a view with a picture, and " + NO_PICTURES
NO_VAL = "CADE is tuned on split val, and no question with a picture is in it"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: A line of the table and its fault.
LineFault = tuple[int, str]


@dataclass(frozen=True)
class Folder:
    """The parsed folder. suite is None when suite.yaml is unusable; with any fault the questions
    are incomplete. questions, indexed by line: the columns of items_own that the table gives
    (own_id, cluster_id, question, context, option_a ..., answer, split, picture: a path inside the
    folder, '' none; groups: its levels, as JSON). notes: remarks that are no faults."""

    root: Path
    suite: SuiteFile | None = None
    questions: pd.DataFrame = field(default_factory=pd.DataFrame)
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def left_out(self) -> dict[View, str]:
        """View -> why it isn't possible for the folder."""
        has_picture, has_context = ((self.questions[c] != "").any() for c in ("picture", "context"))
        lost = {} if has_picture else {View.IMG_Q: NO_PICTURES, View.FULL: NO_PICTURES}
        return lost | ({} if has_context else {View.CTX_Q: NO_CONTEXT})

    @property
    def views(self) -> tuple[View, ...]:
        """The views that are possible for the folder."""
        return tuple(view for view in View if view not in self.left_out)

    @property
    def no_cade(self) -> str:
        """Why CADE is left out; '' when it isn't."""
        if View.FULL in self.left_out:
            return NO_IMAGE_VIEW
        pictured = self.questions[self.questions["picture"] != ""]
        return "" if (pictured["split"] == "val").any() else NO_VAL

    @property
    def levels(self) -> pd.DataFrame:
        """The level of every question in each group column."""
        return pd.DataFrame([json.loads(text) for text in self.questions["groups"]])

    @property
    def n_options(self) -> pd.Series:
        return (self.questions[OPTIONS] != "").sum(axis=1)


def read_folder(root: Path, progress: Progress = silent) -> Folder:
    """Read a folder completely, with all its faults sorted by file and line: those of suite.yaml,
    and without any those of the table."""
    if not root.is_dir():
        return Folder(root, faults=(Fault(FILE, 0, f"{root} is no folder; name one"),))
    suite, lines, faults = read_suite(root)
    if suite is None:
        return Folder(root, faults=tuple(sorted(set(faults))))
    try:
        path = confine(root, suite.items)
        if not path.is_file():
            others = sorted(p.name for p in root.iterdir() if p.suffix.lower() in _READERS)
            raise InputError(f"{suite.items!r} is not there; {near(suite.items, others)}")
    except InputError as error:
        return Folder(root, suite, faults=(Fault(FILE, lines[("items",)], f"items: {error}"),))
    table, of_lines = read_table(path)
    questions = pd.DataFrame()
    for place, column in columns_of(suite) if len(table) else ():
        if column not in table:
            absent = f"{suite.items} has no column {column!r}; {near(column, list(table.columns))}"
            faults.append(Fault(FILE, lines[place], f"{shown_place(place)}: {absent}"))
    if len(table) and not faults:
        questions, of_rows = _questions(root, suite, table, progress)
        of_lines += of_rows
    faults += [Fault(suite.items, *of_line) for of_line in of_lines]
    if faults:
        return Folder(root, suite, questions, tuple(sorted(set(faults))))
    if not suite.columns.split:
        questions = assign_splits(suite.name, questions)
    elif not (questions["split"] == "test").any():
        message = f"no question has split test (column {suite.columns.split!r}); results are of"
        return Folder(root, suite, questions, (Fault(suite.items, 0, f"{message} split test"),))
    folder = Folder(root, suite, questions)
    return replace(folder, notes=tuple(_notes(folder, suite)))


# ----------------------------------------------------------------------
# the table


def read_table(path: Path) -> tuple[pd.DataFrame, list[LineFault]]:
    """(the rows that could be read, cells as stripped text ('' empty) indexed by line; line and
    message of every fault). Numbers of CSV and JSONL stay as written ('0.50'), so that an answer is
    compared with an option as both read on paper."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        return pd.DataFrame(), [(0, "a table of items is .csv, .jsonl or .parquet; write it so")]
    rows: dict[int, dict[str, str]] = {}
    faults: list[LineFault] = []
    try:
        for line, row in reader(path.read_bytes()):
            if fault := row if isinstance(row, str) else _cell_fault(row):
                faults.append((line, fault))
            else:
                rows[line] = {name.strip(): _cell(value) for name, value in row.items()}
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        return pd.DataFrame(), [(line, f"byte 0x{byte:02X} is not UTF-8; save it as UTF-8")]
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        return pd.DataFrame(), [(0, f"can't be read ({why}); write it again")]
    if not rows and not faults:
        faults.append((0, "holds no question; add a row below the header"))
    return pd.DataFrame(list(rows.values()), index=list(rows), dtype=object).fillna(""), faults


def _cell_fault(row: dict[str, Any]) -> str:
    for name, value in row.items():
        if isinstance(value, list | dict | bytes):
            kind = {list: "list", dict: "object"}.get(type(value), "binary value")
            return f"column {name!r} holds a {kind}; give each option a column of its own"
        if isinstance(value, str) and (hidden := _CONTROL.search(value)):
            return f"column {name!r} holds the control character {hidden[0]!r}; remove it"
    return ""


def _cell(value: Any) -> str:
    """A value as a cell: 3.0 is '3', because pandas stores whole numbers with gaps as floats."""
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _name_fault(names: list[str]) -> str:
    """The fault of a column without a name, or one that is there twice; '' for none."""
    for at, name in enumerate(names):
        if not name:
            return f"column {at + 1} has no name; name or remove it"
        if name in names[:at]:
            return f"column {name!r} is there twice; rename or remove one"
    return ""


def _csv_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    """(line, row or fault). Cells separated by commas, in double quotes where they contain commas
    or line ends."""
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            if not header and any(cells):
                header = [cell.strip() for cell in cells]
                if fault := _name_fault(header):
                    yield start, fault
                    return
            elif cells and len(cells) == len(header):
                yield start, dict(zip(header, cells, strict=True))
            elif cells:
                message = f"has {len(cells)} cells, the header {len(header)}; put double quotes"
                yield start, f"{message} around a cell that holds a comma"
    except csv.Error as error:
        yield line, f"not CSV ({error}): is a double quote not closed? No row from here was read"


def _json_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    """One JSON object per line, its values text, numbers, true, false or null."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if fault := _name_fault([name.strip() for name, _ in pairs]):
            raise ValueError(fault)
        return dict(pairs)

    for line, text in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        row, why = None, ""
        try:
            read = json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=once)
            row = read if isinstance(read, dict) else None
        except (ValueError, RecursionError) as error:
            why = f" ({getattr(error, 'msg', error)})"
        if text.strip():
            yield line, f"not a JSON object{why}; each line is one: {{...}}" if row is None else row


def _parquet_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    yield from enumerate(pq.read_table(io.BytesIO(data)).to_pylist(), 1)


_READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}


# ----------------------------------------------------------------------
# the questions


def _questions(
    root: Path, suite: SuiteFile, table: pd.DataFrame, progress: Progress
) -> tuple[pd.DataFrame, list[LineFault]]:
    """(the questions of every row that could be read, line and message of the faults of rows)."""
    columns = suite.columns
    named = {name: getattr(columns, name) for name in ("id", "question", "answer", "split")}
    named |= {"image": columns.image, "context": columns.context, "cluster_by": suite.cluster_by}
    cells = {name: table[column] if column else "" for name, column in named.items()}
    rows = pd.DataFrame(cells, index=table.index)
    rows["options"] = table[list(columns.options)].to_numpy(dtype=object).tolist()
    paths = sorted(set(rows["image"]) - {""})
    pictures = [(name, picture_fault(root, name)) for name in each(progress, "pictures", paths, 64)]
    filled = [(name, column) for name, column in named.items() if column]
    unit = "row" if suite.items.lower().endswith(".parquet") else "line"
    with duckdb.connect() as con:
        con.create_function("quoted", repr, ["VARCHAR"], "VARCHAR")
        con.create_function("near", near, ["VARCHAR", "VARCHAR[]"], "VARCHAR")
        is_empty = (table == "").all(axis=1)
        con.register("rows", rows.assign(is_empty=is_empty).reset_index(names="line"))
        con.register("columns", pd.DataFrame(filled, columns=["field", "name"]))
        con.register("pictures", pd.DataFrame(pictures, columns=["image", "message"], dtype="str"))
        options = pd.DataFrame({"unit": [unit], "option_names": [list(columns.options)]})
        con.register("suite", options)
        definitions, *rules = packaged_sql("own_faults.sql").values()
        con.execute(definitions)
        faults = [fault for rule in rules for fault in con.execute(rule).fetchall()]
        golds = dict(con.execute("SELECT line, letter FROM golds").fetchall())
    by_letter = pd.DataFrame(rows["options"].tolist(), index=rows.index)
    by_letter = by_letter.reindex(columns=range(len(OPTIONS)), fill_value="")
    levels = table[list(suite.groups)].replace("", UNKNOWN).to_dict("records")
    questions = by_letter.set_axis(OPTIONS, axis=1).assign(
        own_id=rows["id"],
        cluster_id=rows["cluster_by" if suite.cluster_by else "id"],
        question=rows["question"],
        context=rows["context"],
        answer=pd.Series(golds, dtype=object).reindex(rows.index).fillna(""),
        split=rows["split"],
        picture=rows["image"],
        groups=[json.dumps(row, ensure_ascii=False) for row in levels],
    )
    return questions, faults


def picture_fault(root: Path, name: str) -> str:
    """The fault of an image, '' when it can be sent to a model."""
    try:
        with warnings.catch_warnings():  # Pillow only warns about large images; refused here
            warnings.simplefilter("ignore")
            open_picture(find_picture(root, name).read_bytes())
    except FileError as error:
        return str(error)
    except Image.DecompressionBombError:
        fault = f"has more than {MAX_PIXELS:,} pixels; make it smaller"
    except UnidentifiedImageError:
        fault = "is no PNG or JPEG; save it as one"
    except Exception as error:  # any decoder error: it can't be sent to a model
        fault = f"can't be read ({str(error).splitlines()[0]}); save it again"
    else:
        return ""
    return f"image {name!r} {fault}"


def assign_splits(name: str, questions: pd.DataFrame) -> pd.DataFrame:
    """The questions with val for the first clusters by hash until a fifth of the questions is in
    val, else test; all questions of a cluster are on one side. A single cluster is test."""
    sizes = questions["cluster_id"].value_counts()
    order = sorted(sizes.index, key=lambda c: hashlib.sha256(f"split|{name}|{c}".encode()).digest())
    before = sizes.reindex(order).cumsum().shift(fill_value=0)
    val = before.index[:-1][before[:-1] < VAL_SHARE * len(questions)]  # test is never empty
    return questions.assign(split=np.where(questions["cluster_id"].isin(val), "val", "test"))


def _notes(folder: Folder, suite: SuiteFile) -> Iterator[str]:
    """Remarks for the user on a folder without faults."""
    questions = folder.questions
    yield from (f"view {view.value} is left out: {why}" for view, why in folder.left_out.items())
    if folder.no_cade:
        yield f"CADE is left out: {folder.no_cade}"
    elif View.CTX_Q in folder.left_out:
        yield "CADE takes Q-only in place of CTX+Q, as the paper does at T5 (no context)"
    val, sides = questions["split"] == "val", questions.groupby("cluster_id")["split"].nunique()
    if not suite.columns.split:
        share = f"{val.sum()} of {len(val)} questions are val"
        yield f"no column split: {share}, by a hash of the cluster"
    elif both := int((sides > 1).sum()):
        yield f"{both} clusters have questions in val and in test: CADE is tuned on their like"
    if not suite.cluster_by:
        yield "no cluster_by: each question is its own cluster"
    for name, without in (folder.levels == UNKNOWN).sum().items():
        if without:
            yield f"group {name}: {without} questions have no value and count as {UNKNOWN}"


# ----------------------------------------------------------------------
# the benchmark


def build_own(folder: Path, out: Path, progress: Progress = silent) -> dict[str, Any]:
    """Build the benchmark folder ``out`` and return its card. The command line runs the quality
    check (quality.run_gate) afterwards. benchmark.json is removed first and written last: its
    presence marks the folder as complete.

    Raises SuiteError (the folder has faults), UsageError (``out`` is the folder itself or another
    suite's benchmark), DataValidationError (a row breaks a rule), StoreError (``out`` can't be
    written).
    """
    source = read_folder(folder, progress)
    if source.faults or source.suite is None:
        n = len(source.faults)
        more = f"{n} faults, the first: " if n > 1 else ""
        raise SuiteError(
            f"{folder}: {more}{source.faults[0]}; list all: sdgbias suite check {folder}"
        )
    suite, rows = source.suite, source.questions
    if out.resolve() == folder.resolve():
        raise UsageError(f"--out {out}: is the folder of questions itself; name another folder")
    earlier = json_object(out / "benchmark.json")
    if earlier and (earlier.get("kind"), earlier.get("suite")) != (KIND, suite.name):
        raise UsageError(f"--out {out}: holds another benchmark; name another folder")
    with writable(out):
        (out / "benchmark.json").unlink(missing_ok=True)
    images, image_ids = _store(source, out, progress)
    items = rows.assign(
        item_id=[item_id(suite.name, identity) for identity in rows["own_id"]],
        polarity=suite.polarity,
        image_id=rows["picture"].map(image_ids),
    )
    items = items[ITEM_COLUMNS].sort_values("item_id", ignore_index=True)
    prompts = own_prompts(items, View.CTX_Q in source.views)
    items, lost = quality.sift("items_own", items, {"images_own": images, "prompts_own": prompts})
    tables = {"items_own": items, "images": images, "prompts": prompts, "quarantine": lost}
    for name, table in tables.items():
        write_table(out, name, table)
    card = _card(out, source, suite, items)
    page = templates.render("benchmark/card/own_readme.md.j2", **card, summary=summary(card))
    write_atomically(out / "README.md", page)
    write_json(out / "benchmark.json", card)
    return card


def item_id(name: str, identity: str) -> int:
    """The number of a question in tables and results: 52 bits, exact in every number type."""
    digest = hashlib.sha256("\x1f".join((KIND, name, identity)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 12


def _store(source: Folder, out: Path, progress: Progress) -> tuple[pd.DataFrame, dict[str, str]]:
    """Writes the image store; returns images.parquet, in which each distinct image stands once,
    under the first path with its bytes, and the image id of every path."""
    ids = {"": ""}

    def pictures() -> Iterator[tuple[str, str, list[bytes]]]:
        paths = sorted(set(source.questions["picture"]) - {""})
        for name in each(progress, "storing pictures", paths):
            data = find_picture(source.root, name).read_bytes()
            is_new = (identity := image_id([data])) not in ids.values()
            ids[name] = identity
            if is_new:
                yield name, name, [data]

    index = store_images(out, pictures())
    return index.assign(image_group=index["image_id"]), ids


def _card(out: Path, source: Folder, suite: SuiteFile, items: pd.DataFrame) -> dict[str, Any]:
    digest = hashlib.sha256(f"{suite.name}|{suite.version}".encode())
    for name, columns in TABLES.items():
        digest.update(content_digest(out / f"{name}.parquet", columns).encode())
    return {
        "benchmark_id": digest.hexdigest()[:16],
        "suite": suite.name,
        "kind": KIND,
        "title": suite.title,
        "version": suite.version,
        "licence": "",
        "synthetic": False,
        "cluster_by": suite.cluster_by,
        "polarity": suite.polarity,
        "views": [view.value for view in source.views],
        "views_left_out": {view.value: why for view, why in source.left_out.items()},
        "cade_left_out": source.no_cade,
        "notes": list(source.notes),
        "groups": {name: counts(levels) for name, levels in source.levels.items()},
        "counts": {
            "items_own": len(items),
            "clusters": int(items["cluster_id"].nunique()),
            "pictures": int(items.loc[items["image_id"] != "", "image_id"].nunique()),
            "options": counts(source.n_options),
            "splits": counts(source.questions["split"]),
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
        f"{n['items_own']} questions with {span} options ({splits}), {n['pictures']} pictures,"
        f" {n['clusters']} clusters, views {', '.join(card['views'])}"
    )
