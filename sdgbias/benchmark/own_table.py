"""The table of a custom-question suite as text cells with line numbers: CSV, JSONL or Parquet.

Cells are text, stripped of surrounding blanks; empty cells are ''. Numbers in CSV and JSONL stay as
written ('0.50'), so that an answer is compared with an option as both read on paper. Faults are
collected, not raised, so that one run reports all of them.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".csv", ".jsonl", ".parquet")
#: Advice for unsupported table formats.
_OTHERS = {
    ".json": "write one JSON object per line and name the file .jsonl",
    **dict.fromkeys((".tsv", ".txt"), "separate the columns by commas and name the file .csv"),
    **dict.fromkeys((".xlsx", ".xls"), "save the sheet as CSV (UTF-8)"),
}
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_CONTROL = r"([\x00-\x08\x0b\x0c\x0e-\x1f\x7f])"


@dataclass(frozen=True, order=True)
class Fault:
    """One problem to fix. file: path relative to the suite's folder; line: line of the text, or row
    of a Parquet table; 0 for the whole file. message: the fault and how to fix it."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        if not self.line:
            return f"{self.file}: {self.message}"
        row = "row " if self.file.lower().endswith(".parquet") else ""
        return f"{self.file}:{row}{self.line}: {self.message}"


class _Unreadable(Exception):
    """A table of which no row can be read: the message, and the line."""


def read_table(path: Path, name: str) -> tuple[pd.DataFrame, list[Fault]]:
    """(the rows that could be read, text cells indexed by line; the faults). ``name`` is the file
    name used in faults. Never raises because of the file's contents."""
    faults: list[tuple[int, str]] = []
    try:
        table = _read(path, faults)
    except _Unreadable as error:
        message, line = error.args
        return pd.DataFrame(), [Fault(name, line, message)]
    except OSError as error:
        message = f"can't be read ({error.strerror or error}); check its permissions"
        return pd.DataFrame(), [Fault(name, 0, message)]
    for column in sorted(set(table.columns)):
        if list(table.columns).count(column) > 1:
            shown = f"column {column!r}" if column else "a column without a name"
            faults.append((1, f"{shown} is there twice; rename or remove one"))
        elif not column:
            at = list(table.columns).index("") + 1
            faults.append((1, f"column {at} has no name; name or remove it"))
    table = table.loc[:, ~table.columns.duplicated()]
    for column in map(str, table):
        hidden = table[column].str.extract(_CONTROL)[0].dropna()
        faults += [
            (int(line), f"column {column!r} holds the control character {character!r}; remove it")
            for line, character in zip(hidden.index, hidden, strict=True)
        ]
    return table, sorted({Fault(name, line, message) for line, message in faults})


def _read(path: Path, faults: list[tuple[int, str]]) -> pd.DataFrame:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        fix = _OTHERS.get(suffix, "write it as .csv, .jsonl or .parquet")
        raise _Unreadable(f"a table of items is .csv, .jsonl or .parquet; {fix}", 0)
    if suffix == ".parquet":
        return _parquet(path, faults)
    data = path.read_bytes()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _Unreadable("is UTF-16, as some spreadsheets write it; save it as UTF-8", 0)
    text, damaged = decode(data)
    faults += damaged
    return _csv(text, faults) if suffix == ".csv" else _jsonl(text, faults)


def decode(data: bytes) -> tuple[str, list[tuple[int, str]]]:
    """(text without a byte order mark, a fault per line that is not UTF-8)."""
    faults = []
    for line, raw in enumerate(data.split(b"\n"), 1):
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            faults.append((line, f"byte 0x{raw[error.start]:02X} is not UTF-8; save it as UTF-8"))
    return data.decode("utf-8-sig", errors="replace"), faults


def _csv(text: str, faults: list[tuple[int, str]]) -> pd.DataFrame:
    """Cells separated by commas, in double quotes when they contain commas or line ends."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    rows: dict[int, list[str]] = {}
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            cells = [cell.strip() for cell in cells]
            if not columns:
                columns = cells if any(cells) else []
            elif len(cells) == len(columns):
                rows[start] = cells
            elif cells:
                message = f"has {len(cells)} cells, the header {len(columns)}; put double quotes"
                faults.append((start, f"{message} around a cell that holds a comma"))
    except csv.Error as error:
        open_quote = "end of data" in str(error)
        where = "a double quote is opened and not closed" if open_quote else f"not CSV ({error})"
        faults.append((line, f"{where}; the rows from here on could not be read"))
    if not columns:
        raise _Unreadable("is empty; the first line names the columns", 0)
    other = next((word for mark, word in _SEPARATORS.items() if mark in columns[0]), "")
    if len(columns) == 1 and other:
        message = f"its columns are separated by {other}; only commas are read"
        raise _Unreadable(f"{message}: save it as comma-separated CSV", 1)
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=object)


def _jsonl(text: str, faults: list[tuple[int, str]]) -> pd.DataFrame:
    """One JSON object per line, its values text, numbers, true, false or null."""
    rows: dict[int, dict[str, str]] = {}
    for line, raw in enumerate(text.split("\n"), 1):
        try:
            if raw.strip():
                rows[line] = {key: _cell(value) for key, value in _json_row(raw).items()}
        except ValueError as error:
            faults.append((line, str(error)))
    if not rows and not faults:
        raise _Unreadable("is empty; write one JSON object per line", 0)
    columns = dict.fromkeys(key for row in rows.values() for key in row)
    return pd.DataFrame(rows.values(), index=list(rows), columns=list(columns)).fillna("")


def _json_row(raw: str) -> dict[str, Any]:
    """The object of a line, its numbers as they are written. Raises ValueError."""
    try:
        row = json.loads(
            raw,
            parse_int=str,
            parse_float=str,
            parse_constant=_refuse_constant,
            object_pairs_hook=_without_repeats,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        cause = getattr(error, "msg", type(error).__name__)
        raise ValueError(f"not JSON ({cause}); each line is one object: {{...}}") from None
    if not isinstance(row, dict):
        raise ValueError("is no JSON object; each line is one object: {...}")
    for key, value in row.items():
        if isinstance(value, list | dict):
            kind = "list" if isinstance(value, list) else "object"
            raise ValueError(f"{key!r} holds a JSON {kind}; give each option a field of its own")
    return {key.strip(): value for key, value in row.items()}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} twice; remove one")
    return dict(pairs)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"holds {text}, which is no value; write null or leave the field out")


def _parquet(path: Path, faults: list[tuple[int, str]]) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (ValueError, pa.ArrowException) as error:
        cause = str(error).strip().splitlines()[0]
        raise _Unreadable(f"is no readable Parquet file ({cause}); write it again", 0) from None
    columns = []
    for name, values in zip(table.column_names, table.columns, strict=True):
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            message = f"column {name.strip()!r} holds {kind}; write text or numbers"
            faults.append((0, f"{message}, one value per cell"))
            values = pa.nulls(len(table))
        columns.append([_cell(value) for value in values.to_pylist()])
    rows = dict(enumerate(zip(*columns, strict=True), 1))
    names = [name.strip() for name in table.column_names]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names, dtype=object)


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
