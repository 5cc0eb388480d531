"""The verdict on one table: DuckDB evaluates all its rules in one pass, in a frame or in a Parquet
file of any length, and names the rows that break them.

The rules see the table as ``rows`` (numbered by ``row_no``) and the other tables by their names.
Conditions are evaluated under the alias r on the rows of ``judged``, where a suite defines such a
view (it has every row of the table; a rule is broken where any of its rows breaks it), else on
``rows``. Unknown counts as broken; missing text is '', a missing number NULL. A stock expectation
is the same condition that Great Expectations states.
"""

from __future__ import annotations

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

from sdgbias.benchmark.quality.relations import FUNCTIONS, RELATIONS, Table
from sdgbias.benchmark.quality.rules import QualityRule, RuleSet, load_rules
from sdgbias.benchmark.quality.stored import STORED
from sdgbias.errors import InputError
from sdgbias.raw.images.shards import PENDING
from sdgbias.types import QUARANTINE_COLUMNS

#: What DuckDB may hold in memory; beyond it, it writes to a temporary folder.
_MEMORY = "448MB"
_SHOWN = 5  # examples reported per broken rule


@dataclass(frozen=True)
class Available:
    """What rules may use beside their own table: other tables of the benchmark by name
    (``countries`` replaces the packaged crosswalk), the rule of column split ('id', the authors',
    or 'place'), and whether the benchmark was imported from a release."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    split: str = "id"
    imported: bool = False

    def lacks(self, need: str, rows: Table) -> str:
        """Why a need of a rule isn't met; '' when it is."""
        table, _, column = need.partition(".")
        if need.startswith("split "):
            return "" if need == f"split {self.split}" else f"the split is by {self.split}"
        if need == "own build":
            return "imported release" if self.imported else ""
        if need == "pictures":
            return "built with --no-images" if _all_pending(rows) else ""
        if need == "stored":
            return "" if {*STORED} <= {*columns_of(rows)} else "the pictures aren't available"
        columns = columns_of(self.tables[table]) if table in self.tables else None
        is_available = columns is not None and (not column or column in columns)
        return "" if is_available else f"{need} isn't available"


def _all_pending(rows: Table) -> bool:
    """Whether the table is the index of pictures of a benchmark that was built without any."""
    if isinstance(rows, Path) or "image_id" not in rows or not len(rows):
        return False
    return bool(rows["image_id"].fillna("").astype("str").str.startswith(PENDING).all())


@dataclass(frozen=True)
class BrokenRule:
    """One broken rule: how many rows (1 for a rule about the whole table) and up to five of their
    keys."""

    rule: str
    severity: str
    count: int
    examples: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class TableVerdict:
    """The result of checking N rows of one table against its rules.

    ``counts``: every evaluated rule -> broken rows. ``skipped``: rule -> why it wasn't evaluated.
    ``left``: rules that only Great Expectations can judge. ``flags``: rule -> the numbers of the
    rows that break it. ``columns``: those that stock expectations are about. ``rows_ok``: (N,)
    bool, False where a quarantine rule is broken. ``quarantine``: table, key, rule, detail; one
    line per row and broken quarantine rule.
    """

    table: str
    rows: int
    findings: tuple[BrokenRule, ...]
    counts: dict[str, int]
    skipped: dict[str, str]
    rows_ok: np.ndarray
    left: tuple[QualityRule, ...] = ()
    flags: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: pd.DataFrame = field(default_factory=pd.DataFrame)
    quarantine: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=QUARANTINE_COLUMNS, dtype="str")
    )

    def of(self, severity: str) -> tuple[BrokenRule, ...]:
        """The broken rules of one severity ('gate', 'quarantine', 'warn')."""
        return tuple(f for f in self.findings if f.severity == severity)


def columns_of(rows: Table) -> list[str]:
    return pq.read_schema(rows).names if isinstance(rows, Path) else [str(name) for name in rows]


def judge_rows(suite: RuleSet, rows: Table, available: Available, suites: Path) -> TableVerdict:
    """Evaluate the rules of a suite on a table. Rules that need what isn't available are skipped,
    with the reason; rules of types that DuckDB has no condition for are ``left``.

    Raises InputError where a rule can't be evaluated on these columns.
    """
    count = pq.read_metadata(rows).num_rows if isinstance(rows, Path) else len(rows)
    rows_ok, shape = np.ones(count, dtype=bool), suite.shape
    missing = sorted(set(suite.columns) - set(columns_of(rows)))
    if missing:  # without these columns no other rule can be evaluated
        message = f"{shape.message} (missing: {', '.join(missing)})"
        finding = BrokenRule(shape.name, shape.severity, 1, (), message)
        skipped = dict.fromkeys((rule.name for rule in suite.rules), "a column is missing")
        return TableVerdict(suite.table, count, (finding,), {shape.name: 1}, skipped, rows_ok)
    skipped = {
        rule.name: reasons[0]
        for rule in suite.rules
        if (reasons := [why for need in rule.needs if (why := available.lacks(need, rows))])
    }
    rules = [rule for rule in suite.rules if rule.name not in skipped]
    flags, names, columns = evaluate(rows, suite, rules, available, suites)
    findings = []
    lost = [pd.DataFrame(columns=QUARANTINE_COLUMNS)]
    for rule in (rule for rule in rules if len(flags.get(rule.name, ()))):
        numbers = flags[rule.name]
        keys = names[numbers]
        examples = tuple(sorted(keys)[:_SHOWN])
        findings.append(BrokenRule(rule.name, rule.severity, len(numbers), examples, rule.message))
        if rule.severity == "quarantine":
            rows_ok[numbers] = False
            about = {"table": suite.table, "key": keys, "rule": rule.name, "detail": rule.message}
            lost.append(pd.DataFrame(about))
    return TableVerdict(
        suite.table,
        count,
        tuple(findings),
        {shape.name: 0} | {name: len(numbers) for name, numbers in flags.items()},
        skipped,
        rows_ok,
        tuple(rule for rule in rules if rule.name not in flags),
        flags,
        columns,
        pd.concat(lost, ignore_index=True)
        .astype("str")
        .sort_values(QUARANTINE_COLUMNS, kind="stable", ignore_index=True),
    )


