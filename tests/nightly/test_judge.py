"""The gate's verdicts on hand-made answers, and how often it is wrong."""

from __future__ import annotations

import json
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
from sdgbias.nightly.regression.evidence import of_rule
from sdgbias.nightly.regression.measured import ATTRIBUTE, RunMetrics
from sdgbias.nightly.regression.policy import Policy, Rule

RUN = {
    "backend": "hf",
    "n_scored": 5000,
    "n_prompts_planned": 5000,
    "n_failed": 0,
    "config": json.dumps({"engine": {"seconds": 50.0}}),
}


def side(
    values: Mapping[str, Any],
    places: int = 0,
    groups: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] = RUN,
    start: int = 0,
) -> RunMetrics:
    """values: test -> (n,) per question; rows of all tests share places, ``places`` of them
    (default: each row its own)."""

    def of(task: str, test: str, metric: str, method: str) -> pd.DataFrame | None:
        if test not in values or method == "img_q":
            return None
        x = np.asarray(values[test], dtype=float)
        rows = np.arange(len(x))
        known = {"key": rows + start, "value": x, "cluster": rows % (places or len(x))}
        return pd.DataFrame(known | {f"{ATTRIBUTE}{k}": v for k, v in (groups or {}).items()})

    return RunMetrics(run, {"mcq": list(values)}, of)


def rule(**fields: object) -> Rule:
    known: dict[str, Any] = {
        "name": "r",
        "metric": "accuracy",
        "task": "mcq",
        "methods": ("full",),
        "allowed": 0.02,
        "min_n": 20,
        **fields,
    }
    return Rule(**known)


def judged(
    r: Rule, before: Any, after: Any, policy: Policy | None = None, **more: Any
) -> dict[str, Any]:
    [row] = rows_of(r, side({"T1": after}, **more), side({"T1": before}, **more), policy=policy)
    return row


def rows_of(
    r: Rule,
    new: RunMetrics,
    old: RunMetrics | None = None,
    why: str = "",
    policy: Policy | None = None,
) -> list[dict[str, Any]]:
    return judge.apply_multiplicity(of_rule(r, new, old, why), policy or Policy((r,)))


def hits(right: int, n: int) -> np.ndarray:
    return np.arange(n) < right


def test_a_clear_loss_is_a_breach_and_says_what_moved() -> None:
    row = judged(rule(), hits(300, 400), hits(260, 400))
    assert (row["verdict"], row["before"], row["value"], row["n"]) == (BREACH, 0.75, 0.65, 400)
    assert row["change"] == pytest.approx(-0.10) and row["ci_low"] < -0.10 < row["ci_high"] < 0
    assert row["note"].startswith(
        "0 better, 40 worse, groups of questions 0 to 40, sign test p < 0.001"
    )


QUARTER = np.where(np.arange(400) % 4 == 0, 0, 1)  # a quarter worse
EITHER = {"worse": "either"}


@pytest.mark.parametrize(
    ("fields", "before", "after", "places", "verdict"),
    [
        ({"allowed": 0.2}, hits(300, 400), hits(260, 400), 0, PASS),
        ({}, hits(260, 400), hits(300, 400), 0, PASS),
        ({"worse": "higher"}, hits(260, 400), hits(300, 400), 0, BREACH),
        (EITHER, hits(260, 400), hits(300, 400), 0, BREACH),
        (EITHER, hits(300, 400), hits(260, 400), 0, BREACH),
        ({"min_n": 401, "allowed": 0.04}, hits(300, 400), hits(280, 400), 0, INSUFFICIENT),
        ({"min_n": 400, "allowed": 0.08}, hits(300, 400), hits(260, 400), 0, BREACH),
        ({"min_n": 401, "allowed": 0.08}, hits(300, 400), hits(260, 400), 0, INSUFFICIENT),
        ({}, hits(30, 40), hits(30, 40), 0, INSUFFICIENT),
        ({"allowed": 0.09}, hits(30, 40), hits(30, 40), 0, PASS),
        ({}, hits(300, 400), hits(300, 400), 0, PASS),
        ({}, np.ones(400), QUARTER, 0, BREACH),
        ({}, np.ones(400), QUARTER, 4, INSUFFICIENT),
        ({}, np.ones(100), np.arange(100) >= 3, 0, INSUFFICIENT),
    ],
    ids=[
        "a sure loss within the margin",
        "better",
        "better, where higher is worse",
        "better, where either way is worse",
        "worse, where either way is worse",
        "a small loss on too few questions",
        "as many questions as asked for",
        "one question less",
        "no change in 40 places: up to 8.8 % of places could be worse",
        "no change in 40 places, where 9 % are allowed",
        "no change in many places",
        "a quarter worse in places of one question",
        "a quarter worse, all of it in one of four places",
        "three changed answers, for which t says 0.04 and the coin 1/8",
    ],
)
def test_verdicts(
    fields: dict[str, Any], before: Any, after: Any, places: int, verdict: str
) -> None:
    assert judged(rule(**fields), before, after, places=places)["verdict"] == verdict


