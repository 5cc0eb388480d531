"""The second suite's arithmetic on answers counted by hand: what is right, what is unread, and what
is asked about a wrong class."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.people_items import build_items, build_prompts, view_cells
from sdgbias.suites import facet, facet_groups
from sdgbias.suites.suite import StoredScores

N = 40


@pytest.fixture(scope="module")
def items() -> pd.DataFrame:
    """40 nurses, every other one a woman, all asked p1, and p2 and p3 about the right and about a
    wrong class."""
    people = pd.DataFrame(
        {
            "person_id": [f"p{i:02d}" for i in range(N)],
            "image_id": [f"i{i:02d}" for i in range(N)],
            "class1": "nurse",
        }
    )
    people = people.assign(
        gender=["male", "female"] * (N // 2), skin="unknown", age="young", race="", split="test"
    )
    return build_items(people).sort_values(["person_id", "prompt", "negative"], ignore_index=True)


def scored(
    items: pd.DataFrame,
    text: dict[str, list[str]],
    logits: dict[str, list[list[float]]] | None = None,
) -> StoredScores:
    """Texts by 'p1', 'p2 right', 'p2 wrong', ... in the order of persons; logits of the same and of
    'p2 right alone'."""
    cells = view_cells(build_prompts(items)).merge(
        items[["item_id", "person_id", "negative"]], on="item_id"
    )
    cells = cells.assign(
        key=[f"{i}|{v}" for i, v in zip(cells["item_id"], cells["view"], strict=True)]
    )
    said, numbers = [], []
    for (test, negative, view), part in cells.groupby(["test", "negative", "view"]):
        name = str(test) if test == "p1" else f"{test} {'wrong' if negative else 'right'}"
        part = part.sort_values("person_id")
        if view == "full" and name in text:
            said.append(
                pd.DataFrame(
                    {"key": part["key"], "start": "", "text": text[name], "truncated": False}
                )
            )
        which = name if view == "full" else f"{name} alone"
        if logits and which in logits:
            numbers.append(
                pd.DataFrame(
                    {"key": part["key"], "logits": pd.Series(logits[which], index=part.index)}
                )
            )
    scores = pd.concat(numbers) if numbers else pd.DataFrame({"key": [], "logits": []})
    return StoredScores(cells.drop(columns=["person_id", "negative"]), scores, pd.concat(said))


def rows(
    items: pd.DataFrame, found: StoredScores
) -> dict[tuple[str, str, str, str], tuple[float, int]]:
    """(test, method, group, metric) -> (value, n), all classes pooled."""
    table = facet.predictions(items, facet.answers(found), facet.choices(found))
    made = facet.metric_rows(items, table, draws=20)
    made = made[made["x"] == 52]
    return {
        (r["test"], r["method"], r["group"] or "all", r["metric"]): (r["value"], r["n"])
        for r in made.to_dict("records")
    }


def test_only_a_label_is_right_and_every_answer_is_counted(items: pd.DataFrame) -> None:
    """Of 40 answers: 20 nurse (all from men), 5 empty, 5 naming two, 5 of no class, 5 refusals."""
    others = ["", "nurse or doctor", "pilot", "I'm sorry, I can't help with that"]
    men = iter(["nurse"] * 20)
    women = iter([text for text in others for _ in range(5)])
    made = rows(
        items, scored(items, {"p1": [next(men) if i % 2 == 0 else next(women) for i in range(N)]})
    )
    assert made["p1", "full", "all", "recall"] == (0.5, N)
    assert made["p1", "full", "male", "recall"] == (1.0, 20) and made[
        "p1", "full", "female", "recall"
    ] == (0.0, 20)
    assert made["p1", "full", "male", "disparity"] == (1.0, 20)
    assert made["p1", "full", "all", "unparsed_rate"] == (15 / N, N) and made[
        "p1", "full", "all", "refusal_rate"
    ] == (5 / N, N)
    assert made["p1", "full", "female", "unparsed_rate"] == (15 / 20, 20)
    assert math.isnan(made["p1", "full", "dark", "recall"][0])


@pytest.mark.parametrize(
    ("texts", "why", "recalled"),
    [
        (["12.5"] * N, facet.NOT_UNDERSTOOD, math.nan),
        (["doctor", "12.5"] * (N // 2), facet.NONE_RIGHT, 0.0),
    ],
)
def test_answers_that_are_never_right_have_no_disparity(
    items: pd.DataFrame, texts: list[str], why: str, recalled: float
) -> None:
    found = scored(items, {"p1": texts})
    table = facet.predictions(items, facet.answers(found), facet.choices(found))
    made = facet.metric_rows(items, table, draws=20)
    apart = made[made["metric"] == "disparity"]
    assert len(apart) and set(apart["missing_reason"]) == {why}
    assert apart[["value", "low", "high"]].isna().all(axis=None)
    by_gender = apart[(apart["other"] == "female") & (apart["x"] == 52)]
    assert by_gender["n"].tolist() == [20]
    recall = made[(made["metric"] == "recall") & (made["x"] == 52)]
    [[value, n, reason]] = recall[recall["attribute"] == ""][
        ["value", "n", "missing_reason"]
    ].values.tolist()
    # wrong answers count as wrong, and are never dropped; answers that nobody understood are none
    assert n == N
    assert value == pytest.approx(recalled, nan_ok=True) and math.isnan(value) == (reason == why)
    one_right = facet.predictions(
        items, facet.answers(scored(items, {"p1": ["nurse", *texts[1:]]})), facet.choices(found)
    )
    assert (
        facet.metric_rows(items, one_right, draws=20)
        .query("metric == 'disparity'")["value"]
        .notna()
        .any()
    )


def test_no_to_every_question_has_no_disparity(items: pd.DataFrame) -> None:
    """It is right about each wrong class, and recognises nobody."""
    made = rows(items, scored(items, {"p2 right": ["No"] * N, "p2 wrong": ["No"] * N}))

    assert made["p2", "full", "female", "recall"] == (0.0, 20)
    assert math.isnan(made["p2", "full", "male", "disparity"][0])
    assert made["p2", "full", "all", "no_rate"] == (1.0, N)


def test_questions_about_a_wrong_class_are_no_part_of_recall(items: pd.DataFrame) -> None:
    """Yes to 30 of 40 right classes, and to 10 of 40 wrong ones; No to the others, Unknown to two
    of the right ones."""
    right = ["A. Yes"] * 30 + ["C"] * 2 + ["B. No"] * 8
    made = rows(
        items,
        scored(items, {"p2 right": right, "p2 wrong": ["Yes"] * 10 + ["No"] * 29 + ["maybe not"]}),
    )
    assert made["p2", "full", "all", "recall"] == (0.75, N)
    assert made["p2", "full", "all", "no_rate"] == (8 / N, N) and made[
        "p2", "full", "all", "unknown_rate"
    ] == (2 / N, N)
    assert made["p2", "full", "all", "false_yes_rate"] == (0.25, N)
    assert made["p2", "full", "all", "unparsed_rate"] == (1 / (2 * N), 2 * N), (
        "of all answers to the prompt"
    )


def test_first_tokens_with_and_without_the_picture_are_kept_apart(items: pd.DataFrame) -> None:
    yes, no, tie = [2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 1.0, 0.0]
    logits = {
        "p3 right": [yes] * 25 + [no] * 14 + [tie],
        "p3 wrong": [no] * N,
        "p3 right alone": [no] * N,
        "p3 wrong alone": [yes] * N,
    }
    made = rows(items, scored(items, {"p3 right": ["C"] * N}, logits))
    assert made["p3", "full_argmax", "all", "recall"] == (26 / N, N), (
        "a tie goes to the earlier letter"
    )
    assert made["p3", "full_argmax", "all", "false_yes_rate"] == (0.0, N)
    assert made["p3", "q_only", "all", "recall"] == (0.0, N) and made[
        "p3", "q_only", "all", "false_yes_rate"
    ] == (1.0, N)
    assert ("p3", "q_only", "all", "unparsed_rate") not in made and made[
        "p3", "full", "all", "recall"
    ] == (0.0, N)


def test_a_question_without_an_answer_has_no_row(items: pd.DataFrame) -> None:
    found = scored(items, {"p1": ["nurse"] * N})
    short = StoredScores(found.cells, found.scores, found.generations.iloc[:30])
    assert rows(items, short)["p1", "full", "all", "recall"] == (1.0, 30)
    nothing = np.array([np.nan, np.nan, np.nan])
    blank = scored(items, {"p1": ["nurse"] * N}, {"p3 right": [list(nothing)] * N})
    assert set(facet.choices(blank)["label"]) == {""}


def test_answers_without_a_picture_count_prompts(items: pd.DataFrame) -> None:
    """Forty nurses share one prompt: one answer, and no interval."""
    yes = [2.0, 0.0, 0.0]
    logits = {"p3 right": [yes] * N, "p3 right alone": [yes] * N}
    found = scored(items, {"p3 right": ["A"] * N}, logits)
    table = facet.predictions(items, facet.answers(found), facet.choices(found))
    made = facet.metric_rows(items, table, draws=20).query("metric == 'recall' and attribute == ''")
    for method, clusters, note in (("q_only", 1, "too few prompts"), ("full_argmax", N, "")):
        r = made[(made["method"] == method) & (made["x"] == 52)].iloc[0]
        assert (r["value"], r["n"], r["clusters"], r["note"]) == (1.0, N, clusters, note)
        assert np.isnan(r["low"]) == (method == "q_only")


def test_the_papers_reading_is_of_people_of_known_gender_and_counts_empty_groups_as_0() -> None:
    frame = pd.DataFrame(
        [
            ("nurse", "male", "young", "light", True),
            ("nurse", "female", "young", "light", False),
            ("nurse", "unknown", "old", "dark", True),
            ("doctor", "male", "old", "dark", True),
        ],
        columns=["class1", "gender", "age", "skin", "correct"],
    ).assign(image_id=list("abcd"))
    found = {
        (g.group, g.other, c, m): (e.value, e.n) for g, c, m, e in facet_groups.as_printed(frame)
    }
    assert found["old", "", "nurse", "recall"] == (0.0, 0), "nobody old whose gender is known"
    assert found["young", "old", "nurse", "disparity"] == (0.5, 0)
    assert found["young", "", "all", "recall"] == (0.5, 2), "a doctor is none of the 13 classes"
    assert found["male", "female", "nurse", "disparity"] == (1.0, 1), "groups of any size"
