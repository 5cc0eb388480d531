"""Rows of a frame as an Arrow table of exactly the columns and types of a results table.

The big tables of a run are Parquet files that never change:

    <results without its suffix>.runs/run_id=<run>/<table>-<first 16 digits of the sha256>.parquet

A file is written under a temporary name and renamed into place, before the results file is opened
for writing: the lock that keeps readers out is held only for the rows of the catalogue (table
``details`` of the results file). A file without a row in the catalogue is an orphan: never read,
and removed by `sdgbias store compact`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.errors import StoreError, one_of

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


def arrow_table(
    name: str,
    frame: pd.DataFrame,
    types: Mapping[str, str],
    keys: tuple[str, ...],
    fill: Mapping[str, str],
) -> pa.Table:
    """``frame`` with the columns ``types`` (name -> DuckDB type). ``fill``: columns that are the
    same in every row.

    Raises StoreError on an unknown column, a missing or repeated key (``keys``), or a value that
    doesn't fit its column.
    """
    unknown = [str(c) for c in frame.columns if c not in types]
    if unknown:
        raise StoreError(f"table {name}: " + one_of("column", unknown[0], types))
    missing = [k for k in keys if k not in frame.columns]
    if missing:
        lacks = f"table {name} lacks its key column {missing[0]!r}"
        raise StoreError(f"{lacks}; keys: {', '.join(keys)}")
    if keys and (twice := frame.duplicated(list(keys))).any():
        first = ", ".join(map(str, frame[twice].iloc[0][list(keys)]))
        raise StoreError(f"table {name} has two rows for {first} (key: {', '.join(keys)})")
    columns = []
    for column, kind in types.items():
        if column in fill:
            values: Any = [fill[column]] * len(frame)
        elif column not in frame.columns:
            values = [None] * len(frame)
        else:
            values = [json_text(v) for v in frame[column]] if kind == "JSON" else frame[column]
        if kind.endswith("[]"):
            values = [v if isinstance(v, list | tuple | np.ndarray) else None for v in values]
        try:
            # A NaN logit stays NaN (the item lacks the option); a NaN in a plain column is NULL.
            columns.append(pa.array(values, type=_ARROW[kind], from_pandas=not kind.endswith("[]")))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise StoreError(
                f"table {name}, column {column} ({kind}): {str(error).splitlines()[0]}"
            ) from None
    return pa.table(
        [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns],
        names=list(types),
    )


def check_reasons(numbers: pd.DataFrame) -> None:
    """A number has a value, or the reason why there is none. Raises StoreError."""
    stated = numbers.reindex(columns=["value", "missing_reason"])
    wrong = stated["value"].isna() != stated["missing_reason"].notna()
    if wrong.any():
        row = numbers[wrong].iloc[0].reindex(["study", "task", "test", "method", "group", "metric"])
        named = ", ".join(str(part) for part in row if part == part and part)
        raise StoreError(
            f"table numbers: {named} has neither a value nor a missing_reason, or it has both"
        )


#: Table -> sort columns of its files, which also identify a row within its run.
TABLES: dict[str, tuple[str, ...]] = {
    "scores": ("task", "item_id", "test", "view"),
    "predictions": ("task", "item_id", "test", "method"),
    "decoded": ("item_id", "test", "view"),
    "spoken": ("task", "item_id", "test", "view"),
}
