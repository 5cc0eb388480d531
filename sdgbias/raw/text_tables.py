"""Tables of other people as text: CSV files, of which no cell is guessed to be a number or missing,
their years and numbers, and the refusal of a file in one line."""

from __future__ import annotations

import csv
import gzip
import re
import warnings
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.errors import InputError


def read_text(
    path: Path,
    columns: Sequence[str] = (),
    again: str = "download it again",
    optional: Sequence[str] = (),
    rows: int | None = None,
) -> pd.DataFrame:
    """The named columns, and the optional ones that are there (no ``columns``: every column), as
    stripped text, '' missing (pandas' default would take Namibia's 'NA' for missing), by line of
    the file (a cell of several lines counts as one), without lines that hold nothing.

    UTF-8, else Windows-1252, and commas, else semicolons or tabs, whichever tool saved the file
    last (Excel's first line `sep=;` is no row); numbers keep their decimal commas
    (`decimal_points`). ``rows``: so many are read, not all.
    Raises InputError for a file that is no CSV, is cut off in its last line, has a line of more
    cells than names, lacks one of ``columns`` or has it twice; ``again``: what to do about it.
    """
    if path.exists() and not path.is_file():  # a pipe may never end
        raise InputError(f"{path}: no regular file; {again}")
    if not path.exists():
        raise InputError(f"{path}: no such file; check its name, or {again}")
    try:
        with warnings.catch_warnings(record=True) as left_out:
            warnings.simplefilter("always", pd.errors.ParserWarning)
            mark, above = separator(path)
            form: dict[str, Any] = {"sep": mark, "skiprows": above, "nrows": rows}
            form |= {"dtype": str, "keep_default_na": False, "skip_blank_lines": False}
            if _is_cut_off(path, mark, above):
                raise ValueError("its last line is cut off")
            try:
                table = pd.read_csv(path, encoding="utf-8-sig", index_col=False, **form)
            except UnicodeDecodeError:
                form |= {"encoding": "cp1252", "encoding_errors": "replace"}
                table = pd.read_csv(path, index_col=False, **form)
    # the last two: a .gz that is cut short
    except (ValueError, OSError, EOFError, zlib.error) as error:
        cause = str(error).strip().splitlines()[0]
        raise InputError(f"{path} is no readable CSV ({cause}); {again}") from error
    if left_out and (why := _long_line(path, mark, above)):
        raise InputError(f"{path}: {why}; {again}")
    table.columns = table.columns.astype("str").str.strip()
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(
            f"{path}: missing column(s) {', '.join(missing)}; found: {', '.join(table.columns)};"
            f" {again}"
        )
    names = list(table.columns)  # pandas numbers the second of a name
    twice = [n for n in (*columns, *optional) if names.count(n) > 1 or f"{n}.1" in names]
    if twice:
        raise InputError(f"{path}: column(s) {', '.join(twice)} more than once; keep one of each")
    if columns:
        table = table[[*columns, *(name for name in optional if name in table)]]
    table = table.fillna("").apply(lambda column: column.str.strip())
    table.index += above + 2
    return table[(table != "").any(axis=1)]


def separator(path: Path) -> tuple[str, int]:
    """What separates the columns of a CSV file (perhaps .gz), and how many lines stand above the
    names of its columns: those that hold nothing, and Excel's `sep=;`, which says what separates
    them; else a comma, or where the line of names has none, a semicolon or a tab. Raises
    OSError, EOFError, zlib.error, and ValueError for a file that begins with zero bytes."""
    lines = _lines(head(path))
    above = next((at for at, line in enumerate(lines) if line.strip(b" ,;\t")), 0)
    first = lines[above]
    if b"\0" in first:
        raise ValueError("it holds zero bytes; UTF-16 or no text at all")
    if stated := re.fullmatch(rb"sep=([,;\t])", first):
        return stated[1].decode(), above + 1
    return next((mark for mark in (",", ";", "\t") if mark.encode() in first), ","), above


def head(path: Path) -> bytes:
    """The first MiB of a file, unpacked, without a byte order mark."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(2**20).removeprefix(b"\xef\xbb\xbf")


def _lines(data: bytes) -> list[bytes]:
    """Without their ends, which are those of any system."""
    return re.split(rb"\r\n|\r|\n", data)


def _is_cut_off(path: Path, mark: str, above: int) -> bool:
    """Whether the last line has no end and fewer cells than the line of names, as after half a
    download. An archive that is cut short can't be read at all."""
    if path.suffix == ".gz":
        return False
    first = b"".join(_lines(head(path))[above : above + 1])
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**20))
        last = _lines(file.read())[-1].strip(b" ")
    if not last or last.count(b'"') % 2:  # the end of a cell of several lines
        return False
    wanted, got = (
        next(csv.reader([line.decode("latin-1")], delimiter=mark)) for line in (first, last)
    )
    return len(got) < len(wanted)


def _long_line(path: Path, mark: str, above: int) -> str:
    """What is wrong with the first line that has cells beyond those of the line of names; '' where
    they are empty, as after a separator at the end of each line."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="latin-1", newline="") as file:
        reader = csv.reader(file, delimiter=mark)
        names = len(next(islice(reader, above, None)))
        for row in reader:
            if "".join(row[names:]).strip():
                cells = f"{len(row)} cells, the line of names {names}"
                return f"line {reader.line_num} has {cells}"
    return ""


def decimal_points(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """The table with points in its numbers: where no comma separates columns, they have commas, as
    spreadsheets of many languages write them."""
    if separator(path)[0] == ",":
        return table
    return table.replace(r"^([-+]?\d*),(\d+(?:[eE][-+]?\d+)?)$", r"\1.\2", regex=True)


def find_column(path: Path, table: pd.DataFrame, what: str, names: Sequence[str]) -> str:
    """The first of ``names`` that is a column, ignoring case. Raises InputError without any."""
    columns = {name.lower(): name for name in table.columns}
    for name in names:
        if name.lower() in columns:
            return columns[name.lower()]
    raise InputError(
        f"{path}: no column for the {what}; name it {' or '.join(names)}; found:"
        f" {', '.join(table.columns)}"
    )


def refuse(path: Path, bad: pd.Series, wants: str) -> None:
    """InputError that names the column and the first of its ``bad`` cells; nothing without any."""
    if len(bad):
        raise InputError(
            f"{path}: {bad.name} {bad.iloc[0]!r} in {len(bad)} row(s); wants {wants}; correct or"
            " remove the rows"
        )


def numbers(column: pd.Series) -> pd.Series:
    """As float64, NaN for what is no number."""
    return pd.to_numeric(column, errors="coerce").astype(float)


def years(column: pd.Series) -> pd.Series:
    """2016 of '2016', '2016.0' and '2016-2017', as float64; NaN for anything else."""
    first = column.str.extract(r"^(\d{4})(?:\.0+|\s?[-/\u2013]\s?\d{2,4})?$")[0]
    return numbers(first)


def first_faults(faults: Sequence[tuple[str, pd.Series, pd.Series]]) -> pd.DataFrame:
    """rule and detail of each row: of the first fault (rule, where it is broken, detail there) that
    it has, '' for a row without any. Unknown counts as broken."""
    broken = [where.fillna(True).to_numpy(dtype=bool) for _, where, _ in faults]
    rules, details = [rule for rule, _, _ in faults], [detail for _, _, detail in faults]
    columns = {"rule": np.select(broken, rules, ""), "detail": np.select(broken, details, "")}
    return pd.DataFrame(columns, index=faults[0][1].index)
