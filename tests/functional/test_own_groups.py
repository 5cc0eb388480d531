"""The group columns of a suite of custom questions, from its table to every page: one folder unlike
the shipped example, driven in one process."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pandas as pd
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from sdgbias import store
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.benchmark import quality
from sdgbias.benchmark.own_build import build_own
from sdgbias.cli import app as cli
from sdgbias.files import packaged_sql
from sdgbias.nightly import regression
from sdgbias.nightly.regression import measured, policy
from sdgbias.nightly.regression.baseline import Target
from sdgbias.nightly.regression.measured import paired
from sdgbias.registry import entries
from sdgbias.report import build
from sdgbias.report.source import Results
from sdgbias.report.wandb import log, team_report
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
from sdgbias.scoring.evaluate import evaluate
from sdgbias.suites.suite import EvalSettings
from tests.builders.commands import add_model
from tests.builders.own_questions import png

YAML = """\
name: fotos
title: Fotos & <Regionen>
version: 2026-a
items: fragen.jsonl
columns:
  {id: nr, question: frage, options: [o1, o2, o3, o4, o5, o6, o7], answer: lösung, image: bild}
groups: [Sprach region, gender]
"""
#: Two levels without a Latin letter, one with quotes; the fourth is left out.
REGIONS = ("日本 語", "中国 語", "Rätoromanisch \"alt\" 'neu'", "")
LETTERS = "ABCDEFG"


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 questions with 3 or 7 options about pictures in subfolders, without split and cluster_by;
    a planted model that sees pictures."""
    at = tmp_path_factory.mktemp("own")
    (at / "f" / "bilder" / "teil 1").mkdir(parents=True)
    (at / "f" / "suite.yaml").write_text(YAML, encoding="utf-8")
    rows = []
    for i in range(160):
        options = 7 if i % 3 == 0 else 3
        picture = f"bilder/teil 1/{i}é.png"
        (at / "f" / picture).write_bytes(png((i, 255 - i, 7), 8))
        row = {"nr": f"Q {i}/ü", "frage": f"Wie viele sind es bei {i}?", "bild": picture}
        row |= {f"o{j + 1}": f"{j + 1} von {options}" for j in range(options)}
        gold = 0 if i % 2 else 1 + i % (options - 1)
        row["lösung"] = LETTERS[gold] if i % 5 else row[f"o{gold + 1}"]
        rows.append(
            row | {"Sprach region": REGIONS[i % 4], "gender": "male" if i % 2 else "female"}
        )
    (at / "f" / "fragen.jsonl").write_text(
        "\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8"
    )
    build_own(at / "f", at / "b")
    quality.run_gate(at / "b")
    add_model(at, "leaning", options={"oracle": str(at / "b"), "image_weight": 0.6, "noise": 1.0})
    spec = entries.load(at, "leaning")
    settings = EvalSettings(draws=50)
    evaluate(spec, at, at / "b", at / "r.duckdb", settings)
    analyse(at / "r.duckdb", settings=AnalysisSettings(draws=50, bootstrap=200))
    return at


def _run(at: Path) -> str:
    return str(store.query(at / "r.duckdb", "SELECT run_id FROM runs")["run_id"][0])


def test_a_stored_question_keeps_its_id_and_its_levels(walk: Path) -> None:
    items = store.query(walk / "r.duckdb", "SELECT source_id, groups::VARCHAR AS groups FROM items")
    found = {r.source_id: json.loads(r.groups) for r in items.itertuples()}
    assert len(found) == 160
    assert found["Q 4/ü"] == {"Sprach region": "日本 語", "gender": "female"}
    assert found["Q 3/ü"] == {"Sprach region": "unknown", "gender": "male"}


