"""The page Fairness: what it shows stands in the results, people are blurred in its own bytes,
planted models are named as such."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from sdgbias import store
from sdgbias.analysis import analyse
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.errors import InputError
from sdgbias.report import layout
from sdgbias.report.build import ReportPages, write_report
from sdgbias.report.charts import Figure, draw
from sdgbias.report.pages import fairness
from sdgbias.report.reader import Results
from sdgbias.suites import facet
from tests.builders.commands import ok
from tests.builders.people import publish_people
from tests.builders.results import altered

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
    assert 0 < pictures == frames <= fairness.EXAMPLES  # none stands outside a blurred frame
    hidden = len(re.findall(r'<li class="example"[^>]* hidden>', text))
    assert hidden == pictures - fairness.PAGE_OF, "a page at a time"
    assert not re.search(r'class="sr uncover"[^>]* checked', text)


def figures(path: Path) -> dict[str, Figure]:
    with Results(path).reading() as reader:
        runs = fairness.runs_of(reader)
        data = [run["data"] for run in runs]
        drawn = draw.draw(reader, [r["run_id"] for r in runs], fairness.FIGURES, data)
        return {f.name: f for f in drawn.values()}


def page(path: Path) -> dict[str, Any]:
    filled = ReportPages(path).page(layout.FAIRNESS)
    assert filled is not None
    return filled[1]


def test_groups_add_up_to_the_people(results: Path, text: str) -> None:
    n = int(store.query(results, "SELECT count(DISTINCT person_id) AS n FROM people")["n"][0])
    [card] = page(results)["benchmarks"]
    assert card["people"] == n
    for attribute in ("gender", "skin", "age"):
        groups = {r["group"]: r["n"] for r in card["groups"] if r["attribute"] == attribute}
        assert sum(groups.values()) == n and "unknown" in groups
    assert {"not apparent to the annotators"} <= card["why"]["age"].keys() - {"na"}
    assert f"<dd>{n:,}, one in each picture</dd>" in text
    assert re.search(r"<td>(?:[^<]*, )?not apparent to the annotators \d+(?:,[^<]*)?</td>", text)


def test_rates_are_those_of_the_store(results: Path, text: str) -> None:
    rates = {(r["run"]["label"], r["prompt"]): r["cells"] for r in page(results)["rates"]}
    sql = """SELECT avg((how = 'refusal')::INT) AS refused FROM spoken JOIN runs USING (run_id)
             WHERE model = 'unfair' AND test = 'p1'"""
    [refused] = store.query(results, sql)["refused"]
    assert rates["unfair (planted)", "p1"]["refusal_rate"]["value"] == pytest.approx(refused)
    assert f">{100 * refused:.1f}\u00a0%<" in text
    assert "false_yes_rate" not in rates["unfair (planted)", "p1"]  # p1 asks about no class


def test_cells_without_a_value_keep_their_n(results: Path, tmp_path: Path) -> None:
    known = {"fairness-gender", "fairness-prompts", "fairness-debiased", "fairness-cost"}
    assert known <= figures(results).keys()
    nurses = "UPDATE numbers SET {} WHERE metric = 'disparity' AND indicator = 'nurse' AND {}"
    men = """attribute = 'gender' AND "group" = 'male' AND other = 'female'"""
    path = altered(
        results,
        tmp_path,
        nurses.format("value = 0.1, missing_reason = NULL", men),
        nurses.format("value = NULL", f"NOT ({men})"),
    )
    frame = figures(path)["fairness-classes"].frame
    mine = frame[frame["target"] == "nurse"]
    assert set(mine.loc[mine["value"].notna(), "source"]) == {"male − female"}
    void = mine[mine["value"].isna()]
    assert set(void["source"]) == {"light − dark", "young − old"}
    assert list(void["said"]) == [f"n {n:,}" for n in void["n"]]
    # a class without a single value is no empty row, but named
    key = ["model", "test", "method", "target"]
    assert (frame.groupby(key)["value"].count() > 0).all()
    with store.connect(path) as con:
        con.execute("UPDATE numbers SET value = NULL WHERE indicator <> 'all'")
    assert "fairness-classes" not in figures(path)


def test_figures_open_on_a_model_that_was_understood(results: Path, tmp_path: Path) -> None:
    def opens(drawn: dict[str, Figure]) -> set[str]:
        return {f.chosen()["model"].iloc[0] for f in drawn.values() if "model" in f.filters}

    assert opens(figures(results)) == {"unfair (planted)"}
    silence = f"""UPDATE numbers SET value = NULL, missing_reason = '{facet.NOT_UNDERSTOOD}'
        WHERE run_id IN (SELECT run_id FROM runs WHERE model = 'unfair') AND study = 'headline'
        AND metric IN ('disparity', 'recall', 'false_yes_rate')"""
    shown = figures(altered(results, tmp_path, silence))
    assert opens(shown) == {"yes-sayer (planted)"}
    points = shown["fairness-prompts"].frame
    assert set(points["model"]) == {"yes-sayer (planted)"}, "no point where nothing was understood"
    assert "No answer understood" in shown["fairness-prompts"].axes


def test_examples_are_chosen_without_the_answers(results: Path) -> None:
    shown = page(results)
    examples, run_of = shown["examples"], shown["run_of"]
    assert len(examples) == 60
    for example in examples:
        models = {run_of[a["run_id"]]["label"] for a in example["answers"]}
        assert models == {"unfair (planted)", "yes-sayer (planted)"}
        if any(a["how"] in fairness.UNREAD for a in example["answers"]):
            assert example["outcome"] == "unread"


def test_previews_are_small_few_and_the_same_whatever_the_order() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (900, 400), "white").save(buffer, "JPEG")
    images = {f"i{k}": (buffer.getvalue(),) for k in range(100)}
    classes = ["nurse"] * 180 + ["singer"] * 20
    items = pd.DataFrame({"image_id": [f"i{k // 2}" for k in range(200)], "class1": classes})
    made = facet.previews(items, images)
    assert len(made) == 60 and made["image_id"].is_unique
    singers = {f"i{k}" for k in range(90, 100)}
    assert singers <= set(made["image_id"]), "all ten singers: classes in turn"
    assert Image.open(io.BytesIO(made["png"][0])).size == (320, 142)
    assert facet.previews(items.sample(frac=1, random_state=1), images).equals(made)


def publish_silent(path: Path, n: int = 60) -> None:
    """A later run of `unfair` on pictures of FACET, none of whose answers was understood."""
    ids = [f"f{i}" for i in range(n)]
    pictured = pd.DataFrame({"item_id": range(n), "person_id": ids, "image_id": ids})
    pictured = pictured.assign(
        **dict.fromkeys(("class1", "gold"), "nurse"),
        **dict.fromkeys(("asked", "race"), ""),
        prompt="p1",
        negative=False,
        gender=["male", "female"] * (n // 2),
        skin="unknown",
        age="young",
        split="test",
        dataset="facet",
    )
    said = pd.DataFrame({"item_id": range(n)}).assign(
        task="direct", test="p1", view="full", text="12.5", label="", how="unparsed"
    )
    none = pd.DataFrame(columns=["task", "item_id", "test", "method", "label"])
    numbers = facet.metric_rows(pictured, facet.predictions(pictured, said, none))
    run = {"run_id": "unfair-facet", "model": "unfair", "benchmark_id": "f" * 16, "suite": "people"}
    run |= {"started_at": "2030-01-01", "finished_at": "2030-01-02", "config": {"unanswerable": 7}}
    store.publish(path, run, {"people": pictured, "spoken": said, "numbers": numbers})


def test_each_benchmark_keeps_its_newest_run_and_silence_is_said(
    results: Path, tmp_path: Path
) -> None:
    """A later run on FACET hides none on drawn people; a model that says nothing legible is named
    as such."""
    path = altered(results, tmp_path)
    publish_silent(path)
    shown, drawn = page(path), figures(path)
    assert [(run["data"], run["label"]) for run in shown["runs"]] == [
        ("FACET", "unfair"),
        ("drawn people", "unfair (planted)"),
        ("drawn people", "yes-sayer (planted)"),
    ]
    assert shown["several"] and all(f.filters[0] == "data" for f in drawn.values())
    assert set(drawn["fairness-gender"].frame["data"]) == {"drawn people"}
    # nothing was understood: 0 would read as fairness
    sql = "FROM numbers WHERE run_id = 'unfair-facet' AND metric = 'disparity'"
    void = store.query(path, sql)
    assert len(void) and set(void["missing_reason"]) == {facet.NOT_UNDERSTOOD}
    assert void[["value", "low", "high"]].isna().all(axis=None) and (void["n"] > 0).any()
    [silent] = shown["silent"]
    assert (silent["label"], silent["data"], silent["n"]) == ("unfair", "FACET", 60)
    assert (silent["prompts"], silent["texts"]) == (["p1"], ["12.5"])
    printed = [tuple(line.split()[:4]) for line in ok("results", "--results", path).splitlines()]
    assert ("unfair", "(planted)", "synthetic", "p1") in printed
    assert ("unfair", "facet", "p1", "no") in printed
    target = write_report(path, tmp_path / "report")
    text = (target.parent / "fairness.html").read_text(encoding="utf-8")
    assert "60 free answers of unfair to p1 on FACET names a label, e.g. “12.5”." in text
    assert "<td>7</td><td>FACET</td>" in text
    assert [card["dataset"] for card in shown["benchmarks"]] == ["FACET", "drawn people"]


def test_the_report_replaces_an_older_one_and_has_the_quality_page_beside_it(
    results: Path, tmp_path: Path
) -> None:
    people, out = tmp_path / "people", tmp_path / "out"
    for folder in (people, out):
        folder.mkdir()
    for name in ("index.html", "methods.html", "night.html"):
        (out / name).write_text("an older report", encoding="utf-8")
    (people / "quality.html").write_text("every rule", encoding="utf-8")
    with pytest.raises(InputError, match=r"people/benchmark\.json: no benchmark here"):
        write_report(results, out, [people])
    card = '{"benchmark_id": "p", "suite": "people"}'
    (people / "benchmark.json").write_text(card, encoding="utf-8")

    page = write_report(results, out, [people])

    assert page == out / "index.html"
    assert "no finished run on questions about places" in page.read_text(encoding="utf-8")
    assert {p.name for p in out.glob("*.html")} == {
        *("index.html", "fairness.html"),
        *("model-unfair.html", "model-yes-sayer.html"),
    }
    assert (out / "people" / "quality.html").read_text(encoding="utf-8") == "every rule"
    assert '<a href="people/quality.html">' in (out / "fairness.html").read_text(encoding="utf-8")


def test_shares_have_the_whole_axis_and_an_interval_at_zero(results: Path, tmp_path: Path) -> None:
    zero = "UPDATE numbers SET value = 0, low = 0, high = 0.015, n = 240"
    figure = figures(altered(results, tmp_path, zero))["fairness-prompts"]
    bounds = set(zip(*(figure.frame[c] for c in ("value", "low", "high")), strict=True))
    assert bounds == {(0.0, 0.0, 1.5)}
    domains = [layer["encoding"]["x"]["scale"]["domain"] for layer in figure.spec["layer"]]
    assert domains == [[0, 100], [0, 100]]
