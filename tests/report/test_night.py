"""The morning page: what it says of a night, from the results file alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis import nights
from sdgbias.report import build
from sdgbias.report.charts import over_nights
from sdgbias.report.pages import night
from tests.builders import nights as gate_results
from tests.builders.nights import FIRST, LOST, SECOND
from tests.builders.results import copied


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gate_results.told_night(tmp_path_factory.mktemp("told") / "r.duckdb")


@pytest.fixture(scope="module")
def text(written: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("beside")
    (out / "index.html").touch()
    return build.write_night(written, out).read_text(encoding="utf-8")


def plain(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup)).replace("\u00a0", " ")


def part(text: str, name: str) -> str:
    """The section of an id, without tags."""
    return plain(text.split(f'<section id="{name}"')[1].split("</section>")[0])


def test_the_headline_and_what_kept_the_night_from_being_whole(text: str) -> None:
    assert (
        "4 evaluations: 2 published, 1 unchanged, 1 failed; 1 model in breach: fake-optimist."
        in plain(text)
    )
    assert "Needs attention first: wandb: timeout after 60 s" in plain(
        text.replace("</strong>", "")
    )
    assert '<a href="night.html" class="here" aria-current="page">Last night</a>' in text


def test_models_in_need_of_a_look_come_first(text: str) -> None:
    rows = re.findall(
        r"<tr(?: class=\"alarm\")?><th scope=\"row\">(.*?)<small>",
        text.split("Models of this night")[1].split("</table>")[0],
    )
    assert [plain(r).strip() for r in rows] == [
        f"{LOST} planted",
        "broken",
        "fake-pessimist",
        "new",
    ]
    assert f"Planted, not measured: {LOST}." in plain(text.replace("</strong>", ""))
    said = part(text, "models")
    assert "OutOfMemory: too little &lt;b&gt;memory&lt;/b&gt; &amp; more (after 3 attempts)" in said
    assert f"the same run as in night {FIRST}, judged there" in said and "not judged" in said


def test_a_night_of_many_evaluations_shows_first_what_needs_a_look(
    written: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "without a breach or a failure" not in text, "four evaluations are no many"
    monkeypatch.setattr(night, "FEW", 3)
    folded = build.write_night(written, tmp_path).read_text(encoding="utf-8")
    models = folded.split('<section id="models"')[1].split("</section>")[0]
    seen, calm = models.split("<summary>2 evaluations without a breach or a failure</summary>")
    names = r'<th scope="row">(?:<a [^>]*>)?([\w.-]+)'
    assert set(re.findall(names, seen)) == {LOST, "broken"}
    assert len(re.findall(names, calm)) == 2
    breach = folded.split('<section id="breaches"')[1].split("</section>")[0]
    assert '<details class="moved" open><summary><h3>' in breach
    assert re.search(r'<div id="breach-[^"]+">', breach.split("</summary>")[1]), (
        "a link to a breach must lead into its fold, which then opens"
    )


def test_a_breach_is_explained_with_its_numbers(text: str) -> None:
    said = part(text, "breaches")
    for words in (
        "accuracy, Full, choice, all tests",
        "71.2 %",
        "65.5 %",
        "−5.7 points",
        "−7.1 to −4.3",
        "2.0 points",
        "3.1 points",
        "1,200",
        "&lt; 0.001",
        "3 better, 71 worse, groups of questions 3 to 70, sign test p &lt; 0.001",
        "at least 20.0 %",
        "+0.400 tolerances",
        "sdgbias gate accept fake-optimist-2 --reason TEXT",
        "compared with fake-optimist-1",
        "1 not enough evidence, 1 missing",
    ):
        assert words in said, words


def test_the_chart_says_in_words_what_it_draws(text: str) -> None:
    [label] = re.findall(r'<div class="plot" role="img" aria-label="([^"]+)"', text)
    assert (
        "accuracy, Full, choice: 71.2\u00a0% to 65.5\u00a0%" in label
        and "mean absolute error" not in label
    )
    assert text.count("<svg") == 1 + 3  # the chart, and a sign for each name of its legend


def test_the_limit_stands_on_the_side_that_was_crossed(written: Path) -> None:
    found = nights.load(written)
    assert found is not None
    figure = over_nights.moves(found.breached[0])
    assert figure is not None
    limits = figure.frame.set_index("what")["limit"].to_dict()
    assert limits == {
        "accuracy, Full, choice": pytest.approx(69.2),
        "candidate mass, Full, choice": 20.0,
    }
    now = figure.frame.set_index("what")[["low", "high"]].loc["accuracy, Full, choice"].tolist()
    assert now == [
        pytest.approx(64.1),
        pytest.approx(66.9),
    ]  # the interval of the change, from where it was


def test_examples_show_options_answers_and_the_pictures_there_are(text: str) -> None:
    shown = re.findall(r'<li class="example">(.*?)\n</li>', text, re.DOTALL)
    assert len(shown) == night.SHOWN
    assert (
        sum("<img" in e for e in shown) == 6
    )  # of eight flips, the six whose pictures are in the store: three questions share one
    first = plain(shown[0])
    assert (
        "right to wrong Full, T1" in first
        and "right, was" in first
        and "now" in first
        and "Kenya" in first
    )
    assert "&lt;/script&gt;&lt;b&gt;&amp;?" in shown[0]


def test_quarantine_names_reason_date_and_the_way_back(text: str) -> None:
    said = part(text, "held")
    assert (
        "broken OutOfMemory: too little" in said
        and "2026-11-22 sdgbias models enable broken" in said
    )
    assert (
        "the gate: candidate mass, Full, choice, all tests: 10.0 %" in said
        and "a person enables it" in said
    )
    assert "broken sdg failed" in part(text, "absent")


def test_rules_without_a_finding_are_told_with_what_could_be_seen(text: str) -> None:
    said = part(text, "open")
    assert "CADE’s gain, CADE, choice, all tests" in said and "8.0 points" in said
    assert "hf x 1 now, vllm x 1 before: throughput" in said


def test_the_strip_says_each_night_in_words(text: str) -> None:
    said = part(text, "history")
    for words in (
        f"{FIRST}: published, not judged",
        f"{SECOND}: in breach",
        f"{SECOND}: failed",
        f"{FIRST}: not evaluated",
    ):
        assert words in said, words


def test_the_page_needs_nothing_else_and_is_well_formed(text: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!#|data:|index\.html|night\.html)[^"]+"', text)
    assert "<script" not in text and "url(http" not in text
    stack: list[str] = []

    class Nesting(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "link", "img", "input", "br", "path", "use"):
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("path", "use"):
                assert stack.pop() == tag

    Nesting().feed(text)
    assert not stack
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(f'id="{target}"' in text for target in re.findall(r'href="#([^"]+)"', text))
    assert text.count("<th scope") == text.count("<th") - text.count("<thead")


def test_the_same_results_make_the_same_bytes(written: Path, text: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").touch()
    assert build.write_night(written, tmp_path).read_text(encoding="utf-8") == text


def test_an_accepted_breach_is_no_alarm(written: Path, tmp_path: Path) -> None:
    path = copied(written, tmp_path / "r.duckdb")
    gate_results.keep_night(
        path,
        SECOND,
        [{"model": LOST, "outcome": "published", "run_id": f"{LOST}-2"}],
        steps={"gate": "breach: x"},
        status="running",
    )
    store.upsert(path, {"accepted": pd.DataFrame([{"run_id": f"{LOST}-2", "reason": "looked at"}])})
    found = nights.load(path)
    assert found is not None and not found.breached
    text = build.write_night(path, tmp_path / "out").read_text(encoding="utf-8")
    assert (
        "Look at this first" not in text
        and "publishing was under way" in text
        and "Ended" not in text
    )
    assert (
        "nothing is in breach" in text
        and "accepted: looked at" in text
        and 'id="breaches"' not in text
    )


def test_the_report_writes_the_page_only_where_there_are_nights(tmp_path: Path) -> None:
    """Every model failed in the first night: there is no run to report on, and the page says so."""
    path, out = tmp_path / "r.duckdb", tmp_path / "out"
    gate_results.keep_night(
        path,
        FIRST,
        [
            {
                "model": "broken",
                "outcome": "failed",
                "run_id": "",
                "kind": "OutOfMemory",
                "message": "too little memory",
            }
        ],
    )
    assert build.write_report(path, out) == out / "night.html"
    assert "1 evaluation: 1 failed; nothing was judged." in (out / "night.html").read_text(
        encoding="utf-8"
    )
