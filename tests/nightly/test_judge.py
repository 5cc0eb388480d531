"""The verdicts of the regression check on answers written here, and how often they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis import night_text
from sdgbias.analysis.nights import BREACH, FIRST, INSUFFICIENT, MISSING, PASS, overall
from sdgbias.methods import stats
from sdgbias.nightly.regression import judge
from sdgbias.nightly.regression.baseline import FIRST_RUN
from sdgbias.nightly.regression.evidence import RuleEvidence, of_rule
from sdgbias.nightly.regression.measured import ATTRIBUTE, RunAnswers
from sdgbias.nightly.regression.policy import Policy, Rule

RUN = {"n_prompts_planned": 5000, "n_failed": 0}


def side(
    values: Mapping[str, Any],
    places: int = 0,
    groups: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] = RUN,
    start: int = 0,
) -> RunAnswers:
    """values: test -> (n,) per question; rows of all tests share places, ``places`` of them
    (default: each row its own)."""

    parts = []
    for test, given in values.items():
        x = np.asarray(given, dtype=float)
        rows = np.arange(len(x))
        answers = {"key": rows + start, "correct": x, "cluster": rows % (places or len(x))}
        answers |= {"test": test, "optimistic": x, "three": True}
        answers |= {f"{ATTRIBUTE}{k}": v for k, v in (groups or {}).items()}
        parts.append(pd.DataFrame(answers))
    return RunAnswers(run, {("mcq", "full"): pd.concat(parts)} if parts else {})


def rule(**fields: Any) -> Rule:
    defaults: dict[str, Any] = {"name": "r", "metric": "accuracy", "task": "mcq", "min_n": 20}
    return Rule(**{**defaults, "methods": ("full",), "allowed": 0.02, **fields})


def rows_of(
    r: Rule, new: RunAnswers, old: RunAnswers | None = None, why: str = "", policy: Any = None
) -> list[dict[str, Any]]:
    return judge.apply_multiplicity(of_rule(r, new, old, why), policy or Policy((r,)))


def judged(r: Rule, before: Any, after: Any, policy: Any = None, **more: Any) -> dict[str, Any]:
    sides = (side({"T1": values}, **more) for values in (after, before))
    [row] = rows_of(r, *sides, policy=policy)
    return row


def hits(right: int, n: int) -> np.ndarray:
    return np.arange(n) < right


LOSS = (hits(300, 400), hits(260, 400))
GAIN = LOSS[::-1]
NO_CHANGE = (hits(30, 40), hits(30, 40))
THREE_WORSE = (np.ones(100), np.arange(100) >= 3)
QUARTER_WORSE = (np.ones(400), np.where(np.arange(400) % 4 == 0, 0, 1))
SMALL_LOSS = (hits(300, 400), hits(280, 400))
#: 80 of 400 leave the direction and 60 take it: -5 points, between -11 and +1; the upper end alone
#: is within the 2 points that are allowed.
FELL = (np.repeat([1, 0, 0], [80, 60, 260]), np.repeat([0, 1, 0], [80, 60, 260]))
EITHER, HIGHER = {"worse": "either"}, {"worse": "higher"}
SHARE = {"metric": "share_optimistic", **EITHER}


@pytest.mark.parametrize(
    ("fields", "runs", "places", "verdict"),
    [
        ({}, LOSS, 0, BREACH),
        pytest.param({"allowed": 0.2}, LOSS, 0, PASS, id="a sure loss within the margin"),
        ({}, GAIN, 0, PASS),
        (HIGHER, GAIN, 0, BREACH),
        (EITHER, GAIN, 0, BREACH),
        (EITHER, LOSS, 0, BREACH),
        ({"min_n": 401, "allowed": 0.04}, SMALL_LOSS, 0, INSUFFICIENT),
        pytest.param({"min_n": 400, "allowed": 0.08}, LOSS, 0, BREACH, id="as many as asked for"),
        pytest.param({"min_n": 401, "allowed": 0.08}, LOSS, 0, INSUFFICIENT, id="one less"),
        pytest.param({}, NO_CHANGE, 0, INSUFFICIENT, id="up to 8.8 % of places could be worse"),
        pytest.param({"allowed": 0.09}, NO_CHANGE, 0, PASS, id="where 9 % are allowed"),
        ({}, (hits(300, 400),) * 2, 0, PASS),
        ({}, QUARTER_WORSE, 0, BREACH),
        pytest.param({}, QUARTER_WORSE, 4, INSUFFICIENT, id="all of it in one of four places"),
        pytest.param({}, THREE_WORSE, 0, INSUFFICIENT, id="t says 0.04 and the coin 1/8"),
        pytest.param(SHARE, FELL, 0, INSUFFICIENT, id="it may have fallen too far"),
        pytest.param(SHARE, FELL[::-1], 0, INSUFFICIENT, id="it may have risen too far"),
    ],
)
def test_verdicts(fields: dict[str, Any], runs: tuple[Any, Any], places: int, verdict: str) -> None:
    assert judged(rule(**fields), *runs, places=places)["verdict"] == verdict


def test_given_a_verdict_then_numbers_and_note_say_what_moved_and_why() -> None:
    row = judged(rule(), *LOSS)
    assert (row["before"], row["value"], row["n"]) == (0.75, 0.65, 400) and row["p"] < 0.001
    assert row["change"] == pytest.approx(-0.10) and row["ci_low"] < -0.10 < row["ci_high"] < 0
    moved = "0 better, 40 worse, groups of questions 0 to 40, sign test p < 0.001"
    assert row["note"].startswith(moved)
    few = judged(rule(min_n=401, allowed=0.04), *SMALL_LOSS)
    assert "fewer than 401" in few["note"] and np.isnan(few["p"])
    notes = [judged(rule(), *LOSS, places=places)["note"] for places in (9, 10)]
    assert ["independent groups of questions only" in note for note in notes] == [True, False]
    wide = judged(rule(), np.ones(60), np.arange(60) % 6 > 2, places=6)  # half of the places
    assert (wide["ci_low"], wide["change"]) == (-1, -0.5), "no share falls by more than all of it"
    still = judged(rule(), *NO_CHANGE)
    assert "up to 8.8 % could go unseen" in still["note"] and np.isnan(still["mde"])


@pytest.mark.parametrize(
    ("fields", "runs", "verdict"),
    [
        pytest.param({}, (hits(300, 400),) * 2, PASS, id="nothing changed"),
        pytest.param(EITHER, (np.zeros(400), np.ones(400)), BREACH, id="everything changed"),
        pytest.param(
            {"metric": "disparity", "by": ("country",), "worse": "higher"},
            (hits(300, 400),) * 2,
            PASS,
            id="a gap that didn't change",
        ),
    ],
)
def test_where_nothing_varies_a_verdict_has_no_interval_and_says_why(
    fields: dict[str, Any], runs: tuple[Any, Any], verdict: str
) -> None:
    row = judged(rule(**fields), *runs, groups={"country": np.where(np.arange(400) % 2, "A", "B")})
    assert row["verdict"] == verdict and np.isnan([row["ci_low"], row["ci_high"]]).all()
    assert judge.ALIKE in row["note"] and night_text.cells(row)["ci"] == ""


@pytest.mark.parametrize(
    ("fields", "runs", "p"),
    [({}, THREE_WORSE, 1 / 8), ({}, THREE_WORSE[::-1], 1 - 1 / 8), (EITHER, THREE_WORSE, 2 / 8)],
    ids=["worse", "better is no proof of worse", "both tails count"],
)
def test_given_three_changed_answers_then_p_is_that_of_a_coin(
    fields: dict[str, Any], runs: tuple[Any, Any], p: float
) -> None:
    assert judged(rule(**fields), *runs)["p"] == pytest.approx(p)


@pytest.mark.parametrize(
    ("fields", "sides", "margin"),
    [({"worse": "lower"}, 2, 0.0), (EITHER, 1, 0.0), ({"allowed": 0.02}, 2, 0.02)],
)
def test_given_too_little_evidence_then_the_smallest_detectable_effect_is_named(
    fields: dict[str, Any], sides: int, margin: float
) -> None:
    """Seen at 5 % in all (of one side at 2 x 5 %), and beyond the margin four times of five."""
    rng = np.random.default_rng(0)
    before, after = rng.random(60) < 0.6, rng.random(60) < 0.6
    test = stats.paired(after.astype(float) - before, np.arange(60))
    row = judged(rule(**{"allowed": 0.0, **fields}), before, after)
    seen = stats.minimum_detectable(test.se, 59, alpha=sides * 0.05)
    assert row["verdict"] == INSUFFICIENT
    assert row["mde"] == pytest.approx(max(seen, margin + 0.8477 * test.se), rel=1e-3)


def test_given_groups_that_show_no_change_of_any_size_then_none_is_named() -> None:
    """Six places of ten questions, each all for the better or all for the worse."""
    before = np.tile([0, 1], 30)
    row = judged(rule(), before, 1 - before, places=6)
    assert row["verdict"] == INSUFFICIENT and np.isnan(row["mde"])


def test_given_changes_that_even_out_then_a_rule_within_pillars_sees_them() -> None:
    groups = {"pillar": np.repeat(["Health", "Infrastructure"], 200)}
    before = np.concatenate([hits(100, 200), hits(160, 200)])
    after = np.concatenate([hits(160, 200), hits(100, 200)])

    def verdicts(**fields: object) -> dict[str, str]:
        sides = (side({"T1": values}, groups=groups) for values in (after, before))
        rows = rows_of(rule(worse="either", **fields), *sides)
        return {str(row["level"]): str(row["verdict"]) for row in rows}

    assert BREACH not in verdicts().values()
    assert verdicts(within="pillar") == {"Health": BREACH, "Infrastructure": BREACH}
    assert verdicts(within="colour") == {"": MISSING}


def test_given_a_large_loss_on_few_questions_then_it_is_a_breach_to_look_at() -> None:
    """58 questions, 26 of them lost: all of the interval lies beyond what is allowed."""
    row = judged(rule(min_n=200), hits(40, 58), hits(14, 58))
    assert row["verdict"] == BREACH and "large, though of fewer than 200" in row["note"]
    assert row["ci_high"] < -0.2 and row["p"] < 0.05
    beyond = judged(rule(min_n=200, allowed=0.4, **EITHER), hits(40, 58), hits(14, 58))
    assert beyond["verdict"] == INSUFFICIENT, "the near end of the interval is within 0.4"
    rules = tuple(rule(name=f"r{i}", min_n=200, **EITHER) for i in range(3))
    sides = side({"T1": hits(20, 58)}), side({"T1": hits(40, 58)})
    rows = judge.apply_multiplicity([e for r in rules for e in of_rule(r, *sides)], Policy(rules))
    alone = judged(rules[0], hits(40, 58), hits(20, 58))["p"]
    assert rows[0]["p"] == pytest.approx(3 * alone) and alone > 0, "times all of the model's tests"


def test_given_floors_then_no_other_run_is_needed() -> None:
    r = rule(allowed=None, at_least=0.5)
    for right, verdict in ((150, BREACH), (198, INSUFFICIENT), (300, PASS)):
        [row] = rows_of(r, side({"T1": hits(right, 400)}), None, "first run")
        assert (row["verdict"], row["side"], row["allowed"]) == (verdict, "at_least", 0.5)
        assert row["level"] == "" and row["ci_low"] < right / 400 < row["ci_high"]
    [row] = rows_of(rule(allowed=None, at_least=0.95), side({"T1": hits(40, 40)}))
    assert row["verdict"] == INSUFFICIENT, "40 of 40 right may be 91 % of many"
    [row] = rows_of(rule(allowed=None, at_most=0.3), side({"T1": hits(200, 400)}))
    assert (row["verdict"], row["side"]) == (BREACH, "at_most")


def test_given_a_first_run_then_nothing_is_missing() -> None:
    rules = (rule(required=True), rule(allowed=None, at_most=0.3))
    evidence = [e for r in rules for e in of_rule(r, side({"T1": hits(3, 40)}), None, FIRST_RUN)]
    rows = judge.apply_multiplicity(evidence, Policy(rules))
    assert [(r["verdict"], r["required"]) for r in rows] == [(FIRST, False), (PASS, False)]
    assert overall(rows) == FIRST
    assert night_text.summary(rows) == "1 pass, first run: nothing to compare with yet"


def test_given_a_missing_number_then_the_note_says_why() -> None:
    r, run, why = rule(required=True), side({"T1": hits(3, 40)}), "all 2 earlier runs are in breach"
    [first] = rows_of(r, run, None, why)
    assert (first["verdict"], first["value"], first["note"]) == (MISSING, 3 / 40, why)
    assert first["required"]
    [other] = rows_of(r, run, side({"T1": hits(3, 40)}, start=1000))
    assert other["note"].startswith("no question is in both runs")
    [absent] = rows_of(rule(methods=("img_q",)), run, run)
    assert absent["note"] == "this run has no accuracy for img_q"
    lacks = replace(run, missing={("mcq", "img_q"): "needs pictures"})
    for limit in ({}, {"allowed": None, "at_least": 0.5}):
        [excused] = rows_of(rule(methods=("img_q",), required=True, **limit), lacks, run)
        assert (excused["verdict"], excused["note"]) == (MISSING, "needs pictures")
        assert not excused["required"], "the model can't have it"


def test_given_two_runs_then_the_questions_of_both_count() -> None:
    [row] = rows_of(rule(), side({"T1": hits(300, 400)}, start=100), side({"T1": hits(400, 400)}))
    assert (row["n"], row["before"], row["value"]) == (300, 1.0, 1.0)
    assert "200 questions are in one run only" in row["note"]
    new = side({"T1": hits(200, 400), "T2": hits(100, 400)})
    old = side({"T2": hits(300, 400), "T1": hits(300, 400), "T3": hits(1, 9)})
    [row] = rows_of(rule(), new, old)
    assert (row["n"], row["before"], row["value"]) == (800, 0.75, 0.375)
    assert [r["test"] for r in rows_of(rule(tests=("each",)), new, old)] == ["T1", "T2"]


def test_given_many_tests_then_holm_counts_all_but_floors() -> None:
    rules = [rule(name=f"r{i}", tests=("T1",)) for i in range(9)]
    before, after = hits(300, 400), hits(291, 400)
    alone = judged(rule(), before, after)["p"]
    floor = rule(name="f", allowed=None, at_least=0.1)
    sides = side({"T1": after}), side({"T1": before})
    evidence = [e for r in [*rules, floor] for e in of_rule(r, *sides)]
    rows = judge.apply_multiplicity(evidence, Policy(tuple(rules)))
    assert rows[0]["p"] == pytest.approx(9 * alone) and "Holm over 9 tests" in rows[0]["note"]
    assert np.isnan(rows[-1]["p"])


def test_given_groups_then_disparity_is_the_change_of_the_gap() -> None:
    at = np.arange(800)
    group = np.where(at % 2 == 0, "R", "U")
    after = np.where((group == "R") & (at % 10 == 0), 0, 1)  # rural answers: a fifth lost
    r = rule(metric="disparity", by=("urban",), worse="higher", allowed=0.05)
    row = judged(r, np.ones(800), after, groups={"urban": group})
    assert (row["verdict"], row["level"], row["before"]) == (BREACH, "urban", 0.0)
    assert row["value"] == pytest.approx(0.2)
    small = {"urban": np.where(at < 5, "R", "U")}
    assert judged(r, np.ones(800), after, groups=small)["verdict"] == MISSING
    three = {"urban": np.array(["P", "Q", "R"])[at % 3]}  # of Q one answer in four is lost
    spread = judged(r, np.ones(800), np.where((at % 3 == 1) & (at % 4 == 0), 0, 1), groups=three)
    assert spread["value"] == pytest.approx(0.25, abs=0.01)
    assert "largest minus smallest of 3 groups" in spread["note"]
    place = np.arange(240) % 12  # five of the six places of one group lose all answers
    groups = {"urban": np.where(place < 6, "R", "U")}
    lost = judged(r, np.ones(240), place > 4, groups=groups, places=12)
    assert (lost["verdict"], lost["ci_high"]) == (BREACH, 1), "no gap is larger than all of a share"
    ceiling = replace(r, allowed=None, at_most=0.1)
    assert judged(ceiling, np.ones(800), after, groups={"urban": group})["verdict"] == BREACH


@pytest.mark.parametrize(("failed", "verdict"), [(0, PASS), (50, INSUFFICIENT), (500, BREACH)])
def test_failed_prompts_are_a_share_of_those_planned(failed: int, verdict: str) -> None:
    r = Rule("f", "failed_share", at_most=0.01, min_n=20)
    [row] = rows_of(r, side({}, run={**RUN, "n_failed": failed}))
    assert (row["verdict"], row["value"], row["n"]) == (verdict, failed / 5000, 5000)
    assert np.isnan(row["mde"]) == (failed == 0), "unknown where nothing varies"


def test_the_verdict_on_a_model_is_its_worst_row() -> None:
    def worst(*verdicts: str, required: bool = False) -> str:
        return overall([{"verdict": v, "required": required, "note": "required"} for v in verdicts])

    assert worst(PASS, INSUFFICIENT, BREACH, MISSING, required=True) == BREACH
    assert worst(PASS, INSUFFICIENT, MISSING, required=True) == MISSING
    assert worst(PASS, INSUFFICIENT, MISSING) == INSUFFICIENT
    assert worst(PASS, MISSING) == PASS and worst() == ""


Answers = tuple[np.ndarray, np.ndarray]


def simulated(rng: np.random.Generator, drop: float = 0.0) -> Answers:
    """(before, after) of 150 places x 3 questions; questions of a place agree, a tenth of answers
    change anyway, and the share ``drop`` of right ones is lost."""
    n = 450
    ease = np.clip(0.7 + np.repeat(rng.normal(0, 0.15, 150), 3), 0, 1)
    before = rng.random(n) < ease
    redrawn = rng.random(n) < 0.1
    return before, np.where(redrawn, rng.random(n) < ease, before) & ~(rng.random(n) < drop)


def evidence_of(r: Rule, answers: Answers) -> RuleEvidence:
    before, after = (side({"T1": values}, places=150) for values in answers)
    [evidence] = of_rule(r, after, before)
    return evidence


def test_given_no_change_then_a_breach_is_rarer_than_alpha() -> None:
    """Six rules, 150 nights, margin 0: the hardest case, as then the test alone decides. A loss
    within 1.5 standard errors has p over 0.06 before any correction, a gain more: one without a
    change stands for them all, as they count in the correction alone."""
    policy = Policy(tuple(rule(name=f"r{i}", allowed=0.0) for i in range(6)))
    rng, wrong, nights = np.random.default_rng(7), 0, 150
    still = evidence_of(policy.rules[0], (hits(300, 450),) * 2)
    assert still.p > 0.06
    for _ in range(nights):
        evidence = [still] * 6
        for i, r in enumerate(policy.rules):
            before, after = simulated(rng)
            lost = (before.astype(int) - after).reshape(-1, 3).sum(axis=1)
            if lost.mean() > 1.5 * lost.std() / lost.size**0.5:
                evidence[i] = evidence_of(r, (before, after))
        wrong += overall(judge.apply_multiplicity(evidence, policy)) == BREACH
    assert 0 < wrong / nights <= policy.alpha + 2 * (0.05 * 0.95 / nights) ** 0.5


def test_given_rare_changes_then_false_alarms_are_rarer_than_alpha() -> None:
    """One rule without a margin, and only about five of 200 answers change, as often for the
    better. Nights with as many of either kind are alike: each kind is judged once."""
    rng, wrong, nights = np.random.default_rng(3), 0, 300
    changes = rng.multinomial(200, (0.0125, 0.0125, 0.975), nights)[:, :2]
    before = np.arange(200) % 2 == 0
    for (better, worse), times in zip(*np.unique(changes, axis=0, return_counts=True), strict=True):
        after = before.copy()
        after[1 : 2 * better : 2], after[: 2 * worse : 2] = True, False
        wrong += times * (judged(rule(allowed=0.0), before, after)["verdict"] == BREACH)
    assert wrong / nights <= 0.05


def test_given_a_loss_of_the_detectable_size_then_it_is_caught_four_times_out_of_five() -> None:
    """Beside eight tests on which nothing moves (they decide the level alone, and are drawn once);
    the margin is 2 points, the loss the MDE that the check states for such runs."""
    policy = Policy(tuple(rule(name=f"r{i}") for i in range(9)))
    rng, nights = np.random.default_rng(11), 120
    first, *others = policy.rules
    still = [evidence_of(r, simulated(rng)) for r in others]

    def night(drop: float) -> dict[str, Any]:
        evidence = evidence_of(first, simulated(rng, drop))
        return judge.apply_multiplicity([evidence, *still], policy)[0]

    size = float(np.mean([night(0.1)["mde"] for _ in range(20)]))
    # of right answers, seven in ten, that share is lost
    caught = sum(night(size / 0.7)["verdict"] == BREACH for _ in range(nights))
    assert 0.70 <= caught / nights <= 0.95
