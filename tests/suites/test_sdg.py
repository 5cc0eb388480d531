"""SDGBiasBench as a suite: predictions and metric rows of a few questions, counted by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from sdgbias.suites import sdg
from sdgbias.suites.suite import EvalSettings, StoredScores
from sdgbias.types import TESTS, ContextTest, Task, View

T1, T2, T3 = ContextTest.T1, ContextTest.T2, ContextTest.T3
#: Logits of a sure answer (its probability is above every tau that is searched) and of an unsure
#: one (below every tau).
SURE, UNSURE, EVEN = 20.0, 0.2, 0.0
#: item, split, pillar, indicator, polarity, options, gold, Full's answer and logit, IMG+Q's answer.
MCQ = [
    (1, "test", "P1", "i1", "higher", 3, "A", ("A", UNSURE), "B"),  # CADE: B, broken
    (2, "test", "P1", "i1", "higher", 3, "B", ("A", UNSURE), "B"),  # CADE: B, fixed
    (3, "test", "P2", "i2", "lower", 3, "C", ("C", SURE), "A"),  # the gate keeps C
    (4, "test", "P2", "i2", "lower", 3, "A", ("A", UNSURE), "A"),
    (5, "test", "P2", "i3", "higher", 2, "B", ("B", UNSURE), "B"),
    (6, "val", "P1", "i1", "higher", 3, "A", ("A", SURE), "A"),
    (7, "test", "P1", "i1", "higher", 3, "C", ("A", UNSURE), "C"),  # CADE: C, fixed
]


def toward(answer: str, logit: float, options: int) -> np.ndarray:
    return np.array([logit if c == answer else 0.0 for c in "ABC"[:options]], dtype=np.float32)


def mcq_items() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "item_id": i,
                "cluster_id": f"c{i}",
                "split": split,
                "pillar": pillar,
                "indicator": indicator,
                "polarity": polarity,
                **{f"option_{c.lower()}": c if at < k else "" for at, c in enumerate("ABC")},
                "answer": gold,
            }
            for i, split, pillar, indicator, polarity, k, gold, *_ in MCQ
        ]
    )


def mcq_scored(
    changed: Mapping[tuple[int, ContextTest, View], tuple[str, float]] | None = None,
    absent: Sequence[tuple[int, ContextTest, View]] = (),
) -> StoredScores:
    """Every view of MCQ under T1 to T5. CTX+Q and Q-only are even, so CADE's score is the image
    stream's. Q-only asks one prompt per indicator. Item 1 puts 0.4 on its letters under T1 in Full,
    where 'The' is likelier than they are."""
    cells, scores = [], {}
    for i, _, _, indicator, _, k, _, full, img in MCQ:
        for test in TESTS[Task.MCQ]:
            for view in View:
                key = indicator if view is View.Q_ONLY else f"{i}-{test}-{view}"
                cells.append(("mcq", i, test.value, view.value, key))
                answer, logit = {View.FULL: full, View.IMG_Q: (img, SURE)}.get(view, ("", EVEN))
                answer, logit = (changed or {}).get((i, test, view), (answer, logit))
                odd = (i, test, view) == (1, T1, View.FULL)
                if (i, test, view) not in absent:
                    scores[key] = {
                        "key": key,
                        "logits": toward(answer, logit, k),
                        "mass": 0.4 if odd else 1.0,
                        "top_token": "The" if odd else answer or "A",
                        "upper": None,
                    }
    return StoredScores(
        pd.DataFrame(cells, columns=["task", "item_id", "test", "view", "key"]),
        pd.DataFrame(list(scores.values())),
        pd.DataFrame({"key": [], "start": [], "text": [], "truncated": []}),
    )


def summary(items: pd.DataFrame, task: Task, scored: StoredScores) -> sdg.Summary:
    return sdg.summarise({task: items}, scored, EvalSettings(draws=20, mode="continue"))


def cell(
    rows: pd.DataFrame, test: str, method: str, pillar: str = "", indicator: str = "all"
) -> dict[str, tuple[float, int]]:
    """metric -> (value, n) of one cell."""
    mine = rows[
        (rows["test"] == test)
        & (rows["method"] == method)
        & (rows["group"] == pillar)
        & (rows["indicator"] == indicator)
    ]
    assert not mine["metric"].duplicated().any()
    return {
        m: (pytest.approx(v), n)
        for m, v, n in zip(mine["metric"], mine["value"], mine["n"], strict=True)
    }


def test_accuracy_and_directions_of_a_view_by_hand() -> None:
    """Full under T1: 1 and 2 and 7 say A, 3 says C, 4 A, 5 B. Right are 1, 3, 4 and 5. Where lower
    is better A is the optimistic answer: pessimistic are 1, 2, 7 and 3, optimistic is 4."""
    rows = summary(mcq_items(), Task.MCQ, mcq_scored()).metrics
    assert cell(rows, "T1", "full") == {
        "accuracy": (4 / 6, 6),
        "share_pessimistic": (4 / 5, 5),
        "share_conservative": (0.0, 5),
        "share_optimistic": (1 / 5, 5),
        "share_optimistic_two_option": (1.0, 1),
        "candidate_mass": ((0.4 + 5 * 1.0) / 6, 6),
        "off_candidate_rate": (1 / 6, 6),
        "tie_rate": (0.0, 6),
        "near_tie_rate": (0.0, 6),
    }
    assert cell(rows, "T1", "full", "P1")["accuracy"] == (1 / 3, 3)
    assert cell(rows, "T1", "full", "P2")["accuracy"] == (3 / 3, 3)
    assert cell(rows, "T1", "full", "P2", "i2")["share_optimistic"] == (1 / 2, 2)
    assert "share_optimistic" not in cell(rows, "T1", "full", "P2", "i3")
    # even logits are a tie, which goes to A: right for 1 and 4
    assert cell(rows, "T1", "q_only")["accuracy"] == (2 / 6, 6)


def test_ties_and_near_ties_are_counted_with_the_unit_of_accuracy() -> None:
    """Q-only has even logits everywhere; under T1 Full of 1 and 2 gets margins of 0.04 and 0.06."""
    scored = mcq_scored()
    logits = scored.scores.set_index("key")["logits"]
    for key, margin in ((f"1-{T1}-{View.FULL}", 0.04), (f"2-{T1}-{View.FULL}", 0.06)):
        z = np.array(logits[key], dtype=float)
        z[np.argmax(z)] = np.sort(z)[-2] + margin
        scored.scores.at[scored.scores.index[scored.scores["key"] == key][0], "logits"] = z
    for near, found in ((1e-3, 0.0), (0.05, 1 / 6), (0.1, 2 / 6)):
        rows = summary(mcq_items(), Task.MCQ, dataclasses.replace(scored, near=near)).metrics
        full, alone = cell(rows, "T1", "full"), cell(rows, "T1", "q_only")
        assert full["tie_rate"] == (0.0, 6) and full["near_tie_rate"] == (found, 6)
        assert alone["tie_rate"] == alone["near_tie_rate"] == (1.0, 6)
    mine = rows[(rows["metric"] == "near_tie_rate") & (rows["method"] == "full")]
    assert (
        mine["low"]
        .notna()
        .equals(
            rows[(rows["metric"] == "accuracy") & (rows["method"] == "full")]["low"]
            .notna()
            .set_axis(mine.index)
        )
    )
    assert not ((rows["method"] == "cade") & rows["metric"].str.endswith("tie_rate")).any()


def test_where_lower_is_better_the_first_answer_is_the_optimistic_one() -> None:
    """i2 (lower is better): 3 says B and 4 says A. i3, turned to lower as well, says B of two."""
    items = mcq_items()
    items.loc[items["indicator"] == "i3", "polarity"] = "lower"
    scored = mcq_scored(changed={(3, T1, View.FULL): ("B", SURE)})
    rows = summary(items, Task.MCQ, scored).metrics
    found = cell(rows, "T1", "full", "P2", "i2")
    shares = [found[f"share_{d}"] for d in ("pessimistic", "conservative", "optimistic")]
    assert shares == [(0.0, 2), (1 / 2, 2), (1 / 2, 2)]
    assert cell(rows, "T1", "full", "P2", "i3")["share_optimistic_two_option"] == (0.0, 1)


def test_an_indicator_without_polarity_has_no_direction() -> None:
    items = mcq_items()
    items.loc[items["indicator"].isin(["i2", "i3"]), "polarity"] = ""
    found = cell(summary(items, Task.MCQ, mcq_scored()).metrics, "T1", "full")
    assert found["share_pessimistic"] == (3 / 3, 3) and found["accuracy"] == (4 / 6, 6)
    assert "share_optimistic_two_option" not in found


def test_all_tests_are_pooled_and_prompts_of_q_only_are_counted_once() -> None:
    """Item 1 says B under T2: 4 of 6 right in four tests and 3 of 6 in one."""
    scored = mcq_scored(changed={(1, T2, View.FULL): ("B", SURE)})
    rows = summary(mcq_items(), Task.MCQ, scored).metrics
    assert cell(rows, "T2", "full")["accuracy"] == (3 / 6, 6)
    assert cell(rows, "all", "full")["accuracy"] == ((4 * 4 + 3) / 30, 30)
    assert cell(rows, "T1", "q_only")["distinct_prompts"] == (3.0, 6)
    assert cell(rows, "all", "q_only")["distinct_prompts"] == (3.0, 30)
    assert cell(rows, "all", "q_only", "P2")["distinct_prompts"] == (2.0, 15)
    assert not {"distinct_prompts"} & set(cell(rows, "T1", "full"))


def test_cade_against_the_full_view_on_the_same_rows() -> None:
    """IMG+Q turns 1 (broken), 2 and 7 (fixed); the gate keeps 3, whose Full view is sure."""
    made = summary(mcq_items(), Task.MCQ, mcq_scored())
    found = cell(made.metrics, "T1", "cade")
    assert {m: found[m] for m in found if not m.startswith(("share", "candidate", "off"))} == {
        "accuracy": (5 / 6, 6),
        "accuracy_gain": (1 / 6, 6),
        "changed_rate": (3 / 6, 6),
        "fixed_rate": (2 / 6, 6),
        "broken_rate": (1 / 6, 6),
        "kept_rate": (1 / 6, 6),
    }
    table = made.predictions
    cade = table[(table["method"] == "cade") & (table["test"] == "T1")].set_index("item_id")
    assert cade["pred"].to_dict() == {1: "B", 2: "B", 3: "C", 4: "A", 5: "B", 6: "A", 7: "C"}
    assert cade["kept"].to_dict() == {i: i in (3, 6) for i in range(1, 8)}
    full = table[(table["method"] == "full") & (table["test"] == "T1")]
    assert full["kept"].all() and full["value"].isna().all() and full["error"].isna().all()
    params = made.params[made.params["test"] == "T1"].iloc[0]
    assert (params["val_value"], params["n_val"], params["objective"]) == (1.0, 1, "accuracy")


def test_without_validation_rows_there_is_no_cade() -> None:
    items = mcq_items().assign(split="test")
    made = summary(items, Task.MCQ, mcq_scored())
    assert set(made.predictions["method"]) == {v.value for v in View} and made.params.empty
    assert cell(made.metrics, "T1", "full")["accuracy"] == (5 / 7, 7)


def test_what_has_no_score_is_left_out_of_its_view_and_counted_by_n() -> None:
    """Under T1 item 4 lacks CTX+Q: CADE goes without. Under T3 item 5 lacks Full and IMG+Q, so CADE
    can't be asked; item 2 lacks Full only: CADE answers, and there is nothing to compare with."""
    absent = [(4, T1, View.CTX_Q), (5, T3, View.FULL), (5, T3, View.IMG_Q), (2, T3, View.FULL)]
    rows = summary(mcq_items(), Task.MCQ, mcq_scored(absent=absent)).metrics
    assert cell(rows, "T1", "ctx_q")["accuracy"] == (1 / 5, 5)
    assert cell(rows, "T1", "cade")["accuracy"] == (5 / 6, 6)
    assert cell(rows, "T3", "full")["accuracy"] == (3 / 4, 4)
    found = cell(rows, "T3", "cade")
    assert found["accuracy"] == (4 / 5, 5)
    assert found["accuracy_gain"] == ((1 - 1) / 4, 4) and found["changed_rate"] == (2 / 4, 4)


