"""The first screen: the picture's bars are the store's shares, and no sentence denies an interval
that a table marks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sdgbias import store, wording
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import leans, matrix
from sdgbias.report.build import ReportPages, write_report
from sdgbias.report.layout import OVERVIEW
from sdgbias.report.pages import first_screen
from sdgbias.report.reader import Cells, Reader, Results
from sdgbias.types import PILLARS
from tests.builders.results import NAMED, altered


@pytest.fixture
def table(reader: Reader) -> dict[str, Any]:
    return matrix.matrix(reader)


@pytest.fixture
def found(reader: Reader) -> Cells:
    return Cells(reader, store.latest_runs(reader.results.path))


def test_every_bar_has_the_shares_of_the_store(found: Cells, suites: Path) -> None:
    rows = store.query(
        suites,
        """SELECT model, method, pillar, metric, value FROM metrics WHERE task = 'mcq'
           AND test = if(method = 'q_only', 'T1', 'all') AND indicator = 'all'""",
    )
    stored = rows.set_index(["model", "method", "pillar", "metric"])["value"]
    method_of = {name: method for method, name in first_screen.BARS.items()}
    pillar_of = {title: pillar for pillar, title in first_screen.LEVELS.items()}
    checked = 0
    for row in first_screen.picture(found, {}, list(NAMED))["rows"]:
        for level, bar in ((cell["level"], bar) for cell in row["cells"] for bar in cell["bars"]):
            for way, e in bar.shares.items():
                key = (row["model"], method_of[bar.name], pillar_of[level], f"share_{way}")
                assert e.value == stored[key]
                checked += 1
            _, start, width = bar.parts[-1]
            assert start + width == pytest.approx(100)
    assert checked == len(NAMED) * len(first_screen.LEVELS) * 3 * 3


def test_a_direction_is_that_of_the_answers_in_words_where_scores_name_none(
    reader: Reader, suites: Path, tmp_path: Path
) -> None:
    spoken = """UPDATE numbers SET method = 'q_only_generated'
                WHERE method = 'q_only' AND study = 'headline'"""
    with Results(altered(suites, tmp_path, spoken)).reading() as inner:
        cells = Cells(inner, store.latest_runs(inner.results.path))
        board = matrix.matrix(inner)["rows"][0]["cells"]
        bars = str(first_screen.picture(cells, [], list(NAMED))["rows"])
    scored = Cells(reader, store.latest_runs(reader.results.path))
    assert bars == str(first_screen.picture(scored, [], list(NAMED))["rows"])
    assert [cell["prompts"] for cell in board if "generated" in cell["prompts"]] == [
        "Q-only, generated, 3 prompts"
    ] * 2


def test_right_answers_are_counted_from_the_questions(
    found: Cells, suites: Path, reader: Reader
) -> None:
    items = store.query(suites, "FROM items WHERE task = 'mcq' AND split = 'test'")
    optimistic = items["gold"] == items["polarity"].map({"higher": "C", "lower": "A"})
    [truth] = first_screen.right_answers(reader, found).values()
    assert truth[0].shares["optimistic"].value == pytest.approx(optimistic.mean())
    for bar, pillar in zip(truth[1:], PILLARS, strict=True):
        mine = items["pillar"] == pillar
        assert bar.shares["optimistic"].value == pytest.approx(optimistic[mine].mean())


@pytest.mark.parametrize(
    ("verdict", "alike", "text"),
    [
        ("leans optimistic", "optimistic", "optimistic"),
        ("shows no clear direction", "", "no clear lean"),
        (
            "shows no clear direction",
            "optimistic",
            "all optimistic (6 prompts): could be chance",
        ),
        ("too few to say", "pessimistic", "all pessimistic (6 prompts): too few to say"),
    ],
)
def test_answers_that_are_all_alike_are_not_called_without_direction(
    verdict: str, alike: str, text: str
) -> None:
    lean = leans.Lean("all", verdict, {}, "", 6, "distinct prompt", alike)
    assert lean.cell == text


def test_a_lean_over_all_pillars_is_stated_though_no_single_pillar_can_be_judged(
    reader: Reader, table: dict[str, Any], found: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fourteen prompts, all optimistic; three to six of them in each pillar."""
    rare = Estimate(0.0, 98, 0.0, 0.25, 14)
    whole = {"pessimistic": rare, "conservative": rare}
    whole |= {"optimistic": Estimate(1.0, 98, 0.745, 1.0, 14)}
    part = {d: Estimate(e.value, 20, 0, 1, 3) for d, e in whole.items()}
    shares = lambda self, model, pillar, method: whole if pillar == "all" else part  # noqa: E731
    monkeypatch.setattr(Cells, "shares", shares)
    rows = [row for row in table["rows"] if row["model"] == "tiny-llava"]
    answer, *_ = first_screen.answers(reader, table | {"rows": rows}, found, None, [])
    assert answer.lead == "tiny-llava leans optimistic."
    assert "100.0" in answer.numbers and "74.5" in answer.numbers
    assert "with the options in one order" in answer.numbers


