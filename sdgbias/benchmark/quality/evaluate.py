"""Which rows of a table break which rule: DuckDB evaluates all rules of a table in one pass, in a
frame or in a Parquet file of any length.

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
from sdgbias.errors import InputError, one_of
from sdgbias.raw.images.shards import PENDING

#: What DuckDB may hold in memory; beyond it, it writes to a temporary folder.
_MEMORY = "448MB"


@dataclass(frozen=True)
class Available:
    """What rules may use beside their own table: other tables of the benchmark by name
    (``countries`` replaces the packaged crosswalk), the rule of column split ('id', the authors',
    or 'place'), and whether the benchmark was imported from a release."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    split: str = "id"
    imported: bool = False

    def reason(self, rule: QualityRule, rows: Table) -> str:
        """Why a rule can't be evaluated; '' when it can."""
        reasons = (self._lacks(need, rows) for need in rule.needs)
        return next(filter(None, reasons), "")

    def _lacks(self, need: str, rows: Table) -> str:
        table, _, column = need.partition(".")
        if need.startswith("split "):
            return "" if need == f"split {self.split}" else f"the split is by {self.split}"
        if need == "own build":
            return "imported release" if self.imported else ""
        if need == "pictures":
            return "built with --no-images" if _all_pending(rows) else ""
        if need == "stored":
            return "" if {*STORED} <= {*columns_of(rows)} else "the pictures aren't available"
        is_available = table in self.tables and (
            not column or column in columns_of(self.tables[table])
        )
        return "" if is_available else f"{need} isn't available"


def _all_pending(rows: Table) -> bool:
    """Whether the table is the index of pictures of a benchmark that was built without any."""
    if isinstance(rows, Path) or "image_id" not in rows or not len(rows):
        return False
    return bool(rows["image_id"].fillna("").astype("str").str.startswith(PENDING).all())


def length(rows: Table) -> int:
    return pq.read_metadata(rows).num_rows if isinstance(rows, Path) else len(rows)


def columns_of(rows: Table) -> list[str]:
    return pq.read_schema(rows).names if isinstance(rows, Path) else [str(name) for name in rows]


def broken_rows(
    rows: Table, suite: RuleSet, rules: Sequence[QualityRule], available: Available, suites: Path
) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """(rule -> sorted numbers of the rows that break it, the columns that stock expectations are
    about, with text as categories) for those ``rules`` that DuckDB can evaluate: see CONDITIONS.

    Raises InputError where a rule can't be evaluated on these columns.
    """
    texts, kinds = _types(rows)
    conditions = {rule.name: _condition(rule, suite.table, kinds, texts) for rule in rules}
    conditions = {name: sql for name, sql in conditions.items() if sql}
    stock = [*dict.fromkeys(name for rule in rules for name in rule.columns)]
    used = _words(" ".join([*suite.definitions, *conditions.values()])) | {*stock}
    try:
        with _database() as con:
            _define(con, rows, used, available, suites)
            for statement in suite.definitions:
                con.execute(statement)
            broken = _broken(con, conditions, length(rows), suite.table) if length(rows) else {}
            columns = con.sql(f"SELECT {_listed(stock) or 'row_no'} FROM rows").to_arrow_table()
    except (duckdb.Error, pa.ArrowException) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{suite.table}: rules or columns don't have the types of the benchmark ({detail});"
            " build it again: sdgbias build"
        ) from None
    none = np.array([], dtype=np.int64)
    return {name: broken.get(name, none) for name in conditions}, _categories(columns)