def test_the_numbers_of_a_verdict_say_how_sure_it_is() -> None:
    assert judged(rule(allowed=0.2), hits(300, 400), hits(260, 400))["p"] < 0.001
    few = judged(rule(min_n=401, allowed=0.04), hits(300, 400), hits(280, 400))
    assert "fewer than 401" in few["note"] and np.isnan(few["p"])
    still = judged(rule(), hits(30, 40), hits(30, 40))
    assert "up to 8.8 % could go unseen" in still["note"] and np.isnan(still["mde"])
    assert judged(rule(), np.ones(100), np.arange(100) >= 3)["p"] == pytest.approx(1 / 8)


def test_what_can_not_be_told_is_said_so_with_the_smallest_effect_that_could_be() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random(60) < 0.6, rng.random(60) < 0.6
    row = judged(rule(), before, after)
    test = stats.paired(after.astype(float) - before, np.arange(60))
    assert row["verdict"] == INSUFFICIENT
    # one rule, one side: the effect must be seen at 2 x 5 %, and lie beyond the margin four times
    # out of five
    assert row["mde"] == pytest.approx(
        max(stats.minimum_detectable(test.se, 59, alpha=0.1), 0.02 + 0.8477 * test.se), rel=1e-3
    )


def test_a_rule_within_pillars_sees_what_evens_out() -> None:
    """Up in one pillar, down in another: no change together."""
    groups = {"pillar": np.repeat(["Health", "Infrastructure"], 200)}
    before = np.concatenate([hits(100, 200), hits(160, 200)])
    after = np.concatenate([hits(160, 200), hits(100, 200)])

    def rows(**fields: object) -> dict[str, str]:
        r = rule(worse="either", **fields)
        sides = (side({"T1": values}, groups=groups) for values in (after, before))
        return {str(row["level"]): str(row["verdict"]) for row in rows_of(r, *sides)}

    assert BREACH not in rows().values()
    assert rows(within="pillar") == {"Health": BREACH, "Infrastructure": BREACH}
    assert rows(within="colour") == {"": MISSING}


def test_a_large_loss_on_few_questions_is_a_breach_to_look_at() -> None:
    """58 questions, 26 of them lost: all of the interval lies beyond what is allowed."""
    row = judged(rule(min_n=200), hits(40, 58), hits(14, 58))

    assert row["verdict"] == BREACH and "large, though of fewer than 200" in row["note"]
    assert row["ci_high"] < -0.2 and row["p"] < 0.05


def test_floors_need_no_other_run() -> None:
    r = rule(allowed=None, at_least=0.5)
    for right, verdict in ((150, BREACH), (198, INSUFFICIENT), (300, PASS)):
        [row] = rows_of(r, side({"T1": hits(right, 400)}), None, "first run")
        assert (row["verdict"], row["side"], row["allowed"]) == (verdict, "at_least", 0.5)
        assert row["level"] == ""
        low, high = (x / 400 for x in (right, right))
        assert row["ci_low"] < low <= high < row["ci_high"]
    top = rule(allowed=None, at_most=0.3)
    [row] = rows_of(top, side({"T1": hits(200, 400)}))
    assert row["verdict"] == BREACH and row["side"] == "at_most"


def test_a_first_run_lacks_nothing() -> None:
    rules = (rule(required=True), rule(allowed=None, at_most=0.3))
    evidence = [e for r in rules for e in of_rule(r, side({"T1": hits(3, 40)}), None, FIRST_RUN)]
    rows = judge.apply_multiplicity(evidence, Policy(rules))
    assert [(r["verdict"], r["required"]) for r in rows] == [(FIRST, False), (PASS, False)]
    assert overall(rows) == FIRST
    assert night_text.summary(rows) == "1 pass, first run: nothing to compare with yet"


def test_what_is_missing_says_why() -> None:
    r, run, why = rule(required=True), side({"T1": hits(3, 40)}), "all 2 earlier runs are in breach"
    [first] = rows_of(r, run, None, why)
    assert (first["verdict"], first["value"], first["note"]) == (MISSING, 3 / 40, why)
    assert first["required"]
    [other] = rows_of(r, run, side({"T1": hits(3, 40)}, start=1000))
    assert other["note"].startswith("no question is in both runs")
    [absent] = rows_of(rule(methods=("img_q",)), run, run)
    assert absent["note"] == "this run has no accuracy for img_q"