def evaluate(
    rows: Table, suite: RuleSet, rules: Sequence[QualityRule], available: Available, suites: Path
) -> tuple[dict[str, np.ndarray], pd.Series, pd.DataFrame]:
    """(rule -> sorted numbers of the rows that break it, the keys of these rows with parts joined
    by '/', the columns that stock expectations are about, with text as categories) for those
    ``rules`` that DuckDB can evaluate: see CONDITIONS. Raises InputError."""
    conditions = {rule.name: sql for rule in rules if (sql := _condition(rule))}
    stock = [*dict.fromkeys(name for rule in rules for name in rule.columns)]
    key = [name for name in suite.key if name in columns_of(rows)]
    words = _words(" ".join([*suite.definitions, *conditions.values()])) | {*stock, *key}
    try:
        with _database() as con:
            _define(con, rows, words, available, suites)
            for statement in suite.definitions:
                con.execute(statement)
            columns = con.sql(f"SELECT {_listed(stock) or 'row_no'} FROM rows").to_arrow_table()
            broken = _broken(con, conditions, key, suite.table)
            frame = columns.to_pandas(strings_to_categorical=True)
    except (duckdb.Error, pa.ArrowException) as error:
        raise InputError(
            f"{suite.table}: rules or columns don't have the types of the benchmark"
            f" ({str(error).splitlines()[0]}); build it again: sdgbias build"
        ) from None
    flags = {
        name: np.unique(broken["row_no"][~broken[f"ok{i}"]]) for i, name in enumerate(conditions)
    }
    names = pd.Series(broken["key"], index=broken["row_no"], dtype=object)
    return flags, names[~names.index.duplicated()], frame


def _broken(
    con: duckdb.DuckDBPyConnection, conditions: Mapping[str, str], key: Sequence[str], table: str
) -> dict[str, np.ndarray]:
    """The flag columns of all conditions in one pass, then number, key and flags of the rows where
    one of them is false."""
    views = con.execute("SELECT view_name FROM duckdb_views() WHERE view_name = 'judged'")
    view = "judged" if views.fetchone() else "rows"
    flags = [f"({sql}) IS TRUE AS ok{i}" for i, sql in enumerate(conditions.values())]
    try:
        listed = ", ".join(["row_no", *flags])
        con.execute(f"CREATE TEMP TABLE flags AS SELECT {listed} FROM {view} r")
    except duckdb.BinderException:
        _name_rule(con, conditions, view, table)
        raise
    if con.execute("FROM rows ANTI JOIN flags USING (row_no)").fetchone():
        raise InputError(
            f"expectations/{table}.sql: view judged lacks rows; it has to give every row of the"
            " table"
        )
    named = " || '/' || ".join(f"coalesce(\"{name}\"::VARCHAR, '')" for name in key) or "''"
    every = " AND ".join(["true", *(f"ok{i}" for i in range(len(conditions)))])
    return con.execute(
        f"SELECT flags.*, {named} AS key FROM flags JOIN rows USING (row_no) WHERE NOT ({every})"
    ).fetchnumpy()


def _name_rule(
    con: duckdb.DuckDBPyConnection, conditions: Mapping[str, str], view: str, table: str
) -> None:
    """Raises InputError for the first rule that these columns don't allow."""
    for name, sql in conditions.items():
        try:
            con.execute(f"EXPLAIN SELECT {sql} FROM {view} r")
        except duckdb.BinderException as error:
            detail = str(error).splitlines()[0].rstrip("!")
            raise InputError(
                f"{table}: rule {name} can't be evaluated: {detail}; correct the rule, or build the"
                " table again: sdgbias build"
            ) from None


# ----------------------------------------------------------------------
# conditions


