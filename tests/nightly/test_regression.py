"""The metrics of a run, the runs that are compared, and the stored verdicts of a night."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from sdgbias import store
from sdgbias.analysis import nights
from sdgbias.analysis.nights import BREACH, INSUFFICIENT, MISSING, PASS
from sdgbias.cli.gate import print_judgements
from sdgbias.errors import StoreError, UsageError
from sdgbias.nightly import regression
from sdgbias.nightly.regression import baseline, measured, policy
from sdgbias.nightly.regression.evidence import of_rule
from sdgbias.nightly.regression.measured import RunAnswers, paired
from sdgbias.store import maintenance
from tests.builders.nights import (
    FIRST,
    LOST,
    SECOND,
    STEADY,
    THIRD,
    keep_night,
    publish_run,
    two_nights,
    verdict,
)
from tests.builders.results import copied

POLICY = """
rules:
  - {name: accuracy, metric: accuracy, allowed: 0.02, required: true}
  - {name: signature, metric: signature, methods: [q_only, full], worse: either, allowed: 0.05}
  - {name: mass, metric: candidate_mass, at_least: 0.2, then: quarantine}
  - {name: failed, metric: failed_share, at_most: 0.01}
examples: 12
"""
PEOPLE = """
rules:
  - {name: recall, suite: people, metric: recall, allowed: 0.03}
  - {name: gap, suite: people, metric: disparity, by: [gender, skin], worse: higher, allowed: 0.05}
  - {name: "no", suite: people, metric: refusals, worse: higher, allowed: 0.02}
  - {name: unread, suite: people, metric: parse_failures, worse: higher, allowed: 0.02}
  - {name: mass, suite: people, metric: candidate_mass, task: choice, at_least: 0.1}
