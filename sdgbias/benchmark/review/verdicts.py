"""Reviewers' CSV files: read as people and spreadsheets return them, written so that spreadsheets
don't corrupt them: an item is named `<task>-<item_id>`, because bare numbers of 15 digits are
rounded."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from sdgbias.errors import InputError, one_of
from sdgbias.files import understood
from sdgbias.types import Task

COLUMNS = ("task", "item_id", "verdict", "reason", "comment")
VERDICTS = {"accept": "accepted", "reject": "rejected"}
REASONS = {
    "image-unusable": (
        "the picture shows nothing to judge by: black, clouded, indoors, not this place"
    ),
    "wrong-context": "the context line contradicts the picture or the place",
    "wrong-gold": "the gold answer is false, or the value behind it is from another place or time",
    "ambiguous": "two options fit, or the question can't be understood",
    "other": "anything else; say what in the comment",
}
_KEY = re.compile(rf"({'|'.join(Task)})-\d{{1,18}}")


def csv_text(rows: pd.DataFrame) -> str:
    """A CSV for spreadsheets: byte-order mark and '\\r\\n'."""
    return "\ufeff" + str(rows.to_csv(index=False, lineterminator="\r\n"))


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, column -> stripped text) of the rows that aren't blank. Comma, semicolon or tab;
    UTF-8, UTF-16 with a byte-order mark, or Windows-1252. Raises InputError with file and line;
    ``columns`` must be there."""
    with understood(path, "can't be read", "name a reviewer's CSV"):
        data = path.read_bytes()
    is_utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(
        io.StringIO(text, newline=""), None, "", "", delimiter=separator, strict=True
    )
    try:
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        if missing := [name for name in columns if name not in reader.fieldnames]:
            raise InputError(
                f"{path}: missing column(s) {', '.join(missing)}; the first row must read"
                f" {','.join(columns)}"
            )
        for row in reader:
            if any(map(str.strip, row.pop("", ()))):
                raise csv.Error("more cells than columns: put the comment in double quotes")
            cells = {name: cell.strip() for name, cell in row.items()}
            if any(cells.values()):
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.reader.line_num}: no CSV ({error}); save it again as CSV"
        ) from None


def read_verdicts(path: Path) -> pd.DataFrame:
    """line, verdict ('' none given), reason and comment by item, '<task>-<item_id>'. Raises
    InputError with file and line."""
    rows: dict[str, tuple[int, str, str, str]] = {}
    for line, row in csv_rows(path, COLUMNS[:3]):
        key = row["item_id"].lower()
        key = f"{row['task'].lower()}-{key}" if key.isdecimal() else key
        verdict, reason = row["verdict"].lower(), row.get("reason", "").lower()
        fault = _fault(key, verdict, reason)
        if key in rows:
            fault = f"{key} stands in line {rows[key][0]} already; keep one of them"
        if fault:
            raise InputError(f"{path}, line {line}: {fault}")
        rows[key] = line, verdict, reason, row.get("comment", "")
    columns = ["line", "verdict", "reason", "comment"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def _fault(key: str, verdict: str, reason: str) -> str:
    """What is wrong with a row, '' nothing."""
    if not _KEY.fullmatch(key):
        return (
            f"item_id {key!r} is no id; ids read like mcq-123456789 (a spreadsheet may have"
            " shortened it: fill the CSV in the sheet's page)"
        )
    if verdict not in ("", *VERDICTS):
        return f"{one_of('verdict', verdict, VERDICTS)}, or nothing where it is still open"
    if reason not in ("", *REASONS):
        return one_of("reason", reason, REASONS)
    if reason and verdict == "accept":
        return f"accepted with the reason {reason!r}; clear the reason, or reject the item"
    return ""


def written_in(path: Path) -> bool:
    """Whether this CSV contains verdicts; an unreadable file counts as if it did."""
    try:
        table = read_verdicts(path)
    except InputError:
        return path.exists()
    return bool((table[["verdict", "reason", "comment"]] != "").any(axis=None))
