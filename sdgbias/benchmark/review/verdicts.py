"""Reviewers' verdicts as CSV files: read tolerantly, written so that spreadsheets don't corrupt
them.

Items are named `<task>-<item_id>`, because spreadsheets round bare numbers of 15 digits. Plain
numbers are also accepted.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def keys(frame: pd.DataFrame) -> pd.Series:
    """'<task>-<item_id>' per row."""
    return frame["task"].astype(str) + "-" + frame["item_id"].astype(str)


def csv_text(rows: pd.DataFrame) -> str:
    """A CSV for spreadsheets: byte-order mark, '\\r\\n', ids as text."""
    text = rows.assign(item_id=keys(rows)).to_csv(index=False, lineterminator="\r\n")
    return "\ufeff" + str(text)


def read_verdicts(path: Path) -> pd.DataFrame:
    """A reviewer's CSV: COLUMNS and row (line number); one row per item, verdict '' when none is
    given.

    Comma, semicolon or tab; UTF-8, UTF-16 with a byte-order mark, or Windows-1252. Raises
    InputError naming file and row.
    """
    with understood(path, "can't be read", "name a reviewer's CSV"):
        data = Path(path).read_bytes()
    text = _decode(data)
    header, *_ = text.splitlines() or [""]
    headers = {
        sep: [name.strip().strip('"').lower() for name in header.split(sep)] for sep in ",;\t"
    }
    sep = max(headers, key=lambda s: len(set(headers[s]) & set(COLUMNS)))
    names = headers[sep]
    if missing := [name for name in COLUMNS[:3] if name not in names]:
        raise InputError(
            f"{path}: missing column(s) {', '.join(missing)}; the first row must read"
            f" {','.join(COLUMNS)}"
        )
    rows, seen = [], dict[tuple[str, int], int]()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep, strict=True)
    try:
        next(reader)
        for row in reader:
            if any(field.strip() for field in row[len(names) :]):
                raise InputError(
                    f"{path}, line {reader.line_num}: more fields than columns; put the comment in"
                    " double quotes"
                )
            given = dict(zip(names, (field.strip() for field in row), strict=False))
            if any(given.values()):
                rows.append(_row(f"{path}, line {reader.line_num}", given, reader.line_num, seen))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: no CSV ({error}); save it again as CSV"
        ) from None
    frame = pd.DataFrame(rows, columns=[*COLUMNS, "row"])
    return frame.astype({**dict.fromkeys(COLUMNS, "str"), "item_id": "int64", "row": "int64"})


def _decode(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _row(
    where: str, given: Mapping[str, str], line: int, seen: dict[tuple[str, int], int]
) -> tuple[Any, ...]:
    name, task = given.get("item_id", ""), given.get("task", "").lower()
    match = re.fullmatch(r"(?:([a-z]+)-)?(\d{1,18})", name.lower())
    if match is None:
        short = re.fullmatch(r"\d[.,]?\d*e\+?\d+", name.lower())
        why = (
            "a spreadsheet has shortened it: fill the CSV in the sheet's page"
            if short
            else "ids read like mcq-123456789"
        )
        raise InputError(f"{where}: item_id {name!r} is no id; {why}")
    task = task or match[1] or ""
    if task not in list(Task):
        raise InputError(f"{where}: {one_of('task', task, Task)}")
    if match[1] and match[1] != task:
        raise InputError(
            f"{where}: item_id {name!r} is not of the task {task!r}; copy the row from the sheet"
            " again"
        )
    verdict, reason = given.get("verdict", "").lower(), given.get("reason", "").lower()
    if verdict and verdict not in VERDICTS:
        raise InputError(
            f"{where}: {one_of('verdict', verdict, VERDICTS)}, or nothing where it is still open"
        )
    if reason and reason not in REASONS:
        raise InputError(f"{where}: {one_of('reason', reason, REASONS)}")
    if reason and verdict == "accept":
        raise InputError(
            f"{where}: accepted with the reason {reason!r}; clear the reason, or reject the item"
        )
    item = (task, int(match[2]))
    if item in seen:
        raise InputError(
            f"{where}: {task}-{match[2]} stands in line {seen[item]} already; keep one of them"
        )
    seen[item] = line
    return (*item, verdict, reason, given.get("comment", ""), line)


def written_in(path: Path) -> bool:
    """Whether this CSV contains verdicts; an unreadable file counts as if it did."""
    if not path.exists():
        return False
    try:
        return bool((read_verdicts(path)[["verdict", "reason", "comment"]] != "").any(axis=None))
    except InputError:
        return True
