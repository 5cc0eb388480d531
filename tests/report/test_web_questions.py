"""Pages of questions and pairs of runs: what they show is what the results hold."""

from __future__ import annotations

import re
from html import unescape
from itertools import product
from pathlib import Path
from shutil import copytree

import pytest
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.analysis import analyse, outcomes
from sdgbias.methods import stats
from sdgbias.raw.indicators import letter_directions
from sdgbias.report.pages import compare, question, questions
from sdgbias.report.reader import Results
from sdgbias.types import Task
from tests.builders.item_tables import indicator
from tests.builders.web_pages import BEFORE, RUN, text


def test_questions_are_filtered_in_the_results(client: TestClient, served: Path) -> None:
    def count(**filters: str) -> int:
        found = re.search(
            r"([\d,]+) questions?",
            text(client.get("/questions", params={"run": RUN, "test": "T2", **filters}).text),
        )
        assert found
        return int(found.group(1))

    now, before = (
        store.query(
            served,
            "SELECT p.*, i.urban FROM predictions p JOIN items i USING (task, item_id) WHERE run_id"
            " = ? AND test = 'T2' AND method = 'full' AND task = 'mcq'",
            [r],
        ).set_index("item_id")
        for r in (RUN, BEFORE)
    )
    assert count() == len(now) == 60
    assert count(outcome="wrong") == (~now["correct"]).sum() > 0
    assert count(urban="U") == (now["urban"] == "U").sum() > 0
    changed = now["pred"] != before["pred"].reindex(now.index)
    assert count(flipped="true") == changed.sum() > 0
    assert (
        count(flipped="true", outcome="wrong", urban="R")
        == (changed & ~now["correct"] & (now["urban"] == "R")).sum()
    )
    assert count(q="STUNTING prevalence") == 20 and count(indicator="Access to electricity") == 20
    page = client.get("/questions", params={"run": RUN, "page": "2"}).text
    assert (
        page.count('class="badge right"') + page.count('class="badge wrong"') == 20
    )  # 60 in pages of 40


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
           JOIN runs r USING (run_id)
           JOIN items i ON i.benchmark_id = r.benchmark_id AND i.task = f.task
           AND i.item_id = f.item_id
           WHERE run_id = ? AND task = 'mcq' AND test = 'T2' AND f.method = 'full'
           AND c.method = 'cade' ORDER BY item_id""",
        [RUN],
    )
    ways = [
        letter_directions(r.polarity, r.n)["ABC".index(r.pred)]
        for r in rows.itertuples(index=False)
    ]
    for way in set(ways):
        wanted = [int(i) for i, w in zip(rows["item_id"], ways, strict=True) if w == way]
        assert ids(direction=way) == wanted[: questions.PAGE] and wanted
    fixed = rows[rows["now"] & ~rows["was"]]["item_id"].tolist()
    assert ids(cade="fixed") == fixed[: questions.PAGE] and fixed
    assert client.get("/questions?direction=up").status_code == 400


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


def test_options_say_their_direction(client: TestClient) -> None:
    page = client.get(f"/questions/{RUN}/mcq/1?test=T2").text
    assert all(f"</i> {way}" in page for way in ("pessimistic", "conservative", "optimistic"))


def test_a_question_shows_what_was_stored(client: TestClient, served: Path) -> None:
    html = client.get(f"/questions/{RUN}/mcq/1?test=T2").text
    said = text(html)
    logits = store.query(
        served,
        "SELECT logits FROM scores WHERE run_id = ? AND task = 'mcq' AND item_id = 1 AND test ="
        " 'T2' AND \"view\" = 'img_q'",
        [RUN],
    )
    z = [float(v) for v in logits["logits"][0]]
    shares = [
        100 * 2.718281828459045 ** (v - max(z)) / sum(2.718281828459045 ** (w - max(z)) for w in z)
        for v in z
    ]
    for share in shares:
        assert f"{share:.1f} %" in said
    assert (
        "Given: urban=Urban" in said
        and "right answer" in said
        and "CADE answers" in said
        and "τ 0.85" in said
    )
    picture = re.search(r'<img src="(/pictures/[^"]+)"', html)
    assert picture and client.get(picture.group(1)).content.startswith(b"\x89PNG")
    estimate = text(client.get(f"/questions/{RUN}/regression/1060?test=T2").text)
    assert "Right answer: 40.0" in estimate


def test_the_page_says_what_a_picture_shows_and_what_the_question_rests_on() -> None:
    assert question.caption("photo, tile, nightlights").startswith(
        "What the model was shown: a street photo, the satellite tile"
    )
    alone = question.caption("tile, nightlights")
    assert "a street photo" not in alone and alone.endswith(
        "There is no street photo of this place."
    )
    assert "a street photo" in question.caption(None), "a question of an earlier version"
    entry = indicator("electricity")
    item = {"indicator": entry.slug, "question": entry.question}
    assert question.template_of("mcq", item) == entry.template
    assert question.template_of("mcq", item | {"question": "Is there power?"}) is None


def test_differences_are_those_of_the_laboratory(served: Path) -> None:
    with Results(served).reading() as reader:
        old, new, other = (
            reader.ask("SELECT * FROM runs WHERE run_id = ?", [r])[0]
            for r in (BEFORE, RUN, "fake-pessimist-1")
        )
        nights_apart, models_apart = (
            compare.differences(reader, old, new),
            compare.differences(reader, other, new),
        )
    answers = {
        r: {o.test: o for o in outcomes.pools(analyse.load(served, r), Task.MCQ)}
        for r in (BEFORE, RUN, "fake-pessimist-1")
    }
    for mine, first in ((nights_apart, BEFORE), (models_apart, "fake-pessimist-1")):
        found = {(r["test"], r["method"]): r for r in mine if r["task"] == "mcq"}
        for test, method in product(answers[RUN], ("full", "cade")):
            before, now = answers[first][test], answers[RUN][test]
            assert before.items["item_id"].equals(now.items["item_id"])
            change = now.hit[method] - before.hit[method]
            theirs = stats.paired(change, now.place, "difference")
            e, ours = theirs.estimate, found[test, method]
            assert (ours["value"], ours["n"], ours["ci_low"], ours["ci_high"]) == pytest.approx(
                (e.value, e.n, e.low, e.high)
            )
            assert ours["p"] == pytest.approx(theirs.p)
            assert ours["mde"] == pytest.approx(stats.minimum_detectable(theirs.se, theirs.df))


def test_differences_of_answers_to_one_prompt_have_no_interval(
    served: Path, tmp_path: Path
) -> None:
    copytree(served.parent, tmp_path / "r")
    path = tmp_path / "r" / served.name
    with store.connect(path, details=()) as con:
        con.execute("UPDATE items SET question = 'How much?', options = '[]'")
    with Results(path).reading() as reader:
        old, new = (
            reader.ask("SELECT * FROM runs WHERE run_id = ?", [r])[0] for r in (BEFORE, RUN)
        )
        found = compare.differences(reader, old, new)
    known = {
        r["method"]: r["ci_low"] == r["ci_low"]
        for r in found
        if (r["task"], r["test"]) == ("mcq", "T5")
    }
    assert known["full"] and known["img_q"] and not known["q_only"] and not known["ctx_q"]


def test_questions_of_two_benchmarks_are_paired_where_they_have_the_same_right_answer(
    served: Path, tmp_path: Path
) -> None:
    """The newer run moves to a second benchmark with the same questions; three of them have another
    right answer."""
    copytree(served.parent, tmp_path / "r")
    served = tmp_path / "r" / served.name
    test = ("mcq", "T1", "full")

    def paired_by_hand() -> int:
        with Results(served).reading() as reader:
            old, new = (
                reader.ask("SELECT * FROM runs WHERE run_id = ?", [r])[0] for r in (BEFORE, RUN)
            )
            found = compare.differences(reader, old, new)
        [n] = [r["n"] for r in found if (r["task"], r["test"], r["method"]) == test]
        return int(n)

    whole = paired_by_hand()
    with store.connect(served, details=()) as con:
        con.execute("INSERT INTO items SELECT * REPLACE ('other' AS benchmark_id) FROM items")
        con.execute("UPDATE runs SET benchmark_id = 'other' WHERE run_id = ?", [RUN])
    assert paired_by_hand() == whole
    with store.connect(served, details=()) as con:
        con.execute(
            """UPDATE items SET gold = if(gold = 'A', 'B', 'A')
               WHERE benchmark_id = 'other' AND task = 'mcq' AND item_id IN (
                   SELECT DISTINCT item_id FROM items WHERE task = 'mcq' AND split = 'test'
                   ORDER BY item_id LIMIT 3)"""
        )
    assert paired_by_hand() == whole - 3


def test_runs_that_can_not_be_paired_say_why(client: TestClient) -> None:
    assert "The same run was chosen twice" in text(client.get(f"/compare?a={RUN}&b={RUN}").text)


@pytest.mark.parametrize(
    ("task", "asked", "words"),
    [
        ("mcq", {"test": "T9"}, "unknown test"),
        ("regression", {"test": "T1"}, "unknown test 'T1'; valid: T2"),
        ("mcq", {"back": "/questions?urban=nowhere"}, "unknown urban"),
    ],
)
def test_a_question_refuses_what_its_run_does_not_have(
    client: TestClient, served: Path, task: str, asked: dict[str, str], words: str
) -> None:
    [item] = store.query(served, f"SELECT min(item_id) AS i FROM items WHERE task = '{task}'")["i"]

    answer = client.get(f"/questions/{RUN}/{task}/{item}", params=asked)

    assert answer.status_code == 400
    assert words in unescape(text(answer.text)) and "valid: " in text(answer.text)
