"""Human review (App. B.2): a stratified sample, two reviewers, an adjudicator, and the results.

An item is named by its key, '<task>-<item_id>', because spreadsheets round bare numbers of 15
digits.

* sheet: the material for reviewers
* verdicts: their CSVs, read as people and spreadsheets return them, and joined
* question_templates: the same for the templates of questions
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pandas as pd

from sdgbias.errors import InputError, UsageError
from sdgbias.files import packaged_sql, reading, write_atomically
from sdgbias.types import Task

SHARE = 0.05
STRATA = ["task", "pillar", "indicator"]
#: Columns of a reviewer's CSV.
COLUMNS = ["task", "item_id", "verdict", "reason", "comment"]
ADJUDICATOR = "adjudicator"
#: A reviewer's verdict -> that of the review.
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


def reviewer_names(reviewers: Sequence[str], fewest: int) -> list[str]:
    """The names, which stand in names of files. Raises UsageError."""
    names = [name.strip() for name in reviewers if name.strip()]
    usable = all(re.fullmatch(r"\w[\w-]{0,39}", name) for name in names)
    distinct = {*map(str.lower, names), ADJUDICATOR}
    if len(names) < fewest or len(distinct) <= len(names) or not usable:
        people = "two different people or more" if fewest > 1 else "different people"
        raise UsageError(
            f"--reviewers {','.join(names)}: name {people}, such as anna,ben, by letters, digits, -"
            f" and _ (not '{ADJUDICATOR}')"
        )
    return names


def read_items(benchmark: Path, task: Task) -> pd.DataFrame:
    """The items of a task, with their task, by key. Raises InputError."""
    onward = "name a benchmark folder, or make one with 'sdgbias build'"
    with reading(Path(benchmark) / f"items_{task}.parquet", onward) as path:
        items = pd.read_parquet(path).assign(task=task.value)
    return items.set_index((f"{task}-" + items["item_id"].astype(str)).rename("key"))


def draw_sample(benchmark: Path, share: float = SHARE, seed: int = 0) -> pd.DataFrame:
    """About `share` of the items, by key in the order of the sheet: task, item_id, pillar,
    indicator, cname.

    Proportional within task x indicator (hence pillar) x country, at least one item per task and
    indicator. The draw is systematic in the order of a hash keyed by (seed, item): the sample of a
    country or indicator doesn't depend on the others, and a new item changes its stratum by at most
    one item per draw. The order is random, so that the part reviewed so far is a sample too. Raises
    UsageError, InputError.
    """
    if not 0 < share <= 1:
        raise UsageError(
            f"--share is {share:g}; give a share above 0 and at most 1, such as {SHARE:g}"
        )
    columns = [*STRATA, "item_id", "cname"]
    items = pd.concat([read_items(benchmark, task)[columns] for task in Task])
    if items.empty:
        raise InputError(
            f"{benchmark}: holds no item to review; build it again with 'sdgbias build'"
        )
    with duckdb.connect() as con:
        con.register("items", items.reset_index())
        sql = packaged_sql("review.sql")["sample"]
        return con.execute(sql, {"seed": str(seed), "share": share}).df().set_index("key")


def write_csv(path: Path, rows: pd.DataFrame) -> None:
    """A CSV for spreadsheets: byte-order mark and '\\r\\n'."""
    write_atomically(path, "\ufeff" + str(rows.to_csv(index=False, lineterminator="\r\n")))


def load_verdicts(path: Path) -> pd.DataFrame:
    """task, item_id, verdict ('accepted' | 'rejected') of a file written by import_reviews. Raises
    InputError."""
    again = "make it with 'sdgbias review import'"
    with reading(path, again):
        table = pd.read_parquet(path, columns=["task", "item_id", "verdict"])
    valid = table["verdict"].isin(VERDICTS.values()) & table["task"].isin(list(Task))
    if not valid.all() or table.duplicated(["task", "item_id"]).any():
        raise InputError(
            f"{path}: not one verdict (accepted, rejected) per item of {', '.join(Task)}; {again}"
        )
    return table.sort_values(["task", "item_id"], ignore_index=True)
