"""A language model from registration to the pages: two views are asked, everything else says that
it needs pictures."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
import yaml

import sdgbias
from sdgbias import store, suites
from sdgbias.analysis import paper
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.paper import results as stored
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.errors import UsageError
from sdgbias.nightly import plan
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.regression import measured, policy
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.report import build as report
from sdgbias.report import matrix, publish
from sdgbias.report.reader import Results
from sdgbias.scoring.evaluate import evaluate
from sdgbias.scoring.run_id import run_id
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import IMAGE_FREE, NEEDS_PICTURES, VIEWS
from tests.builders import language_models
from tests.builders.commands import ok
from tests.builders.paper_tables import cell
from tests.builders.web_pages import client_of

FAST = EvalSettings(draws=50, passes=())
BLIND = ModelSpec(
    "planted-language",
    "Planted language model",
    "planted",
    "planted",
    "planted-1",
    "enabled",
    batch_size=64,
    options={"optimism": 0.6, "noise": 0.5, "suites": ["sdg", "people"]},
    views=IMAGE_FREE,
)
SEEING = replace(BLIND, name="planted-seeing", title="Planted", views=VIEWS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    (folder / "registry" / "models").mkdir(parents=True)
    for spec in (BLIND, SEEING):
        entries.write(folder, spec)
    return folder


@pytest.fixture(scope="module")
def results(root: Path, tiny_benchmark: Path) -> Path:
    """One benchmark asked of a model with two views and of the same with four."""
    file = root / "results" / "r.duckdb"
    for spec in (SEEING, BLIND):
        evaluate(spec, root, tiny_benchmark, file, FAST)
    return file


def test_two_views_are_asked_and_scored_as_those_of_the_model_with_four(results: Path) -> None:
    methods = store.query(results, "SELECT DISTINCT model, method FROM metrics")
    per_model = methods.groupby("model")["method"].agg(sorted)
    assert per_model["planted-language"] == sorted(IMAGE_FREE)
    assert per_model["planted-seeing"] == sorted([*VIEWS, "cade", "full_generated"])
    two, four = (
        store.query(
            results,
            """SELECT s.task, s.test, s.item_id, s.view, s.logits::VARCHAR AS logits FROM scores s
            JOIN runs r USING (run_id)
            WHERE r.model = ? AND view IN ('q_only', 'ctx_q') ORDER BY ALL""",
            [spec.name],
        )
        for spec in (BLIND, SEEING)
    )
    assert len(two) > 200 and two.equals(four)


def test_the_views_are_part_of_the_runs_identity(root: Path, tiny_benchmark: Path) -> None:
    benchmark_id = str(suites.benchmark_card(tiny_benchmark)["benchmark_id"])
    suite = suites.of(tiny_benchmark)
    specs = [replace(BLIND, views=views) for views in (VIEWS, IMAGE_FREE)]
    assert len({run_id(spec, root, benchmark_id, suite, FAST) for spec in specs}) == 2


def test_every_page_says_what_needs_pictures(results: Path, tmp_path: Path) -> None:
    analyse(results, settings=AnalysisSettings(draws=20, bootstrap=100))
    tables = paper.build(stored.load(results))
    page = report.write_report(results, tmp_path / "report", tables=tables)

    def text_of(path: Path) -> str:
        text = re.sub(r"<(script|style|svg).*?</\1>", " ", path.read_text("utf-8"), flags=re.S)
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))

    model_page = text_of(page.with_name("model-planted-language.html"))
    assert f"Pictures and CADE : {NEEDS_PICTURES}" in model_page
    assert "Accuracy by evidence" in model_page and "before and after CADE" not in model_page
    assert "Test Q-only CTX+Q T1 " in model_page, "no column without a number"
    assert f"planted-language planted {' '.join([NEEDS_PICTURES] * 3)}" in text_of(page)
    [h] = [t for t in tables if t.item == "H"]
    cells = [c for r in h.rows if "planted-language (planted)" in r.labels for c in r.cells]
    assert {c.status for c in cells if c.status} == {f"not in store: {NEEDS_PICTURES}"}
    # its signatures stand beside the other's: Figure 4 and the share of each direction
    [four] = paper.build(stored.load(results), ["fig4"])
    signed = [r for r in four.rows if "planted-language (planted)" in r.labels]
    assert signed and all(r.cells[0].made for r in signed)


def test_a_number_that_it_cannot_have_has_its_reason_wherever_it_is_asked_for(
    results: Path,
) -> None:
    sql = """SELECT "value", missing_reason FROM numbers JOIN runs USING (run_id)
             WHERE model = 'planted-language' AND task = 'mcq' AND test = 'all' AND method = 'full'
             AND metric = 'accuracy' AND attribute = '' AND indicator = 'all'"""
    full = {"task": "mcq", "test": "all", "method": "full", "metric": "accuracy"}
    one = {"model": "planted-language", **full}.items()
    printed = json.loads(ok("results", "--results", results, "--json"))["metrics"]
    notebook = sdgbias.metrics("planted-language", "accuracy", results).to_dict("records")
    with Results(results).reading() as reader:
        board = matrix.matrix(reader)["rows"]
    [shown] = [row["cells"][0] for row in board if row["model"] == "planted-language"]
    [h] = [t for t in paper.build(stored.load(results), ["H"]) if t.item == "H"]
    paper_cell = cell(h, "T1", "planted-language (planted)", "Original")
    places = {
        "SQL": json.loads(ok("results", "--results", results, "--sql", sql, "--json")),
        "JSON": [row for row in printed if one <= row.items()],
        "a notebook": [row for row in notebook if one <= row.items()],
        "the page": [{"value": shown["sort"], "missing_reason": shown["why"]}],
        "the paper's table": [
            {"value": paper_cell.value, "missing_reason": paper_cell.status.split(": ")[1]}
        ],
    }
    for place, rows in places.items():
        assert [row["missing_reason"] for row in rows] == [NEEDS_PICTURES], place
        assert all(pd.isna(row["value"]) for row in rows), place


def test_its_card_has_no_numbers_for_a_leaderboard_of_the_hub(
    results: Path, tmp_path: Path
) -> None:
    sql = "SELECT run_id FROM runs WHERE model = 'planted-language'"
    runs = list(store.query(results, sql)["run_id"])
    planned = publish.plan(results, tmp_path / "none", ["model-card"], runs, "lab/bench")
    assert [file.path for file in planned.files] == ["model_card/planted-language/README.md"]


def test_the_web_leaderboard_names_it_under_every_method(results: Path) -> None:
    client = client_of(results)
    # its run is the newest, and the page still opens with the Full view of the others
    full = client.get("/numbers").text
    assert "Accuracy, Full, all tests" in full
    assert f"because it {NEEDS_PICTURES}: planted-language." in full
    prior = client.get("/numbers?method=q_only").text
    assert 'href="/models/planted-language"' in prior and NEEDS_PICTURES not in prior
    assert client.get("/models/planted-language").status_code == 200


def test_the_regression_check_judges_the_two_views(results: Path) -> None:
    [run] = [r for r in store.latest_runs(results) if r.startswith("planted-language")]
    answers = measured.load(results, run, policy.METHODS)
    assert answers.of("mcq", ["T1"], "accuracy", "full") is None
    prior = answers.of("mcq", ["T1"], "accuracy", "ctx_q")
    assert prior is not None and len(prior.value) > 5


def test_the_suite_of_people_is_skipped_with_a_line(
    root: Path, tiny_benchmark: Path, tmp_path: Path
) -> None:
    people = tmp_path / "people"  # a card is all that is read of it
    people.mkdir()
    card = {"suite": "people", "benchmark_id": "abc", "counts": {}}
    (people / "benchmark.json").write_text(json.dumps(card), "utf-8")
    with pytest.raises(UsageError, match=f"{NEEDS_PICTURES}: suite people"):
        evaluate(BLIND, root, people, root / "other.duckdb", FAST)
    assert not (root / "other.duckdb").exists()
    settings = NightOptions(root / "n.duckdb", benchmark=[tiny_benchmark, people], root=root)
    night = plan.tonight(settings, datetime(2026, 11, 22, tzinfo=UTC), write=False)
    jobs = sorted((job.model, job.suite) for job in night.jobs)
    assert jobs == [
        ("planted-language", "sdg"),
        ("planted-seeing", "people"),
        ("planted-seeing", "sdg"),
    ]
    [skipped] = night.skipped
    who = (skipped.model, skipped.suite, skipped.state)
    assert who == ("planted-language", "people", NEEDS_PICTURES)


def test_it_is_registered_with_the_views_that_it_can_be_asked(
    root: Path, tiny_benchmark: Path, tmp_path: Path
) -> None:
    folder = language_models.write(tmp_path / "tiny-lm", "llama")
    where = f"--benchmark {tiny_benchmark} --results {tmp_path / 'r.duckdb'}"

    printed = ok(f"register-model {folder} {where} --yes", registry=root)

    assert "views     q_only, ctx_q: a language model, shown no pictures" in printed
    command = f"models prompt tiny-lm --benchmark {tiny_benchmark}"  # as admission advises
    assert "test T1, view ctx_q" in ok(command, registry=root)
    path = root / "registry" / "models" / "tiny-lm.yaml"
    entry = yaml.safe_load(path.read_text("utf-8"))
    path.unlink()
    # random weights put no mass on the candidates: admission says so
    assert (entry["state"], entry["views"]) == ("candidate", list(IMAGE_FREE)), printed
    assert "candidate mass" in entry["reason"] and "is below" in entry["reason"]
