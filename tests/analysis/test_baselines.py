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
from sdgbias.analysis.rows import KEY, AnalysisSettings
from sdgbias.analysis.run import RunData, TaskCell, load
from sdgbias.analysis.studies import baselines
from sdgbias.analysis.studies.directions import perturbation
from sdgbias.methods.baselines import METHODS
from sdgbias.registry import entries
from sdgbias.scoring import evaluate
from sdgbias.suites import extra_prompts
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import ContextTest, ModelSpec, Task, View
from tests.builders.analysis_run import mcq_cell, number_cell, one, run_of

QUICK = AnalysisSettings(draws=50, bootstrap=100)
NAN = float("nan")
P = np.log


def cell(
    test: str = "T1", split: tuple[str, ...] = ("test", "test", "test", "val", "val", "val")
) -> TaskCell:
    """Six items of two places. Full says A, B, A, C, C, A. Against the context Post-Hoc says C, B,
    A, ...; gold A, B, B, C, C, B."""
    full = P(
        [
            [0.5, 0.2, 0.3],
            [0.2, 0.6, 0.2],
            [0.5, 0.4, 0.1],
            [0.2, 0.2, 0.6],
            [0.1, 0.2, 0.7],
            [0.8, 0.1, 0.1],
        ]
    )
    ctx = P(
        [
            [0.6, 0.3, 0.1],
            [0.3, 0.3, 0.4],
            [0.3, 0.6, 0.1],
            [0.3, 0.3, 0.4],
            [0.3, 0.3, 0.4],
            [0.3, 0.3, 0.4],
        ]
    )
    tokens = ["A", " B", "The", "C", "C", "A"]
    return mcq_cell(
        {"full": full.tolist(), "ctx_q": ctx.tolist()},
        "ABBCCB",
        test=test,
        split=list(split),
        top_token={"full": tokens},
        cluster_id=["here", "there"] * 3,
        pillar=["Health & Nutrition"] * 6,
    )


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return baselines.rows(run_of(cell("T1"), cell("T2")), QUICK)


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


def test_controls_by_hand(table: pd.DataFrame) -> None:
    accuracy = {
        m: one(table, method=m, test="T1", metric="accuracy")["value"]
        for m in ("always_a", "always_b", "always_c", "best_letter", "full_first_token")
    }
    # val gold: C, C, B, so the best letter is C; greedy decoding says A, B and "The", which is no
    # letter
    assert accuracy == pytest.approx(
        {
            "always_a": 1 / 3,
            "always_b": 2 / 3,
            "always_c": 0,
            "best_letter": 0,
            "full_first_token": 2 / 3,
        }
    )
    expected = one(table, method="prior_sampling", test="T1", metric="expected_accuracy")["value"]
    assert expected == pytest.approx((0 / 3 + 1 / 3 + 1 / 3) / 3)  # val shares of the golds A, B, B
    assert one(table, method="prior_sampling", test="T1", metric="accuracy")["value"] in (
        0.0,
        1 / 3,
        2 / 3,
        1.0,
    )


def test_letters_follow_the_items_options_and_their_group() -> None:
    present = np.array(
        [[True, True, True], [True, True, False], [True, True, True], [True, True, True]]
    )
    gold, group, fit = (
        np.array([2, 2, 0, 1]),
        np.array([0, 0, 1, 0]),
        np.array([True, False, False, True]),
    )
    shares = baselines.letter_shares(gold, present, group, fit)
    np.testing.assert_allclose(
        shares, [[0, 0.5, 0.5], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0.5, 0.5]]
    )


def test_what_cannot_run_says_why(table: pd.DataFrame) -> None:
    lost = table[table["metric"] == "not_run"].set_index("method")["note"].to_dict()
    needing = {name for name, m in METHODS.items() if m.needs}
    assert needing == {"cc"} and lost == {"cc": "extra pass content_free was not scored"}
    assert not set(table.loc[table["metric"] == "accuracy", "method"]) & needing
    bare = baselines.rows(run_of(cell(split=("test",) * 6)), QUICK)
    lost = bare[bare["metric"] == "not_run"].set_index("method")["note"].to_dict()
    assert {name for name, why in lost.items() if why == "no val rows to tune on"} == {
        "vdd_tuned",
        "bcl",
        "pmi_tuned",
    }
    assert "best_letter" not in set(bare["method"])


def test_tuned_methods_say_so(table: pd.DataFrame) -> None:
    note = one(table, method="vdd_tuned", test="T1", metric="accuracy")["note"]
    assert note.startswith("VDD, tuned on val; tuned on val, 50 draws; contrast=ctx, a=")
    pooled = one(table, method="vdd_tuned", test="all", metric="accuracy")["note"]
    assert "; tuned on val, 50 draws, each test by itself" in pooled