"""
OTHER = "fedcba9876543210"  # another benchmark
ONE, TWO = f"{LOST}-1", f"{LOST}-2"
Judgements = dict[str, regression.Judgement]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_nights(tmp_path_factory.mktemp("gate") / "r.duckdb")


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    """Two nights, not judged yet."""
    return copied(written, tmp_path / "r.duckdb")


@pytest.fixture(scope="module")
def both(
    written: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Judgements, Judgements]:
    """The same file with both nights judged, and the judgements."""
    path = copied(written, tmp_path_factory.mktemp("judged") / "r.duckdb")
    return path, judge(path, FIRST), judge(path)


@pytest.fixture
def judged(both: tuple[Path, object, object], tmp_path: Path) -> Path:
    return copied(both[0], tmp_path / "judged.duckdb")


def judge(results: Path, night: str = "", rules: str = POLICY) -> Judgements:
    chosen = policy.parse(yaml.safe_load(rules), "test")
    judgements = regression.judge_runs(results, baseline.of_night(results, night), chosen)
    return {j.target.model: j for j in judgements}


def answers(run: RunAnswers, metric: str, method: str, test: str = "T1") -> pd.DataFrame:
    frame = run.of("mcq", [test], metric, method)
    assert frame is not None
    return frame


def test_given_rules_on_other_methods_then_a_run_is_missing_them_and_not_refused(
    written: Path,
) -> None:
    run = measured.load(written, ONE, ["ctx_q_generated"])
    assert run.answers == {} and run.tests("mcq") == []
    [rule] = policy.parse(
        {"rules": [{"name": "r", "metric": "accuracy", "methods": ["full"], "allowed": 0.1}]},
        "test",
    ).rules
    [evidence] = of_rule(rule, run, None, "no earlier run")
    assert (evidence.verdict, evidence.n) == (MISSING, 0)


def test_given_stored_predictions_then_a_run_has_their_metrics(written: Path) -> None:
    run = measured.load(written, ONE, policy.METHODS)
    sql = "FROM predictions WHERE run_id = ? AND split = 'test'"
    stored = store.query(written, sql, [ONE])
    for method, test in (("full", "T1"), ("q_only", "T4"), ("cade", "T2")):
        values = answers(run, "accuracy", method, test)["value"]
        rows = stored[(stored["method"] == method) & (stored["test"] == test)]
        assert len(values) == len(rows) == 120 and values.mean() == rows["correct"].mean()

    def value(metric: str, method: str = "full") -> np.ndarray:
        return answers(run, metric, method)["value"].to_numpy()

    gain = value("accuracy", "cade") - value("accuracy")
    np.testing.assert_array_equal(value("cade_gain", "cade"), gain)
    directions = ("pessimistic", "conservative", "optimistic")
    np.testing.assert_array_equal(sum(value(f"share_{d}") for d in directions), np.ones(120))
    assert value("candidate_mass").mean() == pytest.approx(0.97)
    ties, near = value("tie_rate"), value("near_tie_rate")
    assert set(ties) <= {0.0, 1.0} and (near >= ties).all()
    assert value("parse_failures").max() == 0
    assert (
        run.of("regression", ["T2"], "mae", "full") is run.of("mcq", ["T1"], "mae", "full") is None
    )


def test_given_questions_without_a_picture_then_they_are_clustered_by_prompt(written: Path) -> None:
    """Three indicators with one set of options each: three prompts in the Q-only view, and 50
    places."""
    run = measured.load(written, ONE, policy.METHODS)
    for method, test, clusters in (
        ("q_only", "T1", 3),
        ("ctx_q", "T3", 3),
        ("ctx_q", "T5", 3),
        ("ctx_q", "T1", 50),
        ("full", "T5", 50),
        ("cade", "T3", 50),
    ):
        assert answers(run, "accuracy", method, test)["cluster"].nunique() == clusters


def test_given_a_reworded_question_then_it_is_another_question(results: Path) -> None:
    """The answers of the first run to another benchmark, in which a fifth of them is reworded."""
    [record] = store.query(results, "FROM runs WHERE run_id = ?", [ONE]).to_dict("records")
    items = store.query(results, "FROM items").drop(columns="benchmark_id")
    items["question"] = items["question"].mask(items["item_id"] < 30, "Reworded?")
    tables = {
        table: store.query(results, f"FROM {table} WHERE run_id = ?", [ONE]).drop(columns="run_id")
        for table in ("scores", "predictions", "cade_params")
    }
    run = f"{LOST}-3"
    other = {"run_id": run, "benchmark_id": OTHER}
    store.publish(results, record | other, tables | {"items": items})
    old, new = (
        answers(measured.load(results, name, policy.METHODS), "accuracy", "full")
        for name in (ONE, run)
    )
    pairs, left = paired(old, new)
    assert len(pairs) == 120 - 24 and left == 2 * 24
    flipped = regression.flips(results, TWO, run, "sdg", 1000)
    assert len(flipped) and flipped["item_id"].min() >= 30


def test_given_a_planted_loss_then_it_is_a_breach_and_an_unchanged_run_is_not_judged_again(
    both: tuple[Path, Judgements, Judgements],
) -> None:
    results, first, second = both
    assert {j.verdict for j in first.values()} == {nights.FIRST} and first[LOST].baseline == ""
    assert set(second) == {LOST, STEADY}  # the one that failed has no run
    lost = {r["rule"]: r for r in second[LOST].rows if r["method"] in ("full", "")}
    assert second[LOST].verdict == lost["accuracy"]["verdict"] == BREACH
    assert second[LOST].baseline == ONE and lost["accuracy"]["change"] < -0.1
    assert lost["failed"]["verdict"] == lost["mass"]["verdict"] == PASS
    assert [(r["rule"], r["verdict"], r["note"]) for r in second[STEADY].rows] == [
        ("unchanged", PASS, f"the same run as in night {FIRST}, judged there")
    ]
    assert second[STEADY].baseline == "", "compared with nothing, not with itself"
    sql = "FROM verdicts WHERE night = ? ORDER BY ALL", "FROM flips WHERE night = ? ORDER BY ALL"
    verdicts, flips = (store.query(results, of_night, [SECOND]) for of_night in sql)
    assert len(verdicts) == len(second[LOST].rows) + 1 and len(flips) == 12
    judge(results)
    for of_night, before in zip(sql, (verdicts, flips), strict=True):
        pd.testing.assert_frame_equal(store.query(results, of_night, [SECOND]), before)


def test_given_a_breach_then_it_stays_one_until_it_is_mended_or_accepted(judged: Path) -> None:
    keep_night(judged, THIRD, [{"model": LOST, "outcome": "unchanged", "run_id": TWO}])
    third = judge(judged, THIRD)[LOST]
    assert third.verdict == BREACH and third.breached
    chosen = policy.parse(yaml.safe_load(POLICY), "test")
    regression.judge_runs(judged, [baseline.by_hand(judged, TWO)], chosen)
    assert "that has not been accepted" in third.rows[0]["note"]
    record = nights.load(judged)
    assert record is not None and record.breached[0].found_in == SECOND
    assert record.breached[0].breaches[0]["rule"] == "accuracy" and len(record.breached[0].flips)

    better = publish_run(judged, LOST, 4, 3)
    assert baseline.last_good(judged, better) == (ONE, ""), "the run in breach is passed over"
    rows = store.query(judged, "FROM verdicts WHERE night = ?", [SECOND])
    breaches = int((rows["verdict"] == BREACH).sum())
    today = datetime(2026, 11, 22)
    assert baseline.accept(judged, TWO, "looked at", today) == (breaches, "")
    replaced = baseline.accept(judged, TWO, "new tokenizer, looked at", today)
    assert replaced == (breaches, "looked at"), "the reason of before isn't lost in silence"
    assert baseline.last_good(judged, better) == (TWO, "")
    assert judge(judged, THIRD)[LOST].verdict == PASS
    second = judge(judged, SECOND)[LOST]
    assert second.verdict == BREACH and not second.breached
    assert second.target.accepted == "new tokenizer, looked at"
    with pytest.raises(UsageError, match="nothing to accept"):
        baseline.accept(judged, f"{STEADY}-1", "why not", today)
    with pytest.raises(UsageError, match="state in one line why"):
        baseline.accept(judged, TWO, " ", today)


def test_given_earlier_runs_then_the_last_good_one_is_compared(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert baseline.last_good(results, ONE) == ("", baseline.FIRST_RUN)
    publish_run(results, LOST, 3, 2, benchmark=OTHER)
    newest = publish_run(results, LOST, 4, 3)
    assert baseline.last_good(results, newest) == (TWO, ""), "of the same questions"
    gone = {TWO: datetime(2026, 11, 23)}
    monkeypatch.setattr(store, "dropped", lambda _, ids: {i: gone[i] for i in ids if i in gone})
    assert baseline.last_good(results, newest) == (ONE, "")
    gone |= dict.fromkeys((ONE, f"{LOST}-3"), datetime(2026, 11, 23))
    why = "the answers of all earlier runs were removed by `sdgbias store keep`"
    assert baseline.last_good(results, newest) == ("", why)
    bad = verdict(LOST, "accuracy", BREACH, run_id=ONE)
    store.upsert(results, {"verdicts": pd.DataFrame([bad])})
    why = f"the only earlier run, {ONE}, is in breach; accept it: sdgbias gate accept {ONE}"
    assert baseline.last_good(results, TWO) == ("", f"{why} --reason TEXT")


def test_given_a_run_that_was_removed_then_the_others_of_its_night_are_judged(
    written: Path, tmp_path: Path
) -> None:
    results = copied(written, tmp_path / "r.duckdb")
    maintenance.remove(results, [ONE])
    assert [t.run_id for t in baseline.of_night(results, FIRST)] == [f"{STEADY}-1"]


def test_given_a_night_a_model_or_a_run_then_its_runs_are_judged(
    written: Path, tmp_path: Path
) -> None:
    assert [t.run_id for t in baseline.of_night(written, FIRST)] == [ONE, f"{STEADY}-1"]
    assert [t.model for t in baseline.of_night(written, model=STEADY)] == [STEADY]
    with pytest.raises(StoreError, match=f"unknown night '2026'; valid: {FIRST}, {SECOND}"):
        baseline.of_night(written, "2026")
    with pytest.raises(UsageError, match="unknown model with a run in this night 'broken'"):
        baseline.of_night(written, model="broken")
    assert baseline.by_hand(written, TWO).night == f"run:{TWO}"
    assert baseline.named(written, TWO, ONE) == ONE
    for other, words in (
        (f"{STEADY}-1", "is of model 'fake-pessimist'"),
        (TWO, "is the run itself"),
    ):
        with pytest.raises(UsageError, match=words):
            baseline.named(written, TWO, other)
    with pytest.raises(StoreError, match="no run 'x'; sdgbias results .* lists them"):
        baseline.named(written, TWO, "x")
    no_nights = copied(written, tmp_path / "r.duckdb")
    shutil.rmtree(tmp_path / "r.nights")
    newest = judge(no_nights)
    assert {model: (j.target.night, j.verdict) for model, j in newest.items()} == {
        LOST: (f"run:{TWO}", BREACH),
        STEADY: (f"run:{STEADY}-1", nights.FIRST),
    }
    assert nights.load(no_nights) is None


def test_given_flips_then_the_worst_come_first_and_every_question_once_before_any_twice(
    written: Path,
) -> None:
    flipped = regression.flips(written, ONE, TWO, "sdg", 1000)
    pairs = store.query(
        written,
        """SELECT a.item_id, a.test, a.method, a.confidence + b.confidence AS sure,
                  a.split = 'test' AND a.correct AND NOT b.correct AS lost
           FROM predictions a JOIN predictions b USING (task, item_id, test, method)
           WHERE a.run_id = ? AND b.run_id = ?""",
        [ONE, TWO],
    )
    assert set(flipped["method"]) == {"full"} and not flipped["better"].any()
    assert len(flipped) == pairs["lost"].sum()
    assert (flipped["was"] == flipped["gold"]).all() and (flipped["now"] != flipped["gold"]).all()
    once = flipped.head(flipped["item_id"].nunique())
    sure = once.merge(pairs, on=["item_id", "test", "method"])["sure"]
    assert sure.is_monotonic_decreasing and sure.nunique() > 10
    few = regression.flips(written, ONE, TWO, "sdg", 7)
    assert len(few) == 7 == few["item_id"].nunique()
    assert regression.flips(written, TWO, ONE, "sdg", 5)["better"].all()


def test_given_a_method_in_breach_then_its_flips_come_first(results: Path) -> None:
    """CADE's answers are wrong as well, and surer than those of Full."""
    [record] = store.query(results, "FROM runs WHERE run_id = ?", [TWO]).to_dict("records")
    rows = store.query(results, "FROM predictions WHERE run_id = ?", [TWO]).drop(columns="run_id")
    wrong = (rows["method"] == "cade") & rows["correct"]
    rows.loc[wrong, ["pred", "confidence", "correct"]] = "", 1.0, False
    store.publish(results, record | {"run_id": f"{LOST}-5"}, {"predictions": rows})
    plain, full = (
        regression.flips(results, ONE, f"{LOST}-5", "sdg", 1000, breached)
        for breached in ((), {"full"})
    )
    assert plain["method"][0] == "cade" and len(plain) == len(full)
    methods = list(full.head(full["item_id"].nunique())["method"])
    assert set(methods) == {"full", "cade"} and methods == sorted(methods, reverse=True)


