"""Rules about several columns, rows or tables, as SQL in the suites (expectations/<table>.json),
judged by DuckDB where the rows are: in a frame, or in a Parquet file of any length.

A rule's `sql` is a condition on a row of ``rows`` (alias r, numbered by ``row_no``), or of the view
that its `of` names; unknown counts as broken. It may use the other tables of the benchmark, the
relations and functions of this module, and what the suite's own `sql` defines. Missing text is '',
a missing number NULL. `needs` lists what else must be at hand; otherwise the rule is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark import people_items
from sdgbias.benchmark.prompts import option_letters, option_lines, own_prompts
from sdgbias.benchmark.quality.ranges import bins_ascend, bins_cover, option_range, unit_range
from sdgbias.benchmark.quality.stored import STORED
from sdgbias.raw import clusters
from sdgbias.raw.facet import CLASSES, GROUPS, UNKNOWN
from sdgbias.raw.images.shards import PENDING
from sdgbias.types import LETTERS, TESTS, TOLERANCES, Task

#: The type of an expectation that a flag column holds: True where a row satisfies the rule.
FLAG = "expect_rule_to_hold"
#: A table, or its Parquet file.
Table = pd.DataFrame | Path
#: What DuckDB may hold in memory; beyond it, it writes to a temporary folder.
_MEMORY = "768MB"


@dataclass(frozen=True)
class RuleContext:
    """What a rule may use besides its own table: other tables of the benchmark by name, the suite's
    meta block, and the required split rule ('id' or 'place'). ``tables['countries']`` replaces the
    packaged country crosswalk."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    split: str = "id"

    def frame(self, name: str) -> pd.DataFrame:
        table = self.tables[name]
        return pd.read_parquet(table) if isinstance(table, Path) else table


