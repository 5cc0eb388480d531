"""Rows of table ``numbers`` from the columns of view ``metrics``, which are shorter to write."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.suites.rows import ALL, NUMBER, Group, numbers


def group_of(pillar: str) -> Group:
    """'all', a pillar, 'gender=male' or 'gender:male-female'."""
    if pillar == "all":
        return ALL
    if pair := re.fullmatch(r"([^=:]+):(.+)-(.+)", pillar):
        return Group(*pair.groups())
    attribute, equals, group = pillar.partition("=")
    return Group(attribute, group) if equals else Group("pillar", pillar)


def numbers_of(rows: Any) -> pd.DataFrame:
    """The rows with pillar and indicator as in view ``metrics``, as rows of ``numbers``. Of people,
    'all' and 'all-52' are pools of classes."""
    frame = pd.DataFrame(rows).rename(columns={"ci_low": "low", "ci_high": "high"})
    about = pd.DataFrame(map(group_of, frame.pop("pillar")), columns=Group._fields)
    many = frame["indicator"].map({"all": 13.0, "all-52": 52.0})
    many = many.where(frame["task"].isin(["direct", "choice"]))
    frame = frame.join(about.set_axis(frame.index)).assign(
        x=many,
        parameter=np.where(many.notna(), "classes", ""),
        indicator=frame["indicator"].replace("all-52", "all"),
    )
    return numbers(frame[[name for name in NUMBER if name in frame]])


def disparity(value: float) -> pd.DataFrame:
    """Men minus women among the directly asked of all classes, 5 points on either side."""
    cell = {"task": "direct", "test": "p1", "method": "full", "pillar": "gender:male-female"}
    cell |= {"indicator": "all-52", "metric": "disparity", "n": 30}
    return numbers_of([cell | {"value": value, "ci_low": value - 0.05, "ci_high": value + 0.05}])