def test_the_study_compares_the_levels_of_every_column(walk: Path) -> None:
    rows = store.query(
        walk / "r.duckdb", "FROM numbers WHERE study = 'groups' AND test = 'all'"
    ).set_index(["attribute", "metric"])
    levels = rows.loc[("Sprach region", "accuracy")]
    assert set(levels["group"]) == set(REGIONS[:3])  # an unknown level is no group
    for by in ("Sprach region", "gender"):
        apart = rows.loc[(by, "disparity")]
        assert set(apart["method"]) == {"full", "cade"} and apart["value"].notna().all()
        assert (apart["low"] <= apart["value"]).all() and (apart["n"] > 60).all()
        assert len(rows.loc[(by, "disparity_change")]) >= 1
    assert "Holm over 4 tests" in rows.loc[("gender", "disparity"), "note"].iloc[0]
    assert store.query(walk / "r.duckdb", "SELECT 1 FROM numbers WHERE attribute = 'country'").empty


def test_the_web_app_filters_and_shows_by_group(walk: Path) -> None:
    client = TestClient(
        app.create(Site(Results(walk / "r.duckdb"))), base_url="http://127.0.0.1:8321"
    )
    run = _run(walk)
    page = client.get("/questions", params={"run": run, "group:Sprach region": REGIONS[2]})
    assert page.status_code == 200 and "40 questions" in page.text
    assert "Country" not in page.text and "Q 2/ü" in page.text and "Q 1/ü" not in page.text
    both = {"run": run, "group:Sprach region": REGIONS[0], "group:gender": "male"}
    assert "No question fits these choices." in client.get("/questions", params=both).text
    wrong = client.get("/questions", params={"run": run, "group:gender": "none"})
    assert wrong.status_code == 400 and "female, male" in html.unescape(wrong.text)
    assert "Q 7/ü" in client.get("/questions", params={"run": run, "q": "q 7/ü"}).text
    item = store.query(walk / "r.duckdb", "SELECT item_id FROM items WHERE source_id = 'Q 4/ü'")
    shown = client.get(f"/questions/{run}/mcq/{item['item_id'][0]}").text
    assert "<h1>Question Q 4/ü</h1>" in shown and "<dt>Sprach region</dt><dd>日本 語</dd>" in shown
    assert "satellite" not in shown and "Pillar" not in shown and "Place" not in shown
    model = client.get("/models/leaning").text
    assert "Accuracy by group" in model and "gender: best minus worst" in model


def test_the_report_tells_groups_and_whether_cade_narrows_them(walk: Path) -> None:
    build.write_report(walk / "r.duckdb", walk / "report", [walk / "b"])
    page = (walk / "report" / "own.html").read_text(encoding="utf-8")
    assert "Sprach region: 日本 語" in page and "gender: best minus worst" in page
    assert "Whether CADE narrows the differences" in page
    assert 'href="benchmark-fotos/quality.html"' in page
    assert "Fotos &amp; &lt;Regionen&gt;" in page


def test_a_rule_of_the_gate_takes_any_group_column(walk: Path) -> None:
    common = {"suite": "fotos", "metric": "disparity", "worse": "higher", "at_most": 0.01}
    rules = [
        {"name": "gap", "by": ["gender", "Sprach region"], "min_n": 20, **common},
        {"name": "typo", "by": "gendre", **common},
    ]
    target = Target("n", "leaning", "fotos", _run(walk))
    [judged] = regression.judge_runs(
        walk / "r.duckdb", [target], policy.parse({"rules": rules}, "policy.yaml")
    )
    rows = pd.DataFrame(judged.rows).set_index(["rule", "level"])
    # "gender" is no attribute of the second suite here: its levels are not looked up there
    assert rows.loc[("gap", "gender"), "n"] > 60 and rows.loc[("gap", "gender"), "verdict"]
    assert rows.loc[("gap", "Sprach region"), "value"] >= 0
    assert rows.loc[("typo", "gendre"), "verdict"] == "MISSING"
    assert "there are: Sprach region, gender" in rows.loc[("typo", "gendre"), "note"]
    flips = regression.flips.examples(walk / "r.duckdb", _run(walk), _run(walk), "fotos", 5)
    assert flips.empty


