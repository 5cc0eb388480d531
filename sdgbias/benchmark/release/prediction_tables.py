"""Reads the benchmark authors' prediction tables (DATA.md-style file contract).

A folder holds `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5) as
.csv or .parquet. Rows are joined by `index`, never by position. Tables or rows that lack a view are
reported and counted; nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.benchmark.splits import authors_split
from sdgbias.errors import InputError, UsageError
from sdgbias.files import reading, refuse_other_case
from sdgbias.methods.cade import Floats
from sdgbias.raw.text_tables import read_text, separator
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, ContextTest, Task

_LARGEST_ID = 2**63 - 1
#: Columns that are read, beside logits and options.
TEXTS = ("index", "prediction", "answer", "split", "pillar", "target")


@dataclass(frozen=True)
class PredictionTables:
    """One task x level of a model: its K candidates, ids (N,), split (N,), gold (N,) as written,
    present (N, K), logits per view (N, K), generated (N,) text, target (N,) the counts of
    irregularities, and the names of the tables that aren't there."""

    task: Task
    level: ContextTest
    candidates: str
    frame: pd.DataFrame
    present: np.ndarray
    views: dict[str, Floats]
    notes: dict[str, int]
    absent: tuple[str, ...]


def parse_level(text: str) -> ContextTest:
    """'T2', 't2' or '2' -> ContextTest.T2."""
    name = text.strip().upper()
    name = name if name.startswith("T") else f"T{name}"
    if name not in ContextTest.__members__:
        raise UsageError(f"--level {text!r} is not a context test; valid: 1 to 5 or T1 to T5")
    return ContextTest(name)


def _read_table(folder: Path, stem: str, columns: list[str]) -> pd.DataFrame | None:
    """One table indexed by integer `index`; None when neither file exists."""
    paths = [p for p in (folder / f"{stem}.parquet", folder / f"{stem}.csv") if p.exists()]
    if not paths:
        return None
    if len(paths) > 1:
        raise InputError(f"{folder}: both {stem}.csv and {stem}.parquet exist; keep one of them")
    path = paths[0]
    if path.suffix == ".csv":
        table = read_text(path, again="write the table again")
        if separator(path) == ";":  # as spreadsheets of many languages export: decimal commas
            logits = [column for column in columns if column in table]
            table[logits] = table[logits].replace(",", ".", regex=True)
    else:
        with reading(path, "write the table again"):
            table = pd.read_parquet(path)
        table = table.reset_index() if table.index.name == "index" else table
    refuse_other_case(path, table.columns, (*TEXTS, *columns))
    if "index" not in table.columns:
        raise InputError(
            f"{path}: no column 'index' (= item_id); found: {', '.join(map(str, table.columns))}"
        )
    table["index"] = _ids(path, table["index"])
    twice = table["index"].duplicated()
    if twice.any():
        raise InputError(
            f"{path}: index {int(table['index'][twice].iloc[0])} stands in more than one row;"
            " remove duplicates"
        )
    if not any(c in table.columns for c in columns):
        raise InputError(f"{path}: no logit columns; expected {columns[0]}, {columns[1]}, ...")
    for column in columns:
        values = table[column] if column in table.columns else pd.Series(np.nan, index=table.index)
        numbers = pd.to_numeric(values, errors="coerce").astype(float)
        empty = values.isna() | values.isin(["", "nan", "NaN"])
        unread = (numbers.isna() & ~empty) | (numbers == np.inf)
        if unread.any():
            at = int(np.flatnonzero(unread)[0])
            raise InputError(
                f"{path}: index {table['index'].iloc[at]}: {column} {str(values.iloc[at])!r} is not"
                " a number; leave the cell empty where there is no logit, or write the table again"
            )
        table[column] = numbers
    return table.set_index("index").sort_index()


def _require_agreement(
    folder: Path, stems: Mapping[str, str], tables: Mapping[str, pd.DataFrame | None]
) -> None:
    """Raises InputError where two tables state different answers (letters, or numbers to the last
    digit but one) or splits of one question: their rows don't belong together."""
    full = tables["full"]
    assert full is not None
    for view, table in tables.items():
        for name in ("answer", "split"):
            if view == "full" or table is None:
                continue
            both = full.index.intersection(table.index)
            one, two = (_text_column(t.loc[both], name).str.upper() for t in (full, table))
            x, y = (pd.to_numeric(texts, errors="coerce") for texts in (one, two))
            letters = one.str.fullmatch("[A-Z]+") & two.str.fullmatch("[A-Z]+") & (one != two)
            differs = letters | ((x - y).abs() > 1e-6 * x.abs())
            if differs.any():
                at = both[differs.to_numpy()][0]
                raise InputError(
                    f"{folder}: index {at}: {name} is {one.loc[at]!r} in {stems['full']} and"
                    f" {two.loc[at]!r} in {stems[view]}; write both tables of the same questions"
                )


