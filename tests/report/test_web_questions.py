"""Pages of questions and pairs of runs: what they show is what the results hold."""

from __future__ import annotations

import re
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.analysis import analyse, outcomes
from sdgbias.methods import stats
from sdgbias.raw.indicators import letter_directions
from sdgbias.report.pages import compare, question, questions, runs
from sdgbias.report.reader import Results
from sdgbias.types import Task
from tests.builders.item_tables import indicator
from tests.builders.results import altered
from tests.builders.web_pages import BEFORE, RUN, client_of, text


def test_questions_are_filtered_in_the_results(client: TestClient, served: Path) -> None:
    def count(**filters: str) -> int:
        page = client.get("/questions", params={"run": RUN, "test": "T2", **filters}).text
        found = re.search(r"([\d,]+) questions?", text(page))
        assert found
        return int(found.group(1))

    sql = """SELECT p.*, i.urban FROM predictions p JOIN items i USING (task, item_id)
             WHERE run_id = ? AND test = 'T2' AND method = 'full' AND task = 'mcq'"""
    now, before = (store.query(served, sql, [r]).set_index("item_id") for r in (RUN, BEFORE))
    changed = now["pred"] != before["pred"].reindex(now.index)
    wrong = ~now["correct"]
    assert count() == len(now) == 60
    assert count(outcome="wrong") == wrong.sum() > 0
    assert count(urban="U") == (now["urban"] == "U").sum() > 0
    assert count(flipped="true") == changed.sum() > 0
    of_all = changed & wrong & (now["urban"] == "R")
    assert count(flipped="true", outcome="wrong", urban="R") == of_all.sum()
    assert count(q="STUNTING prevalence") == 20 and count(indicator="Access to electricity") == 20
    page = client.get("/questions", params={"run": RUN, "page": "2"}).text
    assert page.count('class="badge right"') + page.count('class="badge wrong"') == 60 - 40


def test_questions_are_filtered_by_direction_and_by_what_cade_did(
    client: TestClient, served: Path
) -> None:
    def ids(**filters: str) -> list[int]:
        params = {"run": RUN, "test": "T2", "method": "full", **filters}
        html = client.get("/questions", params=params).text
        return [int(i) for i in re.findall(rf"/questions/{RUN}/mcq/(\d+)", html)]

    rows = store.query(
        served,
        """SELECT item_id, f.pred, f.correct AS was, c.correct AS now, i.polarity,
           json_array_length(i.options) AS n
           FROM predictions f JOIN predictions c USING (run_id, task, test, item_id)
           JOIN runs r USING (run_id) JOIN items i
           ON (i.benchmark_id, i.task, i.item_id) = (r.benchmark_id, f.task, f.item_id)
           WHERE run_id = ? AND task = 'mcq' AND test = 'T2' AND f.method = 'full'
           AND c.method = 'cade' ORDER BY item_id""",
        [RUN],
    )
    told = rows[["polarity", "n", "pred"]].itertuples(index=False)
    ways = [letter_directions(polarity, n)["ABC".index(pred)] for polarity, n, pred in told]
    for way in set(ways):
        wanted = [int(i) for i, w in zip(rows["item_id"], ways, strict=True) if w == way]
        assert ids(direction=way) == wanted[: questions.PAGE] and wanted
    fixed = rows[rows["now"] & ~rows["was"]]["item_id"].tolist()
    assert ids(cade="fixed") == fixed[: questions.PAGE] and fixed


def test_an_estimate_that_cade_changes_is_another_number(tmp_path: Path) -> None:
    """Full's free number may begin with another digit than its likeliest one, which is what CADE
    chose here, too."""
    ids, numbers = [1, 2], {"full": [-1.4, 2.4], "cade": [-0.4, 2.4]}
    items = pd.DataFrame({"task": "regression", "item_id": ids, "cluster_id": "c", "split": "test"})
    answers = pd.concat(
        pd.DataFrame({"item_id": ids, "method": method, "pred": ["0", "2"], "value": values})
        for method, values in numbers.items()
    ).assign(task="regression", test="T5", split="test", correct=False, kept=True, confidence=0.9)
    params = pd.DataFrame([{"task": "regression", "test": "T5", "tau": 0.8}])
    record = {"run_id": "r", "model": "m", "suite": "sdg", "benchmark_id": "b"}
    finished = {"finished_at": "2026-11-20T00:00:00"}
    tables = {"items": items, "predictions": answers, "cade_params": params}
    store.publish(tmp_path / "r.duckdb", record | finished, tables)
    chosen = {"run": "r", "task": "regression", "test": "T5", "method": "cade", "cade": "changed"}
    client = client_of(tmp_path / "r.duckdb")
    html = client.get("/questions", params=chosen).text
    assert set(re.findall(r"/questions/r/regression/(\d+)", html)) == {"1"}
    pages = [unescape(client.get(f"/questions/r/regression/{item}").text) for item in ids]
    assert "CADE keeps that digit, with which the free answer doesn't begin." in pages[0]
    assert "CADE keeps the answer." in pages[1]


def test_one_question_leads_to_the_next_of_its_list(client: TestClient) -> None:
    listed = client.get("/questions", params={"run": RUN, "test": "T2", "outcome": "wrong"}).text
    first, second, *_ = (
        unescape(at) for at in re.findall(rf'href="(/questions/{RUN}/mcq/[^"]+)"', listed)
    )
    page = client.get(first).text
    onward = {rel: unescape(at) for at, rel in re.findall(r'href="([^"]+)" rel="(\w+)"', page)}
    assert onward.keys() == {"next"} and onward["next"].split("?")[0] == second.split("?")[0]
    after = client.get(onward["next"]).text
    assert re.search(rf'href="{re.escape(first.split("?")[0])}[^"]*" rel="prev"', after)


