"""Study 'fairness': what was planted comes out, a habit of saying yes is taken out, and only val is
tuned on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.studies import fairness
from sdgbias.analysis.studies.fairness import (
    FULL,
    ChoiceQuestions,
    answers,
    at_recall,
)
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.raw.facet import GROUPS, SELECTED
from tests.builders.analysis_run import run_of


def rows_of(question: ChoiceQuestions) -> pd.DataFrame:
    study = STUDIES["fairness"]
    given = study._replace(answers=lambda run, settings: fairness.outcome(question, settings))
    return given.rows(run_of(), FEW)


NAN = float("nan")
FEW = AnalysisSettings(draws=300, seed=0, bootstrap=300)


def question(
    n: int,
    *,
    yes_bias: float = 0.0,
    recall: float = 0.7,
    female: float = 0.0,
    negatives: bool = True,
    seed: int = 0,
) -> ChoiceQuestions:
    """n people, each asked about the annotated class (yes with `recall`, plus `female` for women)
    and about a wrong one (yes: 0.1). 3 for what is said, 0 for the rest, and `yes_bias` on Yes with
    and without the picture: PMI at gamma 1 takes exactly that out."""
    rng = np.random.default_rng(seed)
    people = pd.DataFrame({a: np.array(g)[rng.integers(0, len(g), n)] for a, g in GROUPS.items()})
    people["image_id"], people["split"] = (
        [f"i{k}" for k in range(n)],
        np.where(np.arange(n) % 4 == 0, "val", "test"),
    )
    people["asked"] = np.array(SELECTED)[np.arange(n) % len(SELECTED)]
    chance = recall + np.where(people["gender"] == "female", female, 0.0)
    parts, said = [people.assign(negative=False)], [np.where(rng.random(n) < chance, 0, 1)]
    if negatives:
        parts.append(people.assign(negative=True))
        said.append(np.where(rng.random(n) < 0.1, 0, 1))
    items = pd.concat(parts, ignore_index=True)
    items["item_id"] = range(len(items))
    full = 3.0 * np.eye(3)[np.concatenate(said)]
    full[:, 0] += yes_bias
    q = np.zeros_like(full)
    q[:, 0] += yes_bias
    return ChoiceQuestions("p3", items, full, q, items["negative"].to_numpy(dtype=np.int64))


def cell(rows: pd.DataFrame, method: str, metric: str, group: str = "") -> pd.Series:
    found = rows[(rows["method"] == method) & (rows["metric"] == metric) & (rows["group"] == group)]
    assert len(found) == 1, found
    return found.iloc[0]


@pytest.mark.parametrize("method", ["pmi", "pmi_tuned", "cade", "cc_q", "bc"])
def test_a_habit_of_saying_yes_is_taken_out(method: str) -> None:
    """Bias 4 beats the 3 of any No: Full says yes to everything, which earns one half. Without it:
    0.7 of yes, 0.9 of no."""
    rows = rows_of(question(2_000, yes_bias=4.0))
    assert cell(rows, FULL, "recall")["value"] == cell(rows, FULL, "false_yes_rate")["value"] == 1.0
    assert cell(rows, FULL, "accuracy_balanced")["value"] == 0.5
    assert cell(rows, method, "accuracy_balanced")["value"] == pytest.approx(
        (0.7 + 0.9) / 2, abs=0.03
    )
    change = cell(rows, method, "recall_change")
    assert change["value"] == pytest.approx(0.7 - 1.0, abs=0.03) and change["p"] < 0.001


def test_p_of_changes_is_corrected_once_for_all() -> None:
    rows = rows_of(question(600, yes_bias=4.0, female=-0.3))
    p = rows.loc[rows["metric"] == "disparity_change", "p_adjusted"].to_numpy()
    assert len(p) == 3 * (2 * (len(fairness.NAMES) + 1) + 1) and np.nanmax(p) <= 1.0
    raw_smallest = 1 / (FEW.bootstrap + 1)
    assert np.nanmin(p) >= raw_smallest * len(p) * 0.999 or np.nanmin(p) == 1.0


def test_test_rows_never_reach_the_tuning() -> None:
    q = question(400, yes_bias=2.0)
    other = q.full.copy()
    other[~q.val] = np.random.default_rng(1).normal(size=other[~q.val].shape)
    _, notes, _ = answers(q, FEW)
    _, again, _ = answers(replace(q, full=other), FEW)
    assert notes == again and "gamma=" in notes["pmi_tuned"] and "tau=" in notes["cade"]
    moved = q.full.copy()
    moved[q.val, 0] += 3.0
    assert answers(replace(q, full=moved), FEW)[1] != notes


def test_payoff_weighs_both_kinds_of_question_alike() -> None:
    """6 val questions about the annotated class, 2 about a wrong one: always yes earns one half, a
    perfect answerer 1."""
    items = pd.DataFrame({"split": ["val"] * 8})
    gold = np.array([0] * 6 + [1] * 2)
    q = ChoiceQuestions("p2", items, np.zeros((8, 3)), np.zeros((8, 3)), gold)
    assert q.payoff[:, 0].mean() == pytest.approx(0.5)
    assert q.payoff[np.arange(8), gold].mean() == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["pmi_tuned", "bcl", "cade"])
def test_all_rows_score_all_draws(method: str) -> None:
    """Of twenty val questions a fifth is four: here those would let always yes, one half, win."""
    q = question(40, yes_bias=4.0, seed=2)

    choice, _, _ = answers(q, FEW)

    earned = q.payoff[q.val][np.arange(q.val.sum()), choice[method][q.val]].mean()
    assert earned == pytest.approx(0.85)


def test_at_recall_meets_the_target_as_ties_allow() -> None:
    score = np.array([[5.0, 0, 0], [4, 0, 0], [4, 0, 0], [1, 0, 0], [0, 2, 1], [-np.inf, 1, 0]])
    rows = np.array([True, True, True, True, False, True])
    assert at_recall(score, rows, 4)[1] == 4
    choice, reached = at_recall(score, rows, 1)
    assert reached == 1 and choice.tolist() == [0, 1, 1, 1, 1, 1]
    assert at_recall(score, rows, 2)[1] == 1  # 1 and 3 are as near: the fewer
    assert at_recall(score, rows, 0)[0].tolist() == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("lead", "yes"), [(2.4, 1), (2.6, 0)])
def test_the_shift_lies_half_way_between_two_val_margins(lead: float, yes: int) -> None:
    """Val margins 4 and 1, of which one may answer yes: from 2.5 on."""
    score = np.array([[4.0, 0, -1], [1, 0, -1], [lead, 0, -1]])

    choice, _ = at_recall(score, np.array([True, True, False]), 1)

    assert choice.tolist() == [0, 1, yes]


def test_a_withheld_score_counts_as_its_bound(tmp_path: Path) -> None:
    person = {"item_id": [1], "person_id": "p", "image_id": "i", "class1": SELECTED[0]}
    person |= {"asked": SELECTED[0], "prompt": "p3", "negative": False, "gold": "yes"}
    person |= {"gender": "male", "skin": "dark", "age": "young", "race": "", "split": "test"}
    cell = {"task": "choice", "item_id": [1], "test": "p3", "candidates": "ABC"}
    full = {"view": "full", "logits": [[2.0, -np.inf, 1.0]], "upper": [[NAN, -3.0, NAN]]}
    alone = {"view": "q_only", "logits": [[0.0, 1.0, -np.inf]], "upper": [[NAN] * 3]}
    scores = pd.concat([pd.DataFrame(cell | view) for view in (full, alone)])
    run = {"run_id": "r", "model": "m", "benchmark_id": "b", "suite": "people"}
    path = tmp_path / "r.duckdb"
    store.publish(path, run, {"people": pd.DataFrame(person), "scores": scores})

    [loaded] = fairness.load(path, "r")

    assert loaded.full.tolist() == [[2.0, -3.0, 1.0]]
    assert loaded.q.tolist() == [[0.0, 1.0, -np.inf]], "without a bound it stays"


def test_without_wrong_classes_nothing_is_tuned() -> None:
    rows = rows_of(question(400, negatives=False))
    assert set(rows.loc[rows["metric"] == "not_run", "method"]) >= {
        "cade",
        "pmi_tuned",
        "pmi@recall",
    }
    assert (
        not (rows["metric"] == "false_yes_rate").any() and cell(rows, "pmi", "recall")["n"] == 300
    )
