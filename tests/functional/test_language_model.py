"""A language model from registration to the pages: two views are asked, everything else says that
it needs pictures."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sdgbias import store
from sdgbias.analysis import paper
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.asked import needs
from sdgbias.analysis.paper import results as stored
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.cli import app
from sdgbias.errors import UsageError
from sdgbias.nightly import plan
from sdgbias.registry import changes
from sdgbias.report import build as report
from sdgbias.scoring.evaluate import evaluate
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import IMAGE_FREE, NEEDS_PICTURES, VIEWS, ModelSpec
from tests.builders import language_models

FAST = EvalSettings(draws=50, passes=())
PLANTED = ModelSpec(
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
SEEING = replace(PLANTED, name="planted-seeing", title="Planted", views=VIEWS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    (folder / "registry" / "models").mkdir(parents=True)
    for spec in (PLANTED, SEEING):
        changes.write(folder, spec)
    return folder


@pytest.fixture(scope="module")
def results(root: Path, tiny_benchmark: Path) -> Path:
    """One benchmark asked of a model with two views and of the same with four."""
    file = root / "results" / "r.duckdb"
    for spec in (SEEING, PLANTED):
        evaluate(spec, root, tiny_benchmark, file, FAST)
    return file


def asked(results: Path, model: str, sql: str) -> list[str]:
    frame = store.query(results, sql, [model])
    return sorted(map(str, frame.iloc[:, 0]))


def test_two_views_are_asked_and_no_other_number_is_stored(results: Path) -> None:
    views = "SELECT DISTINCT view FROM scores JOIN runs r USING (run_id) WHERE r.model = ?"
    methods = """SELECT DISTINCT method FROM numbers JOIN runs r USING (run_id)
        WHERE study = 'headline' AND r.model = ?"""
    assert asked(results, "planted-language", views) == sorted(IMAGE_FREE)
    assert asked(results, "planted-language", methods) == sorted(IMAGE_FREE)
    assert asked(results, "planted-seeing", methods) == sorted([*VIEWS, "cade", "full_generated"])


def test_its_two_views_are_those_of_the_same_model_with_four(results: Path) -> None:
    sql = """SELECT s.task, s.test, s.item_id, s.view, s.logits FROM scores s
             JOIN runs r USING (run_id)
             WHERE r.model = ? AND view IN ('q_only', 'ctx_q') ORDER BY ALL"""
    two, four = (store.query(results, sql, [m]) for m in ("planted-language", "planted-seeing"))
    assert len(two) == len(four) > 200
    assert all((a == b).all() for a, b in zip(two["logits"], four["logits"], strict=True))


def test_the_views_are_part_of_the_identity(root: Path, tiny_benchmark: Path) -> None:
    from sdgbias import suites
    from sdgbias.scoring.run_id import run_id

    card, suite = suites.benchmark_card(tiny_benchmark), suites.of(tiny_benchmark)
    one, two = (replace(PLANTED, views=views) for views in (VIEWS, IMAGE_FREE))
    benchmark_id = str(card["benchmark_id"])
    assert len({run_id(spec, root, benchmark_id, suite, FAST) for spec in (one, two)}) == 2


def test_every_page_says_what_needs_pictures(
    results: Path, tmp_path: Path, tiny_benchmark: Path
) -> None:
    analyse(results, settings=AnalysisSettings(draws=20, bootstrap=100))
    tables = paper.build(stored.load(results))
    page = report.write_report(results, tmp_path / "report", tables=tables)

    def said(path: Path) -> str:
        text = re.sub(r"<(script|style|svg).*?</\1>", " ", path.read_text("utf-8"), flags=re.S)
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))

    own = said(page.with_name("model-planted-language.html"))
    assert f"Pictures and CADE : {NEEDS_PICTURES}" in own
    assert "Test Q-only CTX+Q T1 " in own, "no column without a number"
    in_board = f"planted-language planted {' '.join([NEEDS_PICTURES] * 3)}"
    assert in_board in said(page)
    [h] = [t for t in tables if t.item == "H"]
    cells = [c for r in h.rows if "planted-language (planted)" in r.labels for c in r.cells]
    assert {c.status for c in cells if c.status} == {f"not in store: {NEEDS_PICTURES}"}
    # its signatures stand beside the other's: Figure 4 and the share of each direction
    [four] = paper.build(stored.load(results), ["fig4"])
    signed = [r for r in four.rows if "planted-language (planted)" in r.labels]
    assert signed and all(r.cells[0].made for r in signed)


def test_the_web_leaderboard_names_it_under_every_method(results: Path) -> None:
    from starlette.testclient import TestClient

    from sdgbias.report.source import Results
    from sdgbias.report.web import app as web
    from sdgbias.report.web.site import Site

    client = TestClient(web.create(Site(Results(results))), base_url="http://127.0.0.1:8321")
    # its run is the newest, and the page still opens with the Full view of the others
    full = client.get("/numbers").text
    assert "Accuracy, Full, all tests" in full
    assert f"because it {NEEDS_PICTURES}: planted-language." in full
    prior = client.get("/numbers?method=q_only").text
    assert 'href="/models/planted-language"' in prior and NEEDS_PICTURES not in prior
    assert client.get("/models/planted-language").status_code == 200


def test_the_regression_check_judges_the_two_views(results: Path) -> None:
    from sdgbias.nightly.regression import measured as answers

    [run] = [r for r in store.latest_runs(results) if r.startswith("planted-language")]
    measured = answers.load(results, run)
    assert measured.of("mcq", "T1", "accuracy", "full") is None
    found = measured.of("mcq", "T1", "accuracy", "ctx_q")
    assert found is not None and len(found.value) > 5
    assert needs(measured.run["config"], "full") == NEEDS_PICTURES
    assert needs(measured.run["config"], "ctx_q") == ""


def test_the_suite_of_people_is_skipped_with_a_line(
    root: Path, tiny_benchmark: Path, people_benchmark: Path
) -> None:
    from datetime import UTC, datetime

    with pytest.raises(UsageError, match=f"{NEEDS_PICTURES}: suite people"):
        evaluate(PLANTED, root, people_benchmark, root / "other.duckdb", FAST)
    assert not (root / "other.duckdb").exists()
    settings = plan.Settings(
        root, root / "n.duckdb", (tiny_benchmark, people_benchmark), root / "report"
    )
    night = plan.tonight(settings, datetime(2026, 11, 22, tzinfo=UTC), write=False)
    assert {(j.model, j.suite) for j in night.jobs} == {
        ("planted-language", "sdg"),
        ("planted-seeing", "sdg"),
        ("planted-seeing", "people"),
    }
    [skipped] = night.skipped
    assert (skipped.model, skipped.suite, skipped.state) == (
        "planted-language",
        "people",
        NEEDS_PICTURES,
    )


@pytest.fixture(scope="module")
def people_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A card is all that is read of it."""
    folder = tmp_path_factory.mktemp("people")
    card = {"suite": "people", "benchmark_id": "abc", "counts": {}}
    (folder / "benchmark.json").write_text(json.dumps(card), "utf-8")
    return folder


def test_registered_by_command_with_the_views_that_it_can_be_asked(
    root: Path, tiny_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    folder = language_models.write(tmp_path / "tiny-lm", "llama")
    command = ["register-model", str(folder), "--benchmark", str(tiny_benchmark)]
    done = CliRunner().invoke(app, [*command, "--results", str(tmp_path / "r.duckdb"), "--yes"])
    assert done.exit_code == 0, done.output
    assert "views     q_only, ctx_q: a language model, shown no pictures" in done.output
    entry = yaml.safe_load((root / "registry" / "models" / "tiny-lm.yaml").read_text("utf-8"))
    (root / "registry" / "models" / "tiny-lm.yaml").unlink()
    # random weights put no mass on the candidates: admission says so
    assert (entry["state"], entry["views"]) == ("candidate", list(IMAGE_FREE)), done.output
    assert "candidate mass" in entry["reason"] and "is below" in entry["reason"]
