"""The first screen: the picture's bars are the store's shares, and no sentence denies an interval
that a table marks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdgbias import store, wording
from sdgbias.methods.stats import Estimate
from sdgbias.report import leans, matrix
from sdgbias.report.build import write_report
from sdgbias.report.pages import first_screen
from sdgbias.report.reader import Cells, Reader, Results
from sdgbias.types import PILLARS
from tests.builders.nights import publish_both_suites
from tests.builders.results import NAMED


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_both_suites(tmp_path_factory.mktemp("r"))


@pytest.fixture(scope="module")
def reader(results: Path) -> Iterator[Reader]:
    with Results(results).reading() as reader:
        yield reader


@pytest.fixture(scope="module")
def table(reader: Reader) -> dict[str, Any]:
    return matrix.matrix(reader)


@pytest.fixture(scope="module")
def found(reader: Reader) -> Cells:
    return Cells(reader, store.latest_runs(reader.results.path))


def test_every_bar_has_the_shares_of_the_store(found: Cells, results: Path) -> None:
    drawn = first_screen.picture(found, [], list(NAMED))
    sql = """SELECT value FROM metrics WHERE model = ? AND test = ? AND method = ? AND pillar = ?
             AND indicator = 'all' AND metric = ?"""
    method_of = {name: method for method, name in first_screen.BARS.items()}
    levels = dict(zip(first_screen.LEVELS.values(), first_screen.LEVELS, strict=True))
    checked = 0
    for row in drawn["rows"]:
        for cell in row["cells"]:
            for bar in cell["bars"]:
                method = method_of[bar.name]
                test = "T1" if method == "q_only" else "all"
                for direction, e in bar.shares.items():
                    key = [row["model"], test, method, levels[cell["level"]], f"share_{direction}"]
                    [value] = store.query(results, sql, key)["value"]
                    assert e.value == value
                    checked += 1
                _, start, width = bar.parts[-1]
                assert start + width == pytest.approx(100)
    assert checked == len(NAMED) * len(first_screen.LEVELS) * 3 * 3


def test_right_answers_are_counted_from_the_questions(
    found: Cells, results: Path, reader: Reader
) -> None:
    items = store.query(results, "FROM items WHERE task = 'mcq' AND split = 'test'")
    optimistic = items["gold"] == items["polarity"].map({"higher": "C", "lower": "A"})
    truth = first_screen.right_answers(reader, found)
    assert truth[0].shares["optimistic"].value == pytest.approx(optimistic.mean())
    for bar, pillar in zip(truth[1:], PILLARS, strict=True):
        mine = items["pillar"] == pillar
        assert bar.shares["optimistic"].value == pytest.approx(optimistic[mine].mean())


def lean_of(verdict: str, alike: str = "", n: int = 6) -> leans.Lean:
    return leans.Lean("all", verdict, "", n, "distinct prompt", alike)


@pytest.mark.parametrize(
    ("lean", "text"),
    [
        (lean_of("leans optimistic", "optimistic"), "optimistic"),
        (lean_of("shows no clear direction"), "no clear lean"),
        (
            lean_of("shows no clear direction", "optimistic"),
            "all optimistic (6 prompts): could be chance",
        ),
        (
            lean_of("5 prompts: too few to say", "pessimistic", 5),
            "all pessimistic (5 prompts): too few to say",
        ),
    ],
)
def test_answers_that_are_all_alike_are_not_called_without_direction(
    lean: leans.Lean, text: str
) -> None:
    assert first_screen._verdict(lean) == text


def shares(optimistic: float, low: float, high: float) -> dict[str, Estimate]:
    rest = (1 - optimistic) / 2
    return {
        "pessimistic": Estimate(rest, 98, 0.0, 0.25, 14),
        "conservative": Estimate(rest, 98, 0.0, 0.25, 14),
        "optimistic": Estimate(optimistic, 98, low, high, 14),
    }


def test_a_lean_over_all_pillars_is_stated_though_no_single_pillar_can_be_judged(
    found: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fourteen prompts, all optimistic; three to six of them in each pillar."""

    def bare(_: object, model: str, pillar: str) -> dict[str, Estimate]:
        whole = shares(1.0, 0.745, 1.0)
        return (
            whole
            if pillar == "all"
            else {d: Estimate(e.value, 20, 0, 1, 3) for d, e in whole.items()}
        )

    monkeypatch.setattr(leans, "_bare", bare)
    answer = first_screen._leaning([{"model": "tiny-llava"}], found)
    assert answer is not None and answer.lead == "tiny-llava leans optimistic."
    assert "100.0" in answer.numbers and "74.5" in answer.numbers


