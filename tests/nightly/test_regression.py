"""What runs measure, what they are compared with, and what is kept of a judged night."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis import nights
from sdgbias.analysis.nights import BREACH, INSUFFICIENT, MISSING, PASS
from sdgbias.cli.gate import _print
from sdgbias.errors import UsageError
from sdgbias.nightly import regression
from sdgbias.nightly.regression import baseline, flips, measured, policy
from sdgbias.nightly.regression.measured import paired, pooled
from tests.builders import nights as gate_results
from tests.builders.nights import FIRST, LOST, SECOND, STEADY, THIRD
from tests.builders.results import copied

POLICY = policy.parse(
    {
        "rules": [
            {"name": "accuracy", "metric": "accuracy", "allowed": 0.02, "required": True},
            {
                "name": "signature",
                "metric": "signature",
                "methods": ["q_only", "full"],
                "worse": "either",
                "allowed": 0.05,
            },
            {"name": "mass", "metric": "candidate_mass", "at_least": 0.2, "then": "quarantine"},
            {"name": "failed", "metric": "failed_share", "at_most": 0.01},
        ],
        "examples": 12,
    },
    "test",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gate_results.two_nights(tmp_path_factory.mktemp("gate") / "r.duckdb")


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    """Two nights, not judged yet."""
    return copied(written, tmp_path / "r.duckdb")


@pytest.fixture(scope="module")
def both(
    written: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, regression.Judgement], dict[str, regression.Judgement]]:
    """The same file with both nights judged, and the judgements."""
    path = copied(written, tmp_path_factory.mktemp("judged") / "r.duckdb")
    return path, judge(path, FIRST), judge(path)


@pytest.fixture
def judged(both: tuple[Path, object, object], tmp_path: Path) -> Path:
    return copied(both[0], tmp_path / "judged.duckdb")


def judge(results: Path, night: str = "") -> dict[str, regression.Judgement]:
    return {
        j.target.model: j
        for j in regression.judge_runs(results, baseline.of_night(results, night), POLICY)
    }


def test_answers_are_those_of_the_stored_predictions(written: Path) -> None:
    side = measured.load(written, f"{LOST}-1")
    stored = store.query(
        written, "FROM predictions WHERE run_id = ? AND split = 'test'", [f"{LOST}-1"]
    )
    for method, test in (("full", "T1"), ("q_only", "T4"), ("cade", "T2")):
        found = side.of("mcq", test, "accuracy", method)
        own = stored[(stored["method"] == method) & (stored["test"] == test)]
        assert found is not None and len(found.value) == len(own) == 120
        assert found.value.mean() == own["correct"].mean()
    gain, cade, full = (
        side.of("mcq", "T1", m, x)
        for m, x in (("cade_gain", "cade"), ("accuracy", "cade"), ("accuracy", "full"))
    )
    assert gain is not None and cade is not None and full is not None
    np.testing.assert_array_equal(gain.value, cade.value - full.value)
    shares = [
        side.of("mcq", "T1", f"share_{d}", "full")
        for d in ("pessimistic", "conservative", "optimistic")
    ]
    np.testing.assert_array_equal(sum(s.value for s in shares if s is not None), np.ones(120))
    mass = side.of("mcq", "T1", "candidate_mass", "full")
    assert mass is not None and mass.value.mean() == pytest.approx(0.97)
    ties, near = (side.of("mcq", "T1", m, "full") for m in ("tie_rate", "near_tie_rate"))
    assert ties is not None and near is not None
    assert set(ties.value) <= {0.0, 1.0} and (near.value >= ties.value).all()
    off = side.of("mcq", "T1", "parse_failures", "full")
    assert off is not None and off.value.max() == 0
    assert (
        side.of("regression", "T2", "mae", "full") is None
        and side.of("mcq", "T1", "mae", "full") is None
    )


def test_questions_without_a_picture_are_clustered_by_prompt(written: Path) -> None:
    """Three indicators with one set of options each: three prompts in the Q-only view, and 50
    places."""
    side = measured.load(written, f"{LOST}-1")

    def clusters(method: str, test: str) -> int:
        found = side.of("mcq", test, "accuracy", method)
        assert found is not None
        return len(set(found.cluster.tolist()))

    assert [clusters("q_only", "T1"), clusters("ctx_q", "T3"), clusters("ctx_q", "T5")] == [3, 3, 3]
    assert [clusters("ctx_q", "T1"), clusters("full", "T5"), clusters("cade", "T3")] == [50, 50, 50]


def test_a_question_that_was_reworded_is_another_question(results: Path) -> None:
    gate_results.publish_run(results, LOST, 3, 2, benchmark="fedcba9876543210")
    other = store.query(results, "FROM items WHERE benchmark_id = 'fedcba9876543210'")
    other["question"] = np.where(other["item_id"] < 30, "Reworded?", other["question"])
    [record] = store.query(results, "FROM runs WHERE run_id = ?", [f"{LOST}-3"]).to_dict("records")
    tables = {
        t: store.query(results, f"FROM {t} WHERE run_id = ?", [f"{LOST}-3"]).drop(columns="run_id")
        for t in ("scores", "predictions", "cade_params")
    }
    store.publish(results, record, tables | {"items": other.drop(columns="benchmark_id")})
    old, new = (
        pooled(measured.load(results, f"{LOST}-{n}"), "mcq", ["T1"], "accuracy", "full")
        for n in (1, 3)
    )
    assert old is not None and new is not None
    both, left = paired(old, new)
    assert len(both) == 120 - 24 and left == 2 * 24
    found = flips.examples(results, f"{LOST}-2", f"{LOST}-3", "sdg", 1000)
    assert len(found) and found["item_id"].min() >= 30


def test_a_planted_loss_is_a_breach_and_an_unchanged_run_is_not_judged_again(both) -> None:  # type: ignore[no-untyped-def]
    results, first, second = both
    assert {j.verdict for j in first.values()} == {nights.FIRST} and first[LOST].baseline == ""
    assert set(second) == {LOST, STEADY}  # the one that failed has no run
    lost = {r["rule"]: r for r in second[LOST].rows if r["method"] in ("full", "")}
    assert (
        second[LOST].verdict == BREACH
        and lost["accuracy"]["verdict"] == BREACH
        and second[LOST].baseline == f"{LOST}-1"
    )
    assert (
        lost["accuracy"]["change"] < -0.1
        and lost["failed"]["verdict"] == PASS
        and lost["mass"]["verdict"] == PASS
    )
    assert [(r["rule"], r["verdict"], r["note"]) for r in second[STEADY].rows] == [
        ("unchanged", PASS, f"the same run as in night {FIRST}, judged there")
    ]
    kept = store.query(results, "FROM verdicts WHERE night = ?", [SECOND])
    assert len(kept) == len(second[LOST].rows) + 1


def test_judging_again_changes_nothing(judged: Path) -> None:
    results = judged
    before = [store.query(results, f"FROM {t} ORDER BY ALL") for t in ("verdicts", "flips")]
    judge(results)
    after = [store.query(results, f"FROM {t} ORDER BY ALL") for t in ("verdicts", "flips")]
    for one, other in zip(before, after, strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_a_breach_stays_one_until_it_is_mended_or_accepted(judged: Path) -> None:
    results = judged
    same = [{"model": LOST, "outcome": "unchanged", "run_id": f"{LOST}-2"}]
    gate_results.keep_night(results, THIRD, same)
    third = judge(results, THIRD)[LOST]
    assert (
        third.verdict == BREACH
        and third.breached
        and "that has not been accepted" in third.rows[0]["note"]
    )
    shown = nights.load(results)
    assert (
        shown is not None
        and shown.breached[0].found_in == SECOND
        and shown.breached[0].breaches[0]["rule"] == "accuracy"
    )
    assert len(shown.breached[0].flips)

    better = gate_results.publish_run(results, LOST, 4, 3)
    assert baseline.last_good(results, better) == (
        f"{LOST}-1",
        "",
    )  # the run in breach is passed over
    many = baseline.accept(results, f"{LOST}-2", "new tokenizer, looked at", datetime(2026, 11, 22))
    assert many == 1 + sum(
        r["verdict"] == BREACH
        for r in store.query(results, "FROM verdicts WHERE night = ?", [SECOND]).to_dict("records")
    )
    assert baseline.last_good(results, better) == (f"{LOST}-2", "")
    third = judge(results, THIRD)[LOST]
    assert third.verdict == PASS
    second = judge(results, SECOND)[LOST]
    assert (
        second.verdict == BREACH
        and not second.breached
        and second.accepted == "new tokenizer, looked at"
    )
    with pytest.raises(UsageError, match="nothing to accept"):
        baseline.accept(results, f"{STEADY}-1", "why not", datetime(2026, 11, 22))
    with pytest.raises(UsageError, match="state in one line why"):
        baseline.accept(results, f"{LOST}-2", " ", datetime(2026, 11, 22))


def test_what_a_run_may_be_compared_with(results: Path) -> None:
    assert baseline.last_good(results, f"{LOST}-1") == ("", baseline.FIRST_RUN)
    store.upsert(
        results,
        {
            "verdicts": pd.DataFrame(
                [
                    {
                        **dict.fromkeys(store.NIGHT_TABLES["verdicts"], ""),
                        "run_id": f"{LOST}-1",
                        "verdict": BREACH,
                    }
                ]
            )
        },
    )
    base, why = baseline.last_good(results, f"{LOST}-2")
    assert base == "" and why.startswith(
        "all 1 earlier runs are in breach; accept one: sdgbias gate accept"
    )
    assert baseline.named(results, f"{LOST}-2", f"{LOST}-1") == f"{LOST}-1"
    for other, words in (
        (f"{STEADY}-1", "is of model 'fake-pessimist'"),
        (f"{LOST}-2", "is the run itself"),
        ("x", "no run 'x'"),
    ):
        with pytest.raises(UsageError, match=words):
            baseline.named(results, f"{LOST}-2", other)


def test_a_run_whose_answers_were_removed_is_passed_over(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = gate_results.publish_run(results, LOST, 4, 3)
    gone = {f"{LOST}-2": datetime(2026, 11, 23)}
    monkeypatch.setattr(store, "dropped", lambda _, ids: {i: gone[i] for i in ids if i in gone})
    assert baseline.last_good(results, newest) == (f"{LOST}-1", "")
    gone[f"{LOST}-1"] = datetime(2026, 11, 23)
    assert baseline.last_good(results, newest) == (
        "",
        "the answers of all earlier runs were removed by `sdgbias store keep`",
    )


def test_runs_on_the_same_questions_come_first(results: Path) -> None:
    gate_results.publish_run(results, LOST, 3, 2, benchmark="fedcba9876543210")
    newest = gate_results.publish_run(results, LOST, 4, 3)
    assert baseline.last_good(results, newest) == (f"{LOST}-2", "")


def test_which_runs_are_judged(results: Path) -> None:
    assert [t.run_id for t in baseline.of_night(results, FIRST)] == [f"{LOST}-1", f"{STEADY}-1"]
    assert [t.model for t in baseline.of_night(results, model=STEADY)] == [STEADY]
    with pytest.raises(UsageError, match=f"unknown night '2026'; valid: {FIRST}, {SECOND}"):
        baseline.of_night(results, "2026")
    with pytest.raises(UsageError, match="unknown model with a run in this night 'broken'"):
        baseline.of_night(results, model="broken")
    assert baseline.by_hand(results, f"{LOST}-2").night == f"run:{LOST}-2"


def test_without_nights_the_newest_runs_are_judged(tmp_path: Path) -> None:
    for number in (1, 2):
        gate_results.publish_run(
            tmp_path / "r.duckdb", LOST, number, number, wrong=0.33 * (number - 1)
        )
    [j] = regression.judge_runs(
        tmp_path / "r.duckdb", baseline.of_night(tmp_path / "r.duckdb"), POLICY
    )
    assert (j.target.night, j.verdict) == (f"run:{LOST}-2", BREACH)
    assert nights.load(tmp_path / "r.duckdb") is None


def test_flips_are_the_worst_first_and_every_question_once_before_any_twice(results: Path) -> None:
    found = flips.examples(results, f"{LOST}-1", f"{LOST}-2", "sdg", 1000)
    assert set(found["method"]) == {"full"} and not found["better"].any()
    stored = store.query(
        results,
        """SELECT count(*) AS n FROM predictions a JOIN predictions b USING (task, item_id, test,
           method)
           WHERE a.run_id = ? AND b.run_id = ? AND a.correct AND NOT b.correct AND a.split =
           'test'""",
        [f"{LOST}-1", f"{LOST}-2"],
    )
    assert len(found) == stored["n"][0]
    assert (found["was"] == found["gold"]).all() and (found["now"] != found["gold"]).all()
    sure = store.query(
        results,
        """SELECT a.item_id, a.test, a.method, a.confidence + b.confidence AS sure FROM predictions
           a JOIN predictions b
           USING (task, item_id, test, method) WHERE a.run_id = ? AND b.run_id = ?""",
        [f"{LOST}-1", f"{LOST}-2"],
    )
    first = found.head(found["item_id"].nunique()).merge(sure, on=["item_id", "test", "method"])[
        "sure"
    ]
    assert first.is_monotonic_decreasing and first.nunique() > 10
    few = flips.examples(results, f"{LOST}-1", f"{LOST}-2", "sdg", 7)
    assert len(few) == 7 == few["item_id"].nunique()
    assert flips.examples(results, f"{LOST}-2", f"{LOST}-1", "sdg", 5)["better"].all()


def test_flips_of_what_is_in_breach_come_first(results: Path) -> None:
    [record] = store.query(results, "FROM runs WHERE run_id = ?", [f"{LOST}-2"]).to_dict("records")
    said = store.query(results, "FROM predictions WHERE run_id = ?", [f"{LOST}-2"]).drop(
        columns="run_id"
    )
    wrong = (said["method"] == "cade") & said["correct"]
    said = said.assign(
        pred=said["pred"].mask(wrong, ""),
        correct=said["correct"] & ~wrong,
        confidence=said["confidence"].mask(wrong, 1.0),
    )
    store.publish(results, record | {"run_id": f"{LOST}-5"}, {"predictions": said})
    plain, full = (
        flips.examples(results, f"{LOST}-1", f"{LOST}-5", "sdg", 1000, breached)
        for breached in ((), {"full"})
    )
    assert (
        plain["method"][0] == "cade"
        and len(plain) == len(full)
        and set(full["method"]) == {"full", "cade"}
    )
    once = full.head(full["item_id"].nunique())
    assert (
        once["item_id"].is_unique
        and once["method"][0] == "full"
        and list(once["method"]) == sorted(once["method"], reverse=True)
    ), "full, and only then cade"


def publish_people(
    path: Path, run_id: str, day: int, right: np.ndarray, how: str = "exact"
) -> None:
    """400 direct questions, one picture each, half of the people male; ``right`` (400,)."""
    n = len(right)
    table = pd.DataFrame(
        {
            "item_id": range(n),
            "person_id": [f"p{i}" for i in range(n)],
            "image_id": [f"i{i}" for i in range(n)],
            "dataset": "synthetic",
            "class1": "guitarist",
            "asked": "",
            "prompt": "p1",
            "negative": False,
            "gold": "guitarist",
            "gender": np.where(np.arange(n) % 2 == 0, "male", "female"),
            "skin": "light",
            "age": "young",
            "race": "",
            "split": "test",
        }
    )
    said = pd.DataFrame(
        {
            "task": "direct",
            "item_id": range(n),
            "test": "p1",
            "method": "full",
            "split": "test",
            "pred": np.where(right, "guitarist", "doctor"),
            "correct": right,
        }
    )
    spoken = pd.DataFrame(
        {
            "task": "direct",
            "item_id": range(n),
            "test": "p1",
            "view": "full",
            "text": "t",
            "label": "l",
            "how": np.where(right, "exact", how),
        }
    )
    record = store.RunRecord(
        run_id=run_id,
        model="seer",
        benchmark_id="faces",
        suite="people",
        finished_at=datetime(2026, 11, 20 + day),
    )
    store.publish(path, record, {"people": table, "predictions": said, "spoken": spoken})


def test_people_recall_disparity_and_refusals(tmp_path: Path) -> None:
    path, at = tmp_path / "r.duckdb", np.arange(400)
    publish_people(path, "seer-1", 0, at % 10 != 0)
    publish_people(
        path, "seer-2", 1, (at % 10 != 0) & ~((at % 2 == 0) & (at % 3 == 0)), how="refusal"
    )
    rules = [
        {"name": "recall", "suite": "people", "metric": "recall", "allowed": 0.03},
        {
            "name": "gap",
            "suite": "people",
            "metric": "disparity",
            "by": ["gender", "skin"],
            "worse": "higher",
            "allowed": 0.05,
        },
        {"name": "no", "suite": "people", "metric": "refusals", "worse": "higher", "allowed": 0.02},
        {
            "name": "unread",
            "suite": "people",
            "metric": "parse_failures",
            "worse": "higher",
            "allowed": 0.02,
        },
        {
            "name": "mass",
            "suite": "people",
            "metric": "candidate_mass",
            "task": "choice",
            "at_least": 0.1,
        },
    ]
    [j] = regression.judge_runs(
        path, baseline.of_night(path), policy.parse({"rules": rules}, "test")
    )
    found = {(r["rule"], r["level"] or r["side"]): r for r in j.rows}
    assert found["recall", ""]["verdict"] == BREACH and found["recall", ""]["before"] == 0.9
    assert (found["gap", "gender"]["verdict"], found["gap", "skin"]["verdict"]) == (BREACH, MISSING)
    men, women = 0.8, 1.0  # before: every tenth person is a man and not recognised
    assert found["gap", "gender"]["before"] == pytest.approx(women - men)
    assert found["no", ""]["verdict"] == BREACH and found["no", ""]["value"] == pytest.approx(
        1 - found["recall", ""]["value"]
    )
    assert (
        found["unread", ""]["verdict"] == PASS and found["mass", "at_least"]["verdict"] == MISSING
    )
    assert set(j.flips["was"]) == {"guitarist"} and set(j.flips["now"]) == {"doctor"}
    assert measured.load(path, "seer-1").tests == {"direct": ["p1"]}
    assert INSUFFICIENT not in {r["verdict"] for r in j.rows}


def test_of_many_evaluations_only_those_in_breach_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def judged(model: str, verdict: str) -> regression.Judgement:
        row = dict.fromkeys(("rule", "task", "metric", "pillar", "level", "side", "note"), "") | {
            "n": 5
        }
        row |= {"test": "all", "method": "full", "indicator": "all", "verdict": verdict}
        row |= dict.fromkeys(("quarantines", "required"), False)
        target = baseline.Target("n", model, "sdg", f"{model}-1")
        return regression.Judgement(
            target, "", [row, row | {"verdict": "PASS"}], verdict, pd.DataFrame()
        )

    few = [judged("drifter", "BREACH"), judged("twin", "PASS")]
    _print(few, False)
    assert capsys.readouterr().out.count("\n  PASS") == 3
    _print([*few, *(judged(f"other{i}", "PASS") for i in range(9))], False)
    lines = capsys.readouterr().out.splitlines()
    assert "11 evaluations" in lines[0] and "--json" in lines[0] and len(lines) == 15
    assert "drifter" in lines[-2] and lines[-1].split()[0] == "BREACH"
