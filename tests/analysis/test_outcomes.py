"""Outcomes: only test rows, only what was answered; rows by pillar and indicator; Holm in place."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis import calls
from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.types import Task
from tests.builders.analysis_run import OPEN, mcq_cell, number_cell, run_of

A, B, C = [3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]
NONE = [np.nan, np.nan, np.nan]


def test_test_rows_answers_and_hits() -> None:
    cell = mcq_cell(
        {"full": [A, B, A, NONE]},
        "AABA",
        split=["test", "test", "val", "test"],
        cluster_id=["x", "y", "z", "x"],
    )
    cell.present[3] = True
    o, whole = answers.pools(run_of(cell), Task.MCQ)
    assert list(o.choice["full"]) == [0, 1, -1] and o.hit["full"] == pytest.approx(
        [1, 0, np.nan], nan_ok=True
    )
    assert list(o.place) == [0, 1, 0] and (o.test, whole.test) == ("T1", "all")
    assert "cade" not in o.hit, "the run tuned none"
    assert answers.pools(run_of(mcq_cell({"full": [A]}, "A", split=["val"])), Task.MCQ) == []


def test_numbers_hit_within_the_tolerance_and_cade_says_what_its_digit_leads_to() -> None:
    digits = np.tile(np.arange(10.0), (3, 1))
    z = np.zeros((3, 10))
    z[:, 4] = 1.0
    cell = number_cell(
        {"full": [21.0, 22.0, 23.1]}, [21.0, 21.0, 22.0], digits, {"full": z.tolist()}, params=OPEN
    )
    o, _ = answers.pools(run_of(cell), Task.REGRESSION)
    assert list(o.hit["full"]) == [1, 1, 0] and o.error["full"] == pytest.approx([0, 1, 1.1]), (
        "22 is 1.0 off 21, the tolerance"
    )
    assert o.error["cade"] == pytest.approx([21 - 4, 21 - 4, 22 - 4])
    blank = number_cell({"full": [np.nan] * 3}, [21.0] * 3, digits, {"full": z.tolist()})
    assert answers.pools(run_of(blank), Task.REGRESSION) == [], "nothing was decoded"


def study_of(items: dict[str, list[str]]) -> pd.DataFrame:
    """Accuracy of three answers, by pillar and indicator."""
    cell = mcq_cell({"full": [A, A, B]}, "AAA", **items)
    call = calls.Call(lambda o, method: {"accuracy": o.hit[method]}, calls.depths, methods=["full"])
    pools = answers.pools(run_of(cell), Task.MCQ)
    return calls.Study("s", lambda run, settings: pools[:1], [call]).rows(
        run_of(cell), AnalysisSettings()
    )


def test_levels_and_rows() -> None:
    rows = study_of({"pillar": ["P", "P", "Q"], "indicator": ["i", "j", "i"]})

    found = {(r["group"], r["indicator"]): (r["value"], r["n"]) for r in rows.to_dict("records")}
    assert found == {
        ("", "all"): (2 / 3, 3),
        ("P", "all"): (1, 2),
        ("Q", "all"): (0, 1),
        ("P", "i"): (1, 1),
        ("P", "j"): (1, 1),
        ("Q", "i"): (0, 1),
    }


def test_questions_without_a_pillar_are_in_no_group_whose_tests_count() -> None:
    """Custom questions: a group of the empty pillar would be the whole once more, and its test one
    more of Holm's family."""
    rows = study_of({"pillar": ["", "", ""], "indicator": ["i", "j", "i"]})

    assert list(zip(rows["group"], rows["n"], strict=True)) == [("", 3)]


def test_holm_is_written_beside_the_unadjusted_p() -> None:
    made = [row("s", "m", 0.0, p=0.01, note="x"), row("s", "m", 0.0, p=0.5), row("s", "m", 0.0)]
    calls.adjust(made)
    assert [r["p_adjusted"] for r in made] == pytest.approx([0.02, 0.5, np.nan], nan_ok=True)
    assert [r["p"] for r in made] == pytest.approx([0.01, 0.5, np.nan], nan_ok=True)
    assert [r["note"] for r in made] == [
        "x; Holm over 2 tests",
        "Holm over 2 tests",
        "",
    ]


def test_questions_with_contexts_of_their_own_are_prompts_of_their_own() -> None:
    """One question about six places: CTX+Q is six prompts where the context has
    their values, one where it has names alone or there is none, and seven over these tests."""
    context = [json.dumps({"T1": f"index {i}", "T3": "index", "T5": ""}) for i in range(6)]
    cells = [
        mcq_cell({"full": [[1.0, 0.0, 0.0]] * 6}, "A" * 6, test=test, context=context)
        for test in ("T1", "T3", "T5")
    ]

    pools = answers.pools(run_of(*cells), Task.MCQ)

    assert [len(set(o.context)) for o in pools] == [6, 1, 1, 7]
    assert answers.units(pools[-1], "cade", "ctx_q") == ("place", "context")
    assert answers.unit(pools[-1], "q_only") == ("prompt",)