def publish_people(path: Path, number: int, right: np.ndarray, how: str = "exact") -> None:
    """400 direct questions, one picture each, half of the people male; ``right`` (400,)."""
    person = {"dataset": "synthetic", "class1": "guitarist", "gold": "guitarist", "asked": ""}
    person |= {"prompt": "p1", "negative": False, "skin": "light", "age": "young", "race": ""}
    n = pd.Series(range(len(right)))
    names = {"item_id": n, "person_id": "p" + n.astype(str), "image_id": "i" + n.astype(str)}
    people = pd.DataFrame(names).assign(gender=np.where(n % 2 == 0, "male", "female"), **person)
    answered = people[["item_id"]].assign(task="direct", test="p1")
    pred = np.where(right, "guitarist", "doctor")
    tables = {
        "people": people.assign(split="test"),
        "predictions": answered.assign(method="full", split="test", pred=pred, correct=right),
        "spoken": answered.assign(
            view="full", text="t", label="l", how=np.where(right, "exact", how)
        ),
    }
    record = {"run_id": f"seer-{number}", "model": "seer", "benchmark_id": "faces"}
    record |= {"suite": "people", "finished_at": datetime(2026, 11, number)}
    store.publish(path, record, tables)


def test_given_people_then_recall_disparity_and_refusals_are_judged(tmp_path: Path) -> None:
    path, at = tmp_path / "r.duckdb", np.arange(400)
    publish_people(path, 1, at % 10 != 0)
    publish_people(path, 2, (at % 10 != 0) & ~((at % 2 == 0) & (at % 3 == 0)), "refusal")
    [j] = judge(path, rules=PEOPLE).values()
    rows = {(r["rule"], r["level"] or r["side"]): r for r in j.rows}
    assert {key: row["verdict"] for key, row in rows.items()} == {
        ("recall", ""): BREACH,
        ("gap", "gender"): BREACH,
        ("gap", "skin"): MISSING,
        ("no", ""): BREACH,
        ("unread", ""): PASS,
        ("mass", "at_least"): MISSING,
    }
    assert rows["recall", ""]["before"] == 0.9
    men, women = 0.8, 1.0  # before: every tenth person is a man and not recognised
    assert rows["gap", "gender"]["before"] == pytest.approx(women - men)
    assert rows["no", ""]["value"] == pytest.approx(1 - rows["recall", ""]["value"])
    assert set(j.flips["was"]) == {"guitarist"} and set(j.flips["now"]) == {"doctor"}
    assert measured.load(path, "seer-1", policy.METHODS_OF_PEOPLE).tests("direct") == ["p1"]
    assert INSUFFICIENT not in {r["verdict"] for r in j.rows}


