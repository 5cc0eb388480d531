"""Rows of a table by group, without a frame of each."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.suites.rows import RowGroup


def test_groups_are_those_of_pandas_in_their_order() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(list("xyz"), 60), "b": rng.choice(list("pq"), 60)})
    frame["value"] = np.arange(60)
    rows = RowGroup.of(frame).where(frame["value"].to_numpy() % 5 > 0)
    codes = [pd.factorize(frame[name], sort=True)[0] for name in "ab"]
    found = [part["value"].tolist() for part in rows.split(*codes)]
    kept = frame[frame["value"] % 5 > 0]
    assert found == [part["value"].tolist() for _, part in kept.groupby(["a", "b"], sort=True)]
    assert len(rows) == len(kept) == sum(map(len, found))


def test_rows_of_no_group_are_left_out() -> None:
    rows = RowGroup.of(pd.DataFrame({"value": [1, 2, 3]}))
    code = np.array([-1, 0, -1])
    assert [part["value"].tolist() for part in rows.split(code)] == [[2]]
    assert list(rows.split(np.array([-1, -1, -1]))) == []