def withheld(scored: StoredScores, *views: View, item: int | None = None) -> StoredScores:
    """No candidate of these views is named, of one item under T1 or of all."""
    scores = scored.scores.copy()
    for at, key in enumerate(scores["key"]):
        if any(key.endswith(f"-{v}") and key.startswith(f"{item or ''}") for v in views):
            scores.at[at, "logits"] = np.full(len(scores.at[at, "logits"]), -np.inf)
            scores.at[at, "upper"] = np.full(len(scores.at[at, "logits"]), -2.0)
    return dataclasses.replace(scored, scores=scores)


def test_where_neither_full_nor_img_q_names_a_candidate_cade_has_no_answer() -> None:
    made = summary(mcq_items(), Task.MCQ, withheld(mcq_scored(), View.FULL, View.IMG_Q, item=2))
    answers = made.predictions.set_index(["test", "method", "item_id"])["pred"]
    assert (T1, "cade", 2) not in answers.index and (T1, "cade", 1) in answers.index
    assert cell(made.metrics, "T1", "cade")["certain_rate"] == (5 / 6, 6)
    half = summary(mcq_items(), Task.MCQ, withheld(mcq_scored(), View.FULL, item=2)).predictions
    assert (T1, "cade", 2) in half.set_index(["test", "method", "item_id"]).index


