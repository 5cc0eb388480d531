"""CSV files of other people as text: no cell is guessed to be a number or missing."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd

from sdgbias.errors import InputError


def read_text(
    path: Path,
    columns: Sequence[str] = (),
    again: str = "download it again",
    optional: Sequence[str] = (),
) -> pd.DataFrame:
    """The named columns, and the optional ones that are there (no ``columns``: every column), as
    stripped text, '' missing (pandas' default would take Namibia's 'NA' for missing).

    UTF-8, else Windows-1252, and commas, else semicolons or tabs, whichever tool saved the file
    last; numbers keep their decimal commas. Raises InputError for a file that
    is no CSV or lacks one of ``columns``; ``again``: what to do about it.
    """
    if path.exists() and not path.is_file():  # a pipe may never end
        raise InputError(f"{path}: no regular file; {again}")
    try:
        mark = separator(path)
        try:
            table = _read(path, mark, encoding="utf-8-sig")
        except UnicodeDecodeError:
            table = _read(path, mark, encoding="cp1252", encoding_errors="replace")
    except (ValueError, OSError, EOFError, zlib.error) as error:  # the last two: a .gz cut short
        cause = str(error).strip().splitlines()[0]
        raise InputError(f"{path} is no readable CSV ({cause}); {again}") from error
    table.columns = table.columns.astype("str").str.strip()
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(
            f"{path}: missing column(s) {', '.join(missing)}; found: {', '.join(table.columns)};"
            f" {again}"
        )
    if columns:
        table = table[[*columns, *(name for name in optional if name in table)]]
    return table.fillna("").apply(lambda column: column.str.strip())


def read_replacing(source: Path | IO[bytes], mark: str) -> pd.DataFrame:
    """Every column as text, as it is written; what isn't UTF-8 is replaced. For files of which only
    ASCII is used. ``mark``: their `separator`. Raises pandas' own errors."""
    return _read(source, mark, encoding="utf-8-sig", encoding_errors="replace")


def _read(source: Path | IO[bytes], mark: str, **how: Any) -> pd.DataFrame:
    return pd.read_csv(source, sep=mark, dtype=str, keep_default_na=False, index_col=False, **how)


def separator(path: Path) -> str:
    """What separates the columns of a CSV file (perhaps .gz): a comma, or where its first line has
    none, a semicolon or a tab. Raises OSError, EOFError, zlib.error."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        first = file.readline()
    return next((mark for mark in (",", ";", "\t") if mark.encode() in first), ",")