def test_a_question_shows_what_was_stored(client: TestClient, served: Path) -> None:
    html = client.get(f"/questions/{RUN}/mcq/1?test=T2").text
    said = text(html)
    sql = """SELECT logits FROM scores WHERE run_id = ? AND task = 'mcq' AND item_id = 1
             AND test = 'T2' AND "view" = 'img_q'"""
    powers = np.exp(np.array(store.query(served, sql, [RUN])["logits"][0], dtype=float))
    for share in 100 * powers / powers.sum():
        assert f"{share:.1f} %" in said
    for words in ("Given: urban=Urban", "right answer", "CADE answers", "τ 0.85"):
        assert words in said
    assert all(f"</i> {way}" in html for way in ("pessimistic", "conservative", "optimistic"))
    picture = re.search(r'<img src="(/pictures/[^"]+)"', html)
    assert picture and client.get(picture.group(1)).content.startswith(b"\x89PNG")
    estimate = text(client.get(f"/questions/{RUN}/regression/1060?test=T2").text)
    assert "Right answer: 40.0" in estimate


def test_a_question_leads_to_the_other_models_that_answered_it(client: TestClient) -> None:
    def others(question: str) -> list[str]:
        html = client.get(f"/questions/{RUN}/{question}").text
        links = re.findall(r'href="(/questions/[^"]+)">', html.partition("other models")[2])
        return list(map(unescape, links))

    assert others("mcq/1?test=T2")
    assert all(client.get(link).is_success for link in others("mcq/1?test=T2"))
    assert not others("regression/1060?test=T2"), "no other run has an answer at this test"


def test_the_page_says_what_a_picture_shows_and_what_the_question_rests_on() -> None:
    whole, alone = (
        question.caption("photo, tile, nightlights"),
        question.caption("tile, nightlights"),
    )
    assert whole.startswith("What the model was shown: a street photo, the satellite tile")
    assert "a street photo" not in alone
    assert alone.endswith("There is no street photo of this place.")
    assert "a street photo" in question.caption(None), "a question of an earlier version"
    entry = indicator("electricity")
    item = {"indicator": entry.slug, "question": entry.question}
    assert question.template_of("mcq", item) == entry.template
    assert question.template_of("mcq", item | {"question": "Is there power?"}) is None


def differences(results: Path, first: str, second: str = RUN) -> list[dict[str, Any]]:
    with Results(results).reading() as reader:
        old, new = (runs.one(reader, run) for run in (first, second))
        assert old and new
        return compare.differences(reader, old, new)


@pytest.mark.parametrize("first", [BEFORE, "fake-pessimist-1"])
def test_differences_are_those_of_the_laboratory(served: Path, first: str) -> None:
    old, new = (
        {o.test: o for o in outcomes.pools(analyse.load(served, r), Task.MCQ)} for r in (first, RUN)
    )
    rows = differences(served, first)
    found = {(r["test"], r["method"]): r for r in rows if r["task"] == "mcq"}
    for test, method in product(new, ("full", "cade")):
        before, now = old[test], new[test]
        assert before.items["item_id"].equals(now.items["item_id"])
        change = now.hit[method] - before.hit[method]
        theirs = stats.paired(change, now.place, "difference")
        e, ours = theirs.estimate, found[test, method]
        expected = [e.value, e.n, e.low, e.high, theirs.p]
        expected.append(stats.minimum_detectable(theirs.se, theirs.df))
        shown = [ours[name] for name in ("value", "n", "ci_low", "ci_high", "p", "mde")]
        assert shown == pytest.approx(expected)


def test_differences_of_answers_to_one_prompt_have_no_interval(
    served: Path, tmp_path: Path
) -> None:
    alike = altered(served, tmp_path, "UPDATE items SET question = 'How much?', options = '[]'")
    rows = [r for r in differences(alike, BEFORE) if (r["task"], r["test"]) == ("mcq", "T5")]
    known = {r["method"]: r["ci_low"] == r["ci_low"] for r in rows}
    assert known["full"] and known["img_q"] and not known["q_only"] and not known["ctx_q"]


def test_questions_of_two_benchmarks_are_paired_where_they_have_the_same_right_answer(
    served: Path, tmp_path: Path
) -> None:
    """The newer run moves to a second benchmark with the same questions; three of them have another
    right answer."""

    def paired(results: Path) -> int:
        cell = ("mcq", "T1", "full")
        rows = differences(results, BEFORE)
        [n] = [r["n"] for r in rows if (r["task"], r["test"], r["method"]) == cell]
        return int(n)

    moved = altered(
        served,
        tmp_path,
        "INSERT INTO items SELECT * REPLACE ('other' AS benchmark_id) FROM items",
        ("UPDATE runs SET benchmark_id = 'other' WHERE run_id = ?", [RUN]),
    )
    whole = paired(served)
    assert paired(moved) == whole
    with store.connect(moved) as con:
        con.execute(
            """UPDATE items SET gold = if(gold = 'A', 'B', 'A')
               WHERE benchmark_id = 'other' AND task = 'mcq' AND item_id IN (
                   SELECT DISTINCT item_id FROM items WHERE task = 'mcq' AND split = 'test'
                   ORDER BY item_id LIMIT 3)"""
        )
    assert paired(moved) == whole - 3
