"""Custom questions: read and check a folder with suite.yaml and a table of items.

`read_folder` reads everything and reports every fault with file, line and advice (those of rows by
the rules of data/own_faults.sql); it never raises because of a folder's contents. The format is
described in docs/how-to/own-questions.md.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from sdgbias.benchmark.own_spec import FILE, Fault, SuiteFile, columns_of, near, read_suite
from sdgbias.errors import InputError
from sdgbias.files import confine, packaged_sql
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import MAX_PIXELS, open_picture
from sdgbias.types import View

VAL_SHARE = 0.2
#: Level of a question whose cell of a group column is empty.
UNKNOWN = "unknown"
MAX_BYTES = 64 * 2**20  # of one picture's file
#: Why a view is left out of a folder.
NO_PICTURES, NO_CONTEXT = "no question has a picture", "no question has a context"
#: Why CADE is left out.
NO_IMAGE_VIEW = "CADE needs a view with a picture, and " + NO_PICTURES
NO_VAL = "CADE is tuned on split val, and no question with a picture is in it"
#: What makes two rows the same question.
PROMPT = ["question", "options", "image", "context"]
_CONTROL = r"([\x00-\x08\x0b\x0c\x0e-\x1f\x7f])"
#: A row of the table (column -> cell), or what is wrong with it.
Row = dict[str, str] | str


@dataclass(frozen=True)
class Folder:
    """The parsed folder. suite is None when suite.yaml is unusable; with any fault the questions
    are incomplete. questions, indexed by line: id, question, options (the filled ones), answer (a
    letter), image (a path inside the folder, '' none), context, split, cluster, and a column
    ``group NAME`` for each group. notes: remarks that are no faults."""

    root: Path
    suite: SuiteFile | None = None
    questions: pd.DataFrame = field(default_factory=pd.DataFrame)
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_context(self) -> bool:
        return bool((self.questions["context"] != "").any())

    @property
    def left_out(self) -> dict[View, str]:
        """View -> why it isn't possible for the folder."""
        pictures = (self.questions["image"] != "").any()
        lost = {} if pictures else {View.IMG_Q: NO_PICTURES, View.FULL: NO_PICTURES}
        return lost | ({} if self.has_context else {View.CTX_Q: NO_CONTEXT})

    @property
    def views(self) -> tuple[View, ...]:
        """The views that are possible for the folder."""
        return tuple(view for view in View if view not in self.left_out)

    @property
    def no_cade(self) -> str:
        """Why CADE is left out; '' when it isn't."""
        pictured = self.questions[self.questions["image"] != ""]
        if pictured.empty:
            return NO_IMAGE_VIEW
        return "" if (pictured["split"] == "val").any() else NO_VAL


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
        fault = Fault(FILE, lines[("items",)], f"items: {error}")
        return Folder(root, suite, faults=(fault,))
    table, messages = read_table(path)
    names, questions = list(table.columns), pd.DataFrame()
    faults = [
        Fault(
            FILE,
            lines[place],
            f"{_shown(place)}: {suite.items} has no column {column!r}; {near(column, names)}",
        )
        for place, column in columns_of(suite)
        if len(table) and column not in names
    ]
    if len(table) and not faults:
        questions, of_rows = _questions(root, suite, table, progress)
        messages += of_rows
    faults += [Fault(suite.items, *message) for message in messages]
    if not faults and not suite.columns.split:
        questions = assign_splits(suite.name, questions)
    elif not faults and not (questions["split"] == "test").any():
        message = f"no question has split test (column {suite.columns.split!r}); results are of"
        faults.append(Fault(suite.items, 0, f"{message} split test"))
    if faults:
        return Folder(root, suite, questions, tuple(sorted(set(faults))))
    whole = Folder(root, suite, questions)
    return Folder(root, suite, questions, notes=tuple(_notes(whole, suite)))


def _shown(place: tuple[str | int, ...]) -> str:
    return ".".join(part for part in place if isinstance(part, str))


# ----------------------------------------------------------------------
# the table


