"""The morning page: what it says of a night, from the results file alone."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            "",
            "4 evaluations: 2 published, 1 unchanged, 1 failed; 1 model in breach: fake-optimist.",
        ),
        ("", "Needs attention first: wandb: timeout after 60 s"),
        ("", f"Planted, not measured: {LOST}."),
        (
            "models",
            "too little &lt;b&gt;memory&lt;/b&gt; &amp; more (after 3 attempts)",
        ),
        ("models", f"the same run as in night {FIRST}, judged there"),
        ("models", "not judged"),
        ("breaches", "accuracy, Full, choice, all tests"),
        ("breaches", "71.2 % 65.5 % −5.7 points −7.1 to −4.3"),
        ("breaches", "2.0 points 3.1 points 1,200 &lt; 0.001"),
        ("breaches", "3 better, 71 worse, groups of questions 3 to 70, sign test p &lt; 0.001"),
        ("breaches", "at least 20.0 %"),
        ("breaches", "+0.400 tolerances"),
        ("breaches", "sdgbias gate accept fake-optimist-2 --reason TEXT"),
        ("breaches", "compared with fake-optimist-1"),
        ("breaches", "1 not enough evidence, 1 missing"),
        ("held", "broken OutOfMemory: too little"),
        ("held", "2026-11-22 sdgbias models enable broken"),
        ("held", "the gate: candidate mass, Full, choice, all tests: 10.0 %"),
        ("held", "a person enables it"),
        ("absent", "broken sdg failed"),
        ("open", "CADE’s gain, CADE, choice, all tests"),
        ("open", "8.0 points"),
        ("open", "hf x 1 now, vllm x 1 before: throughput"),
        ("history", f"{FIRST}: published, not judged"),
        ("history", f"{SECOND}: in breach"),
        ("history", f"{SECOND}: failed"),
        ("history", f"{FIRST}: not evaluated"),
    ],
)
def test_the_page_says(text: str, section: str, words: str) -> None:
    of_section = text.split(f'<section id="{section}"')[1] if section else text
    said = of_section.split("</section>")[0] if section else of_section.replace("</strong>", "")
    assert words in plain(said)


def test_models_in_need_of_a_look_come_first(text: str) -> None:
    models = text.split("Models of this night")[1].split("</table>")[0]
    rows = re.findall(r'<tr(?: class="alarm")?><th scope="row">(.*?)<small>', models)
    expected = [f"{LOST} planted", "broken", "fake-pessimist", "new"]
    assert [plain(r).strip() for r in rows] == expected


def test_a_night_of_many_evaluations_shows_first_what_needs_a_look(
    written: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "without a breach or a failure" not in text, "four evaluations are no many"
    assert "more models are in breach" not in text
    monkeypatch.setattr(night, "FEW", 3)
    folded = build.write_night(written, tmp_path).read_text(encoding="utf-8")
    models = folded.split('<section id="models"')[1].split("</section>")[0]
    seen, calm = models.split("<summary>2 evaluations without a breach or a failure</summary>")
    names = r'<th scope="row">(?:<a [^>]*>)?([\w.-]+)'
    assert set(re.findall(names, seen)) == {LOST, "broken"}
    assert set(re.findall(names, calm)) == {"fake-pessimist", "new"}
    breach = folded.split('<section id="breaches"')[1].split("</section>")[0]
    assert '<details class="moved" open><summary><h3>' in breach
    assert re.search(r'<div id="breach-[^"]+">', breach.split("</summary>")[1]), (
        "a link to a breach must lead into its fold, which then opens"
    )


def test_the_chart_says_in_words_what_it_draws_and_has_the_limit_that_was_crossed(
    text: str, written: Path
) -> None:
    [label] = re.findall(r'<div class="plot" role="img" aria-label="([^"]+)"', text)
    assert "accuracy, Full, choice: 71.2\u00a0% to 65.5\u00a0%" in label
    assert "mean absolute error" not in label
    assert text.count("<svg") == 1 + 3  # the chart, and a sign for each name of its legend
    found = nights.load(written)
    assert found is not None
    figure = over_nights.moves(found.breached[0])
    assert figure is not None
    drawn = figure.frame.set_index("what")
    accuracy, mass = "accuracy, Full, choice", "candidate mass, Full, choice"
    assert drawn["limit"].to_dict() == {accuracy: pytest.approx(69.2), mass: 20.0}
    # the interval of the change, from where it was
    assert drawn.loc[accuracy, ["low", "high"]].tolist() == pytest.approx([64.1, 66.9])


def test_examples_show_options_answers_and_the_pictures_there_are(text: str) -> None:
    shown = re.findall(r'<li class="example">(.*?)\n</li>', text, re.DOTALL)
    assert len(shown) == night.SHOWN
    # of eight flips, the six whose pictures are in the store: three questions share one
    assert sum("<img" in e for e in shown) == 6
    for words in ("right to wrong Full, T1", "right, was", "now", "Kenya"):
        assert words in plain(shown[0])
    assert "&lt;/script&gt;&lt;b&gt;&amp;?" in shown[0]


def test_the_page_needs_nothing_else_and_is_well_formed(text: str) -> None:
    assert '<a href="night.html" class="here" aria-current="page">Last night</a>' in text
    assert not re.findall(r'(?:src|href)="(?!#|data:|index\.html|night\.html)[^"]+"', text)
    assert "<script" not in text and "url(http" not in text
    stack: list[str] = []
    for closes, tag in re.findall(r"<(/?)(\w+)(?=[\s>])(?![^>]*/>)", text):
        if closes:
            assert stack.pop() == tag
        elif tag not in ("meta", "link", "img", "input", "br"):
            stack.append(tag)
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
    outcome = {"model": LOST, "outcome": "published", "run_id": f"{LOST}-2"}
    steps = {"gate": "breach: x"}
    gate_results.keep_night(path, SECOND, [outcome], steps=steps, status="running")
    store.upsert(path, {"accepted": pd.DataFrame([{"run_id": f"{LOST}-2", "reason": "looked at"}])})
    found = nights.load(path)
    assert found is not None and not found.breached
    text = build.write_night(path, tmp_path / "out").read_text(encoding="utf-8")
    for words in ("publishing was under way", "nothing is in breach", "accepted: looked at"):
        assert words in text
    for words in ("Look at this first", "Ended", 'id="breaches"'):
        assert words not in text


def test_a_night_in_which_every_model_failed_has_the_report_s_only_page(tmp_path: Path) -> None:
    path, out = tmp_path / "r.duckdb", tmp_path / "out"
    gate_results.keep_night(path, FIRST, [gate_results.no_memory("too little memory", "")])
    assert build.write_report(path, out) == out / "night.html"
    text = (out / "night.html").read_text(encoding="utf-8")
    assert "1 evaluation: 1 failed; nothing was judged." in text