def _categories(table: pa.Table) -> pd.DataFrame:
    columns = {
        name: column.dictionary_encode() if pa.types.is_string(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    return frame


def _broken(
    con: duckdb.DuckDBPyConnection, conditions: Mapping[str, str], count: int, table: str
) -> dict[str, np.ndarray]:
    """The flag columns of all conditions in one pass, then the rows where one of them is false."""
    if not conditions:
        return {}
    views = con.execute("SELECT view_name FROM duckdb_views() WHERE view_name = 'judged'")
    view = "judged" if views.fetchone() else "rows"
    flags = ", ".join(f"({sql}) IS TRUE AS ok{i}" for i, sql in enumerate(conditions.values()))
    con.execute(f"CREATE TEMP TABLE flags AS SELECT row_no, {flags} FROM {view} r")
    [evaluated] = con.execute("SELECT count(DISTINCT row_no) FROM flags").fetchone() or (0,)
    if evaluated != count:
        raise InputError(
            f"expectations/{table}.sql: view judged has {evaluated} rows, the table {count}; it has"
            " to give every row of the table"
        )
    every = " AND ".join(f"ok{i}" for i in range(len(conditions)))
    rows = con.execute(f"FROM flags WHERE NOT ({every}) ORDER BY row_no").fetchnumpy()
    return {name: np.unique(rows["row_no"][~rows[f"ok{i}"]]) for i, name in enumerate(conditions)}


# ----------------------------------------------------------------------
# conditions


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return (
        repr(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"
    )


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
_NUMBERS, _NOT_NULL = "expect_column_values_to_be_between", "expect_column_values_to_not_be_null"
#: Arguments that the conditions know; an expectation with others is left to Great Expectations.
_ARGUMENTS = {"column", "column_list", "value_set", "min_value", "max_value", "regex"}


def _condition(rule: QualityRule, table: str, kinds: Mapping[str, Any], texts: set[str]) -> str:
    """A rule as a condition on a row; '' for a stock expectation of another type. Raises InputError
    for an unknown column, or for one of the wrong type."""
    if rule.sql:
        selects = rule.sql.upper().startswith(("SELECT", "FROM", "WITH"))
        return f"row_no NOT IN ({rule.sql})" if selects else rule.sql
    for name in rule.columns:
        if name not in kinds:
            raise InputError(f"expectations/{table}.json: {one_of('column', name, kinds)}")
    if rule.type not in CONDITIONS or not set(rule.arguments) <= _ARGUMENTS:
        return ""
    if rule.type == _NUMBERS and rule.columns[0] in texts:
        raise InputError(
            f"{table}: rule {rule.name} can't be evaluated: {rule.columns[0]} holds no numbers;"
            " build it again: sdgbias build"
        )
    column = f'"{rule.arguments.get("column", "")}"'
    sql = CONDITIONS[rule.type](column, rule.arguments)
    return (
        sql
        if rule.type == _NOT_NULL or not rule.arguments.get("column")
        else f"{column} IS NULL OR {sql}"
    )


def _types(rows: Table) -> tuple[set[str], dict[str, Any]]:
    """(the columns of text, column -> Arrow type, which is None where a frame has mixed types)."""
    if isinstance(rows, Path):
        kinds: dict[str, Any] = {one.name: one.type for one in pq.read_schema(rows)}
    else:
        kinds = {str(one.name): one.type for one in _arrow(rows.iloc[:1000]).schema}
    return {name for name, kind in kinds.items() if _is_text(kind)}, kinds


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
        schema, number = pq.read_schema(table), "file_row_number"
        path = str(table).replace("'", "''")
        source = f"read_parquet('{path}', file_row_number = true)"
    else:
        arrow = _arrow(table[[column for column in table if column in words]])
        schema, number, source = arrow.schema, "row_no", f"{name}_given"
        numbers = pa.array(np.arange(len(table)))
        con.register(source, pa.table([*arrow.columns, numbers], [*arrow.column_names, number]))
    columns = [_plain(one) for one in schema if one.name in words]
    con.execute(
        f"CREATE VIEW {name} AS SELECT {', '.join([*columns, f'{number} AS row_no'])} FROM {source}"
    )


def _plain(column: pa.Field) -> str:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_floating(kind):
        return f'nullif("{column.name}", \'NaN\'::DOUBLE) AS "{column.name}"'
    if _is_text(kind) or pa.types.is_null(kind):
        return f'coalesce("{column.name}"::VARCHAR, \'\') AS "{column.name}"'
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
