"""Views and comments of a results file, on six runs of three suites (the file of test_migrate)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.store import night_files
from tests.builders.commands import ok
from tests.builders.results import empty
from tests.builders.store_rows import run, unpacked_earlier


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_earlier(tmp_path_factory.mktemp("views"))


def test_every_table_and_column_says_what_it_holds(results: Path) -> None:
    for kind in ("duckdb_tables", "duckdb_views", "duckdb_columns"):
        sql = f"SELECT * FROM {kind}() WHERE NOT internal AND database_name <> 'temp'"
        comments = store.query(results, sql)["comment"]
        assert len(comments) >= 3 and comments.notna().all()


def test_results_tables_shows_the_comments(results: Path) -> None:
    text = ok("results", "tables", "--results", results)
    assert "questions: a question of any suite" in text
    assert re.search(r"\n  tolerance +the largest error that counts as right\n", text)

    tables = json.loads(ok("results", "tables", "--results", results, "--json"))["tables"]
    columns = {table["name"]: table["columns"] for table in tables}
    assert columns["scores"]["mass"] == "share of probability on the candidates"
    assert "0.5 is 50 %" in columns["metrics"]["value"], "the unit is that of what is stored"
    assert columns["runs"]["licence"] == "licence of the benchmark"
    assert all(about for table in columns.values() for about in table.values())


def test_questions_of_every_suite_say_what_they_are_about(results: Path) -> None:
    frame = store.query(
        results,
        """SELECT suite, count(*) AS n, list_sort(list(DISTINCT name)) AS names
           FROM (SELECT suite, unnest(map_keys(attributes)) AS name FROM questions) GROUP BY suite
           ORDER BY suite""",
    ).set_index("suite")
    assert list(frame.loc["sdg", "names"]) == ["country", "photo", "pillar", "urban", "wealth"]
    assert list(frame.loc["people", "names"]) == ["age", "class", "gender", "skin"]
    assert list(frame.loc["streets", "names"]) == ["setting", "topic"]


def test_each_answer_stands_beside_its_question(results: Path) -> None:
    answers = store.query(
        results, "FROM answers WHERE method = 'full' ORDER BY task, item_id, test"
    )
    plain = store.query(results, "SELECT * FROM predictions WHERE method = 'full'")

    assert len(answers) == len(plain) > 0
    assert set(answers["suite"]) == {"streets"}
    right = answers["pred"] == answers["gold"]
    assert (right == answers["correct"]).all()


def test_folders_above_that_name_a_column_are_only_folders(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "night=n" / "model=m" / "task=t" / "run_id=r"
    folder.mkdir(parents=True)
    path = unpacked_earlier(folder)
    for month in ("09", "10"):
        row = {"night": f"2026-{month}-01T0130", "status": "done"}
        night_files.write(path, "nights", row)
        outcome = {"night": row["night"], "model": "one", "suite": "sdg"}
        night_files.write(path, "night_outcomes", outcome)
    assert night_files.compact(path, "2026-10") == ["2026-09"]
    rows = store.query(path, "SELECT night, model FROM night_outcomes ORDER BY night")
    assert rows.to_numpy().tolist() == [["2026-09-01T0130", "one"], ["2026-10-01T0130", "one"]]
    sql = "SELECT run_id, count(*) FROM predictions WHERE task = 'mcq' GROUP BY ALL ORDER BY 1"
    assert store.query(path, sql).equals(store.query(results, sql))


def test_errors_cluster_by_prompt_where_a_prompt_holds_nothing_of_the_place(results: Path) -> None:
    units = store.query(
        results,
        """SELECT method, bool_and(unit = cluster_id) AS place, bool_and(unit = prompt_key) AS text
           FROM answers WHERE method IN ('full', 'q_only') GROUP BY method ORDER BY method""",
    )
    assert units.to_numpy().tolist() == [["full", True, False], ["q_only", False, True]]


def test_the_latest_run_is_of_a_model_on_a_benchmark(tmp_path: Path) -> None:
    path = empty(tmp_path / "r.duckdb")
    for name, benchmark, day in (("a", "x", 1), ("b", "x", 2), ("c", "y", 1), ("d", "x", None)):
        finished = f"2026-01-0{day}T00:00:00" if day else None
        store.publish(path, run(name, model="m", benchmark_id=benchmark, finished_at=finished), {})

    latest = store.query(path, "SELECT run_id FROM latest_run ORDER BY run_id")["run_id"]

    assert list(latest) == ["b", "c"]


def test_a_run_that_is_published_again_is_no_longer_analysed(tmp_path: Path) -> None:
    path = empty(tmp_path / "r.duckdb")
    store.publish(path, run("a"), {})
    store.replace(path, "a", {"analyses": pd.DataFrame([{"settings": {"draws": 1}}])})
    assert len(store.query(path, "FROM analyses")) == 1

    store.publish(path, run("a"), {})

    assert store.query(path, "FROM analyses").empty