def broken_rows(
    rows: Table, rules: Mapping[str, Mapping[str, Any]], given: RuleContext
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(rule -> sorted numbers of the rows that break it, rule -> why it can't be judged), for the
    expectations that hold SQL. Where that is no condition but a figure, its distinct values.

    Raises duckdb.Error or pa.ArrowException where columns don't have the benchmark's types.
    """
    pending = _all_pending(rows)
    reasons = {name: _absent(e["meta"], rows, given, pending) for name, e in rules.items()}
    skipped = {name: why for name, why in reasons.items() if why}
    wanted = {name: e for name, e in rules.items() if name not in skipped}
    if not wanted or not length(rows):
        return dict.fromkeys(wanted, np.array([], dtype=np.int64)), skipped
    found: dict[str, np.ndarray] = {}
    views: dict[str, dict[str, str]] = {}
    with _database() as con:
        _define(con, rows, [e["meta"] for e in wanted.values()], given)
        for name, e in wanted.items():
            sql, of = _text(e["meta"]["sql"]), e["meta"].get("of", "rows")
            if e["type"] == FLAG:
                views.setdefault(of, {})[name] = sql
            else:
                values = con.execute(f"SELECT DISTINCT ({sql}) AS value FROM {of} r ORDER BY value")
                found[name] = values.fetchnumpy()["value"]
        for of, conditions in views.items():
            found |= _broken(con, of, conditions)
    return found, skipped


def _text(sql: str | Sequence[str]) -> str:
    return sql if isinstance(sql, str) else " ".join(sql)


def length(rows: Table) -> int:
    return pq.read_metadata(rows).num_rows if isinstance(rows, Path) else len(rows)


def columns_of(rows: Table) -> list[str]:
    return pq.read_schema(rows).names if isinstance(rows, Path) else [str(name) for name in rows]


def _broken(
    con: duckdb.DuckDBPyConnection, of: str, conditions: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """The broken rows of each condition on the rows of a view, in one pass."""
    judged = ", ".join(f"({sql}) IS TRUE AS ok{i}" for i, sql in enumerate(conditions.values()))
    every = " AND ".join(f"ok{i}" for i in range(len(conditions)))
    names = ", ".join(f"ok{i}" for i in range(len(conditions)))
    rows = con.execute(
        f"SELECT row_no, {names} FROM (SELECT row_no, {judged} FROM {of} r) WHERE NOT ({every})"
    ).fetchnumpy()
    return {name: np.unique(rows["row_no"][~rows[f"ok{i}"]]) for i, name in enumerate(conditions)}


def _all_pending(rows: Table) -> bool:
    """Whether the table is the index of pictures of a benchmark that was built without any."""
    if isinstance(rows, Path) or "image_id" not in rows or not len(rows):
        return False
    return bool(rows["image_id"].fillna("").astype("str").str.startswith(PENDING).all())


def _absent(rule: Mapping[str, Any], rows: Table, given: RuleContext, pending: bool) -> str:
    """Why a rule can't be judged; '' when it can."""
    if rule.get("split", given.split) != given.split:
        return f"the split is by {given.split}"
    for need in rule.get("needs", ()):
        table, _, name = need.partition(".")
        if need == "pictures":
            if pending:
                return "built with --no-images"
        elif need == "stored":
            if not {*STORED} <= {*columns_of(rows)}:
                return "the pictures aren't available"
        elif table not in given.tables or (name and name not in columns_of(given.tables[table])):
            return f"{need} isn't available"
    return ""


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    with (
        TemporaryDirectory() as spill,
        duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": spill}) as con,
    ):
        con.execute("SET enable_progress_bar = false")
        yield con


def _define(
    con: duckdb.DuckDBPyConnection,
    rows: Table,
    rules: Sequence[Mapping[str, Any]],
    given: RuleContext,
) -> None:
    """Everything that the rules mention: tables, relations, functions, and the suite's own
    definitions in their order."""
    used = " ".join(f"{_text(rule['sql'])} {rule.get('of', '')}" for rule in rules)
    own = []
    for head, body in reversed(given.meta.get("sql", {}).items()):
        name = re.sub(r"^(VIEW|TEMP TABLE|MACRO) |\(.*", "", head)
        if name in _words(used):
            sql = _text(body)
            own.append(f"CREATE {head} AS {f'({sql})' if head.startswith('MACRO') else sql}")
            used += " " + sql
    words = _words(used)
    for name, (function, arguments, result) in _FUNCTIONS.items():
        if name in words:
            con.create_function(name, function, arguments, result, null_handling="special")
    _create(con, "rows", rows, words)
    for name in sorted(words & {*given.tables, *_RELATIONS, *_ITEMS}):
        if name in given.tables:
            _create(con, name, given.tables[name], words)
        elif name in _RELATIONS:
            _create(con, name, _RELATIONS[name](given), words)
        else:  # the other task's items are compared where they are at hand
            con.execute(f"CREATE VIEW {name} AS FROM rows LIMIT 0")
    for statement in reversed(own):
        con.execute(statement)


def _words(sql: str) -> set[str]:
    return set(re.findall(r"\w+", sql))


def _create(con: duckdb.DuckDBPyConnection, name: str, table: Table, words: set[str]) -> None:
    """A view of those columns that the rules mention, with missing text as '' and NaN as NULL."""
    if isinstance(table, Path):
        schema, number = pq.read_schema(table), "file_row_number"
        path = str(table).replace("'", "''")
        source = f"read_parquet('{path}', file_row_number = true)"
    else:
        arrow = _arrow(table[[column for column in table if column in words]])
        schema, number, source = arrow.schema, "row_no", f"{name}_given"
        con.register(source, arrow.append_column("row_no", pa.array(np.arange(len(table)))))
    columns = [_plain(one) for one in schema if one.name in words]
    con.execute(
        f"CREATE VIEW {name} AS SELECT {', '.join([*columns, f'{number} AS row_no'])} FROM {source}"
    )


def _plain(column: pa.Field) -> str:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_floating(kind):
        return f'nullif("{column.name}", \'NaN\'::DOUBLE) AS "{column.name}"'
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return f'coalesce("{column.name}", \'\') AS "{column.name}"'
    return f'"{column.name}"'


def _arrow(frame: pd.DataFrame) -> pa.Table:
    """A frame as Arrow's; a column of mixed types becomes text."""
    columns = {}
    for name, values in frame.items():
        try:
            columns[name] = pa.array(values, from_pandas=True)
        except pa.ArrowException:
            columns[name] = pa.array(values.astype("str").where(values.notna()), from_pandas=True)
    return pa.table(columns)


# ----------------------------------------------------------------------
# relations and functions for the rules


def _facts(given: RuleContext) -> pd.DataFrame:
    """What predictions are compared with: the gold answer and the valid letters of every item."""
    mcq, regression = (given.frame(f"items_{t}").drop_duplicates("item_id") for t in Task)
    choices = mcq[["item_id", "split"]].assign(
        task=Task.MCQ.value, gold=mcq["answer"], letters=option_lines(mcq)[1]
    )
    numbers = regression[["item_id", "split", "tolerance"]].assign(
        task=Task.REGRESSION.value, number=regression["answer"].astype("float64")
    )
    return pd.concat([choices, numbers], ignore_index=True)


def _letters(given: RuleContext) -> pd.DataFrame:
    """The letters that the questions have columns for."""
    known = "items_mcq" in given.tables
    return pd.DataFrame(
        {"letter": [*(option_letters(given.frame("items_mcq")) if known else LETTERS)]}
    )


def _own_prompts(given: RuleContext) -> pd.DataFrame:
    return own_prompts(given.frame("items_own").drop_duplicates("item_id"), has_context=True)


def _countries(given: RuleContext) -> pd.DataFrame:
    table = given.frame("countries") if "countries" in given.tables else clusters.countries()
    return table.assign(m49=table["m49"].astype("str"))


def _frame(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))


_ITEMS = ("items_mcq", "items_regression")
_RELATIONS: dict[str, Callable[[RuleContext], pd.DataFrame]] = {
    "countries": _countries,
    "listed": lambda given: _frame(
        ("cname", "iso3", "m49", "official_split"),
        [line.split("|") for line in given.meta["countries"]],
    ),
    "ranges": lambda given: _frame(
        ("series", "low", "high", "unit"), [(k, *v) for k, v in given.meta["ranges"].items()]
    ),
    "label_shares": lambda given: _frame(
        ("pillar", *LETTERS), [(k, *v) for k, v in given.meta["label_shares"].items()]
    ),
    "tests": lambda given: _frame(
        ("task", "test"), [(task.value, test.value) for task in Task for test in TESTS[task]]
    ),
    "tolerances": lambda given: _frame(("target", "tolerance"), [*TOLERANCES.items()]),
    "classes": lambda given: _frame(("name",), [(name,) for name in CLASSES]),
    "person_groups": lambda given: _frame(
        ("attribute", "name"),
        [(k, name) for k, names in GROUPS.items() for name in (*names, UNKNOWN)],
    ),
    "facts": _facts,
    "choice_letters": _letters,
    "own_prompts": _own_prompts,
}


def _as_specified(text: str, prompt: str, asked: str) -> bool:
    """Whether a prompt about a person has the paper's words. p1's class list may be in any order:
    it is shuffled by a seed."""
    if prompt in people_items.CHOICES:
        return text == people_items.CHOICES[prompt].format(name=asked)
    before, _, after = people_items.P1.partition("{list}")
    listed = text.removeprefix(before).removesuffix(after).split(", ")
    return text.startswith(before) and text.endswith(after) and sorted(listed) == sorted(CLASSES)


def _group_names(text: str) -> list[str] | None:
    """The keys of a JSON object of texts; None for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    fine = isinstance(found, dict) and all(isinstance(v, str) and v for v in found.values())
    return list(found) if fine else None


#: Name in SQL -> function, types of its arguments, type of its result.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any], Any]] = {
    "option_range": (
        lambda text: (found := option_range(text)) and found._asdict(),
        ["VARCHAR"],
        "STRUCT(low DOUBLE, high DOUBLE, low_in BOOLEAN, high_in BOOLEAN)",
    ),
    "unit_range": (
        lambda unit: dict(zip(("low", "high"), unit_range(unit), strict=True)),
        ["VARCHAR"],
        "STRUCT(low DOUBLE, high DOUBLE)",
    ),
    "bins_ascend": (bins_ascend, ["VARCHAR[]"], "BOOLEAN"),
    "bins_cover": (bins_cover, ["VARCHAR[]", "VARCHAR"], "BOOLEAN"),
    "as_specified": (_as_specified, ["VARCHAR"] * 3, "BOOLEAN"),
    "group_names": (_group_names, ["VARCHAR"], "VARCHAR[]"),
}
