"""Tables 2 and 3 and Figure 8 as study rows, against the plain road through streams and decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis.rows import KEY, AnalysisSettings
from sdgbias.analysis.studies import ablation
from sdgbias.methods.search import RANGES, random_search, take
from sdgbias.types import CadeParams, ContextTest, Task
from tests.builders.analysis_run import run_of
from tests.builders.tuned_runs import full_payoff, letters, numbers, payoff_of, setting_of, value

QUICK = AnalysisSettings(draws=300, seed=3)
CELL = letters(300)
RUN = run_of(CELL, letters(300, "T4"), numbers(200), numbers(200, "T5"))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return ablation.rows(RUN, QUICK)


def tuned() -> CadeParams:
    return random_search(
        take(CELL.streams(), CELL.val), CELL.payoff[CELL.val], Task.MCQ, draws=300, seed=3
    ).params


def test_the_last_step_is_cade_and_the_first_the_baseline(table: pd.DataFrame) -> None:
    t1 = table[(table["study"] == "ablation") & (table["test"] == "T1") & (table["task"] == "mcq")]
    for level in ("retuned", "zeroed"):
        assert value(t1, method="full", level=level, metric="accuracy") == pytest.approx(
            full_payoff(CELL)
        )
        assert value(t1, method="+tau", level=level, metric="accuracy") == pytest.approx(
            payoff_of(CELL, tuned())
        )


def test_zeroed_steps_are_the_final_setting_with_later_terms_off(table: pd.DataFrame) -> None:
    p = tuned()
    steps = {
        "+alpha": CadeParams(p.alpha, 0, 0, 2),
        "+lambda": CadeParams(p.alpha, p.lambda_kl, 0, 2),
        "+beta": CadeParams(p.alpha, p.lambda_kl, p.beta, 2),
    }
    for method, params in steps.items():
        got = value(
            table,
            study="ablation",
            task="mcq",
            test="T1",
            level="zeroed",
            method=method,
            metric="accuracy",
        )
        assert got == pytest.approx(payoff_of(CELL, params))


def test_retuned_steps_search_only_what_was_added(table: pd.DataFrame) -> None:
    rows = table[
        (table["study"] == "ablation")
        & (table["level"] == "retuned")
        & (table["test"] == "T1")
        & (table["metric"] == "accuracy")
    ]
    notes = rows.set_index("method")["note"]
    assert "lambda_kl 0, beta 0" in notes["+alpha"]
    assert "beta 0" in notes["+lambda"] and "lambda_kl 0," not in notes["+lambda"]
    assert "no gate" in notes["+beta"] and "no gate" not in notes["+tau"]
    ranges = (RANGES[Task.MCQ][0], (0.0, 0.0), (0.0, 0.0), (2.0, 2.0))
    alone = random_search(
        take(CELL.streams(), CELL.val),
        CELL.payoff[CELL.val],
        Task.MCQ,
        draws=300,
        seed=3,
        ranges=ranges,
    ).params
    assert value(rows, method="+alpha") == pytest.approx(payoff_of(CELL, alone))


def test_step_gains_add_up(table: pd.DataFrame) -> None:
    for (task, test, level), part in table[table["study"] == "ablation"].groupby(
        ["task", "test", "level"]
    ):
        sign, metric = (1, "accuracy") if task == "mcq" else (-1, "mae")
        whole = sign * (
            value(part, method="+tau", metric=metric) - value(part, method="full", metric=metric)
        )
        assert part.loc[part["metric"] == "step_gain", "value"].sum() == pytest.approx(whole), (
            task,
            test,
            level,
        )


def test_pooled_rows_are_all_tests_together(table: pd.DataFrame) -> None:
    for study in ("ablation", "streams"):
        mine = table[
            (table["study"] == study) & (table["task"] == "mcq") & (table["metric"] == "accuracy")
        ]
        for _, part in mine.groupby(["method", "level"]):
            single, pooled = part[part["test"] != "all"], part[part["test"] == "all"].iloc[0]
            assert pooled["n"] == single["n"].sum() == 2 * CELL.test_rows.sum()
            assert pooled["value"] == pytest.approx(single["value"].mean())
            assert pooled["ci_low"] < pooled["value"] < pooled["ci_high"]


def test_streams_and_divergences_are_tuned_on_their_own(table: pd.DataFrame) -> None:
    rows = table[(table["study"] == "streams") & (table["task"] == "mcq") & (table["test"] == "T1")]
    for stream in ("img", "full", "full+img"):
        for divergence in ("kl", "js"):
            s = CELL.streams(stream=stream, divergence=divergence)
            params = random_search(
                take(s, CELL.val), CELL.payoff[CELL.val], Task.MCQ, draws=300, seed=3
            ).params
            want = payoff_of(CELL, params, stream=stream, divergence=divergence)
            assert value(rows, method=stream, level=divergence, metric="accuracy") == pytest.approx(
                want
            )
            assert value(rows, method=stream, level=divergence, metric="gain") == pytest.approx(
                want - full_payoff(CELL)
            )


def test_sweeps_run_over_the_whole_range_around_the_optimum(table: pd.DataFrame) -> None:
    best = tuned()
    for name, (low, high) in zip(
        ("alpha", "lambda_kl", "beta", "tau"), RANGES[Task.MCQ], strict=True
    ):
        rows = table[
            (table["study"] == "sweep")
            & (table["by"] == name)
            & (table["task"] == "mcq")
            & (table["test"] == "T1")
        ]
        assert value(rows, metric="optimum") == getattr(best, name)
        for method, which in (("val", CELL.val), ("test", CELL.test_rows)):
            line = rows[(rows["method"] == method) & (rows["metric"] == "accuracy")].sort_values(
                "x"
            )
            assert line["x"].tolist() == pytest.approx(np.linspace(low, high, 41).tolist())
            assert set(line["n"]) == {int(which.sum())}
            for i in (0, 17, 40):
                params = replace(best, **{name: float(line["x"].iloc[i])})
                assert line["value"].iloc[i] == pytest.approx(payoff_of(CELL, params, which))
                assert line["ci_low"].iloc[i] < line["value"].iloc[i] < line["ci_high"].iloc[i]


def test_numbers_are_reported_as_mae(table: pd.DataFrame) -> None:
    cell = RUN.cells[(Task.REGRESSION, ContextTest.T2)]
    rows = table[(table["task"] == "regression") & (table["test"] == "T2")]
    assert value(
        rows, study="ablation", method="full", level="zeroed", metric="mae"
    ) == pytest.approx(-full_payoff(cell))
    told = rows[
        (rows["study"] == "ablation")
        & (rows["method"] == "+tau")
        & (rows["level"] == "zeroed")
        & (rows["metric"] == "mae")
    ].iloc[0]
    assert told["value"] == pytest.approx(-payoff_of(cell, setting_of(told["note"])), abs=0.02)
    assert value(rows, study="ablation", method="+alpha", level="retuned", metric="step_gain") > 0


def test_test_rows_never_tune(table: pd.DataFrame) -> None:
    turned = replace(CELL, payoff=np.where(CELL.test_rows[:, None], 1 - CELL.payoff, CELL.payoff))
    other = ablation.rows(run_of(turned), QUICK)
    mine = table[(table["task"] == "mcq") & (table["test"] == "T1")]
    for study in ("ablation", "streams", "sweep"):
        a, b = (
            t[(t["study"] == study) & (t["test"] == "T1")]["note"].tolist() for t in (mine, other)
        )
        assert a == b


def test_rows_have_keys_and_a_cell_without_val_rows_has_none(table: pd.DataFrame) -> None:
    assert not table.duplicated(list(KEY)).any()
    bare = replace(CELL, items=CELL.items.assign(split="test"))
    assert ablation.rows(run_of(bare), QUICK).empty