def read_table(path: Path) -> tuple[pd.DataFrame, list[tuple[int, str]]]:
    """(the rows that could be read, cells as stripped text ('' empty) indexed by line; line and
    message of every fault). Numbers of CSV and JSONL stay as written ('0.50'), so that an answer is
    compared with an option as both read on paper."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        return pd.DataFrame(), [(0, "a table of items is .csv, .jsonl or .parquet; write it so")]
    try:
        read = list(reader(path.read_bytes()))
    except OSError as error:
        message = f"can't be read ({error.strerror or error}); check its permissions"
        return pd.DataFrame(), [(0, message)]
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        return pd.DataFrame(), [(line, f"byte 0x{byte:02X} is not UTF-8; save it as UTF-8")]
    rows = {line: row for line, row in read if isinstance(row, dict)}
    faults = [(line, row) for line, row in read if isinstance(row, str)]
    if not read:
        faults.append((0, "holds no question; add a row below the header"))
    table = pd.DataFrame(list(rows.values()), index=list(rows), dtype=object).fillna("")
    for column in map(str, table):
        hidden = table[column].str.extract(_CONTROL)[0].dropna()
        faults += [
            (line, f"column {column!r} holds the control character {character!r}; remove it")
            for line, character in zip(hidden.index, hidden, strict=True)
        ]
    return table, faults


def _csv_rows(data: bytes) -> Iterator[tuple[int, Row]]:
    """Cells separated by commas, in double quotes where they contain commas or line ends."""
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            cells = [cell.strip() for cell in cells]
            if not header:
                header = cells if any(cells) else []
                if fault := _name_fault(header):
                    yield start, fault
                    return
            elif len(cells) == len(header):
                yield start, dict(zip(header, cells, strict=True))
            elif cells:
                message = f"has {len(cells)} cells, the header {len(header)}; put double quotes"
                yield start, f"{message} around a cell that holds a comma"
    except csv.Error as error:
        is_open = "end of data" in str(error)
        cause = "a double quote is opened and not closed" if is_open else f"not CSV ({error})"
        yield line, f"{cause}; the rows from here on could not be read"


def _name_fault(names: list[str]) -> str:
    """What is wrong with the names of columns, '' nothing."""
    for at, name in enumerate(names):
        if not name:
            return f"column {at + 1} has no name; name or remove it"
        if name in names[:at]:
            return f"column {name!r} is there twice; rename or remove one"
    return ""


def _json_rows(data: bytes) -> Iterator[tuple[int, Row]]:
    """One JSON object per line, its values text, numbers, true, false or null."""

    def to_row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if fault := _name_fault([name.strip() for name, _ in pairs]):
            raise ValueError(fault)
        return {name.strip(): value for name, value in pairs}

    def refuse(constant: str) -> None:
        raise ValueError(f"holds {constant}, which is no value; write null or leave it out")

    for line, text in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(
                text,
                parse_int=str,
                parse_float=str,
                parse_constant=refuse,
                object_pairs_hook=to_row,
            )
        except (json.JSONDecodeError, RecursionError) as error:
            cause = getattr(error, "msg", type(error).__name__)
            yield line, f"not JSON ({cause}); each line is one object: {{...}}"
        except ValueError as error:
            yield line, str(error)
        else:
            lists = (
                [key for key in row if isinstance(row[key], list | dict)]
                if isinstance(row, dict)
                else []
            )
            if not isinstance(row, dict):
                yield line, "is no JSON object; each line is one object: {...}"
            elif lists:
                kind = "list" if isinstance(row[lists[0]], list) else "object"
                yield line, f"{lists[0]!r} holds a JSON {kind}; give each option a field of its own"
            else:
                yield line, {key: _cell(value) for key, value in row.items()}


def _parquet_rows(data: bytes) -> Iterator[tuple[int, Row]]:
    try:
        table = pq.read_table(io.BytesIO(data))
    except (ValueError, pa.ArrowException) as error:
        cause = str(error).strip().splitlines()[0]
        yield 0, f"is no readable Parquet file ({cause}); write it again"
        return
    names = [name.strip() for name in table.column_names]
    faults = [_name_fault(names)]
    for name, kind in zip(names, table.schema.types, strict=True):
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            faults.append(f"column {name!r} holds {kind}; write text or numbers, one a cell")
    if any(faults):
        yield from ((0, fault) for fault in faults if fault)
        return
    columns = [[_cell(value) for value in column.to_pylist()] for column in table.columns]
    for at, cells in enumerate(zip(*columns, strict=True), 1):
        yield at, dict(zip(names, cells, strict=True))


def _cell(value: Any) -> str:
    """A value of JSON or Parquet as a cell: 3.0 is '3', because pandas stores whole numbers with
    gaps as floats."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    return str(value).strip()


_READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}


# ----------------------------------------------------------------------
# the questions


