"""Custom questions: read and check a folder with suite.yaml and a table of items.

`read_folder` reads everything and reports every fault with file, line and advice (those of rows by
the rules of data/own_faults.sql); it never raises because of a folder's contents. The format is
described in docs/how-to/own-questions.md.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from sdgbias.benchmark.own_spec import FILE, Spec, SuiteFile, near, read_spec
from sdgbias.benchmark.own_table import SUFFIXES, Fault, read_table
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
    """Read a folder completely, with all its faults sorted by file and line."""
    if not root.is_dir():
        return Folder(root, faults=(Fault(FILE, 0, f"{root} is no folder; name one"),))
    spec, faults = read_spec(root)
    if spec is None:
        return Folder(root, faults=tuple(sorted(set(faults))))
    suite, questions = spec.file, pd.DataFrame()
    try:
        path = confine(root, suite.items)
        tables = sorted(p.name for p in root.iterdir() if p.suffix.lower() in SUFFIXES)
        if not path.is_file():
            raise InputError(f"{suite.items!r} is not there; {near(suite.items, tables)}")
    except InputError as error:
        faults.append(Fault(FILE, spec.line("items"), f"items: {error}"))
        return Folder(root, suite, faults=tuple(sorted(set(faults))))
    table, of_table = read_table(path, suite.items)
    missing = _missing_columns(spec, table) if len(table.columns) else []
    faults += [*of_table, *missing]
    if len(table.columns) and not missing:
        questions, of_rows = _questions(root, suite, table, progress)
        faults += of_rows
    if not faults:
        if questions.empty:
            faults.append(Fault(suite.items, 0, "holds no question; add a row below the header"))
        elif not suite.columns.split:
            questions = assign_splits(suite.name, questions)
        elif not (questions["split"] == "test").any():
            message = f"no question has split test (column {suite.columns.split!r}); results are"
            faults.append(Fault(suite.items, 0, f"{message} of split test"))
    if faults:
        return Folder(root, suite, questions, tuple(sorted(set(faults))))
    whole = Folder(root, suite, questions)
    return Folder(root, suite, questions, notes=tuple(_notes(whole, suite)))


def _missing_columns(spec: Spec, table: pd.DataFrame) -> list[Fault]:
    columns = list(table.columns)
    return [
        Fault(
            FILE,
            spec.line(name),
            f"{name}: {spec.file.items} has no column {column!r}; {near(column, columns)}",
        )
        for name, column in spec.used()
        if column not in columns
    ]


def _questions(
    root: Path, suite: SuiteFile, table: pd.DataFrame, progress: Progress
) -> tuple[pd.DataFrame, list[Fault]]:
    """(every row that could be read, the faults of rows)."""
    columns = suite.columns
    none = pd.Series("", index=table.index, dtype=object)
    named = {name: getattr(columns, name) for name in ("id", "question", "answer", "split")}
    named |= {"image": columns.image, "context": columns.context, "cluster_by": suite.cluster_by}
    rows = pd.DataFrame({k: table[column] if column else none for k, column in named.items()})
    rows["options"] = table[list(columns.options)].to_numpy(dtype=object).tolist()
    paths = sorted(set(rows["image"]) - {""})
    pictures = {name: picture_fault(root, name) for name in each(progress, "pictures", paths, 64)}
    given = {k: pa.array(rows[k], pa.string()) for k in rows if k != "options"}
    given["options"] = pa.array(rows["options"].tolist(), pa.list_(pa.string()))
    given["line"] = pa.array(table.index, pa.int64())
    given["is_empty"] = pa.array((table == "").all(axis=1))
    unit = "row" if suite.items.lower().endswith(".parquet") else "line"
    filled = {name: column for name, column in named.items() if column}
    tables = {
        "rows": pa.table(given),
        "columns": pa.table({"field": list(filled), "name": list(filled.values())}),
        "suite": pa.table({"unit": [unit], "option_names": [list(columns.options)]}),
        "pictures": pa.table(
            [pa.array(part, pa.string()) for part in (pictures, pictures.values())],
            ["image", "message"],
        ),
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
    return rows.assign(**groups), [Fault(suite.items, *fault) for fault in faults]


def picture_fault(root: Path, name: str) -> str:
    """The fault of an image, '' when it can be sent to a model."""
    if "://" in name:
        return f"image {name!r} is an address; put the picture into the folder and name its path"
    try:
        path = confine(root, name)
    except InputError:
        return (
            f"image {name!r} leads out of the folder; put the picture into the folder, without '..'"
            " or links"
        )
    except (OSError, RuntimeError):  # a circular link, or a name that is too long
        return f"image {name!r} can't be followed; name a file in the folder"
    try:
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "is not there"
            hint = "; write paths with /" if "\\" in name else ""
            return f"image {name!r} {kind}; give a path from the suite's folder{hint}"
        size = path.stat().st_size
        if size > MAX_BYTES:
            return f"image {name!r} has {size:,} bytes, at most {MAX_BYTES:,}; make it smaller"
        with warnings.catch_warnings():  # Pillow only warns about large images; refused here
            warnings.simplefilter("ignore")
            open_picture(path.read_bytes())
    except Image.DecompressionBombError:
        return f"image {name!r} has more than {MAX_PIXELS:,} pixels; make it smaller"
    except OSError as error:
        if isinstance(error, UnidentifiedImageError):
            return f"image {name!r} is no PNG or JPEG; save it as one"
        cause = error.strerror or str(error).splitlines()[0]
        return f"image {name!r} can't be read ({cause}); save it again"
    except Exception as error:  # any decoder error: the image can't be sent to a model
        return f"image {name!r} can't be decoded ({type(error).__name__}); save it again"
    return ""


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