def test_all_tests_are_those_that_were_asked() -> None:
    """A model that names no candidate, and answered Full at T1 in words."""
    scored = withheld(mcq_scored(), View.FULL, View.IMG_Q, View.CTX_Q)
    blind = scored.scores["key"].isin(["i1", "i2", "i3"])
    keys = [key for key in scored.scores["key"] if key.endswith(f"-{T1}-{View.FULL}")]
    texts = pd.DataFrame({"key": keys, "start": "", "text": "A", "truncated": False})
    scored = dataclasses.replace(scored, scores=scored.scores[~blind], generations=texts)
    rows = summary(mcq_items(), Task.MCQ, scored).metrics
    assert cell(rows, "T1", "full_generated")["accuracy"] == (2 / 6, 6)
    assert cell(rows, "all", "full_generated") == {}


# ----------------------------------------------------------------------
# numbers

#: item, split, gold, tolerance, Full's free answer, first digit of Full (unsure) and IMG+Q (sure)
NUMBERS = [
    (1, "test", 40.0, 5.0, "38", "3", "4"),  # CADE: 4 leads to 44
    (2, "test", 70.0, 4.0, "75", "7", "7"),  # CADE: 7 leads to 77
    (3, "val", 40.0, 5.0, "41", "4", "4"),
    (4, "test", 20.0, 2.0, "22", "2", "1"),  # CADE: 1 leads to 11
]