def test_only_questions_of_both_runs_count() -> None:
    [row] = rows_of(rule(), side({"T1": hits(300, 400)}, start=100), side({"T1": hits(400, 400)}))
    assert (row["n"], row["before"], row["value"]) == (300, 1.0, 1.0)
    assert "200 questions are in one run only" in row["note"]


def test_all_tests_pool_what_both_were_asked_and_each_is_a_row_each() -> None:
    new = side({"T1": hits(200, 400), "T2": hits(100, 400)})
    old = side({"T2": hits(300, 400), "T1": hits(300, 400), "T3": hits(1, 9)})
    [row] = rows_of(rule(), new, old)
    assert (row["n"], row["before"], row["value"]) == (800, 0.75, 0.375)
    assert [r["test"] for r in rows_of(rule(tests=("each",)), new, old)] == ["T1", "T2"]


def test_holm_counts_every_test_of_a_model_but_not_floors() -> None:
    one, many = rule(), [rule(name=f"r{i}", tests=("T1",)) for i in range(9)]
    before, after = hits(300, 400), hits(291, 400)
    alone = judged(one, before, after)["p"]
    found = [
        e
        for r in [*many, rule(name="f", allowed=None, at_least=0.1)]
        for e in of_rule(r, side({"T1": after}), side({"T1": before}))
    ]
    rows = judge.apply_multiplicity(found, Policy(tuple(many)))
    assert rows[0]["p"] == pytest.approx(9 * alone) and "Holm over 9 tests" in rows[0]["note"]
    assert np.isnan(rows[-1]["p"])


def test_disparity_is_the_change_of_the_gap() -> None:
    group = np.where(np.arange(800) % 2 == 0, "R", "U")
    before = np.ones(800)
    after = np.where(
        (group == "R") & (np.arange(800) % 10 == 0), 0, 1
    )  # rural answers: a fifth lost
    r = rule(metric="disparity", by=("urban",), worse="higher", allowed=0.05)
    row = judged(r, before, after, groups={"urban": group})
    assert (row["verdict"], row["level"], row["before"], row["value"]) == (
        BREACH,
        "urban",
        0.0,
        pytest.approx(0.2),
    )
    small = np.where(np.arange(800) < 5, "R", "U")
    assert judged(r, before, after, groups={"urban": small})["verdict"] == MISSING
    ceiling = replace(r, allowed=None, at_most=0.1)
    assert judged(ceiling, before, after, groups={"urban": group})["verdict"] == BREACH


def test_throughput_is_a_ratio_of_like_runs_only() -> None:
    r = Rule("t", "throughput", allowed=0.5, min_n=1000)

    def row(**other: Any) -> dict[str, Any]:
        new = {
            **RUN,
            **{k: v for k, v in other.items() if k != "engine"},
            "config": json.dumps({"engine": other.get("engine", {"seconds": 125.0})}),
        }
        [found] = rows_of(r, side({}, run=new), side({}))
        return found

    assert row()["verdict"] == BREACH and row()["change"] == pytest.approx(
        -0.6
    )  # 40 instead of 100 a second
    assert row(engine={"seconds": 99.0})["verdict"] == PASS
    assert (
        "fewer than 1,000" in row(n_scored=999)["note"] and row(n_scored=999)["verdict"] == MISSING
    )
    assert row(backend="vllm")["note"] == "vllm now, hf before"
    assert row(engine={})["note"] == "a run names no seconds of scoring"


def test_failed_prompts_are_a_share_of_those_planned() -> None:
    r = Rule("f", "failed_share", at_most=0.01, min_n=20)
    for failed, verdict in ((0, PASS), (50, INSUFFICIENT), (500, BREACH)):
        [row] = rows_of(r, side({}, run={**RUN, "n_failed": failed}))
        assert (row["verdict"], row["value"], row["n"]) == (verdict, failed / 5000, 5000)


def test_the_verdict_on_a_model_is_its_worst_row() -> None:
    def row(verdict: str, required: bool = False) -> dict[str, Any]:
        return {"verdict": verdict, "required": required, "note": "required"}

    assert overall([row(PASS), row(INSUFFICIENT), row(BREACH), row(MISSING, True)]) == BREACH
    assert overall([row(PASS), row(INSUFFICIENT), row(MISSING, True)]) == MISSING
    assert overall([row(PASS), row(INSUFFICIENT), row(MISSING)]) == INSUFFICIENT
    assert overall([row(PASS), row(MISSING)]) == PASS
    assert overall([]) == ""


