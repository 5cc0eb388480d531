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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".csv", ".jsonl", ".parquet")
#: Advice for unsupported table formats.
_OTHERS = {
    ".json": "write one JSON object per line and name the file .jsonl",
    ".tsv": "separate the columns by commas and name the file .csv",
    ".txt": "separate the columns by commas and name the file .csv",
    ".xlsx": "save the sheet as CSV (UTF-8)",
    ".xls": "save the sheet as CSV (UTF-8)",
}
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_CONTROL = {chr(code) for code in range(32)} - set("\t\n\r") | {"\x7f"}


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


@dataclass(frozen=True)
class ItemTable:
    """columns in the file's order; rows: (line, column -> cell), those that could be read."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, str]], ...]
    faults: tuple[Fault, ...]


def read_table(path: Path, name: str) -> ItemTable:
    """Read a table of items; ``name`` is the file name used in faults. Never raises because of the
    file's contents."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        fix = _OTHERS.get(suffix, "write it as .csv, .jsonl or .parquet")
        return _broken(name, f"a table of items is .csv, .jsonl or .parquet; {fix}")
    faults: list[Fault] = []
    try:
        if suffix == ".parquet":
            found = _parquet(path, name)
        else:
            data = path.read_bytes()
            if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
                return _broken(name, "is UTF-16, as some spreadsheets write it; save it as UTF-8")
            text, faults = decode(data, name)
            found = _csv(text, name) if suffix == ".csv" else _jsonl(text, name)
    except OSError as error:
        return _broken(name, f"can't be read ({error.strerror or error}); check its permissions")
    for line, cells in found.rows:
        for column, cell in cells.items():
            if not _CONTROL.isdisjoint(cell):
                hidden = next(c for c in cell if c in _CONTROL)
                message = f"column {column!r} holds the control character {hidden!r}; remove it"
                faults.append(Fault(name, line, message))
    return replace(found, faults=tuple(sorted({*faults, *found.faults})))


def decode(data: bytes, name: str) -> tuple[str, list[Fault]]:
    """(text without a byte order mark, one fault per line that is not UTF-8)."""
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        faults = []
    for line, raw in enumerate(data.split(b"\n"), 1):
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            value = raw[error.start]
            faults.append(Fault(name, line, f"byte 0x{value:02X} is not UTF-8; save it as UTF-8"))
    return data.decode("utf-8-sig", errors="replace"), faults


def _broken(name: str, message: str, line: int = 0) -> ItemTable:
    return ItemTable((), (), (Fault(name, line, message),))


def _header(columns: list[str], name: str) -> list[Fault]:
    faults = []
    for column in sorted(set(columns)):
        if columns.count(column) > 1:
            shown = f"column {column!r}" if column else "a column without a name"
            faults.append(Fault(name, 1, f"{shown} is there twice; rename or remove one"))
    if columns.count("") == 1:
        at = columns.index("") + 1
        faults.append(Fault(name, 1, f"column {at} has no name; name or remove it"))
    return faults


def _csv(text: str, name: str) -> ItemTable:
    """Cells separated by commas, in double quotes when they contain commas or line ends."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    rows: list[tuple[int, dict[str, str]]] = []
    faults: list[Fault] = []
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            if not columns:
                if not any(cell.strip() for cell in cells):
                    continue
                columns = [cell.strip() for cell in cells]
                other = next((word for mark, word in _SEPARATORS.items() if mark in columns[0]), "")
                if len(columns) == 1 and other:
                    message = f"its columns are separated by {other}; only commas are read:"
                    return _broken(name, f"{message} save it as comma-separated CSV", start)
                faults += _header(columns, name)
            elif not cells:
                continue
            elif len(cells) != len(columns):
                message = (
                    f"has {len(cells)} cells, the header {len(columns)}; put double quotes around a"
                    " cell that holds a comma"
                )
                faults.append(Fault(name, start, message))
            else:
                stripped = (cell.strip() for cell in cells)
                rows.append((start, dict(zip(columns, stripped, strict=True))))
    except csv.Error as error:
        open_quote = "end of data" in str(error)
        where = "a double quote is opened and not closed" if open_quote else f"not CSV ({error})"
        faults.append(Fault(name, line, f"{where}; the rows from here on could not be read"))
    if not columns:
        return _broken(name, "is empty; the first line names the columns")
    return ItemTable(tuple(columns), tuple(rows), tuple(faults))


class _NoRow(ValueError):
    """A line that is no object of cells; says why."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _NoRow(f"names {key!r} twice; remove one")
        found[key] = value
    return found


def _constant(text: str) -> Any:
    raise _NoRow(f"holds {text}, which is no value; write null or leave the field out")


def _json_row(raw: str) -> dict[str, Any]:
    """The object of a line, its numbers as they are written. Raises _NoRow."""
    try:
        found = json.loads(
            raw,
            parse_int=str,
            parse_float=str,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except _NoRow:
        raise
    except (ValueError, RecursionError) as error:
        cause = getattr(error, "msg", type(error).__name__)
        raise _NoRow(f"not JSON ({cause}); each line is one object: {{...}}") from None
    if not isinstance(found, dict):
        raise _NoRow("is no JSON object; each line is one object: {...}")
    return {key.strip(): value for key, value in found.items()}


def _jsonl(text: str, name: str) -> ItemTable:
    """One JSON object per line, its values text, numbers, true, false or null."""
    columns: dict[str, None] = {}
    rows: list[tuple[int, dict[str, str]]] = []
    faults: list[Fault] = []
    for line, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            found = _json_row(raw)
        except _NoRow as error:
            faults.append(Fault(name, line, str(error)))
            continue
        columns |= dict.fromkeys(found)
        for key, value in found.items():
            if isinstance(value, list | dict):
                kind = "list" if isinstance(value, list) else "object"
                message = f"{key!r} holds a JSON {kind}; give each option a field of its own"
                faults.append(Fault(name, line, message))
        rows.append((line, {key: _cell(value) for key, value in found.items()}))
    if not rows and not faults:
        return _broken(name, "is empty; write one JSON object per line")
    none = dict.fromkeys(columns, "")
    complete = tuple((line, {**none, **cells}) for line, cells in rows)
    return ItemTable(tuple(columns), complete, tuple(faults))


def _parquet(path: Path, name: str) -> ItemTable:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (ValueError, pa.ArrowException) as error:
        cause = str(error).strip().splitlines()[0]
        return _broken(name, f"is no readable Parquet file ({cause}); write it again")
    names = [column.strip() for column in table.column_names]
    faults = _header(names, name)
    cells: list[list[str]] = []
    for column, values in zip(names, table.columns, strict=True):
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            message = f"column {column!r} holds {kind}; write text or numbers, one value per cell"
            faults.append(Fault(name, 0, message))
            values = pa.nulls(len(table))
        cells.append([_cell(value) for value in values.to_pylist()])
    rows = (dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True))
    return ItemTable(tuple(names), tuple(enumerate(rows, 1)), tuple(faults))


def _cell(value: Any) -> str:
    """A value of JSON or Parquet as a cell: 3.0 is '3', because pandas stores whole numbers with
    gaps as floats."""
    if value is None or isinstance(value, list | dict):
        return ""
    if isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    return str(value).strip()