def number_items() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "item_id": [r[0] for r in NUMBERS],
            "cluster_id": [f"c{r[0]}" for r in NUMBERS],
            "split": [r[1] for r in NUMBERS],
            "pillar": "P1",
            "indicator": "i1",
            "answer": [r[2] for r in NUMBERS],
            "tolerance": [r[3] for r in NUMBERS],
        }
    )


def number_scored(silent: Sequence[int] = ()) -> StoredScores:
    """Each first digit d leads to dd: 4 to 44. The other views say 50 freely. Of ``silent`` items
    no number was decoded yet."""
    cells, scores, said = [], [], []
    for i, _, _, _, free, unsure, sure in NUMBERS:
        for test in TESTS[Task.REGRESSION]:
            for view in View:
                key = f"{i}-{test}-{view}"
                cells.append(("regression", i, test.value, view.value, key))
                digit, logit = {View.FULL: (unsure, UNSURE), View.IMG_Q: (sure, SURE)}.get(
                    view, ("", EVEN)
                )
                logits = np.array([logit if d == digit else 0.0 for d in "0123456789"])
                scores.append((key, logits.astype(np.float32), 1.0, digit or "0", None))
                if i in silent:
                    continue
                said.append((key, "", free if view is View.FULL else "50"))
                if view is View.FULL:
                    said += [(key, d, 2 * d) for d in "0123456789"]
    return StoredScores(
        pd.DataFrame(cells, columns=["task", "item_id", "test", "view", "key"]),
        pd.DataFrame(scores, columns=["key", "logits", "mass", "top_token", "upper"]),
        pd.DataFrame(said, columns=["key", "start", "text"]).assign(truncated=False),
    )