def test_rows_are_unique_and_repeatable(table: pd.DataFrame) -> None:
    assert not table.duplicated(list(KEY)).any()
    pd.testing.assert_frame_equal(table, baselines.rows(run_of(cell("T1"), cell("T2")), QUICK))
    assert not set(table["method"]) & {
        "full",
        "cade",
        *(v.value for v in View),
    }  # these have rows of their own


def test_numbers_by_hand() -> None:
    """Digit j leads to the number j. Full says 3, the context 3 as well; without it, 5, which is
    gold."""
    full = np.full((4, 10), -9.0)
    full[:, 3], full[:, 5] = 1.0, 0.5
    ctx = np.full((4, 10), -9.0)
    ctx[:, 3], ctx[:, 5] = 1.0, -1.0
    free = {"full": [3.4] * 4}
    made = number_cell(
        free,
        [5.0] * 4,
        [list(range(10))] * 4,
        {"full": full.tolist(), "ctx_q": ctx.tolist()},
        split=["test", "test", "val", "val"],
    )
    table = baselines.rows(run_of(made), QUICK)
    found = {
        m: one(table, method=m, test="T2", metric="mae")["value"] for m in ("full_candidate", "vdd")
    }
    assert found == {"full_candidate": 2.0, "vdd": 0.0}
    assert one(table, method="vdd", test="T2", metric="mae_change")["value"] == pytest.approx(
        0.0 - 1.6
    )  # against the free 3.4
    assert one(table, method="vdd", test="T2", metric="interval_accuracy")["value"] == 1.0
    assert {"always_a", "prior_sampling", "full_first_token"}.isdisjoint(table["method"])


# ----------------------------------------------------------------------
# Table J


def test_directions_follow_the_content() -> None:
    """Three options, higher is better. Q-only always names position A: 'low' as asked, 'high'
    reversed."""
    first = [[2.0, 1.0, 0.0]] * 4
    base = mcq_cell(
        {"full": first},
        "AAAA",
        cluster_id=["here", "here", "there", "there"],
        polarity=["higher", "higher", "higher", "lower"],
    )
    order = extra_prompts.orders(base.items, "q_random")
    extra = {view: np.array(first) for view in extra_prompts.TOKENS}
    table = perturbation(run_of(replace(base, extra=extra)), QUICK)

    def share(level: str, name: str) -> float:
        return float(
            one(table, test="T1", by="order", level=level, metric=f"share_{name}")["value"]
        )

    assert (share("original", "pessimistic"), share("original", "optimistic")) == (3 / 4, 1 / 4)
    assert (share("reversed", "pessimistic"), share("reversed", "optimistic")) == (1 / 4, 3 / 4)
    says = [
        ("pessimistic", "conservative", "optimistic")[o if i < 3 else 2 - o]
        for i, o in enumerate(order[:, 0])
    ]
    for name in ("pessimistic", "conservative", "optimistic"):
        assert share("random", name) == says.count(name) / 4
        assert share("abc", name) == share("123", name) == share("original", name)
    prompts = one(table, test="T1", by="order", level="original", metric="distinct_prompts")
    assert (prompts["value"], prompts["n"]) == (1, 4)
    assert one(table, test="T1", by="order", level="random", metric="distinct_prompts")[
        "value"
    ] == len({tuple(o) for o in order})


def test_two_options_count_apart_and_a_missing_pass_is_said() -> None:
    base = mcq_cell({"full": [[0.0, 1.0, NAN], [0.0, 1.0, 2.0]]}, "BC")
    extra = {"q_reversed": base.logits[View.FULL]}
    table = perturbation(run_of(replace(base, extra=extra)), QUICK)
    two = one(table, test="T1", by="order", level="reversed", metric="share_optimistic_two_option")
    assert (two["value"], two["n"]) == (0.0, 1)  # position B shows 'low'
    assert one(table, test="T1", by="order", level="reversed", metric="share_pessimistic")["n"] == 1
    assert set(table["level"]) == {"original", "reversed"}
    (lost,) = perturbation(run_of(base), QUICK).to_dict("records")
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


PASSES = ("table_j", "content_free")


@pytest.fixture(scope="module")
def done(
    small_benchmark: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, evaluate.Outcome, evaluate.Outcome]:
    results = tmp_path_factory.mktemp("passes") / "r.duckdb"
    root = entries.find_root()
    bare = evaluate.evaluate(PLANTED, root, small_benchmark, results, EvalSettings(draws=50))
    decoded = _decoded(results)
    more = evaluate.evaluate(
        PLANTED,
        root,
        small_benchmark,
        results,
        EvalSettings(draws=50, passes=PASSES),
    )
    assert _decoded(results) == decoded  # extra passes need no numbers
    return results, bare, more


def _decoded(results: Path) -> set[str]:
    return set(
        pd.concat(
            pd.read_parquet(path)
            for path in results.parent.glob("scores/optimist/*/generations-*.parquet")
        )["key"]
    )


