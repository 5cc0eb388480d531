"""--json: standard output is one JSON value, whatever the command prints without it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.cli.options import say_json
from tests.builders.commands import refused, sdgbias
from tests.builders.results import publish_fake


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")


def printed(*command: object, code: int = 0) -> Any:
    done = sdgbias(*command, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_results_are_the_rows_of_the_table(results: Path) -> None:
    found = printed("results", "--results", results)
    assert found["people"] is None and found["own"] is None
    row = found["metrics"][0]
    assert {"model", "method", "value", "n", "ci_low", "ci_high"} <= set(row)
    table = sdgbias("results", "--results", results, "--csv").stdout.splitlines()
    assert len(found["metrics"]) == len(table) - 1
    sql = "SELECT run_id, CAST('nan' AS DOUBLE) AS nothing FROM runs ORDER BY run_id"
    ids = store.run_ids(results)
    assert printed("results", "--results", results, "--sql", sql) == [
        {"run_id": run, "nothing": None} for run in sorted(ids)
    ]
    both = sdgbias("results", "--results", results, "--csv", "--json")
    assert both.returncode == 2 and "--csv or --json" in both.stderr


def test_one_model_alone(results: Path) -> None:
    found = printed("results", "fake-optimist", "--results", results)
    assert {row["model"] for row in found["metrics"]} == {"fake-optimist"}
    text = sdgbias("results", "fake-optimist", "--results", results).stdout
    assert "fake-optimist" in text and "fake-pessimist" not in text
    unknown = sdgbias("results", "fake-optimis", "--results", results)
    assert unknown.returncode == 2
    assert "did you mean 'fake-optimist'?; or: headline, tables" in unknown.stderr
    both = sdgbias("results", "fake-optimist", "--results", results, "--sql", "SELECT 1")
    assert both.returncode == 2 and "fake-optimist or --sql, not both" in both.stderr


def test_two_models_are_compared_in_a_table_and_in_words(results: Path) -> None:
    pairs = printed("compare", "fake-pessimist", "fake-optimist", "--results", results)
    pooled = next(p for p in pairs if (p["method"], p["test"]) == ("Full", "all tests"))
    text = sdgbias("compare", "fake-pessimist", "fake-optimist", "--results", results).stdout
    sentence = next(line for line in text.splitlines() if line.startswith("With all evidence,"))
    if pooled["ci_low"] <= 0 <= pooled["ci_high"]:
        said = f"no difference can be stated: {100 * pooled['value']:+.1f} points"
    else:
        order = ["fake-pessimist", "fake-optimist"][:: 1 if pooled["value"] > 0 else -1]
        by = f"by {abs(100 * pooled['value']):.1f} points"
        said = f"{order[0]} is more accurate than {order[1]} {by}"
    assert said in sentence.replace("\u2212", "-") and f"n\u00a0=\u00a0{pooled['n']:,}" in sentence
    same = sdgbias("compare", "fake-optimist", "fake-optimist", "--results", results)
    assert same.returncode == 2 and "are one run" in same.stderr


def test_two_runs_without_answers_in_common_are_refused(results: Path, tmp_path: Path) -> None:
    """As retention leaves an old run: its metrics stay, its answers are gone."""
    copy = shutil.copytree(results.parent, tmp_path / "copy") / results.name
    with duckdb.connect(copy) as file:
        file.execute("DELETE FROM details WHERE run_id LIKE 'fake-optimist%'")
    line = refused(2, "compare", "fake-pessimist", "fake-optimist", "--results", copy)
    assert "have no answers left of the same questions" in line


def test_the_headline_is_a_line_a_model_with_its_intervals_and_n(results: Path) -> None:
    lines = sdgbias("results", "--results", results).stdout.splitlines()
    shown = {line.split(" ")[0]: line for line in lines if "[" in line and "%" not in line}
    sql = """SELECT model, value, ci_low, ci_high, n FROM metrics WHERE task = 'mcq' AND test =
             'all' AND method = 'full' AND pillar = 'all' AND indicator = 'all' AND metric =
             'accuracy' AND run_id IN (SELECT unnest(?))"""
    rows = store.query(results, sql, [store.latest_runs(results)])
    assert len(rows) > 1 and set(rows["model"]) == set(shown)
    for model, value, low, high, n in rows.itertuples(index=False):
        said = f"{100 * value:.1f} [{100 * low:.1f}–{100 * high:.1f}] {n}"
        assert f"{model} (planted)  {said}" in re.sub(" {2,}", "  ", shown[model])


def test_what_the_file_holds(results: Path) -> None:
    found = printed("results", "tables", "--results", results)
    assert {"name": "accuracy", "about": "Accuracy", "suites": "sdg"} in found["metrics"]
    assert "ci_low" in next(t for t in found["tables"] if t["name"] == "metrics")["columns"]


def test_the_other_tables(results: Path) -> None:
    where = ("--results", results)
    shown = printed("models", "show", "tiny-llava", *where)
    assert shown["name"] == "tiny-llava" and shown["nights"] == [] == shown["runs"]
    names = {model["name"] for model in printed("models", "list")["models"]}
    assert "tiny-llava" in names
    kept = printed("store", "keep", *where)
    assert kept["applied"] is False
    assert {run["run_id"] for run in kept["runs"]} == set(store.run_ids(results))
    assert printed("store", "check", *where) == []
    assert printed("store", "info", *where)["runs"] == len(kept["runs"])
    judged = printed("gate", *where)
    assert {j["model"] for j in judged} == {"fake-optimist", "fake-pessimist"}
    assert all(rule["verdict"] for j in judged for rule in j["rules"])


def test_checks_of_folders(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text("name: dots\n")
    fault = printed("suite", "check", tmp_path, code=9)["faults"][0]
    assert fault["file"] == "suite.yaml" and fault["message"]
    report = printed("raw", "check", tmp_path, code=3)
    assert {"sustainbench_labels"} <= {f["source"] for f in report["findings"]}


def test_what_json_has_no_word_for(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, float("nan")], "c": [pd.Timestamp(0), pd.NaT]})
    say_json({"table": table, "path": Path("x"), "list": [table["a"].to_numpy()]})
    assert json.loads(capsys.readouterr().out) == {
        "table": [
            {"a": 1, "b": 0.5, "c": "1970-01-01 00:00:00"},
            {"a": 2, "b": None, "c": None},
        ],
        "path": "x",
        "list": [[1, 2]],
    }
