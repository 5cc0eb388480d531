"""Metrics of a suite of custom questions, from rows written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.suites import own
from sdgbias.suites.suite import StoredScores

N = 40


def test_an_answer_that_names_no_option_has_no_share_of_its_own() -> None:
    items = pd.DataFrame(
        {
            "item_id": range(N),
            "cluster_id": [f"c{i}" for i in range(N)],
            "answer": ["A", "B"] * (N // 2),
            "groups": ["{}"] * N,
        }
    )
    cells = pd.DataFrame({"item_id": range(N), "view": "full", "key": map(str, range(N))})
    scores = pd.DataFrame({"key": cells["key"], "logits": [[1.0, 0.0]] * N})
    answers = pd.DataFrame({"item_id": range(N), "task": "mcq", "test": "T5", "split": "test"})
    answers = answers.assign(method="full_generated", pred=["A", ""] * (N // 2), correct=False)

    rows = own.metric_rows(items, answers, StoredScores(cells, scores, pd.DataFrame()))

    shares = rows[(rows["test"] == "all") & rows["metric"].str.startswith("share_")]
    assert dict(zip(shares["metric"], shares["value"], strict=True)) == {
        "share_A": 0.5,
        "share_B": 0.0,
    }


def test_image_free_answers_count_prompts_and_say_where_these_are_too_few() -> None:
    """Forty pictures, one question: without the picture it is one prompt."""
    items = pd.DataFrame(
        {
            "item_id": range(N),
            "cluster_id": [f"c{i}" for i in range(N)],
            "answer": ["A", "B"] * (N // 2),
            "groups": ['{"colour": "red"}', '{"colour": "blue"}'] * (N // 2),
        }
    )
    both = [(view, i) for view in ("full", "q_only") for i in range(N)]
    cells = pd.DataFrame(
        {
            "item_id": [i for _, i in both],
            "view": [view for view, _ in both],
            "key": [f"{i}" if view == "full" else "one" for view, i in both],
        }
    )
    scores = pd.DataFrame({"key": [*map(str, range(N)), "one"], "logits": [[1.0, 0.0]] * (N + 1)})
    answers = cells.rename(columns={"view": "method"}).drop(columns="key")
    answers = answers.assign(task="mcq", test="T5", split="test", pred="A")
    answers["correct"] = answers["item_id"] % 2 == 0
    rows = own.metric_rows(items, answers, StoredScores(cells, scores, pd.DataFrame()))
    rows = rows[rows["test"] == "all"].set_index(["method", "attribute", "group", "metric"])
    for key in (
        ("", "", "share_A"),
        ("colour", "red", "accuracy"),
        ("colour", "max", "disparity"),
    ):
        full, alone, metric = rows.loc[("full", *key)], rows.loc[("q_only", *key)], key[-1]
        assert full["clusters"] >= N // 2
        assert full["note"] == (
            "no interval: the value is the same in every cluster" if metric == "disparity" else ""
        )
        assert np.isfinite([full["low"], full["high"]]).all() == (metric != "disparity")
        assert alone["value"] == full["value"] and alone["clusters"] == 1
        assert np.isnan(alone["low"]) and alone["note"] == "1 cluster: too few for an interval"

    wrong = own.metric_rows(
        items, answers.assign(correct=False), StoredScores(cells, scores, pd.DataFrame())
    )
    apart = wrong[wrong["metric"] == "disparity"]
    assert apart["value"].isna().all() and set(apart["missing_reason"]) == {"no answer right"}