def test_extra_passes_flow_to_the_store(
    done: tuple[Path, evaluate.Outcome, evaluate.Outcome], small_benchmark: Path
) -> None:
    results, bare, more = done
    assert bare.run_id != more.run_id
    assert bare.naive == more.naive == 60 * 20 + 20 * 8
    config = json.loads(
        store.query(results, "SELECT config FROM runs WHERE run_id = ?", [more.run_id])["config"][0]
    )
    assert config["passes"] == list(PASSES)
    assert config["extra"]["prompts"] == more.extra == more.planned - bare.planned > 0
    assert bare.extra == 0 and bare.planned < bare.naive
    again = evaluate.evaluate(
        PLANTED,
        entries.find_root(),
        small_benchmark,
        results,
        EvalSettings(draws=50, passes=PASSES),
    )
    assert (again.published, again.planned, again.extra) == (False, more.planned, more.extra)
    count = store.query(
        results,
        'SELECT "view", count(*) AS n FROM scores WHERE run_id = ? GROUP BY 1',
        [more.run_id],
    ).set_index("view")["n"]
    assert count.sum() == more.naive + config["extra"]["cells"]
    assert count["q_abc"] == 60 and 0 < count["content_free:0"] < 60 * 5 + 20 * 2
    same = "SELECT * EXCLUDE (run_id) FROM metric_rows WHERE run_id = ? ORDER BY ALL"
    pd.testing.assert_frame_equal(*(store.query(results, same, [o.run_id]) for o in (bare, more)))
    both = [
        store.query(results, "SELECT count(*) AS n FROM decoded WHERE run_id = ?", [o.run_id])["n"][
            0
        ]
        for o in (bare, more)
    ]
    assert both[0] == both[1]


def test_methods_of_an_evaluation(done: tuple[Path, evaluate.Outcome, evaluate.Outcome]) -> None:
    results, _, more = done
    run = load(results, more.run_id)
    table = baselines.rows(run, QUICK)
    assert "not_run" not in set(table["metric"])
    for name in METHODS:
        assert one(table, task="mcq", method=name, test="all", metric="accuracy")["n"] == 5 * int(
            run.mcq[0].test_rows.sum()
        )
    _recomputed(results, more.run_id, run, table)


def _recomputed(results: Path, run_id: str, run: RunData, table: pd.DataFrame) -> None:
    """Contextual calibration at T2 from the stored scores with nothing of the package's
    analysis."""
    sql = (
        "SELECT i.item_id, i.indicator, i.options, i.gold, i.split, s.view, s.logits FROM scores s"
        " JOIN items i USING (item_id) WHERE run_id = ? AND s.task = 'mcq' AND i.task = 'mcq' AND"
        " test = 'T2'"
    )
    rows = store.query(results, sql, [run_id])
    softmax = [np.exp(z - z.max()) / np.exp(z - z.max()).sum() for z in rows["logits"]]
    rows = rows.assign(p=softmax)
    free = (
        rows[rows["view"].str.startswith("content_free:")]
        .groupby(["indicator", "options"])["p"]
        .agg(lambda ps: np.mean(list(ps), axis=0))
    )
    full = rows[(rows["view"] == "full") & (rows["split"] == "test")]
    said = [
        "ABC"[int(np.argmax(np.log(p) - np.log(free[i, o])))]
        for p, i, o in zip(full["p"], full["indicator"], full["options"], strict=True)
    ]
    assert one(table, task="mcq", method="cc", test="T2", metric="accuracy")[
        "value"
    ] == pytest.approx((np.array(said) == full["gold"]).mean())


def test_table_j_of_an_evaluation(done: tuple[Path, evaluate.Outcome, evaluate.Outcome]) -> None:
    results, _, more = done
    run = load(results, more.run_id)
    assert set(extra_prompts.TOKENS) <= set(run.cells[(Task.MCQ, ContextTest.T1)].extra)
    assert not set(extra_prompts.TOKENS) & set(run.cells[(Task.MCQ, ContextTest.T2)].extra)
    table = perturbation(run, QUICK)
    shares = store.query(
        results,
        "FROM metric_rows WHERE run_id = ? AND method = 'q_only' AND test = 'T1' AND metric LIKE"
        " 'share%'",
        [more.run_id],
    )
    for _, theirs in shares.iterrows():
        ours = one(
            table,
            test="T1",
            level="original",
            by="order",
            metric=theirs["metric"],
            pillar=theirs["pillar"],
            indicator=theirs["indicator"],
        )
        assert (ours["value"], ours["n"]) == pytest.approx((theirs["value"], theirs["n"]))
    reversed_ = one(table, test="T1", level="reversed", by="order", metric="share_optimistic")[
        "value"
    ]
    original = one(table, test="T1", level="original", by="order", metric="share_optimistic")[
        "value"
    ]
    assert not table.duplicated(list(KEY)).any() and reversed_ != original