def test_the_page_of_a_night_names_the_flipped_question(walk: Path) -> None:
    results, night = walk / "r.duckdb", "2026-11-21T0130"
    rule = {"name": "high", "suite": "fotos", "metric": "accuracy", "at_most": 0.01, "min_n": 20}
    made = policy.parse({"rules": [{**rule, "worse": "higher"}]}, "policy.yaml")
    target = Target(night, "leaning", "fotos", _run(walk))
    [judged] = regression.judge_runs(results, [target], made)
    assert judged.breached
    item = store.query(results, "SELECT item_id FROM items WHERE source_id = 'Q 4/ü'")["item_id"]
    who = {"night": night, "model": "leaning", "suite": "fotos", "run_id": _run(walk)}
    flip = {"task": "mcq", "test": "T5", "method": "full", "item_id": int(item[0]), "gold": "A"}
    store.upsert(
        results,
        {
            "nights": pd.DataFrame([{"night": night, "status": "done"}]),
            "night_outcomes": pd.DataFrame([{**who, "outcome": "published"}]),
            "flips": pd.DataFrame(
                [{**who, **flip, "baseline": "", "was": "A", "now": "B", "better": False}]
            ),
        },
    )
    text = build.write_night(results, walk / "night").read_text(encoding="utf-8")
    assert "question Q 4/ü, 日本 語, female" in text and "Picture of the place" not in text


def test_a_question_with_another_picture_is_another_question(walk: Path, tmp_path: Path) -> None:
    """A later benchmark whose author replaced one picture and kept id and text: the question is
    neither compared nor counted as flipped."""
    results = tmp_path / "r.duckdb"
    columns = {"items": "options::VARCHAR AS options, context::VARCHAR AS context"}
    tables = {
        name: store.query(
            walk / "r.duckdb",
            f"SELECT * REPLACE ({columns[name]}) FROM {name}"
            if name in columns
            else f"FROM {name}",
            runs=[_run(walk)],
        )
        for name in ("items", "scores", "predictions")
    }
    [run] = store.query(walk / "r.duckdb", "FROM runs").to_dict("records")
    store.publish(results, run, tables)
    items = tables["items"].drop(columns="benchmark_id")
    items.loc[items["source_id"] == "Q 4/ü", "image_id"] = "another"
    answers = tables["predictions"].assign(correct=~tables["predictions"]["correct"])
    later = {**run, "run_id": "later", "benchmark_id": "later"}
    store.publish(
        results,
        later,
        {
            "items": items,
            "predictions": answers.drop(columns="run_id"),
            "scores": tables["scores"].drop(columns="run_id"),
        },
    )
    old, new = (measured.load(results, name) for name in (_run(walk), "later"))
    both = paired(old, new, "mcq", ["T5"], "accuracy", "full")
    split = items.set_index("source_id")["split"]
    assert both is not None and split["Q 4/ü"] == "test"
    assert both.left == 2 and len(both.before) == (split == "test").sum() - 1
    flips = regression.flips.examples(results, _run(walk), "later", "fotos", 1000)
    replaced = items.loc[items["source_id"] == "Q 4/ü", "item_id"].iloc[0]
    assert len(flips) and replaced not in set(flips["item_id"])


def test_weights_and_biases_tells_the_levels_apart(walk: Path) -> None:
    results = walk / "r.duckdb"
    [run_id] = store.run_ids(results)
    numbers = store.query(results, packaged_sql("wandb.sql")["numbers"], {"run_id": run_id})
    names = log.summary(numbers)
    levels = [n for n in names if n.startswith("mcq/all/full/sprach-region") and "accuracy" in n]
    assert len([n for n in levels if n.endswith("/accuracy")]) == 4
    assert "mcq/all/full/sprach-region-日本-語/accuracy" in levels
    [(suite, plotted)] = team_report.plots(results).items()
    assert suite == "fotos" and plotted.keys() <= names.keys()
    assert {"mcq/all/full/accuracy", "mcq/all/full/gender-max-min/disparity"} <= plotted.keys()
    text = dict(team_report.sections(results))["Own questions: Fotos & <Regionen>"]
    assert "Sprach region: 日本 語" in text and "gender: best minus worst" in text


def test_results_prints_the_disparities(walk: Path) -> None:
    done = CliRunner().invoke(cli, ["results", "--results", str(walk / "r.duckdb")])
    assert done.exit_code == 0 and "best group minus the worst" in done.stdout
    assert "Sprach region" in done.stdout