def test_a_preference_for_a_position_is_no_lean(
    reader: Reader, table: dict[str, Any], found: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers optimistic, and with the options reversed none."""
    none, every = Estimate(0.0, 98, 0.0, 0.25, 14), Estimate(1.0, 98, 0.745, 1.0, 14)
    whole = dict.fromkeys(DIRECTIONS, none) | {"optimistic": every}
    turned = dict.fromkeys(DIRECTIONS, none) | {"pessimistic": every}
    monkeypatch.setattr(Cells, "shares", lambda *_: whole)
    asked: list[str] = []
    monkeypatch.setattr(Cells, "reordered", lambda *at: asked.append(at[-1]) or turned)
    [lean] = leans.leaning(found, "tiny-llava", ["all"])
    assert (lean.way, lean.cell, asked) == ("", "follows the order of options", ["reversed"])
    rows = [row for row in table["rows"] if row["model"] == "tiny-llava"]
    answer, *_ = first_screen.answers(reader, table | {"rows": rows}, found, None, [])
    assert answer.lead == "tiny-llava follows the order of options, not what they say."
    assert "with the options reversed 0.0" in answer.numbers.replace("\xa0", " ")


def test_ties_are_no_lean(found: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without any preference answers A everywhere, which is one end of each indicator."""
    alike = {d: Estimate(0.0, 98, 0.0, 0.2, 14) for d in DIRECTIONS}
    alike["pessimistic"] = Estimate(1.0, 98, 0.8, 1.0, 14)
    monkeypatch.setattr(Cells, "wordings", lambda *_: alike)
    monkeypatch.setattr(Cells, "estimate", lambda *_, **__: Estimate(1.0, 98, 0.9, 1.0, 40))
    [lean] = leans.leaning(found, "tiny-llava", ["all"])
    assert (lean.way, lean.cell) == (
        "",
        "no clear lean",
    ) and "of the bare answers are ties" in lean.numbers


def test_answers_are_about_measured_models(
    reader: Reader, table: dict[str, Any], found: Cells
) -> None:
    leaning, debiasing, *_ = first_screen.answers(reader, table, found, None, [])
    for answer in (leaning, debiasing):
        assert "tiny-llava" in answer.text and "qwen2.5-vl-7b" not in answer.text
    # a lean over wordings isn't the leaderboard's number: it says what it was counted on
    assert "in one wording" in leaning.text or "in several wordings each" in leaning.text


def test_a_planted_model_on_another_benchmark_takes_no_finding_away(
    suites: Path, tmp_path: Path
) -> None:
    planted = "FROM runs WHERE provenance = 'planted' AND suite = 'sdg'"
    path = altered(
        suites,
        tmp_path,
        f"INSERT INTO items BY NAME SELECT * REPLACE ('other' AS benchmark_id) FROM items WHERE"
        f" benchmark_id IN (SELECT benchmark_id {planted})",
        f"UPDATE runs SET benchmark_id = 'other' WHERE run_id IN (SELECT run_id {planted})",
    )
    texts = [ReportPages(of).files([OVERVIEW])[OVERVIEW.file] for of in (suites, path)]
    before, after = (re.findall("the over-represented direction [^<]*", text) for text in texts)
    assert before and before == after


def test_the_gain_of_cade_is_stated_as_its_interval_says(
    reader: Reader, table: dict[str, Any], found: Cells
) -> None:
    def of_cade(rows: list[dict[str, Any]]) -> str:
        _, answer, *_ = first_screen.answers(reader, table | {"rows": rows}, found, None, [])
        assert answer.question.startswith("What does CADE take out")
        return answer.lead

    [at] = [i for i, c in enumerate(table["columns"]) if c.metric == "accuracy_gain"]
    rows = [r for r in table["rows"] if r["provenance"] == "measured" and "sdg" in r["runs"]]
    improved = [
        r["model"] for r in rows if wording.sign_of(Estimate.of_row(r["cells"][at]["row"])) == 1
    ]
    of = f"{len(improved)} of {len(rows)} models" if improved else f"none of {len(rows)} models"
    lead = of_cade(rows)
    assert f"improves the accuracy of {of}" in lead
    assert all(model in lead for model in improved)
    name = rows[0]["model"] if rows[0]["model"] in improved else "no model"
    assert f"improves the accuracy of {name}." in of_cade(rows[:1])


@pytest.mark.parametrize(("after", "closer"), [(0.35, True), (0.5, False)])
def test_a_direction_is_closer_where_the_intervals_dont_overlap(
    reader: Reader,
    table: dict[str, Any],
    found: Cells,
    monkeypatch: pytest.MonkeyPatch,
    after: float,
    closer: bool,
) -> None:
    """60 % optimistic before CADE, a third of the right answers; each within 10 points."""
    value = {"q_only": 0.6, "full": 0.6, "cade": after}

    def answered(cells: Cells, model: str, pillar: str, method: str) -> dict[str, Estimate]:
        of = {"pessimistic": 0.0, "conservative": 0.0, "optimistic": value[method]}
        return {way: Estimate(v, 490, v - 0.1, v + 0.1, 60) for way, v in of.items()}

    monkeypatch.setattr(first_screen, "answered", answered)
    rows = [row for row in table["rows"] if row["model"] == "tiny-llava"]
    _, answer, *_ = first_screen.answers(reader, table | {"rows": rows}, found, None, [])
    of = "tiny-llava" if closer else "no model"
    assert f"closer to its share of the right answers for {of}." in answer.lead
    assert ("after CADE (the intervals overlap)" in answer.numbers) != closer


def test_a_gain_without_an_interval_includes_nothing(
    reader: Reader, table: dict[str, Any], found: Cells
) -> None:
    """Its questions are about too few places for one."""
    [at] = [i for i, c in enumerate(table["columns"]) if c.metric == "accuracy_gain"]
    row = next(r for r in table["rows"] if r["model"] == "tiny-llava")
    gain = row["cells"][at]
    without = gain["row"] | {"ci_low": None, "ci_high": None, "clusters": 4}
    cells = [*row["cells"][:at], gain | {"row": without}, *row["cells"][at + 1 :]]
    rows = [row | {"cells": cells}]
    _, answer, *_ = first_screen.answers(reader, table | {"rows": rows}, found, None, [])
    assert "no interval" in answer.numbers and "includes zero" not in answer.numbers


def test_of_several_suites_the_gain_names_its_own(reader: Reader) -> None:
    columns = [
        c for suite in ("one", "two") for c in matrix.columns_of(suite) if c.metric != "accuracy"
    ]
    row = {"value": -0.3, "n": 3, "ci_low": None, "ci_high": None, "clusters": 3}
    cell = {"sort": -0.3, "other": "", "row": row}
    empty = {"sort": None, "other": "", "row": None}
    rows = [{"model": "m", "provenance": "measured", "runs": {}, "cells": [cell, empty]}]
    table = {"columns": columns, "rows": rows, "titles": {"one": "Counting Dots", "two": "Two"}}
    [answer] = first_screen.answers(reader, table, None, None, [])
    assert answer.lead == "On Counting Dots CADE improves the accuracy of no model."


def of_people(value: float, low: float, high: float) -> dict[str, Any]:
    ends = {"ci_low": low, "ci_high": high, "clusters": 60}
    return {"metric": "disparity", "value": value, "n": 60, **ends}


def test_a_difference_at_another_prompt_is_not_denied(
    table: dict[str, Any], suites: Path, tmp_path: Path
) -> None:
    rows = [r for r in table["rows"] if r["runs"].get("people")]
    for row in rows:
        for i, column in enumerate(table["columns"]):
            if column.metric == "disparity":
                row["cells"][i] |= {"mark": "", "sort": 0.01, "row": of_people(0.01, -0.1, 0.1)}
    insert = """INSERT INTO numbers BY NAME SELECT ? AS run_id, 'headline' AS study, 'choice' AS
        task, 'p2' AS test, 'full' AS method, '' AS versus, 'skin' AS attribute, 'light' AS
        "group", 'dark' AS other, 'all' AS indicator, 'classes' AS parameter, 52 AS x,
        'disparity' AS metric, 0.311 AS "value", 60 AS n, 0.119 AS low, 0.526 AS high,
        60 AS clusters"""
    delete = "DELETE FROM numbers WHERE metric = 'disparity'"
    path = altered(suites, tmp_path, delete, (insert, [rows[0]["runs"]["people"]]))
    with Results(path).reading() as reader:
        answers = first_screen.answers(reader, table | {"rows": rows}, None, None, [])
    [answer] = [answer for answer in answers if answer.page == "people"]
    assert "no difference between groups is clearer than chance" in answer.lead
    assert "annotated as dark less often than light, by 31.1 points" in answer.numbers
    assert "at p2" in answer.numbers


@pytest.mark.parametrize(
    ("why", "lead"),
    [
        ("no answer understood", "No answer about people of {} was understood."),
        ("too few (n 9)", "No difference between groups has a value for {}: too few (n 9)."),
    ],
)
def test_groups_that_are_too_small_are_no_answers_that_were_not_understood(
    reader: Reader, table: dict[str, Any], why: str, lead: str
) -> None:
    [row] = [r for r in table["rows"] if r["runs"].get("people")]
    for i, column in enumerate(table["columns"]):
        if column.metric == "disparity":
            row["cells"][i] |= {"mark": "", "sort": None, "why": why}
    answers = first_screen.answers(reader, table | {"rows": [row]}, None, None, [])
    [answer] = [answer for answer in answers if answer.page == "people"]
    assert answer.text == lead.format(row["model"])


def test_a_model_without_a_difference_is_named_beside_one_that_has_some(
    reader: Reader, table: dict[str, Any]
) -> None:
    [row] = [r for r in table["rows"] if r["runs"].get("people")]
    wrong = row | {"model": "wrong", "cells": [dict(cell) for cell in row["cells"]]}
    for cell, column in zip(wrong["cells"], table["columns"], strict=True):
        if column.metric == "disparity":
            cell |= {"mark": "", "sort": None, "why": "no answer right"}
    answers = first_screen.answers(reader, table | {"rows": [row, wrong]}, None, None, [])
    [answer] = [answer for answer in answers if answer.page == "people"]
    words = "No difference between groups has a value for wrong: no answer right."
    assert answer.text.endswith(words) and answer.text != words


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
    assert checks[1][1] == f"planted ({columns[1].title})", "names in a list of several"


def test_a_planted_direction_is_looked_for_in_the_bare_questions(
    found: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other wordings are outside of the benchmark that the model's oracle knows."""
    model = found.models[0]
    bare = found.shares(model, "all", "q_only")
    way, *others = sorted(bare, key=lambda d: -bare[d].value)
    reworded = {d: Estimate(float(d == others[0]), 9) for d in DIRECTIONS}
    monkeypatch.setattr(found, "wordings", lambda *_: reworded)
    prior = {"all": [float(d == way) for d in DIRECTIONS]}
    run = {"model": model, "config": json.dumps({"spec": {"options": {"prior": prior}}})}
    row = {"model": model, "cells": []}
    checks = first_screen.planted_checks({"columns": []}, row, found, [run])
    assert checks == [(True, f"{model} ({way})")]


@pytest.mark.parametrize(("low", "right"), [(0.15, True), (0.35, False)])
def test_a_planted_direction_is_missed_only_beyond_the_intervals(
    found: Cells, monkeypatch: pytest.MonkeyPatch, low: float, right: bool
) -> None:
    model = found.models[0]
    shares = {d: Estimate(0.25, 79, 0.1, 0.33, 14) for d in DIRECTIONS[1:]}
    shares["pessimistic"] = Estimate(0.5, 79, low, 0.65, 14)
    monkeypatch.setattr(found, "shares", lambda *_: shares)
    run = {"model": model, "config": json.dumps({"spec": {"options": {"optimism": 1.0}}})}
    row = {"model": model, "cells": []}
    checks = first_screen.planted_checks({"columns": []}, row, found, [run])
    assert checks == [(right, f"{model} (optimistic)")]


@pytest.mark.parametrize("planted", [False, True])
def test_answers_of_planted_models_are_not_called_measured(
    suites: Path, tmp_path: Path, planted: bool
) -> None:
    provenance = ", provenance = 'planted'" * planted
    update = f"UPDATE runs SET config = '{{\"synthetic\": true}}'{provenance}"
    text = ReportPages(altered(suites, tmp_path, update)).files([OVERVIEW])[OVERVIEW.file]
    assert ("answers are measured" not in text) == planted


def test_what_takes_the_findings_back_stands_above_them(suites: Path, tmp_path: Path) -> None:
    synthetic = altered(suites, tmp_path, "UPDATE runs SET config = '{\"synthetic\": true}'")
    text = write_report(synthetic, tmp_path / "out").read_text(encoding="utf-8")
    marks = ("Synthetic places", "Which way do models", "What does CADE")
    places = [text.index(mark) for mark in (*marks, 'id="lean"', 'id="leaderboard"')]
    assert places == sorted(places)
    assert len(re.findall(r'class="stack"', text)) >= 3 * 4 * len(NAMED)
