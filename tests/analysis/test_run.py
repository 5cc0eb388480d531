"""A run as arrays: every number at its item, nothing invented where the store has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.rows import row, table
from sdgbias.analysis.run import load
from sdgbias.errors import StoreError
from sdgbias.methods.stats import Estimate
from sdgbias.suites.rows import HEADLINE, NUMBER
from sdgbias.types import ContextTest, Task, View
from tests.builders.results import publish_fake
from tests.builders.store_rows import publish_again, unpacked_earlier


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_fake(tmp_path_factory.mktemp("lab") / "r.duckdb")


def test_every_score_stands_at_its_item(results: Path) -> None:
    run = load(results, "fake-optimist-1")
    assert [c.test for c in run.mcq] == list(ContextTest) and run.regression == []
    for cell in run.mcq:
        assert list(cell.items["item_id"]) == sorted(cell.items["item_id"])
        for view in View:
            sql = (
                'SELECT item_id, logits FROM scores WHERE run_id = ? AND test = ? AND "view" = ?'
                " ORDER BY random()"
            )
            stored = store.query(results, sql, ["fake-optimist-1", cell.test.value, view.value])
            for item_id, logits in zip(stored["item_id"], stored["logits"], strict=True):
                at = int(np.flatnonzero(cell.items["item_id"] == item_id)[0])
                assert np.array_equal(cell.logits[view][at], np.asarray(logits, dtype=np.float64))


@pytest.mark.parametrize("run_id", ["tiny-llava", "tiny-qwen"])
def test_a_run_whose_scores_were_removed_is_not_analysed(tmp_path: Path, run_id: str) -> None:
    """Its rows of studies would be replaced by none. A run on places and one on people."""
    path = unpacked_earlier(tmp_path)
    with store.connect(path) as db:
        db.execute(
            """INSERT INTO details BY NAME SELECT ? AS run_id, 'scores' AS "table", '' AS file,
               TIMESTAMP '2026-01-02' AS dropped_at""",
            [run_id],
        )

    with pytest.raises(StoreError, match=f"the scores of run {run_id} were removed .*2026-01-02"):
        analyse(path, [run_id])


def test_censored_and_extra_scores(tmp_path: Path) -> None:
    path = publish_fake(tmp_path / "r.duckdb")
    scores = store.query(
        path, "SELECT * EXCLUDE (run_id) FROM scores WHERE run_id = 'fake-optimist-1'"
    )
    scores["upper"] = None
    first = scores.index[
        (scores["test"] == "T1") & (scores["view"] == "full") & (scores["item_id"] == 3)
    ][0]
    scores.at[first, "logits"], scores.at[first, "upper"] = (
        np.array([1.0, -np.inf, 0.5]),
        np.array([np.nan, 0.25, np.nan]),
    )
    noise = scores[
        (scores["test"] == "T1") & (scores["view"] == "full") & (scores["item_id"] < 10)
    ].assign(view="noise", upper=None)
    publish_again(path, "fake-optimist-1", {"scores": pd.concat([scores, noise])})
    cell = load(path, "fake-optimist-1").cells[(Task.MCQ, ContextTest.T1)]
    at = int(np.flatnonzero(cell.items["item_id"] == 3)[0])
    assert cell.logits[View.FULL][at].tolist() == [1.0, -np.inf, 0.5]
    assert cell.filled(View.FULL)[at].tolist() == [1.0, 0.25, 0.5]
    assert np.isnan(cell.upper[View.Q_ONLY]).all()
    asked = ~np.isnan(cell.extra["noise"]).any(axis=1)
    assert list(cell.items.loc[asked, "item_id"]) == list(range(10))


def test_replace_leaves_the_rest_of_a_run_alone(tmp_path: Path) -> None:
    path = publish_fake(tmp_path / "r.duckdb")
    before = store.query(path, "SELECT count(*) AS n FROM metrics")["n"][0]
    rows = table([row("methods", "accuracy", Estimate(0.5, 48, 0.4, 0.6), method="vdd", test="T1")])
    for _ in range(2):
        store.replace(path, "fake-optimist-1", {"numbers": rows}, kept_study=HEADLINE)
    assert store.query(path, "SELECT count(*) AS n FROM metrics")["n"][0] == before + 1
    shown = store.query(path, "FROM metrics WHERE method = 'vdd'").iloc[0]
    assert (shown["model"], shown["value"], shown["n"], shown["pillar"]) == (
        "fake-optimist",
        0.5,
        48,
        "all",
    )
    with pytest.raises(StoreError, match="no run 'nobody'"):
        store.replace(path, "nobody", {"numbers": rows})


def test_rows_have_one_shape() -> None:
    frame = table(
        [
            row("b", "m", 1.0),
            row("a", "m", Estimate(0.1, 5, 0.0, 0.2), x=2.0),
            row("a", "m", 0.3, x=1.0),
        ]
    )
    assert list(frame.columns) == list(NUMBER)
    assert list(frame["study"]) == ["a", "a", "b"] and list(frame["x"][:2]) == [1.0, 2.0]
    with pytest.raises(ValueError, match="no such column"):
        row("a", "m", 1.0, colour="red")