def test_errors_of_numbers_by_hand() -> None:
    """Full misses by 2, 5 and 2, within 5, 4 and 2 twice; CADE says 44, 77 and 11."""
    made = summary(number_items(), Task.REGRESSION, number_scored())
    full, cade = (cell(made.metrics, "T2", m) for m in ("full", "cade"))
    assert full["mae"] == ((2 + 5 + 2) / 3, 3) and full["interval_accuracy"] == (2 / 3, 3)
    assert full["unparsed_rate"] == (0.0, 3)
    assert cade["mae"] == ((4 + 7 + 9) / 3, 3) and cade["interval_accuracy"] == (1 / 3, 3)
    assert cade["mae_change"] == ((2 + 2 + 7) / 3, 3) and cade["changed_rate"] == (3 / 3, 3)
    assert cell(made.metrics, "T5", "q_only")["mae"] == ((10 + 20 + 30) / 3, 3)
    assert cell(made.metrics, "all", "full")["mae"] == (2 * (2 + 5 + 2) / 6, 6)
    table = made.predictions
    first = table[(table["item_id"] == 1) & (table["test"] == "T2")].set_index("method")
    assert first["pred"]["full"] == "3" and first["pred"]["cade"] == "4"
    assert (first["value"]["cade"], first["error"]["cade"]) == (44.0, 4.0)
    params = made.params.iloc[0]
    # the val row says 44 where 40 is right
    assert (params["objective"], params["val_value"]) == ("negative MAE", -4.0)


def test_a_row_without_its_numbers_tunes_nothing_and_has_no_answer() -> None:
    """Its scores are there, but not what its digits lead to: a test row leaves, and without the one
    val row there is nothing to tune CADE on."""
    rows = summary(number_items(), Task.REGRESSION, number_scored(silent=[2])).metrics
    assert cell(rows, "T2", "cade")["mae"] == ((4 + 9) / 2, 2)
    made = summary(number_items(), Task.REGRESSION, number_scored(silent=[3]))
    assert set(made.predictions["method"]) == {v.value for v in View} and made.params.empty


