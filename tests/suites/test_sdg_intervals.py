"""What the intervals of metric rows count: places, or the distinct prompts that places share; and
what is said where there are too few."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike
from scipy.stats import binomtest

from sdgbias.methods import stats
from sdgbias.suites import sdg, sdg_metrics
from sdgbias.suites.suite import StoredScores
from sdgbias.types import TESTS, ContextTest, Task

PLACES, PROMPTS = 30, 6


def rows(
    method: str, prompts: int = PROMPTS, places: int = PLACES
) -> tuple[pd.DataFrame, pd.Series]:
    """Every place is asked every prompt; half the prompts are always answered right, half wrong."""
    frame = pd.DataFrame(
        {
            "method": method,
            "cluster_id": np.repeat(np.arange(places), prompts),
            "prompt": np.tile(np.arange(prompts), places),
        }
    )
    return frame, frame["prompt"] < prompts // 2


def shares_of(frame: pd.DataFrame, hits: ArrayLike) -> pd.DataFrame:
    """The rows of a share of answers, all of one test, by indicator (else of all)."""
    answers = {str(name): frame[name].to_numpy(dtype=object) for name in frame}
    answers |= {name: frame[name].to_numpy(dtype=np.int64) for name in ("cluster_id", "prompt")}
    empty = np.full(len(frame), "", dtype=object)
    answers = {"pillar": empty, "indicator": empty} | answers
    answers["test"] = np.full(len(frame), "T1", dtype=object)
    metric = sdg_metrics.AnswerMetric("hits", lambda a: np.asarray(hits, dtype=float))
    blocks = sdg_metrics.measured(answers, [metric], Task.MCQ)
    return max(blocks, key=len)


def share_of(frame: pd.DataFrame, hits: ArrayLike) -> dict[str, object]:
    return shares_of(frame, hits).iloc[0].to_dict()


def numbers(row: dict[str, object]) -> list[object]:
    return [row[name] for name in ("value", "n", "low", "high", "clusters")]


def told(e: stats.Estimate) -> list[object]:
    return [e.value, e.n, e.low, e.high, e.clusters]


@pytest.mark.parametrize("method", ["q_only", "ctx_q"])
def test_image_free_views_take_the_wider_of_places_and_prompts(method: str) -> None:
    frame, hits = rows(method)
    row = share_of(frame, hits)
    assert numbers(row) == told(stats.share(hits, frame["prompt"]))
    assert row["clusters"] == PROMPTS
    # few places that differ, many prompts that don't
    frame, _ = rows(method, prompts=40, places=8)
    by_place = frame["cluster_id"] % 2 == 0
    assert numbers(share_of(frame, by_place)) == told(stats.share(by_place, frame["cluster_id"]))


@pytest.mark.parametrize("prompts", [6, 12])
def test_one_answer_per_prompt_on_many_places_is_covered_as_few_answers(prompts: int) -> None:
    """Each prompt draws one answer, and 60, 30 and 10 % of its places have the first, second and
    third as the right one, so that the expected accuracy is a third."""
    frames, draws = [], 150
    for i in range(draws):
        rng = np.random.default_rng([prompts, i])
        prompt = np.repeat(np.arange(prompts), rng.integers(3, 40, prompts))
        right = rng.choice(3, size=len(prompt), p=[0.6, 0.3, 0.1])
        hits = right == rng.integers(0, 3, prompts)[prompt]
        place = rng.integers(0, 60, len(prompt))
        each = {"indicator": f"draw {i}", "cluster_id": place, "prompt": prompt, "hits": hits}
        frames.append(pd.DataFrame(each).assign(method="q_only", pillar="p"))
    frame = pd.concat(frames, ignore_index=True)
    rows = shares_of(frame.drop(columns="hits"), frame["hits"])
    assert len(rows) == draws and rows["indicator"].nunique() == draws
    covered = ((rows["low"] <= 1 / 3) & (rows["high"] >= 1 / 3)).sum()
    by_place = [stats.share(f["hits"], f["cluster_id"]) for f in frames]
    covered_by_place = sum(e.low <= 1 / 3 <= e.high for e in by_place)
    assert binomtest(covered, draws, 0.93, alternative="less").pvalue > 0.01
    assert covered_by_place / draws < 0.8


@pytest.mark.parametrize("method", ["full", "img_q", "cade"])
def test_with_a_picture_every_place_is_a_prompt_of_its_own(method: str) -> None:
    frame, hits = rows(method)
    assert numbers(share_of(frame, hits)) == told(stats.share(hits, frame["cluster_id"]))


def test_a_question_shown_with_names_alone_is_one_prompt_in_every_test() -> None:
    keys = {
        "q_only": dict.fromkeys(ContextTest, "q"),
        "ctx_q": dict(
            zip(ContextTest, ("all {}", "some {}", "names", "fewer names", "q"), strict=True)
        ),
    }
    cells = pd.DataFrame(
        [
            {"task": "mcq", "item_id": place, "test": test.value, "view": view, "key": key}
            for place in ("x", "y")
            for view, of_test in keys.items()
            for test, key in of_test.items()
        ]
    )
    cells["key"] = [k.format(i) for k, i in zip(cells["key"], cells["item_id"], strict=True)]
    scored = StoredScores(cells, pd.DataFrame({"key": []}), pd.DataFrame())
    for method in ("ctx_q", "ctx_q_generated"):
        rows = cells[cells["view"] == "ctx_q"].assign(method=method)
        prompts = pd.Series(sdg_metrics.prompts_of(rows, Task.MCQ, scored), rows["test"])
        assert prompts[["T1", "T2"]].nunique() == 4
        assert prompts[["T3", "T4", "T5"]].nunique() == 1


def test_a_row_says_that_its_prompts_are_too_few() -> None:
    few = share_of(*rows("q_only", prompts=4))
    assert (few["clusters"], few["note"]) == (4, "too few prompts") and np.isnan(few["low"])
    frame, hits = rows("full")
    three = frame["cluster_id"] < 3
    few = share_of(frame[three], hits[three])
    assert (few["clusters"], few["note"]) == (3, "too few places")
    enough = share_of(frame, hits)
    assert (enough["clusters"], enough["note"]) == (PLACES, "")


def test_a_tuning_on_few_or_one_sided_val_rows_says_so() -> None:
    items = pd.DataFrame(
        {
            "split": ["val"] * 60 + ["test"] * 9,
            "answer": ["A"] * 60 + ["B"] * 9,
            "cluster_id": [*range(69)],
        }
    )
    both = items.assign(answer=["A", "B", "C"] * 23)
    assert sdg.tuning_note(both, Task.MCQ, 60) == ""
    assert sdg.tuning_note(both, Task.MCQ, 49) == "tuned on fewer than 50 val rows"
    assert sdg.tuning_note(items, Task.MCQ, 60) == "tuned on val rows with one gold answer"
    assert "; " in sdg.tuning_note(items, Task.MCQ, 12)
    assert sdg.tuning_note(items.assign(answer=1.0), Task.REGRESSION, 60) == ""


def test_test_questions_about_places_of_val_rows_are_counted_beside_the_number() -> None:
    items = pd.DataFrame(
        {
            "split": ["val", "val", "test", "test", "test"],
            "answer": ["A", "B", "A", "B", "C"],
            "cluster_id": ["x", "y", "x", "y", "z"],
        }
    )
    assert sdg.tuning_note(items, Task.MCQ, 60) == (
        "2 of 3 test questions are about a place of the val rows"
    )


def test_a_method_of_some_tests_alone_has_no_row_over_all() -> None:
    tests = [t.value for t in TESTS[Task.MCQ]]
    frame = pd.DataFrame(
        {
            "test": [*tests, "T1"],
            "method": [*["full"] * len(tests), "full_generated"],
            "pillar": "p",
            "indicator": "i",
        }
    )
    answers = {str(name): frame[name].to_numpy(dtype=object) for name in frame}
    answers |= {name: np.arange(len(frame)) for name in ("cluster_id", "prompt")}
    metric = sdg_metrics.AnswerMetric("hits", lambda a: np.ones(len(a["test"])))

    rows = pd.concat(sdg_metrics.measured(answers, [metric], Task.MCQ))

    whole = rows[rows["attribute"] == ""]
    pairs = set(zip(whole["test"], whole["method"], strict=True))
    assert pairs == {(t, "full") for t in [*tests, "all"]} | {("T1", "full_generated")}
