"""The page Fairness: what it shows stands in the results, people are blurred in its own bytes,
planted models are named as such."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from sdgbias import cli, store
from sdgbias.analysis import analyse
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.errors import InputError
from sdgbias.report.build import write_report
from sdgbias.report.charts import disparities as charts
from sdgbias.report.pages import disparities
from sdgbias.suites import facet
from tests.builders.people import publish_people

pytestmark = pytest.mark.slow  # the benchmark behind it is built and gated as any other


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = publish_people(tmp_path_factory.mktemp("people"))
    analyse.analyse(path, settings=AnalysisSettings(draws=100, bootstrap=100))
    return path


@pytest.fixture(scope="module")
def text(results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    page = write_report(results, tmp_path_factory.mktemp("report"))
    assert page.name == "index.html" and 'href="fairness.html"' in page.read_text(encoding="utf-8")
    return (page.parent / "fairness.html").read_text(encoding="utf-8")


def test_nothing_but_itself_and_the_same_bytes(results: Path, text: str, tmp_path: Path) -> None:
    write_report(results, tmp_path)
    assert (tmp_path / "fairness.html").read_text(encoding="utf-8") == text
    head = text[: text.index("<script")]
    assert not re.findall(r'(?:src|href)="(?!#|data:|fairness\.html|index\.html)[^"]*"', head)
    assert len(text) < 6_000_000


def test_planted_models_and_synthetic_people_are_named_as_such(text: str) -> None:
    assert "unfair (planted), yes-sayer (planted)" in text and "Synthetic people:" in text
    assert "CC0 1.0" in text and "perceived" in text and "infers anything about one person" in text


def test_people_are_blurred_by_default_and_on_paper(text: str) -> None:
    assert ".frame img{display:block;max-width:100%;max-height:14rem;filter:blur(28px)}" in text
    assert re.search(r"@media print\{[^}]*filter:blur\(28px\)", text)
    box = re.search(r"<input[^>]*id=\"show-people\"[^>]*>", text)
    assert box is not None and "checked" not in box.group()
    pictures, frames = (
        text.count("data:image/jpeg"),
        len(re.findall(r'<label class="frame"><input [^>]*><img src="data:image/jpeg', text)),
    )
    assert 0 < pictures == frames <= disparities.EXAMPLES  # none stands outside a blurred frame
    hidden = len(re.findall(r'<li class="example"[^>]* hidden>', text))
    assert hidden == pictures - disparities.PAGE_OF, "a page at a time"
    assert not re.search(r'class="sr uncover"[^>]* checked', text)


def test_groups_add_up_to_the_people(results: Path, text: str) -> None:
    d = disparities.load(results)
    assert d is not None
    people = int(store.query(results, "SELECT count(DISTINCT person_id) AS n FROM people")["n"][0])
    [card] = disparities.cards(d)
    assert card["people"] == people
    for attribute in ("gender", "skin", "age"):
        groups = {r["group"]: r["n"] for r in card["groups"] if r["attribute"] == attribute}
        assert sum(groups.values()) == people and "unknown" in groups
    assert {"not apparent to the annotators"} <= card["why"]["age"].keys() - {"na"}
    assert f"<dd>{people:,}, one in each picture</dd>" in text
    assert re.search(r"<td>(?:[^<]*, )?not apparent to the annotators \d+(?:,[^<]*)?</td>", text)


def test_rates_are_those_of_the_store(results: Path) -> None:
    d = disparities.load(results)
    assert d is not None
    rates = {
        (r["model"], r["prompt"]): dict(zip(disparities.RATES, r["cells"], strict=True))
        for r in disparities.rates(d.metrics)
    }
    said = store.query(
        results,
        "SELECT how FROM spoken JOIN runs USING (run_id) WHERE model = 'unfair' AND test = 'p1'",
    )["how"]
    assert (
        rates["unfair (planted)", "p1"]["refusal_rate"]["value"]
        == f"{100 * (said == 'refusal').mean():.1f}\u00a0%"
    )
    assert rates["unfair (planted)", "p1"]["false_yes_rate"] is None  # p1 asks about no class


def test_cells_without_a_value_keep_their_n(results: Path) -> None:
    d = disparities.load(results)
    assert d is not None
    found = {f.name: f for f in charts.figures(d.metrics, d.studies)}
    assert {
        "fairness-gender",
        "fairness-prompts",
        "fairness-debiased",
        "fairness-cost",
    } <= set(found)
    nurses = (d.metrics["metric"] == "disparity") & (d.metrics["indicator"] == "nurse")
    men = nurses & (d.metrics["pillar"] == "gender:male-female")
    known = d.metrics.assign(value=d.metrics["value"].mask(men, 0.1))
    known = known.assign(value=known["value"].mask(nurses & ~men))
    [map_] = [f for f in charts.figures(known, d.studies) if f.name == "fairness-classes"]
    mine = map_.frame[map_.frame["target"] == "nurse"]
    assert set(mine.loc[mine["value"].notna(), "source"]) == {"male − female"}
    void = mine[mine["value"].isna()]
    assert set(void["source"]) == {"light − dark", "young − old"} and all(
        said == f"n {n:,}" for said, n in zip(void["said"], void["n"], strict=True)
    )
    # a class without a single value is no empty row, but named
    key = ["model", "test", "method", "target"]
    assert (map_.frame.groupby(key)["value"].count() > 0).all()
    none = known.assign(value=known["value"].mask(known["indicator"] != "all"))
    assert "fairness-classes" not in {f.name for f in charts.figures(none, d.studies)}


def test_figures_open_on_a_model_that_was_understood(results: Path) -> None:
    d = disparities.load(results)
    assert d is not None
    first = charts.figures(d.metrics, d.studies)
    opens = {f.name: f.chosen()["model"].iloc[0] for f in first if "model" in f.filters}
    assert set(opens.values()) == {"unfair (planted)"}
    mute = d.metrics["model"] == "unfair (planted)"
    void = mute & d.metrics["metric"].isin(["disparity", "recall", "false_yes_rate"])
    silent = d.metrics.assign(
        value=d.metrics["value"].mask(void),
        missing_reason=d.metrics["missing_reason"].mask(void, facet.NOT_UNDERSTOOD),
    )
    second = {f.name: f for f in charts.figures(silent, d.studies)}
    shown = {f.chosen()["model"].iloc[0] for f in second.values() if "model" in f.filters}
    assert shown == {"yes-sayer (planted)"}
    points = second["fairness-prompts"].frame
    assert set(points["model"]) == {"yes-sayer (planted)"}, "no point where nothing was understood"
    assert "No answer understood" in second["fairness-prompts"].axes


def test_examples_are_chosen_without_the_answers(results: Path) -> None:
    d = disparities.load(results)
    assert d is not None and len(d.examples) == 60
    assert all(
        {a["model"] for a in e["answers"]} == {"unfair (planted)", "yes-sayer (planted)"}
        for e in d.examples
    )
    assert all(
        e["outcome"] == "unread" for e in d.examples if any(not a["read"] for a in e["answers"])
    )


def test_previews_are_small_few_and_the_same_whatever_the_order() -> None:
    def jpeg(size: tuple[int, int]) -> tuple[bytes, ...]:
        buffer = io.BytesIO()
        Image.new("RGB", size, "white").save(buffer, "JPEG")
        return (buffer.getvalue(),)

    items = pd.DataFrame(
        {
            "image_id": [f"i{k // 2}" for k in range(200)],
            "class1": ["nurse" if k < 180 else "singer" for k in range(200)],
        }
    )
    images = {f"i{k}": jpeg((900, 400)) for k in range(100)}
    made = facet.previews(items, images)
    assert len(made) == 60 and made["image_id"].is_unique
    assert {f"i{k}" for k in range(90, 100)} <= set(
        made["image_id"]
    )  # all ten singers: classes in turn
    assert Image.open(io.BytesIO(made["png"][0])).size == (320, 142)
    assert facet.previews(items.sample(frac=1, random_state=1), images).equals(made)


def test_without_runs_of_the_suite_there_is_no_page(tmp_path: Path) -> None:
    with store.connect(tmp_path / "empty.duckdb"):
        pass
    assert disparities.load(tmp_path / "empty.duckdb") is None


def test_each_benchmark_keeps_its_newest_run_and_silence_is_said(
    results: Path, tmp_path: Path
) -> None:
    """A later run on FACET hides none on drawn people; a model that says nothing legible is named
    as such."""
    path = Path(shutil.copy(results, tmp_path / "r.duckdb"))
    shutil.copytree(results.with_suffix(".runs"), path.with_suffix(".runs"))
    n = 60
    pictured = pd.DataFrame(
        {
            "item_id": range(n),
            "person_id": [f"f{i}" for i in range(n)],
            "image_id": [f"f{i}" for i in range(n)],
            "prompt": "p1",
        }
    )
    pictured = pictured.assign(
        class1="nurse",
        asked="",
        negative=False,
        gold="nurse",
        gender=["male", "female"] * (n // 2),
        skin="unknown",
        age="young",
        race="",
        split="test",
        dataset="facet",
    )
    said = pd.DataFrame(
        {
            "task": "direct",
            "item_id": range(n),
            "test": "p1",
            "view": "full",
            "text": "12.5",
            "label": "",
            "how": "unparsed",
        }
    )
    table = facet.predictions(
        pictured, said, pd.DataFrame(columns=["task", "item_id", "test", "method", "label"])
    )
    run = store.RunRecord(
        "unfair-facet",
        "unfair",
        "f" * 16,
        "people",
        started_at="2030-01-01",
        finished_at="2030-01-02",
        config={"unanswerable": 7},
    )
    store.publish(
        path,
        run,
        {"people": pictured, "spoken": said, "numbers": facet.metric_rows(pictured, table)},
    )
    d = disparities.load(path)
    assert d is not None and d.several
    assert list(zip(d.runs["data"], d.runs["label"], strict=True)) == [
        ("FACET", "unfair"),
        ("drawn people", "unfair (planted)"),
        ("drawn people", "yes-sayer (planted)"),
    ]
    found = {f.name: f for f in disparities.figures(d)}
    assert all(f.filters[0] == "data" for f in found.values())
    assert set(found["fairness-gender"].frame["data"]) == {"drawn people"}
    # nothing was understood: 0 would read as fairness
    void = d.metrics[(d.metrics["data"] == "FACET") & (d.metrics["metric"] == "disparity")]
    assert len(void) and set(void["missing_reason"]) == {facet.NOT_UNDERSTOOD}
    assert void[["value", "ci_low", "ci_high"]].isna().all(axis=None) and (void["n"] > 0).any()
    assert [(s["model"], s["data"], s["n"], s["prompts"], s["texts"]) for s in d.silent] == [
        ("unfair", "FACET", "60", ["p1"], ["12.5"])
    ]
    printed = (
        CliRunner()
        .invoke(cli.app, ["results", "--results", str(path)], catch_exceptions=False)
        .stdout
    )
    assert {tuple(line.split()[:4]) for line in printed.splitlines()} >= {
        ("unfair", "(planted)", "synthetic", "p1"),
        ("unfair", "facet", "p1", "no"),
    }
    target = write_report(path, tmp_path / "report")
    text = (target.parent / "fairness.html").read_text(encoding="utf-8")
    assert (
        "not one of the 60 free answers of unfair to p1 on FACET names a label, e.g. “12.5”."
        in text
    )
    assert "<td>7</td><td>FACET</td>" in text and [c["dataset"] for c in disparities.cards(d)] == [
        "FACET",
        "drawn people",
    ]


def test_a_report_without_places_says_so_and_leaves_no_page_of_before(
    results: Path, tmp_path: Path
) -> None:
    for name in ("index.html", "methods.html", "night.html"):
        (tmp_path / name).write_text("an older report", encoding="utf-8")
    page = write_report(results, tmp_path)
    assert page == tmp_path / "index.html" and "only on pictures of people" in page.read_text(
        encoding="utf-8"
    )
    assert (
        not (tmp_path / "methods.html").exists()
        and not (tmp_path / "night.html").exists()
        and (tmp_path / "fairness.html").is_file()
    )


def test_what_was_checked_of_the_people_stands_beside_the_report(
    results: Path, tmp_path: Path
) -> None:
    people, out = tmp_path / "people", tmp_path / "out"
    people.mkdir()
    (people / "quality.html").write_text("every rule", encoding="utf-8")
    with pytest.raises(InputError, match=r"people/benchmark\.json: no benchmark here"):
        write_report(results, out, [people])
    (people / "benchmark.json").write_text(
        '{"benchmark_id": "p", "suite": "people"}', encoding="utf-8"
    )
    write_report(results, out, [people])
    assert (out / "people" / "quality.html").read_text(encoding="utf-8") == "every rule"
    assert '<a href="people/quality.html">' in (out / "fairness.html").read_text(encoding="utf-8")


def test_shares_have_the_whole_axis_and_an_interval_at_zero(results: Path) -> None:
    d = disparities.load(results)
    assert d is not None
    zero = d.metrics.assign(value=0.0, ci_low=0.0, ci_high=0.015, n=240)
    [figure] = [f for f in charts.figures(zero, d.studies) if f.name == "fairness-prompts"]
    assert {(r["value"], r["low"], r["high"]) for r in figure.frame.to_dict("records")} == {
        (0.0, 0.0, 1.5)
    }
    assert [layer["encoding"]["x"]["scale"]["domain"] for layer in figure.spec["layer"]] == [
        [0, 100],
        [0, 100],
    ]
