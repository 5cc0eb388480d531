"""The tables of a results file: what identifies their rows, and rows of a frame as an Arrow table
of exactly the columns and types of a table (schema.sql)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.errors import StoreError, one_of
from sdgbias.files import packaged

#: The big tables of a run, which are Parquet files (parquet.py) -> what sorts their rows, and
#: identifies them within their run.
DETAILS: dict[str, tuple[str, ...]] = {
    "scores": ("task", "item_id", "test", "view"),
    "predictions": ("task", "item_id", "test", "method"),
    "decoded": ("item_id", "test", "view"),
    "spoken": ("task", "item_id", "test", "view"),
}
#: The tables of a run in the DuckDB file itself -> what identifies a row within its run,
#: () for nothing. Checked at publish, because no table has a primary key.
SMALL_TABLES: dict[str, tuple[str, ...]] = {
    "cade_params": ("task", "test"),
    "numbers": (
        *("study", "task", "test", "method", "versus", "attribute", "group", "other", "indicator"),
        *("parameter", "x", "metric"),
    ),
    "failures": (),
    "timings": ("task", "phase", "view"),
    "analyses": (),
}
RUN_TABLES = DETAILS | SMALL_TABLES
#: What runs on one benchmark share -> what identifies a row within it.
BENCHMARK_TABLES: dict[str, tuple[str, ...]] = {
    "items": ("task", "item_id"),
    "people": ("item_id",),
    "previews": ("image_id",),
    "quarantine": (),
}
#: Rows about nights: replaced by key, never by run.
NIGHT_TABLES: dict[str, tuple[str, ...]] = {
    "verdicts": (
        *("night", "model", "suite", "rule", "task", "test", "method", "level", "side", "metric"),
    ),
    "flips": ("night", "model", "suite", "task", "test", "method", "item_id"),
    "accepted": ("run_id",),
    "announcements": ("night", "target"),
}
_KEYS = RUN_TABLES | BENCHMARK_TABLES | NIGHT_TABLES
_ARROW = {
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
    "TIMESTAMP": pa.timestamp("us"),
    "FLOAT[]": pa.list_(pa.float32()),
    "DOUBLE[]": pa.list_(pa.float64()),
}


def schema() -> str:
    """The statements that make every table and view of a results file."""
    return packaged("store", "schema.sql").read_text(encoding="utf-8")


@cache
def _columns() -> Mapping[str, Mapping[str, str]]:
    with duckdb.connect() as con:
        con.execute(schema())
        rows = con.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
            " ORDER BY table_name, column_index"
        ).fetchall()
    types: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        types.setdefault(table, {})[column] = kind
    return types


def columns(table: str) -> Mapping[str, str]:
    """Column -> DuckDB's type, in the order of the schema."""
    return _columns()[table]


def as_arrow(name: str, frame: pd.DataFrame, fill: Mapping[str, str] | None = None) -> pa.Table:
    """``frame`` with the columns of table ``name``; what it lacks is NULL. ``fill``: columns that
    are the same in every row.

    Raises StoreError on an unknown column, a missing or repeated key, a number with neither a value
    nor a reason, or a value that doesn't fit its column.
    """
    types, keys = columns(name), _KEYS.get(name, ())
    for column in frame.columns:
        if column not in types:
            raise StoreError(f"table {name}: {one_of('column', str(column), types)}")
    for key in keys:
        if key not in frame.columns:
            raise StoreError(f"table {name} lacks its key column {key!r}; keys: {', '.join(keys)}")
    if keys and (twice := frame.duplicated(list(keys))).any():
        first = ", ".join(map(str, frame[twice].iloc[0][list(keys)]))
        raise StoreError(f"table {name} has two rows for {first} (key: {', '.join(keys)})")
    if name == "numbers":
        _check_reasons(frame)
    frame = frame.assign(**fill or {})
    return pa.table({column: _array(name, column, kind, frame) for column, kind in types.items()})


def _array(table: str, column: str, kind: str, frame: pd.DataFrame) -> pa.Array:
    if column not in frame:
        return pa.nulls(len(frame), _ARROW[kind])
    values: Any = frame[column]
    if kind == "JSON":
        values = [json_text(value) for value in values]
    if kind.endswith("[]"):
        values = [v if isinstance(v, list | tuple | np.ndarray) else None for v in values]
    try:
        # A NaN logit stays NaN (the item lacks the option); a NaN in a plain column is NULL.
        array = pa.array(values, type=_ARROW[kind], from_pandas=not kind.endswith("[]"))
    except (pa.ArrowException, TypeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise StoreError(f"table {table}, column {column} ({kind}): {why}") from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def json_text(value: object) -> str | None:
    """JSON text of a dict, list or None; text passes unchanged. NaN becomes null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value != value:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        value = {k: None if isinstance(v, float) and v != v else v for k, v in value.items()}
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _check_reasons(numbers: pd.DataFrame) -> None:
    """A number has a value, or the reason why there is none. Raises StoreError."""
    stated = numbers.reindex(columns=["value", "missing_reason"])
    wrong = stated["value"].isna() != stated["missing_reason"].notna()
    if wrong.any():
        row = numbers[wrong].iloc[0].reindex(["study", "task", "test", "method", "group", "metric"])
        named = ", ".join(str(part) for part in row if part == part and part)
        raise StoreError(
            f"table numbers: {named} has neither a value nor a missing_reason, or it has both"
        )
