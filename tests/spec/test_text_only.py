"""A whole run through an endpoint that gives text only, as closed models do: what it says is read,
and everything that needs log-probabilities is left out rather than published as 0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.nights import BREACH, MISSING
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.benchmark.people import build_people
from sdgbias.engines import load
from sdgbias.errors import ModelError
from sdgbias.nightly import regression
from sdgbias.nightly.regression import baseline as runs
from sdgbias.nightly.regression import measured, policy
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec
from sdgbias.report.build import write_report
from sdgbias.scoring.evaluate import evaluate
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import NEEDS_SCORES, Prompt
from tests.builders import text_only
from tests.builders.endpoint import refusal
from tests.builders.text_only import PLANTED, ROOT, SAYS, Endpoint

SETTINGS = EvalSettings(draws=50, passes=())


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    yield server
    server.close()


def spec(endpoint: Endpoint, name: str, **options: object) -> ModelSpec:
    return ModelSpec(
        name,
        "Closed",
        "api",
        "closed",
        "2026-01-01",
        "enabled",
        batch_size=16,
        options={
            "base_url": endpoint.url,
            "api_key_env": "TEXT_ONLY_KEY",
            "retries": 1,
            **options,
        },
    )


@pytest.fixture(scope="module")
def run(
    endpoint: Endpoint, small_benchmark: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str, int]]:
    """(results file, run id, requests) of the entry as shipped, which expects log-probabilities."""
    results = tmp_path_factory.mktemp("text-only") / "r.duckdb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEXT_ONLY_KEY", "not-a-real-key")
        outcome = evaluate(spec(endpoint, "closed"), ROOT, small_benchmark, results, SETTINGS)
        assert outcome.failed == 0 and outcome.planned == outcome.scored
        yield results, outcome.run_id, endpoint.requests


def metric(results: Path, run_id: str, **where: str) -> pd.Series:
    cell = {"pillar": "all", "indicator": "all"} | where
    sql = "SELECT value, n, ci_low, ci_high FROM metrics WHERE run_id = ?" + "".join(
        f" AND {name} = ?" for name in cell
    )
    found = store.query(results, sql, [run_id, *cell.values()])
    assert len(found) == 1, (where, len(found))
    return found.iloc[0]


def test_what_it_says_is_measured_with_an_interval(
    run: tuple[Path, str, int], small_benchmark: Path
) -> None:
    results, run_id, _ = run
    model, prompts = load(PLANTED, ROOT), pd.read_parquet(small_benchmark / "prompts.parquet")
    items = pd.read_parquet(small_benchmark / "items_mcq.parquet").set_index("item_id")
    asked = prompts[(prompts["task"] == "mcq") & (prompts["test"] == "T3")]
    test = asked[asked["item_id"].map(items["split"]) == "test"]
    right = []
    for row in test.itertuples():
        readable = row.image_id[:1] not in SAYS
        prompt = Prompt(row.text, row.candidates, (b"",), row.image_id)
        letter = model.generate([prompt], [""], 16).texts[0][0][0]
        right.append(readable and letter == items.loc[row.item_id, "answer"])
    accuracy = metric(results, run_id, test="T3", method="full_generated", metric="accuracy")
    assert accuracy["n"] == len(test) and accuracy["value"] == pytest.approx(
        sum(right) / len(right)
    )
    assert accuracy["ci_low"] < accuracy["value"] < accuracy["ci_high"]
    for name, first in (("refusal_rate", "0"), ("unparsed_rate", "1"), ("truncated_rate", "2")):
        rate = metric(results, run_id, test="T3", method="full_generated", metric=name)
        assert rate["value"] == pytest.approx((test["image_id"].str[0] == first).mean()), name
    everywhere = metric(results, run_id, test="all", method="full_generated", metric="accuracy")
    assert everywhere["n"] == 5 * len(test)
    for task, test_name, method, name in (
        ("regression", "T2", "full", "mae"),
        ("regression", "T5", "full", "interval_accuracy"),
    ):
        found = metric(results, run_id, task=task, test=test_name, method=method, metric=name)
        assert found["n"] > 0 and found["ci_low"] <= found["value"] <= found["ci_high"]


def test_nothing_that_needs_scores_is_published(run: tuple[Path, str, int]) -> None:
    results, run_id, _ = run
    methods = store.query(
        results, "SELECT DISTINCT task, method FROM metrics WHERE run_id = ? ORDER BY ALL", [run_id]
    )
    assert list(methods.itertuples(index=False, name=None)) == [
        ("mcq", "full_generated"),
        ("mcq", "img_q_generated"),  # Full at T5 is IMG+Q: the same prompt
        ("regression", "full"),
        ("regression", "img_q"),
    ]
    config = store.query(results, "SELECT config FROM runs WHERE run_id = ?", [run_id])
    assert json.loads(config["config"].iloc[0])["gives_scores"] is False
    assert store.query(results, "SELECT * FROM cade_params WHERE run_id = ?", [run_id]).empty


def test_the_report_shows_its_number_and_says_why_there_is_no_other(
    run: tuple[Path, str, int], tmp_path: Path
) -> None:
    results, _, _ = run
    write_report(results, tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "needs log-probabilities" in page and "Full, generated" in page
    everywhere = metric(results, run[1], test="all", method="full_generated", metric="accuracy")
    assert f"{100 * everywhere['value']:.1f}" in page


def test_it_is_asked_for_scores_once_and_nothing_twice(
    run: tuple[Path, str, int], endpoint: Endpoint, small_benchmark: Path
) -> None:
    results, run_id, requests = run
    assert endpoint.scored <= 16, "one batch shows that there are none"
    again = evaluate(spec(endpoint, "closed"), ROOT, small_benchmark, results, SETTINGS)
    assert again.run_id == run_id and not again.published and endpoint.requests == requests


def test_an_endpoint_that_gave_scores_before_is_an_error(
    endpoint: Endpoint,
    small_benchmark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache with scores: their sudden absence is no reason to publish less than yesterday."""
    from sdgbias.scoring.cache import ScoreCache
    from sdgbias.scoring.plan import make_plan
    from sdgbias.suites import sdg

    monkeypatch.setenv("TEXT_ONLY_KEY", "not-a-real-key")
    model = spec(endpoint, "closed")
    engine = load(model, ROOT)
    plan = make_plan(sdg.load_prompts(small_benchmark), engine.fingerprint)
    row = plan.distinct.iloc[-1]
    cache = ScoreCache(tmp_path, "closed", engine.fingerprint)
    known = {"key": [row["key"]], "candidates": [row["candidates"]], "logits": [[0.0, -1.0, -2.0]]}
    cache.append(
        "scores",
        pd.DataFrame({**known, "mass": 1.0, "minus_logit": 0.0, "top_token": "A", "n_tokens": 1})
        .assign(upper=None)
        .astype({"mass": "float32", "minus_logit": "float32", "n_tokens": "int32"}),
    )
    engine.close()
    with pytest.raises(ModelError, match=r"set options\.top_logprobs to 0"):
        evaluate(model, ROOT, small_benchmark, tmp_path / "r.duckdb", SETTINGS)


