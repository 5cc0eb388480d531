"""Baselines and Table J as study rows: by hand on small cells, and through an evaluation of a
planted model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import TaskCell
from sdgbias.analysis.studies import baselines
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods.baselines import METHODS
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import evaluate
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import View
from tests.builders.analysis_run import mcq_cell, one, run_of

QUICK = AnalysisSettings(draws=50, bootstrap=100)
NAN = float("nan")


def cell(
    test: str = "T1", split: tuple[str, ...] = ("test", "test", "test", "val", "val", "val")
) -> TaskCell:
    """Six items of two places. Full says A, B, A, C, C, A. Against the context Post-Hoc says C, B,
    A, ...; gold A, B, B, C, C, B."""
    full = [[5, 2, 3], [2, 6, 2], [5, 4, 1], [2, 2, 6], [1, 2, 7], [8, 1, 1]]
    ctx = [[6, 3, 1], [3, 3, 4], [3, 6, 1], [3, 3, 4], [3, 3, 4], [3, 3, 4]]
    tokens = ["A", " B", "The", "C", "C", "A"]
    return mcq_cell(
        {"full": np.log(full).tolist(), "ctx_q": np.log(ctx).tolist()},
        "ABBCCB",
        test=test,
        split=list(split),
        top_token={"full": tokens},
        cluster_id=["here", "there"] * 3,
        pillar=["Health & Nutrition"] * 6,
    )


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return STUDIES["methods"].rows(run_of(cell("T1"), cell("T2")), QUICK)


def test_accuracy_and_gain_by_hand(table: pd.DataFrame) -> None:
    """Post-Hoc on the test rows: 0.3 / 0.1 makes C of the first (gold A), the second stays B (gold
    B), the third A (gold B)."""
    row = one(table, method="post_hoc", test="T1", metric="accuracy")
    assert row["value"] == pytest.approx(1 / 3) and row["n"] == 3
    gain = one(table, method="post_hoc", test="T1", metric="accuracy_gain")
    assert (
        gain["value"] == pytest.approx((0 - 1 + 0 + 0) / 3) and gain["n"] == 3
    )  # Full has A, B, A: two right
    pooled = one(table, method="post_hoc", test="all", metric="accuracy_gain")
    assert pooled["n"] == 6 and pooled["value"] == gain["value"]
    method, few = "Post-Hoc debias, diagonal; contrast=ctx, floor=0.0001", "too few for an interval"
    assert row["note"] == f"{method}; 2 clusters: {few}"


def test_letters_follow_the_items_options_and_their_group() -> None:
    present = np.ones((4, 3), dtype=bool)
    present[1, 2] = False
    gold, group, fit = np.array([2, 2, 0, 1]), np.array([0, 0, 1, 0]), np.array([1, 0, 0, 1], bool)

    shares = baselines.letter_shares(gold, present, group, fit)

    none_of_its_group = [1 / 3, 1 / 3, 1 / 3]
    assert shares.tolist() == [[0, 0.5, 0.5], [0, 1, 0], none_of_its_group, [0, 0.5, 0.5]]


def test_what_cannot_run_says_why(table: pd.DataFrame) -> None:
    assert not (table["metric"] == "not_run").any()
    assert set(METHODS) < set(table.loc[table["metric"] == "accuracy", "method"])
    bare = STUDIES["methods"].rows(run_of(cell(split=("test",) * 6)), QUICK)
    lost = bare[bare["metric"] == "not_run"].set_index("method")["note"].to_dict()
    assert {name for name, why in lost.items() if why == "no val rows to tune on"} == {
        "vdd_tuned",
        "bcl",
        "pmi_tuned",
    }
    assert "best_letter" not in set(bare["method"])


# ----------------------------------------------------------------------
# Table J


def test_two_options_count_apart_and_a_missing_pass_is_said() -> None:
    views = {"full": [[0.0, 1.0, NAN], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]}
    base = mcq_cell(views, "BCC", split=["test", "test", "val"])
    extra = {"q_reversed": base.logits[View.FULL]}
    table = STUDIES["perturbation"].rows(run_of(replace(base, extra=extra)), QUICK)
    two = one(table, test="T1", parameter="reversed", metric="share_optimistic_two_option")
    assert (two["value"], two["n"]) == (0.0, 1)  # position B shows 'low'
    assert one(table, test="T1", parameter="reversed", metric="share_pessimistic")["n"] == 1
    assert set(table["parameter"]) == {"original", "reversed"}
    (lost,) = STUDIES["perturbation"].rows(run_of(base), QUICK).to_dict("records")
    assert (lost["metric"], lost["note"]) == ("not_run", "extra pass table_j was not scored")


# ----------------------------------------------------------------------
# through evaluate

PLANTED = ModelSpec(
    "optimist",
    "optimist",
    "planted",
    "planted/planted",
    "local",
    True,
    batch_size=64,
    options={"optimism": 1.0},
)


PASSES = ("table_j",)
RUNS = "SELECT config FROM runs WHERE run_id = ?"
BY_VIEW = 'SELECT "view", count(*) AS n FROM scores WHERE run_id = ? GROUP BY 1'
NUMBERS = (
    "SELECT * EXCLUDE (run_id) FROM numbers WHERE run_id = ? AND study = 'headline' ORDER BY ALL"
)


def decoded(results: Path) -> set[str]:
    files = results.parent.glob("scores/optimist/*/generations-*.parquet")
    return set(pd.concat(pd.read_parquet(path) for path in files)["key"])


def test_extra_passes_flow_to_the_store(small_benchmark: Path, tmp_path: Path) -> None:
    results, root = tmp_path / "r.duckdb", entries.find_root()

    def evaluated(**more: object) -> evaluate.Outcome:
        settings = EvalSettings(draws=50, **more)  # type: ignore[arg-type]
        return evaluate.evaluate(PLANTED, root, small_benchmark, results, settings)

    bare = evaluated()
    numbers = decoded(results)
    more = evaluated(passes=PASSES)
    again = evaluated(passes=PASSES)

    assert decoded(results) == numbers, "extra passes need no numbers"
    assert bare.run_id != more.run_id
    assert bare.naive == more.naive == 60 * 20 + 20 * 8
    assert bare.extra == 0 and bare.planned < bare.naive
    assert (again.published, again.planned, again.extra) == (False, more.planned, more.extra)
    config = json.loads(store.query(results, RUNS, [more.run_id])["config"][0])
    assert config["passes"] == list(PASSES)
    assert config["extra"]["prompts"] == more.extra == more.planned - bare.planned > 0
    count = store.query(results, BY_VIEW, [more.run_id]).set_index("view")["n"]
    assert count.sum() == more.naive + config["extra"]["cells"]
    assert count["q_abc"] == 60
    same = (store.query(results, NUMBERS, [o.run_id]) for o in (bare, more))
    pd.testing.assert_frame_equal(*same)