def test_numbers_are_decoded_for_the_views_of_the_paper() -> None:
    cells = pd.DataFrame(
        [
            ("regression", "T2", "full", "f"),
            ("regression", "T2", "q_only", "q"),
            ("regression", "T2", "full_blurred", "x"),
            ("mcq", "T1", "full", "m1"),
            ("mcq", "T3", "full", "m3"),
            ("mcq", "T1", "q_only", "mq"),
        ],
        columns=["task", "test", "view", "key"],
    )
    distinct = pd.DataFrame({"key": ["f", "q", "x", "m1", "m3", "mq"]})

    def decoded(generated: str, **abilities: bool) -> set[str]:
        settings = sdg.EvalSettings(generated=generated)  # type: ignore[arg-type]
        able = sdg.Abilities(**abilities)
        return set(sdg.generations_needed(cells, distinct, settings, able)["key"])

    assert decoded("none") == {"f", "q"}
    assert decoded("T1") == {"f", "q", "m1"}
    assert decoded("all") == {"f", "q", "m1", "m3"}
    assert decoded("views") == {"f", "q", "m1", "m3", "mq"}
    for generated in ("none", "T1", "all"):  # without scores Full is all that is measured
        assert decoded(generated, gives_scores=False) == {"f", "m1", "m3"}
    assert decoded("views", gives_scores=False) == {"f", "q", "m1", "m3", "mq"}


def test_logits_follow_the_items_and_lack_what_an_item_lacks() -> None:
    items = mcq_items().iloc[[4, 0]]
    scored = mcq_scored(absent=[(1, T2, View.FULL)])
    keys, logits, upper = sdg.view_logits(scored, items, Task.MCQ, T1, View.FULL)
    assert keys.tolist() == ["5-T1-full", "1-T1-full"]
    np.testing.assert_array_equal(
        logits, np.array([[0.0, UNSURE, np.nan], [UNSURE, 0.0, 0.0]], dtype=np.float32)
    )
    assert np.isnan(upper).all()
    assert np.isnan(sdg.view_logits(scored, items, Task.MCQ, T2, View.FULL)[1][1]).all()


def test_a_changed_answer_that_is_wrong_before_and_after_counts_as_changed() -> None:
    """Item 7 goes from A to B where C is right."""
    scored = mcq_scored({(7, test, View.IMG_Q): ("B", SURE) for test in TESTS[Task.MCQ]})

    found = cell(summary(mcq_items(), Task.MCQ, scored).metrics, "T1", "cade")

    assert found["changed_rate"] == (3 / 6, 6)
    assert found["fixed_rate"] == (1 / 6, 6) and found["broken_rate"] == (1 / 6, 6)


@pytest.mark.parametrize(("token", "off"), [("3", 0), ("30", 0), ("x3", 1), ("The", 1)])
def test_a_number_of_several_digits_in_one_token_begins_with_a_candidate(
    token: str, off: int
) -> None:
    scored = number_scored()
    scored.scores["top_token"] = token

    found = cell(summary(number_items(), Task.REGRESSION, scored).metrics, "T2", "full")

    assert found["off_candidate_rate"] == (off, 3)


def test_a_letter_that_a_question_lacks_is_none_of_its_candidates() -> None:
    """Of items 1 to 7 the fifth has two options."""
    scored = mcq_scored()
    scored.scores["top_token"] = "C"

    rows = summary(mcq_items(), Task.MCQ, scored).metrics

    assert cell(rows, "T1", "full")["off_candidate_rate"] == (1 / 6, 6)


def test_questions_without_a_pillar_have_no_row_by_pillar() -> None:
    items = mcq_items().assign(pillar="", indicator="")

    rows = summary(items, Task.MCQ, mcq_scored()).metrics

    assert set(rows["attribute"]) == {""} and set(rows["indicator"]) == {"all"}


def test_questions_without_context_are_generated_at_their_only_test() -> None:
    """Custom questions that have no contexts are asked under T5 alone."""
    cells = pd.DataFrame(
        [("mcq", "T5", "full", "m5"), ("mcq", "T5", "q_only", "q5")],
        columns=["task", "test", "view", "key"],
    )

    needed = sdg.generations_needed(
        cells, pd.DataFrame({"key": ["m5", "q5"]}), EvalSettings(generated="T1"), sdg.Abilities()
    )

    assert list(needed["key"]) == ["m5"]