def _questions(
    root: Path, suite: SuiteFile, table: pd.DataFrame, progress: Progress
) -> tuple[pd.DataFrame, list[tuple[int, str]]]:
    """(every row that could be read, line and message of the faults of rows)."""
    columns = suite.columns
    named = {name: getattr(columns, name) for name in ("id", "question", "answer", "split")}
    named |= {"image": columns.image, "context": columns.context, "cluster_by": suite.cluster_by}
    rows = pd.DataFrame(
        {k: table[column] if column else "" for k, column in named.items()}, index=table.index
    )
    rows["options"] = table[list(columns.options)].to_numpy(dtype=object).tolist()
    paths = sorted(set(rows["image"]) - {""})
    pictures = [(name, picture_fault(root, name)) for name in each(progress, "pictures", paths, 64)]
    filled = [(name, column) for name, column in named.items() if column]
    unit = "row" if suite.items.lower().endswith(".parquet") else "line"
    is_empty = (table == "").all(axis=1)
    tables = {
        "rows": rows.assign(is_empty=is_empty).reset_index(names="line"),
        "columns": pd.DataFrame(filled, columns=["field", "name"]),
        "suite": pd.DataFrame({"unit": [unit], "option_names": [list(columns.options)]}),
        "pictures": pd.DataFrame(pictures, columns=["image", "message"], dtype="str"),
    }
    with duckdb.connect() as con:
        con.create_function("quoted", repr, ["VARCHAR"], "VARCHAR")
        con.create_function("near", near, ["VARCHAR", "VARCHAR[]"], "VARCHAR")
        for name, content in tables.items():
            con.register(name, content)
        definitions, *rules = packaged_sql("own_faults.sql").values()
        con.execute(definitions)
        faults = [fault for rule in rules for fault in con.execute(rule).fetchall()]
        letters = dict(con.execute("SELECT line, letter FROM golds").fetchall())
    rows["options"] = [tuple(filter(None, texts)) for texts in rows["options"]]
    rows["answer"] = pd.Series(letters, dtype=object).reindex(rows.index).fillna("")
    rows["cluster"] = rows["cluster_by" if suite.cluster_by else "id"]
    groups = {f"group {name}": table[name].replace("", UNKNOWN) for name in suite.groups}
    return rows.assign(**groups), faults


def picture_fault(root: Path, name: str) -> str:
    """The fault of an image, '' when it can be sent to a model."""
    if "://" in name:
        return f"image {name!r} is an address; put the picture into the folder and name its path"
    try:
        path = confine(root, name)
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "is not there"
            return f"image {name!r} {kind}; give a path from the suite's folder"
        if (size := path.stat().st_size) > MAX_BYTES:
            return f"image {name!r} has {size:,} bytes, at most {MAX_BYTES:,}; make it smaller"
        with warnings.catch_warnings():  # Pillow only warns about large images; refused here
            warnings.simplefilter("ignore")
            open_picture(path.read_bytes())
    except InputError:
        fault = "leads out of the folder; put the picture into the folder, without '..' or links"
    except Image.DecompressionBombError:
        fault = f"has more than {MAX_PIXELS:,} pixels; make it smaller"
    except UnidentifiedImageError:
        fault = "is no PNG or JPEG; save it as one"
    except Exception as error:  # any decoder error, a circular link: it can't be sent to a model
        cause = getattr(error, "strerror", None) or str(error).splitlines()[0]
        fault = f"can't be read ({cause}); save it again"
    else:
        return ""
    return f"image {name!r} {fault}"


def assign_splits(name: str, questions: pd.DataFrame) -> pd.DataFrame:
    """The questions with val for the first clusters by hash until a fifth of the questions is in
    val, else test; all questions of a cluster are on one side. A single cluster is test."""
    sizes = questions["cluster"].value_counts()
    order = sorted(sizes.index, key=lambda c: hashlib.sha256(f"split|{name}|{c}".encode()).digest())
    before = sizes.reindex(order).cumsum().shift(fill_value=0)
    val = before.index[:-1][before[:-1] < VAL_SHARE * len(questions)]  # test is never empty
    is_val = questions["cluster"].isin(val)
    return questions.assign(split=is_val.map({True: "val", False: "test"}))


def _notes(folder: Folder, suite: SuiteFile) -> Iterable[str]:
    """Remarks for the user on a folder without faults."""
    questions = folder.questions
    n = len(questions)
    for view, why in folder.left_out.items():
        yield f"view {view.value} is left out: {why}"
    if folder.no_cade:
        yield f"CADE is left out: {folder.no_cade}"
    elif not folder.has_context:
        yield "CADE takes Q-only in place of CTX+Q, as the paper does at T5 (no context)"
    for what, column in (("picture", "image"), ("context", "context")):
        without = int((questions[column] == "").sum())
        if 0 < without < n:
            yield f"{without} of {n} questions have no {what}"
    val, sides = questions["split"] == "val", questions.groupby("cluster")["split"].nunique()
    if not suite.columns.split:
        yield f"no column split: {val.sum()} of {n} questions are val, by a hash of the cluster"
    elif both := int((sides > 1).sum()):
        yield f"{both} clusters have questions in val and in test: CADE is tuned on their like"
    if not suite.cluster_by:
        yield "no cluster_by: each question is its own cluster"
    elif len(sides) == 1:
        yield f"column {suite.cluster_by!r} has one value: there is no interval"
    for name in suite.groups:
        levels = questions[f"group {name}"].value_counts()
        if UNKNOWN in levels:
            yield f"group {name}: {levels[UNKNOWN]} questions have no value and count as {UNKNOWN}"
        if len(levels) < 2:
            yield f"group {name} has one value: there is nothing to compare"
    if repeated := int(questions.duplicated(PROMPT, keep=False).sum()):
        yield f"{repeated} rows repeat a question (same text, options, picture and context)"