@pytest.mark.parametrize("name", ["declared", "strict"])
def test_an_entry_may_say_so_beforehand_or_the_endpoint_refuse_the_field(
    name: str,
    endpoint: Endpoint,
    few_questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEXT_ONLY_KEY", "not-a-real-key")
    results, before, model = tmp_path / "r.duckdb", endpoint.scored, spec(endpoint, name)
    if name == "declared":
        model = spec(endpoint, name, top_logprobs=0)
    else:
        no_field = refusal(400, "logprobs: unknown field")
        monkeypatch.setattr(
            endpoint,
            "script",
            lambda body, n: no_field if "logprobs" in body else endpoint.answer(body, n),
        )

    outcome = evaluate(model, ROOT, few_questions, results, SETTINGS)

    assert outcome.failed == 0 and endpoint.scored == before, "no score was asked, or given"
    sql = "SELECT DISTINCT method FROM metrics WHERE task = 'mcq' ORDER BY ALL"
    methods = store.query(results, sql)["method"]
    assert methods.tolist() == ["full_generated", "img_q_generated"]


@pytest.fixture(scope="module")
def later(
    run: tuple[Path, str, int], endpoint: Endpoint, small_benchmark: Path
) -> tuple[Path, str]:
    """(results file, run id) of the next version of the model, which refuses more pictures."""
    results, _, _ = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_only, "SAYS", {**SAYS, **dict.fromkeys("3456789a", SAYS["0"])})
        patch.setenv("TEXT_ONLY_KEY", "not-a-real-key")
        model = replace(spec(endpoint, "closed"), revision="2026-02-01")
        return results, evaluate(model, ROOT, small_benchmark, results, SETTINGS).run_id