def test_given_a_policy_without_a_rule_for_a_suite_then_its_runs_are_said_to_be_not_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = baseline.Target("n", "m", "sdg", "m-1")
    print_judgements([regression.Judgement(target, "", [], "", pd.DataFrame())], False)
    assert "m (sdg): not judged, as the policy has no rule" in capsys.readouterr().out


def test_given_many_evaluations_then_only_those_in_breach_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def judgement(model: str, verdict: str) -> regression.Judgement:
        names = ("rule", "task", "metric", "pillar", "level", "side", "note")
        row = dict.fromkeys(names, "") | {"n": 5, "quarantines": False, "required": False}
        row |= {"test": "all", "method": "full", "indicator": "all", "verdict": verdict}
        target = baseline.Target("n", model, "sdg", f"{model}-1")
        rows = [row, row | {"verdict": PASS}]
        return regression.Judgement(target, "", rows, verdict, pd.DataFrame())

    few = [judgement("drifter", BREACH), judgement("twin", PASS)]
    print_judgements(few, False)
    assert capsys.readouterr().out.count("\n  PASS") == 3
    print_judgements([*few, *(judgement(f"other{i}", PASS) for i in range(9))], False)
    lines = capsys.readouterr().out.splitlines()
    assert "11 evaluations" in lines[0] and "--json" in lines[0] and len(lines) == 15
    assert "drifter" in lines[-2] and lines[-1].split()[0] == BREACH
