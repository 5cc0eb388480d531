"""The leaderboard of both suites: its numbers are those of the store, and what it marks follows
from intervals."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdgbias import store, wording
from sdgbias.methods.baselines import METHODS
from sdgbias.report import charts, layout, leaderboard, matrix
from sdgbias.report.layout import TERMS
from sdgbias.report.pages import first_screen, models
from sdgbias.report.reader import Reader, Results
from sdgbias.suites.facet import NOT_UNDERSTOOD
from tests.builders.numbers import numbers_of
from tests.builders.results import NAMED, altered
from tests.builders.web_pages import client_of


@pytest.fixture
def table(reader: Reader) -> dict[str, Any]:
    return matrix.matrix(reader)


def cell(table: dict[str, Any], model: str, title: str) -> dict[str, Any]:
    [at] = [i for i, c in enumerate(table["columns"]) if c.title == title]
    [row] = [r for r in table["rows"] if r["model"] == model]
    found: dict[str, Any] = row["cells"][at]
    return found


def test_every_number_is_that_of_the_store_with_its_interval(
    suites: Path, table: dict[str, Any]
) -> None:
    assert table["groups"] == [("Questions about places", 5), ("Pictures of people", 4)]
    checked = 0
    for row in table["rows"]:
        for column, shown in zip(table["columns"], row["cells"], strict=True):
            if not shown["value"]:
                assert shown["why"] and shown["sort"] is None
                continue
            sql = """SELECT value, n, ci_low, ci_high FROM metrics WHERE run_id = ? AND task = ? AND
                     metric = ? AND method = ? AND test = ? AND pillar = ? AND indicator = ?"""
            run = row["runs"][column.suite]
            value, n, low, high = store.query(suites, sql, [run, *column.cell]).iloc[0]
            assert shown["value"] == wording.amount(value, column.metric, unit=False)
            assert shown["n"] == f"{n:,.0f}" and f"n\xa0=\xa0{n:,.0f}" in shown["said"]
            if not math.isnan(low):
                assert wording.amount(high, column.metric, unit=False) in shown["ci"]
            checked += 1
    assert checked > 12


def test_planted_models_stand_last_and_cells_say_what_they_rest_on(table: dict[str, Any]) -> None:
    kinds = [r["provenance"] for r in table["rows"]]
    assert kinds == sorted(kinds) and set(kinds) == {"measured", "planted"}
    assert {r["model"] for r in table["rows"]} == {*NAMED, "unfair"}
    for model, title, name, words in (
        ("unfair", "Accuracy", "why", "not scored"),
        ("tiny-llava", "Recall", "why", "not scored"),
        ("unfair", "Light − dark", "why", "too few answers (n 0)"),
        ("tiny-llava", "Optimistic", "prompts", "3 prompts"),
        ("tiny-llava", "Accuracy", "prompts", ""),
        ("unfair", "Male − female", "mark", ""),
    ):
        assert cell(table, model, title)[name] == words
    assert table["prompts"] == "3"


def test_own_suites_may_have_one_title_or_no_number(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    row = {"task": "mcq", "test": "all", "method": "full", "pillar": "all", "indicator": "all"}
    row |= {"metric": "accuracy", "value": 0.5, "n": 30, "ci_low": 0.4, "ci_high": 0.6}
    for suite, rows in (("first", [row]), ("second", [row]), ("without", [])):
        record = {"run_id": f"m-{suite}", "model": "m", "benchmark_id": suite, "suite": suite}
        record |= {"finished_at": "2026-11-20T00:00:00", "config": {"own": {"title": "Dots"}}}
        store.publish(path, record, {"numbers": numbers_of(rows)} if rows else {})
    with Results(path).reading() as reader:
        table = matrix.matrix(reader)
    assert table["groups"] == [("Dots", 1), ("Dots", 1)]
    assert set(table["benchmarks"]) == set(table["titles"]) == {"first", "second"}
    assert len(first_screen.best(table)) == 2


def test_a_difference_is_marked_where_its_interval_excludes_zero(
    suites: Path, tmp_path: Path
) -> None:
    clear = "UPDATE numbers SET low = 0.3, high = 0.7, clusters = 60 WHERE metric = 'disparity'"
    with Results(altered(suites, tmp_path, clear)).reading() as reader:
        assert cell(matrix.matrix(reader), "unfair", "Male − female")["mark"] == "apart"


def test_a_model_that_was_not_understood_has_no_number(suites: Path, tmp_path: Path) -> None:
    sql = """UPDATE numbers SET value = NULL, missing_reason = ?
             WHERE metric IN ('disparity', 'recall')"""
    with Results(altered(suites, tmp_path, (sql, [NOT_UNDERSTOOD]))).reading() as reader:
        table = matrix.matrix(reader)
        recall = next(c for c in matrix.COLUMNS if c.metric == "recall").cell
        chosen = dict(zip(leaderboard.CHOICES, recall, strict=True))
        numbers = leaderboard.numbers(reader, chosen, ["unfair-0"])
        [found] = numbers[numbers["run_id"] == "unfair-0"].to_dict("records")
        page = models.page(reader, "unfair", None)
    shown = cell(table, "unfair", "Recall")
    assert (shown["why"], shown["sort"]) == ("no answer understood", None)
    assert math.isnan(found["value"]) and found["missing_reason"] == "no answer understood"
    assert page is not None and page["suites"][0]["plots"] == []


def at(value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"sort": value, "row": {"ci_low": low, "ci_high": high}}


def test_the_highest_is_so_only_beyond_its_interval() -> None:
    top = at(0.9, 0.85, 0.95)
    assert matrix.reach(top, [at(0.5, 0.4, 0.6), top]) == 0
    assert matrix.reach(top, [at(0.8, 0.7, 0.86), top]) == 1, "intervals overlap"
    assert matrix.reach(top, [at(0.5, None, None), top]) == 1, "nothing is known of the other"
    assert matrix.reach(at(0.9, None, None), [at(0.5, 0.4, 0.6)]) == 1
    assert matrix.reach(top, [top, at(0.8, 0.7, 0.86), at(0.2, 0.1, 0.3)]) == 1


@pytest.mark.parametrize(
    ("highs", "sentence"),
    [
        ([], "m0 is the only model measured on x: 90 %."),
        ([0.8], "Of 2 models, m0 is the most accurate on x: 90 %."),
        ([0.86], "m0 ranks first (90 %), but the other model is not measurably behind."),
        ([0.86, 0.8], "m0 ranks first (90 %), but 1 of the 2 others is not measurably behind."),
        ([0.86, 0.86], "m0 ranks first (90 %), but 2 of the 2 others are not measurably behind."),
    ],
)
def test_a_sentence_says_how_many_models_reach_the_first(highs: list[float], sentence: str) -> None:
    cells = [at(0.9, 0.85, 0.95), *(at(0.7, 0.6, high) for high in highs)]
    rows = [
        {"model": f"m{i}", "provenance": "measured", "cells": [c | {"other": "", "said": "90 %"}]}
        for i, c in enumerate(cells)
    ]
    column = SimpleNamespace(suite="own-x", metric="accuracy")
    table = {"titles": {"own-x": "x"}, "columns": [column], "rows": rows}
    assert first_screen.best(table)[0].endswith(sentence)


def test_a_model_of_one_night_has_no_chart_over_nights(reader: Reader) -> None:
    page = models.page(reader, "tiny-llava", None)
    assert page is not None and page["suites"]
    for suite in page["suites"]:
        assert len(suite["history"]) <= 1 and suite["plots"] == []


def test_no_guide_to_a_figure_calls_a_side_better_without_an_interval() -> None:
    for name, text in charts.texts().items():
        reads = text["reads"]
        if "of zero" in reads:
            assert "interval" in reads, f"{name}: {reads}"


def test_the_best_model_is_named_only_beyond_its_interval(table: dict[str, Any]) -> None:
    [best] = [s for s in first_screen.best(table) if "questions about places" in s]
    known = [cell(table, m, "Accuracy") for m, (kind, _) in NAMED.items() if kind == "measured"]
    if matrix.reach(max(known, key=lambda c: c["sort"]), known):
        assert best.startswith("No model is clearly ahead on questions about places: ")
    else:
        assert "is the most accurate on questions about places" in best


def test_every_method_and_test_is_explained() -> None:
    for name in (*METHODS, "T1", "T2", "T3", "T4", "T5", "CTX+Q", "CADE"):
        assert TERMS[name].endswith(".") and len(TERMS[name]) <= 160
        assert f'<abbr title="{TERMS[name][:5]}' in str(layout.explained(f"about {name} here"))


def test_every_number_of_the_leaderboard_has_one_home_and_none_needs_a_mouse(
    suites: Path, table: dict[str, Any]
) -> None:
    """Whoever follows a cell finds the same value, interval and n on the page behind it."""
    client, followed = client_of(suites), 0
    pages: dict[str, str] = {}
    for row in table["rows"]:
        named = re.compile(rf">{re.escape(row['model'])}( \(planted\))?<")
        for column, shown in zip(table["columns"], row["cells"], strict=True):
            if not shown["value"]:
                continue
            page = str(shown["address"])
            if page not in pages:
                pages[page] = client.get("/numbers", params=shown["address"]).text
            rows = re.findall(r"<tr[^>]*>(.*?)</tr>", pages[page], re.DOTALL)
            mine = re.sub(r"<[^>]+>", " ", next(r for r in rows if named.search(r)))
            for part in (shown["value"], shown["ci"].partition(":")[0], shown["n"]):
                assert part in mine, (row["model"], column.title, part, mine)
            followed += 1
    assert followed > 12
    html = client.get("/overview").text
    board = html[html.index('id="board"') : html.index("What the columns are")]
    assert "title=" not in board and "checked" in html[: html.index('id="board"')]