def test_the_gain_of_cade_is_stated_as_its_interval_says(
    table: dict[str, Any], found: Cells
) -> None:
    [at] = [i for i, c in enumerate(table["columns"]) if c.metric == "accuracy_gain"]
    rows = [r for r in table["rows"] if r["provenance"] == "measured" and "sdg" in r["runs"]]
    improved = [
        r["model"] for r in rows if wording.sign_of(Estimate.of_row(r["cells"][at]["row"])) == 1
    ]
    answer = first_screen._debiasing(table, rows, found, [])
    assert answer is not None
    of = f"{len(improved)} of {len(rows)} models" if improved else f"none of {len(rows)} models"
    assert f"improves the accuracy of {of}" in answer.lead
    for model in improved:
        assert model in answer.lead
    alone = first_screen._debiasing(table, rows[:1], found, [])
    name = rows[0]["model"] if rows[0]["model"] in improved else "no model"
    assert alone is not None and f"improves the accuracy of {name}." in alone.lead


def of_people(value: float, low: float, high: float) -> dict[str, Any]:
    ends = {"ci_low": low, "ci_high": high, "clusters": 60}
    return {"metric": "disparity", "value": value, "n": 60, **ends}


def test_a_difference_at_another_prompt_is_not_denied(
    table: dict[str, Any], results: Path, tmp_path: Path
) -> None:
    rows = [r for r in table["rows"] if r["runs"].get("people")]
    for row in rows:
        for i, column in enumerate(table["columns"]):
            if column.metric == "disparity":
                row["cells"][i] |= {"mark": "", "sort": 0.01, "row": of_people(0.01, -0.1, 0.1)}
    path = Path(shutil.copy(results, tmp_path / "r.duckdb"))
    with store.connect(path, details=()) as con:
        con.execute("DELETE FROM numbers WHERE metric = 'disparity'")
        con.execute(
            """INSERT INTO numbers BY NAME SELECT ? AS run_id, 'headline' AS study, 'choice' AS
            task, 'p2' AS test, 'full' AS method, '' AS versus, 'skin' AS attribute, 'light' AS
            "group", 'dark' AS other, 'all' AS indicator, 'classes' AS parameter, 52 AS x,
            'disparity' AS metric, 0.311 AS "value", 60 AS n, 0.119 AS low, 0.526 AS high,
            60 AS clusters""",
            [rows[0]["runs"]["people"]],
        )
    with Results(path).reading() as reader:
        answer = first_screen._recognition(reader, table, rows)
    assert answer is not None
    assert "no difference between groups is clearer than chance" in answer.lead
    assert "annotated as dark less often than light, by 31.1 points" in answer.numbers
    assert "at p2" in answer.numbers


def test_planted_biases_are_compared_with_what_was_planted(table: dict[str, Any]) -> None:
    """A planted difference of 10 points lies in 5 to 15, one of 20 doesn't."""
    columns = [c for c in table["columns"] if c.metric == "disparity"]
    row = {
        "model": "planted",
        "cells": [{"sort": 0.1, "row": of_people(0.1, 0.05, 0.15)} for _ in columns],
    }
    planted = {"effects": {"female": -0.1, "dark": -0.2, "old": -0.1}}
    run = {"model": "planted", "config": f'{{"spec": {{"options": {planted}}}}}'.replace("'", '"')}
    checks = first_screen.planted_checks({"columns": columns}, row, None, [run])
    assert [ok for ok, _ in checks] == [True, False, True]


def test_what_takes_the_findings_back_stands_above_them(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "r.duckdb"
    shutil.copytree(results.with_suffix(".runs"), own.with_suffix(".runs"))
    shutil.copyfile(results, own)
    with store.connect(own, details=()) as con:
        con.execute("UPDATE runs SET config = '{\"synthetic\": true}'")
    text = write_report(own, tmp_path / "out").read_text(encoding="utf-8")
    places = [
        text.index(mark)
        for mark in (
            "Synthetic places",
            "Which way do models",
            "What does CADE",
            'id="lean"',
            'id="leaderboard"',
        )
    ]
    assert places == sorted(places)
    assert len(re.findall(r'class="stack"', text)) >= 3 * 4 * len(NAMED)