def simulated(
    rng: np.random.Generator, drop: float, places: int = 150, each: int = 3
) -> tuple[Any, Any]:
    """Right answers before and after of ``places`` x ``each`` questions; questions of a place
    agree, and a tenth of answers change anyway."""
    ease = np.repeat(rng.normal(0, 0.15, places), each)
    before = rng.random(places * each) < np.clip(0.7 + ease, 0, 1)
    redrawn = rng.random(places * each) < 0.1
    after = np.where(redrawn, rng.random(places * each) < np.clip(0.7 + ease, 0, 1), before)
    lost = rng.random(places * each) < drop
    return before, after & ~lost


def test_where_nothing_changed_a_breach_is_rarer_than_alpha() -> None:
    """Six rules, 300 nights, margin 0: the hardest case, as then the test alone decides."""
    policy = Policy(tuple(rule(name=f"r{i}", allowed=0.0) for i in range(6)))
    rng, wrong, nights = np.random.default_rng(7), 0, 300
    for _ in range(nights):
        found = []
        for r in policy.rules:
            before, after = simulated(rng, 0.0)
            found += of_rule(r, side({"T1": after}, places=150), side({"T1": before}, places=150))
        wrong += overall(judge.apply_multiplicity(found, policy)) == BREACH
    assert wrong / nights <= policy.alpha + 2 * (0.05 * 0.95 / nights) ** 0.5


def test_rare_changes_are_no_cause_for_false_alarms() -> None:
    """One rule without a margin, and only about five of 200 answers change, as often for the
    better."""
    policy, rng, wrong, nights = Policy((rule(allowed=0.0),)), np.random.default_rng(3), 0, 500
    for _ in range(nights):
        before = rng.random(200) < 0.5
        after = np.where(rng.random(200) < 0.025, ~before, before)
        wrong += judged(policy.rules[0], before, after, policy)["verdict"] == BREACH
    assert wrong / nights <= 0.05


def test_a_loss_of_the_minimum_detectable_size_is_caught_four_times_out_of_five() -> None:
    """Beside eight rules on which nothing moves; the margin is 2 points, the loss the MDE that the
    gate states for such runs."""
    policy = Policy(tuple(rule(name=f"r{i}") for i in range(9)))
    rng, nights = np.random.default_rng(11), 100

    def night(drop: float) -> dict[str, Any]:
        found = []
        for i, r in enumerate(policy.rules):
            before, after = simulated(rng, drop if i == 0 else 0.0)
            found += of_rule(r, side({"T1": after}, places=150), side({"T1": before}, places=150))
        return judge.apply_multiplicity(found, policy)[0]

    size = float(np.mean([night(0.1)["mde"] for _ in range(20)]))
    caught = sum(
        night(size / 0.7)["verdict"] == BREACH for _ in range(nights)
    )  # of right answers, seven in ten, that share is lost
    assert 0.70 <= caught / nights <= 0.95


def test_p_of_an_improvement_is_near_one_where_only_worse_counts() -> None:
    """3 of 100 answers change: by the coin 1/8 for three the same way. Better is no proof of worse:
    1 - 1/8. Where either way is worse, both tails count: 2/8."""
    better, worse = np.arange(100) >= 3, np.ones(100)
    assert judged(rule(), better, worse)["p"] == pytest.approx(1 - 1 / 8)
    assert judged(rule(), worse, better)["p"] == pytest.approx(1 / 8)
    assert judged(rule(worse="either"), better, worse)["p"] == pytest.approx(2 / 8)


def test_the_smallest_effect_of_a_rule_on_either_side_needs_five_percent_in_all() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random(60) < 0.6, rng.random(60) < 0.6
    test = stats.paired(after.astype(float) - before, np.arange(60))
    for worse, alpha in (("lower", 2 * 0.05), ("either", 0.05)):
        row = judged(rule(worse=worse, allowed=0.0), before, after)
        assert row["mde"] == pytest.approx(stats.minimum_detectable(test.se, 59, alpha=alpha))


def test_a_share_that_may_have_fallen_too_far_has_not_passed() -> None:
    """Of 400 answers 80 leave the direction and 60 take it: -5 points, between -11 and +1. Either
    way counts as worse, and the upper end alone is within the 2 points that are allowed."""
    before = np.repeat([1.0, 0.0, 0.0], [80, 60, 260])
    after = np.repeat([0.0, 1.0, 0.0], [80, 60, 260])
    r = rule(metric="share_optimistic", worse="either")

    fell, rose = judged(r, before, after), judged(r, after, before)

    assert fell["ci_high"] < 0.02 and fell["ci_low"] < -0.1
    assert fell["verdict"] == rose["verdict"] == INSUFFICIENT
