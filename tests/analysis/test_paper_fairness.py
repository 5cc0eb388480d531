"""The fairness paper's tables from a results file: ours are the suite's numbers, the paper's stand
beside the same model's only."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sdgbias import cli, store
from sdgbias.analysis import paper as tables
from sdgbias.analysis.paper import formats
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_ANALYSED, NOT_RUN, Cell, Table
from sdgbias.analysis.rows import row, table
from sdgbias.errors import UsageError
from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import GROUPS, SELECTED
from sdgbias.suites import facet
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET
from tests.builders import paper_tables
from tests.builders.answered_people import PEOPLE, answered, items
from tests.builders.paper_tables import cell

LLAVA, PLANTED = "LLaVA-1.5 (7B) (measured)", "planted-people (planted)"


def record(model: str, suite: str = "people", provenance: str = "measured") -> store.RunRecord:
    return store.RunRecord(
        f"{model}-{suite}",
        model,
        "b" * 16,
        suite,
        started_at="2026-01-01",
        finished_at="2026-01-01 00:01",
        provenance=provenance,
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("facet") / "r.duckdb"
    asked = items()
    for seed, (model, provenance) in enumerate(
        (("llava-1.5-7b", "measured"), ("clip-vit-b32", "measured"), ("planted-people", "planted"))
    ):
        found = answered(asked, seed, choices=model != "clip-vit-b32")
        free = found[found["method"] == "full"]
        spoken = free.assign(text=free["pred"].where(free["pred"] != "", "12.5"))
        rows = [
            facet.metric_rows(asked, found, draws=20),
            facet.printed_rows(asked, spoken, facet.LetterGrams()),
        ]
        store.publish(
            path,
            record(model, provenance=provenance),
            {
                "metric_rows": pd.concat(rows, ignore_index=True),
                "people": asked.assign(dataset="synthetic"),
            },
        )
    store.publish(path, record("gpt-4o", suite="sdg"), {})
    return path


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "r.duckdb"
    store.publish(path, record("gpt-4o", suite="sdg"), {})
    return path


def everything(path: Path) -> dict[str, Table]:
    return paper_tables.everything(path, FACET)


def stored(
    path: Path,
    test: str,
    pillar: str,
    metric: str,
    indicator: str = "all",
    model: str = "llava-1.5-7b",
    method: str = "full",
) -> pd.Series:
    sql = """SELECT value, n, ci_low, ci_high FROM metrics WHERE suite = 'people' AND model = ? AND
             test = ? AND pillar = ? AND metric = ?
             AND indicator = ? AND method = ?"""
    found = store.query(path, sql, [model, test, pillar, metric, indicator, method])
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize("attribute", GROUPS)
def test_table_2_holds_the_stores_numbers_beside_the_papers(full: Path, attribute: str) -> None:
    t = everything(full)[attribute]
    one, other = PAIRS[attribute]
    for test, task in (("p1", "direct"), ("p2", "choice"), ("p3", "choice")):
        for column, pillar in (
            (one, f"{attribute}={one}"),
            (f"{one} - {other}", f"{attribute}:{one}-{other}"),
        ):
            metric = "disparity" if ":" in pillar else "recall"
            for reading, method in (("ours", "full"), ("paper", "full:paper")):
                c = cell(t, column, LLAVA, test, reading)
                s = stored(full, test, pillar, metric, method=method)
                assert (c.value, c.n, c.low, c.high, c.status) == (
                    s["value"],
                    s["n"],
                    s["ci_low"],
                    s["ci_high"],
                    "measured",
                )
                assert c.paper == (
                    paper.find("fairness/table_2", model="llava-1.5-7b", task=task, pillar=pillar)
                    if reading == "paper"
                    else None
                ), "printed numbers stand beside the paper's own reading alone"
                assert cell(t, column, PLANTED, test, reading).paper is None
    if attribute == "gender":
        assert cell(t, "male - female", LLAVA, "p1", "paper").paper.text == "-0.0115"  # type: ignore[union-attr]
        assert (
            cell(t, "macro", LLAVA, "p1", "ours").value
            == stored(full, "p1", "gender:male-female", "disparity", "macro")["value"]
        )
        assert [c.name for c in t.columns] == ["male", "female", "male - female", "macro"]
    else:
        assert t.columns[-1].name == "max - min" and len(t.columns) == 6


def test_a_model_that_was_not_run_has_the_papers_numbers_alone(full: Path, empty: Path) -> None:
    for path in (full, empty):
        t = everything(path)["skin"]
        c = cell(t, "dark", "GPT-4o (not run)", "p2 or p3", "paper")
        assert (c.value, c.status, c.paper.text) == (None, NOT_RUN, "0.7692")  # type: ignore[union-attr]
        assert cell(t, "macro", "GPT-4o (not run)", "p1", "paper") == Cell()
    labels = [r.labels for r in everything(empty)["gender"].rows]
    assert len(labels) == 10 + 8, "CLIP and ViT have no single-choice line, as in the paper"
    assert all(r.cells[0].status == NOT_RUN for r in everything(empty)["gender"].rows)
    assert labels[2:4] == [("GPT-4o (not run)", test, "paper") for test in ("p1", "p2 or p3")]
    assert ("CLIP (measured)", "p1", "paper") in [r.labels for r in everything(full)["gender"].rows]
    assert "CLIP (measured)" not in [
        r.labels[0] for r in everything(full)["gender"].rows if r.labels[1] != "p1"
    ]


def test_groups_that_are_too_small_have_no_value_but_their_n(full: Path) -> None:
    old = stored(full, "p1", "age:young-old", "disparity", "nurse")
    assert old["n"] == 0 and np.isnan(old["value"])
    c = cell(everything(full)["classes-age"], "nurse", LLAVA, "p1", "ours")
    assert (c.value, c.n, c.status) == (
        None,
        0,
        "not in store: a group of fewer than 20 pictures has no value",
    )
    c = cell(everything(full)["classes-age"], "nurse", LLAVA, "p1", "paper")
    young = stored(full, "p1", "age=young", "recall", "nurse", method="full:paper")
    assert c.value == young["value"] > 0, "in the paper's reading an empty group has recall 0"
    assert not c.has_interval and c.paper == paper.find(
        "fairness/classes",
        model="llava-1.5-7b",
        task="direct",
        pillar="age:young-old",
        indicator="nurse",
    )
    text = formats.text([everything(full)["classes-age"]], [])
    assert "[1] not in store: a group of fewer than 20" in text


def test_class_tables_have_thirteen_columns_and_the_printed_digits(full: Path) -> None:
    t = everything(full)["classes-gender"]
    assert [c.name for c in t.columns] == SELECTED
    c, s = (
        cell(t, "dancer", LLAVA, "p2", "paper"),
        stored(full, "p2", "gender:male-female", "disparity", "dancer", method="full:paper"),
    )
    assert (c.value, c.n) == (s["value"], s["n"]) and c.paper.text == "-0.0501"  # type: ignore[union-attr]


def test_rates_stand_beside_recall(full: Path) -> None:
    t = everything(full)["rates"]
    for group, metric in (
        ("all", "recall"),
        ("gender=male", "recall"),
        ("gender:male-female", "disparity"),
    ):
        assert (
            cell(t, "recall", LLAVA, "p2", group).value
            == stored(full, "p2", group, metric, "all-52")["value"]
        )
    false_yes = cell(t, "false yes", LLAVA, "p2", "all")
    assert (
        false_yes.value == stored(full, "p2", "all", "false_yes_rate", "all-52")["value"]
        and false_yes.n == PEOPLE
    )
    blind = cell(t, "false yes, no picture", LLAVA, "p3", "skin=dark")
    assert (
        blind.value
        == stored(full, "p3", "skin=dark", "false_yes_rate", "all-52", method="q_only")["value"]
    )
    assert cell(t, "false yes", LLAVA, "p1", "all") == cell(t, "no", LLAVA, "p1", "all") == Cell()
    assert 0.05 < cell(t, "unparsed", LLAVA, "p1", "all").value < 0.15  # type: ignore[operator]
    assert all(c.paper is None for r in t.rows for c in r.cells)


def test_readings(full: Path) -> None:
    readings = [r.labels for r in everything(full)["encoders"].rows if r.labels[0] == PLANTED]
    free, first = "free answer, packaged encoder", "first token"
    assert readings == [
        (PLANTED, "p1", free),
        (PLANTED, "p2", free),
        (PLANTED, "p2", first),
        (PLANTED, "p3", free),
        (PLANTED, "p3", first),
    ]
    c = cell(everything(full)["encoders"], "male - female", PLANTED, "p2", first)
    s = stored(
        full, "p2", "gender:male-female", "disparity", model="planted-people", method="full_argmax"
    )
    assert (c.value, c.low, c.status) == (s["value"], s["ci_low"], "planted")
    assert cell(everything(full)["encoders"], "unparsed", PLANTED, "p2", first) == Cell()


def test_debiasing_shows_the_study_or_says_that_there_is_none(full: Path, tmp_path: Path) -> None:
    assert {c.status for r in everything(full)["debiasing"].rows for c in r.cells} == {NOT_ANALYSED}
    path = Path(shutil.copy(full, tmp_path / "r.duckdb"))
    base = {"task": "choice", "test": "p2"}
    made = [
        row("fairness", "recall", Estimate(0.5, 80, 0.4, 0.6), **base, method="full_argmax"),
        row(
            "fairness",
            "disparity_change",
            Estimate(-0.1, 20, -0.2, 0.0),
            **base,
            method="cade@recall",
            pillar="skin:light-dark",
            p=0.04,
        ),
        row("fairness", "not_run", float("nan"), **base, method="bc", note="no val questions"),
    ]
    store.replace(path, "planted-people-people", {"study_rows": table(made)})
    t = everything(path)["debiasing"]
    assert [r.labels[2] for r in t.rows if r.labels[0] == PLANTED] == [
        "full_argmax",
        "bc",
        "cade@recall",
    ]
    assert (
        c := cell(t, "recall", PLANTED, "p2", "full_argmax")
    ).value == 0.5 and c.status == "planted"
    [cade] = [r for r in t.rows if r.labels[2] == "cade@recall"]
    assert [(c.value, c.n) for c in cade.cells if c.made] == [(-0.1, 20)] and cade.cells[
        7
    ].value == -0.1
    assert cell(t, "recall", PLANTED, "p2", "bc").status == "not in store: no val questions"


def test_data_and_prompts(full: Path, empty: Path) -> None:
    asked = items().drop_duplicates("person_id")
    t = everything(full)["data"]
    assert [c.name for c in t.columns] == ["facet", "synthetic bbbbbbbb"]
    c = cell(t, "synthetic bbbbbbbb", "skin tone", "dark")
    assert (c.value, c.status, c.paper) == (int((asked["skin"] == "dark").sum()), "synthetic", None)
    assert cell(t, "synthetic bbbbbbbb", "people", "all").value == PEOPLE
    for path in (full, empty):
        c = cell(everything(path)["data"], "facet", "gender presentation", "male")
        assert c.status == NOT_RUN and c.paper.value == 14_110  # type: ignore[union-attr]
    texts = {r.labels[0]: r.cells[0] for r in everything(empty)["prompts"].rows}
    assert (
        texts["p1"].value == texts["p1"].paper.text and texts["p2"].value == texts["p2"].paper.text
    )  # type: ignore[union-attr]
    assert str(texts["p3"].value) == texts["p3"].paper.text.replace("] ?", "]?")  # type: ignore[union-attr]


def test_a_planted_run_never_stands_for_a_model_of_the_paper(tmp_path: Path) -> None:
    asked = items()
    rows = facet.metric_rows(
        asked[asked["prompt"] == "p1"], answered(asked[asked["prompt"] == "p1"], 0), draws=20
    )
    store.publish(
        tmp_path / "r.duckdb", record("gpt-4o", provenance="planted"), {"metric_rows": rows}
    )
    t = everything(tmp_path / "r.duckdb")["gender"]
    assert cell(t, "male", "GPT-4o (not run)", "p1", "paper").status == NOT_RUN
    own = cell(t, "male", "gpt-4o (planted)", "p1", "ours")
    assert own.status == "planted" and own.paper is None


@pytest.mark.parametrize(
    ("names", "items"),
    [
        (["2"], ["gender", "skin", "age"]),
        (["Classes"], ["classes-gender", "classes-skin", "classes-age"]),
        (["1", "data", "3"], ["data", "prompts"]),
        (["all"], tables.items(FACET)),
        ([], tables.items(FACET)),
    ],
)
def test_tables_have_the_papers_numbers_as_names(names: list[str], items: list[str]) -> None:
    assert tables.chosen(names, FACET) == items


def test_unknown_names_are_refused(full: Path) -> None:
    with pytest.raises(UsageError, match="unknown table 'H'; valid: .*classes.*rates"):
        tables.chosen(["H"], FACET)
    with pytest.raises(UsageError, match="unknown model 'gpt-9'; valid: .*minicpm-v-8b"):
        tables.load(full, ["gpt-9"], suite=FACET)
    only = tables.build(tables.load(full, ["gpt-4o"], suite=FACET), ["gender"])[0]
    assert {r.labels[0] for r in only.rows} == {"GPT-4o (not run)"}, (
        "the run of the other suite is none of this one"
    )


def test_footnotes_say_what_the_paper_leaves_open(full: Path) -> None:
    notes = {name: " ".join(t.footnotes) for name, t in everything(full).items()}
    assert (
        "not for gender" in notes["gender"]
        and "p2's or p3's isn't stated" in notes["skin"]
        and "k/n" in notes["age"]
        and "5 of the 13 classes" in notes["gender"]
    )
    assert "0.00 to 0.06" in notes["skin"] and "0.00 to 0.06" not in notes["age"]
    assert (
        "k/230" in notes["classes-age"]
        and "no minimum group size" in notes["classes-gender"]
        and "Planted:" in notes["rates"]
    )


def test_the_command_prints_writes_and_keeps_the_other_paper(full: Path, tmp_path: Path) -> None:
    def run(*options: str) -> str:
        found = CliRunner().invoke(
            cli.app, ["reproduce", "--results", str(full), *options], catch_exceptions=False
        )
        assert found.exit_code == 0
        return found.stdout

    printed = run("--paper", "fairness", "--table", "2")
    assert "clustered by picture" in printed and printed.rstrip().splitlines()[-1].startswith(
        "3 tables, "
    )
    assert (
        max(len(line) for line in printed.splitlines()) <= 120
        and "planted-people (planted): run planted-people-people" in printed
    )
    assert "Table H" in run("--table", "H") and "clustered by place" in run("--table", "H")
    lines = list(
        csv.DictReader(io.StringIO(run("--paper", "fairness", "--table", "gender", "--csv")))
    )
    [line] = [
        x for x in lines if x["row"] == "GPT-4o (not run) | p1 | paper" and x["column"] == "male"
    ]
    assert (line["paper_printed"], line["status"]) == ("0.7124", "not run")
    assert {
        t["item"]
        for t in json.loads(run("--paper", "fairness", "--json", "--table", "rates"))["tables"]
    } == {"rates"}
    run("--paper", "fairness", "--table", "classes", "--out", str(tmp_path))
    assert len(list(tmp_path.glob("classes-*.md"))) == 3
    with pytest.raises(UsageError, match="--paper: unknown value 'other'; valid: fairness, sdg"):
        run("--paper", "other")
