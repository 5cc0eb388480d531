"""The benchmark authors' record files (DATA.md section 5): file names, record fields,
serialisation.

`data/<task>_T<k>.jsonl` (7 files) holds one JSON object a line; `views/` holds the 14 input files
for a model runner: `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5).
Our additional columns are included in the data files under their names (FIELD_OF renames the five
that would collide).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from sdgbias.benchmark.item_columns import MCQ_COLUMNS, REGRESSION_COLUMNS
from sdgbias.errors import UsageError
from sdgbias.types import TESTS, Task

MANIFEST = "release.json"
#: What to do about a file that can't be written.
ONWARD = "free the disk or name another --out"
BLANK = "images/blank.png"
IGNORE = "\nIgnore the image."
TEXT_VIEWS = ("none", "blank-image")
#: (task, test) of the 7 data files.
PARTS = tuple((task, test) for task in Task for test in TESTS[task])
#: Fields of a record in the order we write them; ours follow.
AUTHORS_FIELDS = (
    *(
        "id",
        "item_id",
        "image",
        "question",
        "A",
        "B",
        "C",
        "answer",
        "split",
        "level",
        "pillar",
        "indicator",
        "task",
    ),
    *("task_name", "target", "num_options"),
)
#: Our columns whose name has another meaning in a record, or that the authors name differently.
FIELD_OF = {
    **{"question": "item_question", "level": "value_level", "indicator_title": "task_name"},
    **{"option_a": "A", "option_b": "B", "option_c": "C"},
}
COLUMNS = {Task.MCQ: MCQ_COLUMNS, Task.REGRESSION: REGRESSION_COLUMNS}
#: Our additional fields: the columns of both item tables that the authors have no name for, and two
#: of the images.
OWN_FIELDS = (
    *sorted(
        {FIELD_OF.get(c, c) for columns in COLUMNS.values() for c in columns}
        - {*AUTHORS_FIELDS, "image_id"}
    ),
    *("photo_id", "images"),
)
_ESCAPES = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\b", "\\b"),
    ("\f", "\\f"),
)


def stem(task: Task, test: str) -> str:
    return f"{task}_{test}"


def json_lines(
    fields: Mapping[str, pa.Array | pa.ChunkedArray], raw: Iterable[str] = ()
) -> pa.Array:
    """One JSON object per row (N,), fields in the given order, missing values and NaN left out.

    The text is that of json.dumps(ensure_ascii=False), except that a whole double has no `.0`.
    Fields named in ``raw`` already contain JSON. Text, integers and doubles only (TypeError
    otherwise).
    """
    plain = set(raw)
    parts = []
    for name, values in fields.items():
        column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        text = column if name in plain else _json_text(column)
        parts.append(_joined(f"{json.dumps(name)}: ", text.cast(pa.large_string())))
    body = pc.binary_join_element_wise(
        *parts, pa.scalar(", ", pa.large_string()), null_handling="skip"
    )
    return _joined("{", body, "}")


def _joined(*parts: str | pa.Array) -> pa.Array:
    """Concatenated texts; missing where any part is."""
    texts = [
        pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts
    ]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _json_text(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        distinct = values.dictionary_encode()
        return _quoted(distinct.dictionary.cast(pa.large_string())).take(distinct.indices)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_finite(values), values, None)
    elif not pa.types.is_integer(kind):
        raise TypeError(f"no JSON text for a column of {kind}")
    return values.cast(pa.string())


def _quoted(text: pa.Array) -> pa.Array:
    for plain, escaped in _ESCAPES:
        text = pc.replace_substring(text, plain, escaped)
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x1f]")).as_py():
        for code in range(32):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return _joined('"', text, '"')


def write_lines(file: BinaryIO, lines: pa.Array) -> None:
    """Append every row (no nulls) and a newline, without a Python object per row."""
    text = _joined(lines.cast(pa.large_string()), "\n")
    size = pc.sum(pc.binary_length(text)).as_py() or 0
    if size:
        file.write(memoryview(text.buffers()[2])[:size])


def read_manifest(folder: Path, name: str) -> dict[str, Any]:
    """A small JSON object of a folder; {} when it is missing or not an object."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def refuse_foreign(out: Path, mine: bool) -> None:
    """Raise UsageError when ``out`` isn't empty and isn't from an earlier run (``mine``)."""
    if mine:
        return
    try:
        taken = next(iter(os.scandir(out)), None)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UsageError(f"{out}: a file; name an empty or new folder with --out") from None
    if taken is not None:
        raise UsageError(
            f"{out}: not empty ({taken.name}) and not made by this command from the same source;"
            " name an empty folder with --out"
        )
