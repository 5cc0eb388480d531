"""val and test: by the authors' rule on item ids, and by country."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.draw import md5_numbers
from sdgbias.errors import InputError, one_of
from sdgbias.types import Task

VAL_SHARE = 0.2


def authors_split(task: str, ids: Sequence[int] | np.ndarray | pd.Series) -> np.ndarray:
    """'val' or 'test' per item id (N,) by the authors' rule.

    The first 15 hex digits of the md5 of '<task>-<id>', as a fraction of 1, lie below 0.2 for val.
    The rule ignores places: questions about one country can be on both sides (see
    split_by_country).
    """
    if task not in [task_kind.value for task_kind in Task]:
        raise InputError(one_of("task", task, [task_kind.value for task_kind in Task]))
    texts = f"{task}-" + pd.Series(np.asarray(ids, dtype="int64")).astype(str)
    return np.where(md5_numbers(texts, 15) / 16.0**15 < VAL_SHARE, "val", "test").astype(object)


def split_by_country(countries: pd.DataFrame) -> tuple[dict[str, str], dict[str, Any]]:
    """'val' or 'test' per cname, and a note; no country is on both sides. `countries`: cname,
    official_split.

    SustainBench's val countries are val, all others test. Where that leaves one side empty, the
    first fifth of the countries (rounded up) by the md5 of their code is val; a single country is
    test.
    """
    official = dict(zip(countries["cname"], countries["official_split"], strict=True))
    codes = sorted(official)
    val = {code for code in codes if official[code] == "val"}
    rule = "official val countries"
    if codes and (not val or len(val) == len(codes)):
        order = np.argsort(md5_numbers(pd.Series(codes), 15), kind="stable")
        val = (
            {codes[at] for at in order[: math.ceil(VAL_SHARE * len(codes))]}
            if len(codes) > 1
            else set()
        )
        rule = "a fifth of the countries by md5, because the official split leaves one side empty"
    split = {code: "val" if code in val else "test" for code in codes}
    return split, {"rule": rule, "val": sorted(val), "test": sorted(set(codes) - val)}