def _ids(path: Path, given: pd.Series) -> pd.Series:
    """Item ids (N,) as int64, exactly as written. Raises InputError for a value that is no integer,
    doesn't fit, or is a float beyond 2^53, where floats skip integers."""
    if pd.api.types.is_float_dtype(given.dtype):
        values = given.astype("float64")
        whole, fits = values % 1 == 0, values.abs() <= 2**53
    elif pd.api.types.is_integer_dtype(given.dtype):
        whole, fits = given.notna(), (given <= _LARGEST_ID).fillna(False)
    else:
        texts = given.astype("str").str.strip()
        whole = texts.str.fullmatch(r"[+-]?\d{1,40}(\.0*)?") & given.notna()
        given = texts.where(whole, "0").str.split(".").str[0].map(int).astype(object)
        fits = given.map(lambda number: abs(number) <= _LARGEST_ID)
        given = given.where(whole, texts)
    for bad, why in (
        (~whole.astype(bool), "is not an integer item id"),
        (~fits.astype(bool), "is an item id too large to be read exactly; write ids as integers"),
    ):
        if bad.any():
            raise InputError(f"{path}: index {given[bad].iloc[0]!r} {why}")
    return given.astype("int64")


def _require_logits(
    folder: Path, stem: str, table: pd.DataFrame, asked: np.ndarray | None, columns: list[str]
) -> None:
    """Raise InputError when a column has no logit at all though questions have that option: the
    option could then never be chosen. asked (N, K): which options have a text, in the order of the
    table's rows; None without texts, when every column is needed."""
    missing = [column for column in columns if table[column].isna().all()]
    letters = ", ".join(column[-1] for column in columns)
    nameless = asked is None and columns[0] == f"logit_{LETTERS[0]}"
    for at, column in enumerate(columns):
        needed = len(table) if asked is None else int(asked[:, at].sum())
        if column in missing and needed and len(missing) < len(columns):
            raise InputError(
                f"{folder / stem}: no logit in column {column}, which {needed:,} of"
                f" {len(table):,} rows need; write the table again with {', '.join(columns)}"
                f"{', or name the options in columns ' + letters if nameless else ''}"
            )


def _text_column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns:
        return pd.Series("", index=table.index, dtype=object)
    column = table[name].astype(object)
    return column.where(column.notna(), "").map(
        lambda v: v.strip() if isinstance(v, str) else str(v)
    )


def read_tables(folder: Path, task: Task, level: ContextTest) -> PredictionTables:
    """The four views of one task x level (reference: IMG+Q and Q-only always come from T5 and
    T5_text)."""
    candidates = OPTION_LETTERS if task is Task.MCQ else DIGITS
    columns = [f"logit_{c}" for c in candidates]
    stems = {
        "full": f"{task.value}_{level.value}",
        "ctx": f"{task.value}_{level.value}_text",
        "img": f"{task.value}_T5",
        "q": f"{task.value}_T5_text",
    }
    tables = {view: _read_table(folder, stem, columns) for view, stem in stems.items()}
    full = tables["full"]
    if full is None:
        present_names = ", ".join(sorted(p.name for p in folder.glob("*_T*"))) or "nothing"
        raise InputError(
            f"{folder}: no table {stems['full']}.csv or .parquet (the Full view); found:"
            f" {present_names if folder.is_dir() else 'no such folder'}"
        )
    _require_agreement(folder, stems, tables)
    texts = None
    if task is Task.MCQ:  # A to C, and further letters up to the last one with a logit
        filled = [t[columns].notna().any().to_numpy() for t in tables.values() if t is not None]
        last = int(np.flatnonzero(np.any(filled, axis=0)).max(initial=-1))
        candidates = candidates[: max(len(LETTERS), last + 1)]
        columns = columns[: len(candidates)]
        if all(c in full.columns for c in ("AB" if candidates == LETTERS else candidates)):
            texts = np.column_stack([(_text_column(full, c) != "").to_numpy() for c in candidates])
    notes = {"rows": len(full)}
    absent = tuple(stems[view] for view, table in tables.items() if table is None)
    views: dict[str, Floats] = {}
    for view, table in tables.items():
        aligned = (full.iloc[:0] if table is None else table).reindex(full.index)
        _require_logits(folder, stems[view], aligned, texts, columns)
        views[view] = aligned[columns].to_numpy(dtype=float)
        notes[f"rows_without_{view}"] = int((~np.isfinite(views[view]).any(axis=1)).sum())
        if table is not None and view != "full":
            notes[f"{view}_rows_not_in_full"] = int((~table.index.isin(full.index)).sum())
    if texts is not None:
        present = texts
    elif task is Task.MCQ:
        present = np.logical_or.reduce([~np.isnan(v) for v in views.values()])
    else:
        present = np.ones((len(full), len(candidates)), dtype=bool)
    finite = np.isfinite(np.stack([*views.values()]))
    partial = (present & ~finite).any(axis=2) & (present & finite).any(axis=2)
    notes["rows_with_masked_candidates"] = int(partial.any(axis=0).sum())
    split = _text_column(full, "split").str.lower()
    given = split.isin(["val", "test"])
    if not (given | (split == "")).all():
        raise InputError(
            f"{folder}/{stems['full']}: split {split[~given & (split != '')].iloc[0]!r}; valid:"
            " val, test"
        )
    notes["rows_split_by_rule"] = int((~given).sum())
    by_rule = pd.Series(
        authors_split(task.value, full.index.to_numpy()), index=full.index, dtype=object
    )
    texts_of = {name: _text_column(full, name) for name in ("answer", "prediction", "target")}
    frame = pd.DataFrame({"split": split.where(given, by_rule), **texts_of})
    return PredictionTables(task, level, candidates, frame, present, views, notes, absent)
