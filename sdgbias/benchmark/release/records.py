"""The benchmark authors' record files (DATA.md section 5): file names and record fields.

`data/<task>_T<k>.jsonl` (7 files) holds one JSON object a line; `views/` holds the 14 input files
for a model runner: `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5).
Our additional columns are included in the data files under their names (FIELD_OF renames the five
that would collide).
"""

from __future__ import annotations

import os
from pathlib import Path

from sdgbias.benchmark.item_columns import MCQ_COLUMNS, REGRESSION_COLUMNS
from sdgbias.errors import UsageError, one_of
from sdgbias.types import TESTS, Task

MANIFEST = "release.json"
#: The authors' dataset on the hub, and the file that keeps which commit of it was fetched.
AUTHORS_REPO, FETCHED = "jeffreylin1222/SDGBiasBench", "fetched.json"
#: What to do about a file that can't be written.
ONWARD = "free the disk or name another --out"
BLANK = "images/blank.png"
TEXT_VIEWS = ("none", "blank-image")
#: (task, test) of the 7 data files.
PARTS = tuple((task, test) for task in Task for test in TESTS[task])
#: Fields of a record in the order we write them; ours follow.
AUTHORS_FIELDS = (
    *("id", "item_id", "image", "question", "A", "B", "C", "answer", "split"),
    *("level", "pillar", "indicator", "task", "task_name", "target", "num_options"),
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
#: Every field that is read.
FIELDS = tuple(dict.fromkeys((*AUTHORS_FIELDS, *OWN_FIELDS)))


def check_text_view(text_view: str) -> None:
    """Raise UsageError unless it is one of TEXT_VIEWS."""
    if text_view not in TEXT_VIEWS:
        raise UsageError(one_of("text view", text_view, TEXT_VIEWS))


def stem(task: Task, test: str) -> str:
    return f"{task}_{test}"


def refuse_foreign(out: Path, same_source: bool) -> None:
    """Raise UsageError when ``out`` isn't empty and isn't from an earlier run (``same_source``)."""
    if same_source:
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
