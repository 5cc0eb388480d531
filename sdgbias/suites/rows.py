"""Rows of results: the columns of table ``numbers``, and the questions that a row is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from sdgbias.methods.stats import SMALLEST

#: Study of the metrics that a run is published with.
HEADLINE = "headline"
#: Columns of ``numbers`` without run_id -> what a row holds that doesn't name them. A row is a
#: value of a method over the questions of a group, with its n and 95 % interval; of a difference,
#: of `method` minus `versus`, or of `group` minus `other`.
NUMBER: Mapping[str, object] = {
    **{"study": HEADLINE, "task": "mcq", "test": "all", "method": "", "versus": ""},
    **{"attribute": "", "group": "", "other": "", "indicator": "all"},
    **{"parameter": "", "x": np.nan, "metric": ""},
    **{"value": np.nan, "n": 0, "clusters": 0, "low": np.nan, "high": np.nan},
    **{"p": np.nan, "p_adjusted": np.nan, "missing_reason": None, "note": ""},
}
#: Identify a row within its run.
KEY = tuple(NUMBER)[: tuple(NUMBER).index("metric") + 1]
#: Why a number of some group has no value.
FEWER = f"fewer than {SMALLEST}"
#: Why a study has no number.
NOT_SCORED = "not scored"
#: Why a number has no value where its writer gives no other reason: nothing to divide by, as the
#: spread of gold numbers that are all equal.
UNDEFINED = "not defined"


class Group(NamedTuple):
    """The questions that a row is of: those of one group of an attribute; with ``other``, the
    difference of two groups (of 'max' and 'min', of the best and the worst); without an attribute,
    all. Of two attributes crossed, names and groups are joined by ' x '."""

    attribute: str = ""
    group: str = ""
    other: str = ""


ALL = Group()


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with all columns of ``numbers``, each with a value or the reason why it has none.
    Raises ValueError for an unknown column."""
    unknown = set(rows.columns) - set(NUMBER)
    if unknown:
        raise ValueError(f"no such column of numbers: {sorted(unknown)[0]}")
    frame = rows.reindex(columns=list(NUMBER))
    stated = frame["value"].notna() | frame["missing_reason"].notna()
    frame["missing_reason"] = frame["missing_reason"].astype(object).where(stated, UNDEFINED)
    named = {name: default for name, default in NUMBER.items() if isinstance(default, str | int)}
    return frame.fillna(named).astype({"n": "int64", "clusters": "int64"})
