"""The page Fairness: what it shows stands in the results, people are blurred in its own bytes, planted models are named as such."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pandas as pd
import pytest
from people_results import publish_people
from PIL import Image

from sdgbias import lab, store
from sdgbias.lab.rows import Settings
from sdgbias.report import charts_fairness, fairness_page
from sdgbias.report.html import write_report
from sdgbias.suites import facet

pytestmark = pytest.mark.slow  # the benchmark behind it is built and gated as any other


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = publish_people(tmp_path_factory.mktemp("people"))
    lab.analyse(path, settings=Settings(draws=100, bootstrap=100))
    return path


@pytest.fixture(scope="module")
def text(results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    page = write_report(results, tmp_path_factory.mktemp("report"))
    assert page.name == "fairness.html" and not (page.parent / "index.html").exists()
    return page.read_text(encoding="utf-8")


def test_nothing_but_itself_and_the_same_bytes(results: Path, text: str, tmp_path: Path) -> None:
    assert write_report(results, tmp_path).read_text(encoding="utf-8") == text
    head = text[: text.index("<script")]
    assert not re.findall(r'(?:src|href)="(?!#|data:|fairness\.html)[^"]*"', head)
    assert len(text) < 6_000_000


def test_planted_models_and_synthetic_people_are_named_as_such(text: str) -> None:
    assert "unfair (planted), yes-sayer (planted)" in text and "Synthetic people:" in text
    assert "CC0 1.0" in text and "perceived" in text and "infers anything about one person" in text


def test_people_are_blurred_by_default_and_on_paper(text: str) -> None:
    assert ".frame img{display:block;max-width:100%;max-height:14rem;filter:blur(28px)}" in text
    assert re.search(r"@media print\{[^}]*filter:blur\(28px\)", text)
    box = re.search(r"<input[^>]*id=\"show-people\"[^>]*>", text)
    assert box is not None and "checked" not in box.group()
    pictures, frames = text.count("data:image/jpeg"), text.count('<div class="frame"><img src="data:image/jpeg')
    assert 0 < pictures == frames <= fairness_page.EXAMPLES  # none stands outside a blurred frame


def test_groups_add_up_to_the_people(results: Path) -> None:
    d = fairness_page.load(results)
    assert d is not None
    people = int(store.query(results, "SELECT count(DISTINCT person_id) AS n FROM people")["n"][0])
    [card] = fairness_page.cards(d)
    assert card["people"] == f"{people:,}"
    for group in card["groups"]:
        assert sum(int(r["n"].replace(",", "")) for r in group["rows"]) == people
        assert "unknown" in {r["group"] for r in group["rows"]}


def test_rates_are_those_of_the_store(results: Path) -> None:
    d = fairness_page.load(results)
    assert d is not None
    rates = {(r["model"], r["prompt"]): dict(zip(fairness_page.RATES, r["cells"], strict=True)) for r in fairness_page.rates(d.metrics)}
    said = store.query(results, "SELECT how FROM spoken JOIN runs USING (run_id) WHERE model = 'unfair' AND test = 'p1'")["how"]
    assert rates["unfair (planted)", "p1"]["refusal_rate"]["value"] == f"{100 * (said == 'refusal').mean():.1f}\u00a0%"
    assert rates["unfair (planted)", "p1"]["false_yes_rate"] is None  # p1 asks about no class


def test_cells_without_a_value_keep_their_n(results: Path) -> None:
    d = fairness_page.load(results)
    assert d is not None
    found = {f.name: f for f in charts_fairness.figures(d.metrics, d.studies)}
    assert {"fairness-gender", "fairness-classes", "fairness-prompts", "fairness-debiased", "fairness-cost"} <= set(found)
    frame = found["fairness-classes"].frame
    void = frame[frame["value"].isna()]
    assert len(void) and all(said == f"n {n:,}" for said, n in zip(void["said"], void["n"], strict=True))
    own = d.metrics[(d.metrics["metric"] == "disparity") & (d.metrics["indicator"] == "nurse") & d.metrics["value"].isna()]
    assert len(frame[(frame["target"] == "nurse") & frame["value"].isna()]) == int((~own["pillar"].str.contains("max-min")).sum())


def test_examples_are_chosen_without_the_answers(results: Path) -> None:
    d = fairness_page.load(results)
    assert d is not None and len(d.examples) == 60
    assert all({a["model"] for a in e["answers"]} == {"unfair (planted)", "yes-sayer (planted)"} for e in d.examples)
    assert all(e["outcome"] == "unread" for e in d.examples if any(not a["read"] for a in e["answers"]))


def test_previews_are_small_few_and_the_same_whatever_the_order() -> None:
    def jpeg(size: tuple[int, int]) -> tuple[bytes, ...]:
        buffer = io.BytesIO()
        Image.new("RGB", size, "white").save(buffer, "JPEG")
        return (buffer.getvalue(),)

    items = pd.DataFrame({"image_id": [f"i{k // 2}" for k in range(200)], "class1": ["nurse" if k < 180 else "singer" for k in range(200)]})
    images = {f"i{k}": jpeg((900, 400)) for k in range(100)}
    made = facet.previews(items, images)
    assert len(made) == 60 and made["image_id"].is_unique
    assert {f"i{k}" for k in range(90, 100)} <= set(made["image_id"])  # all ten singers: classes in turn
    assert Image.open(io.BytesIO(made["png"][0])).size == (320, 142)
    assert facet.previews(items.sample(frac=1, random_state=1), images).equals(made)


def test_without_runs_of_the_suite_there_is_no_page(tmp_path: Path) -> None:
    with store.connect(tmp_path / "empty.duckdb"):
        pass
    assert fairness_page.load(tmp_path / "empty.duckdb") is None