def test_the_regression_check_reads_what_it_says(
    run: tuple[Path, str, int], later: tuple[Path, str]
) -> None:
    """What needs scores is missing without being asked for; a version that answers less is in
    breach."""
    results, before, _ = run
    metrics = measured.load(results, before, policy.METHODS)
    assert metrics.tests("mcq") == ["T1", "T2", "T3", "T4", "T5"]
    assert metrics.tests("regression") == ["T2", "T5"]
    for task, method, name in (
        ("mcq", "full_generated", "accuracy"),
        ("regression", "full", "interval_accuracy"),
    ):
        found = metrics.of(task, ["T5"], name, method)
        published = metric(results, before, task=task, test="T5", method=method, metric=name)
        assert found is not None and len(found.value) == published["n"]
        assert found.value.mean() == pytest.approx(published["value"])
    [judged] = regression.judge_runs(
        results, [runs.by_hand(results, later[1])], policy.load(policy.DEFAULT), baseline=before
    )
    said = {(r["rule"], r["method"]): r for r in judged.rows if not r["level"]}
    assert judged.breached
    for rule in ("accuracy-generated", "parse-failures-generated"):
        assert said[rule, "full_generated"]["verdict"] == BREACH
    assert said["mae", "full"]["verdict"] != MISSING and said["mae", "full"]["n"] > 0
    for rule, method in (("accuracy", "full"), ("accuracy", "cade"), ("candidate-mass", "full")):
        row = said[rule, method]
        assert (row["verdict"], row["note"], row["required"]) == (MISSING, NEEDS_SCORES, False)
    assert set(judged.flips["method"]) == {"full_generated"}


def test_every_study_of_a_model_without_scores_has_its_reason(later: tuple[Path, str]) -> None:
    """Every study rests on scores: the run is marked as analysed, and no number is made up."""
    results, run_id = later
    settings = AnalysisSettings(draws=20, bootstrap=100)
    analysed = analyse(results, settings=settings)[run_id]
    rows = store.query(results, "FROM numbers WHERE run_id = ? AND study <> 'headline'", [run_id])
    assert len(rows) == analysed and set(rows["metric"]) == {"not_run"}
    assert set(rows["missing_reason"]) == {NEEDS_SCORES} and rows["value"].isna().all()
    assert {"paired", "harm", "groups", "calibration", "ablation"} <= set(rows["study"])


def test_the_suite_of_people_is_measured_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recall and disparity with n and intervals; refusals and answers without a label are counted;
    nothing of first-token scores."""
    write_people_sample(tmp_path / "raw", 60, 3)
    build_people(tmp_path / "raw", tmp_path / "b")
    planted = {"recall": 0.7, "refusals": 0.1, "ramblings": 0.1, "effects": {"female": -0.3}}
    people = replace(
        PLANTED, backend="planted-people", options={"oracle": str(tmp_path / "b"), **planted}
    )
    server = Endpoint(load(people, tmp_path))
    monkeypatch.setenv("TEXT_ONLY_KEY", "not-a-real-key")
    results = tmp_path / "r.duckdb"
    try:
        outcome = evaluate(spec(server, "closed"), ROOT, tmp_path / "b", results, SETTINGS)
    finally:
        server.close()
    assert outcome.failed == 0 and server.scored <= 16
    methods = store.query(results, "SELECT DISTINCT method FROM metrics")["method"]
    assert set(methods) == {"full", "full:paper"}
    spoken = store.query(results, "SELECT test, how FROM spoken")
    assert len(spoken) == len(pd.read_parquet(tmp_path / "b" / "items_people.parquet"))
    for test in ("p1", "p2"):
        how = spoken.loc[spoken["test"] == test, "how"]
        for name, kind in (("refusal_rate", "refusal"), ("unparsed_rate", "unparsed")):
            rate = metric(results, outcome.run_id, test=test, indicator="all-52", metric=name)
            assert rate["n"] == len(how) and rate["value"] == pytest.approx((how == kind).mean())
            assert 0 < rate["value"] < 0.3
        gap = metric(
            results,
            outcome.run_id,
            test=test,
            pillar="gender:male-female",
            indicator="all-52",
            metric="disparity",
        )
        assert gap["n"] >= 20 and gap["ci_low"] < gap["value"] < gap["ci_high"]