def _literal(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _bounds(value: str, given: Mapping[str, Any]) -> str:
    ends = [(given.get("min_value"), ">="), (given.get("max_value"), "<=")]
    parts = [f"{value} {sign} {_literal(end)}" for end, sign in ends if end is not None]
    return " AND ".join(parts) or "TRUE"


def _once(columns: str) -> str:
    return (
        f"({columns}) NOT IN (SELECT ({columns}) FROM rows WHERE ({columns}) IS NOT NULL"
        " GROUP BY ALL HAVING count(*) > 1)"
    )


#: Type of a stock expectation -> (its condition on a column's value, given its arguments). Missing
#: values fulfil every condition but that of not being missing. Other types are left to Great
#: Expectations.
CONDITIONS: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "expect_column_values_to_be_in_set": lambda column, given: (
        f"{column} IN ({', '.join(map(_literal, given['value_set']))})"
    ),
    "expect_column_values_to_be_between": _bounds,
    "expect_column_values_to_be_unique": lambda column, given: _once(column),
    "expect_compound_columns_to_be_unique": lambda _, given: _once(_listed(given["column_list"])),
    "expect_column_values_to_match_regex": lambda column, given: (
        f"regexp_matches({column}, {_literal(given['regex'])})"
    ),
    "expect_column_value_lengths_to_be_between": lambda column, given: _bounds(
        f"length({column})", given
    ),
    "expect_column_values_to_not_be_null": lambda column, given: f"{column} IS NOT NULL",
}
_NOT_NULL = "expect_column_values_to_not_be_null"
#: Arguments that the conditions know; an expectation with others is left to Great Expectations.
_ARGUMENTS = {"column", "column_list", "value_set", "min_value", "max_value", "regex"}


def _condition(rule: QualityRule) -> str:
    """A rule as a condition on a row; '' for a stock expectation that is left."""
    if rule.sql:
        selects = rule.sql.upper().startswith(("SELECT", "FROM", "WITH"))
        return f"row_no NOT IN ({rule.sql})" if selects else rule.sql
    if rule.type not in CONDITIONS or not set(rule.arguments) <= _ARGUMENTS:
        return ""
    column = _listed(rule.columns)
    sql = CONDITIONS[rule.type](column, rule.arguments)
    is_plain = rule.type == _NOT_NULL or "column" not in rule.arguments
    return sql if is_plain else f"{column} IS NULL OR {sql}"


# ----------------------------------------------------------------------
# the database that a suite's rules see


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    with (
        TemporaryDirectory() as spill,
        duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": spill}) as con,
    ):
        con.execute("SET enable_progress_bar = false")
        yield con


def _words(sql: str) -> set[str]:
    return set(re.findall(r"\w+", sql))


def _define(
    con: duckdb.DuckDBPyConnection, rows: Table, words: set[str], available: Available, suites: Path
) -> None:
    """The tables, relations and functions that the rules mention. A table that isn't available is
    empty: only rules that are skipped need it."""
    for name, (function, arguments, result) in FUNCTIONS.items():
        if name in words:
            con.create_function(name, function, arguments, result, null_handling="special")
    _create(con, "rows", rows, words)
    tables = available.tables
    for name in sorted(words & ({*tables, *RELATIONS} | {p.stem for p in suites.glob("*.json")})):
        if name in tables:
            _create(con, name, tables[name], words)
        elif name in RELATIONS:
            made_of, make = RELATIONS[name]
            if set(made_of) <= set(tables):
                _create(con, name, make(tables), words)
        else:
            columns = ", ".join(f'NULL::VARCHAR AS "{c}"' for c in load_rules(name, suites).columns)
            con.execute(f"CREATE VIEW {name} AS SELECT {columns} LIMIT 0")


def _create(con: duckdb.DuckDBPyConnection, name: str, table: Table, words: set[str]) -> None:
    """A view of those columns that the rules mention, with missing text as '' and NaN as NULL."""
    if isinstance(table, Path):
        path = str(table).replace("'", "''")
        source = f"(SELECT *, file_row_number AS row_no FROM read_parquet('{path}',"
        source += " file_row_number = true, hive_partitioning = false))"
    else:
        source = f"{name}_given"
        given = {column: _column(table[column]) for column in table if column in words}
        con.register(source, pa.table(given | {"row_no": pa.array(np.arange(len(table)))}))
    columns = [
        _plain(column, kind)
        for column, kind, *_ in con.execute(f"DESCRIBE FROM {source}").fetchall()
        if column in words or column == "row_no"
    ]
    con.execute(f"CREATE VIEW {name} AS SELECT {', '.join(columns)} FROM {source}")


def _plain(name: str, kind: str) -> str:
    if kind in ("DOUBLE", "FLOAT"):
        return f'nullif("{name}", \'NaN\'::DOUBLE) AS "{name}"'
    if kind in ("VARCHAR", '"NULL"') or kind.startswith("ENUM"):
        return f'coalesce("{name}"::VARCHAR, \'\') AS "{name}"'
    return f'"{name}"'


def _column(values: pd.Series) -> pa.Array:
    """A column as Arrow's; one of mixed types becomes text."""
    try:
        return pa.array(values, from_pandas=True)
    except pa.ArrowException:
        return pa.array(values.astype("str").where(values.notna()), from_pandas=True)
