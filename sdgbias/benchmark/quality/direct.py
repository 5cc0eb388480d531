"""Rules judged on the columns themselves, without importing Great Expectations (6 s): the types of
expectations that the suites use, with its verdicts.

For checks in the middle of a command: each stage of a build, and predictions before they are
published. The check of a finished benchmark is Great Expectations' own. The tests judge every
planted defect both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

Broken = np.ndarray | str


def judge(frame: pd.DataFrame, rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Broken]:
    """Rule -> sorted numbers of broken rows ((0,) when satisfied), or a text when a rule about the
    whole table is broken. ``frame``: rows numbered from 0. A rule is left out, for Great
    Expectations to judge, when its type or one of its arguments isn't known here or its column has
    the wrong type."""
    found = {rule: _judge(frame, str(e["type"]), e["kwargs"]) for rule, e in rules.items()}
    return {rule: broken for rule, broken in found.items() if broken is not None}


def _judge(frame: pd.DataFrame, kind: str, arguments: Mapping[str, Any]) -> Broken | None:
    given = dict(arguments)
    if kind == "expect_compound_columns_to_be_unique":
        return np.flatnonzero(frame.duplicated(list(given["column_list"]), keep=False))
    if kind == "expect_table_columns_to_match_set":
        return _missing(frame, given) if given.get("exact_match") is False else None
    values = frame.get(given.pop("column", None))
    if values is None or kind not in _OF_ROWS | _OF_COLUMN:
        return None
    try:
        if kind in _OF_COLUMN:
            return _OF_COLUMN[kind](values, **given)
        judged = values if kind == _NOT_NULL else values[values.notna()]
        ok = _OF_ROWS[kind](judged, **given)
        return np.asarray(judged.index[~np.asarray(ok, dtype=bool)], dtype=np.int64)
    except (TypeError, ValueError):
        return None


def _missing(frame: pd.DataFrame, given: Mapping[str, Any]) -> Broken:
    missing = sorted(set(map(str, given["column_set"])) - set(map(str, frame.columns)))
    return f"missing: {', '.join(missing)}" if missing else np.array([], dtype=np.int64)


def _between(
    values: pd.Series, min_value: float | None = None, max_value: float | None = None
) -> Any:
    if not pd.api.types.is_numeric_dtype(values) and len(values):
        raise TypeError("only numbers have a range")
    ok = pd.Series(True, index=values.index)
    if min_value is not None:
        ok &= values >= min_value
    if max_value is not None:
        ok &= values <= max_value
    return ok


def _max_between(
    values: pd.Series, min_value: float | None = None, max_value: float | None = None
) -> Broken:
    """A column without a value has no maximum, which is no fault."""
    most = values.max()
    fine = pd.isna(most) or bool(_between(pd.Series([most]), min_value, max_value).all())
    return np.array([], dtype=np.int64) if fine else f"observed {most}"


_NOT_NULL = "expect_column_values_to_not_be_null"
_OF_COLUMN: dict[str, Callable[..., Broken]] = {"expect_column_max_to_be_between": _max_between}
#: Type -> whether each value is fine. Missing values are, but for a rule about them.
_OF_ROWS: dict[str, Callable[..., Any]] = {
    "expect_column_values_to_be_in_set": lambda values, value_set: values.isin(value_set),
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_unique": lambda values: ~values.duplicated(keep=False),
    "expect_column_values_to_match_regex": lambda values, regex: values.astype(str).str.contains(
        regex
    ),
    "expect_column_value_lengths_to_be_between": lambda values, min_value=None, max_value=None: (
        _between(values.astype(str).str.len(), min_value, max_value)
    ),
    _NOT_NULL: lambda values: values.notna(),
}
