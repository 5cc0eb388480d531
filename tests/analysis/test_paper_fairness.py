"""The fairness paper's tables from a results file: ours are the suite's numbers, the paper's stand
beside the same model's only."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from sdgbias import cli, store
from sdgbias.analysis.paper import formats
from sdgbias.analysis.paper import numbers as paper
from sdgbias.analysis.paper.results import NOT_ANALYSED, NOT_RUN
from sdgbias.analysis.paper.tables import Cell, Table
from sdgbias.analysis.rows import not_run, row, table
from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import GROUPS
from sdgbias.suites import facet
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.suites.rows import HEADLINE
from sdgbias.types import FACET
from tests.builders import paper_tables
from tests.builders.answered_people import PEOPLE, answered, items
from tests.builders.paper_tables import cell

TASKS = {"p1": "direct", "p2": "choice", "p3": "choice"}
LLAVA, PLANTED = "LLaVA-1.5 (7B) (measured)", "planted-people (planted)"


def record(model: str, suite: str = "people", provenance: str = "measured") -> dict[str, str]:
    at = {"started_at": "2026-01-01", "finished_at": "2026-01-01 00:01"}
    about = {"run_id": f"{model}-{suite}", "model": model, "benchmark_id": "b" * 16}
    return about | at | {"suite": suite, "provenance": provenance}


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
        made = {"numbers": pd.concat(rows, ignore_index=True)}
        made["people"] = asked.assign(dataset="synthetic")
        store.publish(path, record(model, provenance=provenance), made)
    store.publish(path, record("gpt-4o", suite="sdg"), {})
    return path


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "r.duckdb"
    store.publish(path, record("gpt-4o", suite="sdg"), {})
    return path


def build(path: Path, item: str) -> Table:
    return paper_tables.build(path, item, FACET)


def stored(
    path: Path, test: str, pillar: str, metric: str, indicator: str = "all", method: str = "full"
) -> pd.Series:
    sql = """SELECT value, n, ci_low, ci_high FROM metrics WHERE model = 'llava-1.5-7b' AND
             suite = 'people' AND test = ? AND pillar = ? AND metric = ? AND indicator = ? AND
             method = ?"""
    found = store.query(path, sql, [test, pillar, metric, indicator, method])
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize("attribute", GROUPS)
@pytest.mark.parametrize(("test", "task"), TASKS.items())
@pytest.mark.parametrize(("reading", "method"), [("ours", "full"), ("paper", "full:paper")])
def test_table_2_holds_the_stores_numbers_beside_the_papers(
    full: Path, attribute: str, test: str, task: str, reading: str, method: str
) -> None:
    """Printed numbers stand beside the paper's own reading alone."""
    t, (one, other) = build(full, attribute), PAIRS[attribute]
    for column, pillar, metric in (
        (one, f"{attribute}={one}", "recall"),
        (f"{one} - {other}", f"{attribute}:{one}-{other}", "disparity"),
    ):
        c = cell(t, column, LLAVA, test, reading)
        s = stored(full, test, pillar, metric, method=method)
        assert (c.value, c.n, c.low, c.high) == (s["value"], s["n"], s["ci_low"], s["ci_high"])
        where = {"model": "llava-1.5-7b", "task": task, "pillar": pillar}
        printed = paper.find("fairness/table_2", **where) if reading == "paper" else None
        assert (c.status, c.paper) == ("measured", printed)
        assert cell(t, column, PLANTED, test, reading).paper is None


FREE, FIRST = "free answer, packaged encoder", "first token"
GENDER, DARK, NO_PICTURE = "gender:male-female", "skin=dark", "false yes, no picture"
#: Item, column, labels: (pillar, metric, indicator, method) of the number in the store.
NUMBERS = [
    ("gender", "macro", ("p1", "ours"), (GENDER, "disparity", "macro", "full")),
    ("classes-gender", "dancer", ("p2", "paper"), (GENDER, "disparity", "dancer", "full:paper")),
    ("rates", "recall", ("p2", "all"), ("all", "recall", "all-52", "full")),
    ("rates", "recall", ("p2", "gender=male"), ("gender=male", "recall", "all-52", "full")),
    ("rates", "recall", ("p2", GENDER), (GENDER, "disparity", "all-52", "full")),
    ("rates", "false yes", ("p2", "all"), ("all", "false_yes_rate", "all-52", "full")),
    ("rates", NO_PICTURE, ("p3", DARK), (DARK, "false_yes_rate", "all-52", "q_only")),
    ("encoders", "male - female", ("p2", FIRST), (GENDER, "disparity", "all", "full_argmax")),
]


@pytest.mark.parametrize(("item", "column", "labels", "where"), NUMBERS)
def test_tables_hold_the_stores_numbers(
    full: Path, item: str, column: str, labels: tuple[str, ...], where: tuple[str, ...]
) -> None:
    c = cell(build(full, item), column, LLAVA, *labels)
    pillar, metric, indicator, method = where
    s = stored(full, labels[0], pillar, metric, indicator, method=method)
    assert (c.value, c.n, c.low) == pytest.approx((s["value"], s["n"], s["ci_low"]), nan_ok=True)


def test_a_model_that_was_not_run_has_the_papers_numbers_alone(full: Path, empty: Path) -> None:
    for path in (full, empty):
        t = build(path, "skin")
        c = cell(t, "dark", "GPT-4o (not run)", "p2 or p3", "paper")
        assert (c.value, c.status, c.paper.text) == (None, NOT_RUN, "0.7692")  # type: ignore[union-attr]
        assert cell(t, "macro", "GPT-4o (not run)", "p1", "paper") == Cell()
    rows = build(empty, "gender").rows
    assert len(rows) == 10 + 8, "CLIP and ViT have no single-choice line, as in the paper"
    assert {r.cells[0].status for r in rows} == {NOT_RUN}
    labels = [("GPT-4o (not run)", test, "paper") for test in ("p1", "p2 or p3")]
    assert [r.labels for r in rows[2:4]] == labels
    clip = [r.labels for r in build(full, "gender").rows if r.labels[0] == "CLIP (measured)"]
    assert clip == [("CLIP (measured)", "p1", reading) for reading in ("ours", "paper")]


def test_groups_that_are_too_small_have_no_value_but_their_n(full: Path) -> None:
    old = stored(full, "p1", "age:young-old", "disparity", "nurse")
    assert old["n"] == 0 and np.isnan(old["value"])
    c = cell(build(full, "classes-age"), "nurse", LLAVA, "p1", "ours")
    few = "not in store: a group of fewer than 20 pictures has no value"
    assert (c.value, c.n, c.status) == (None, 0, few)
    c = cell(build(full, "classes-age"), "nurse", LLAVA, "p1", "paper")
    young = stored(full, "p1", "age=young", "recall", "nurse", method="full:paper")
    assert c.value == young["value"] > 0, "in the paper's reading an empty group has recall 0"
    where = {"task": "direct", "pillar": "age:young-old", "indicator": "nurse"}
    printed = paper.find("fairness/classes", model="llava-1.5-7b", **where)
    assert not c.has_interval and c.paper == printed
    text = formats.text([build(full, "classes-age")], [])
    assert "[1] not in store: a group of fewer than 20" in text


def test_debiasing_shows_the_study_or_says_that_there_is_none(full: Path, tmp_path: Path) -> None:
    unanalysed = build(full, "debiasing")
    assert {c.status for r in unanalysed.rows for c in r.cells} == {NOT_ANALYSED}
    assert f"[1] {NOT_ANALYSED}" in formats.text([unanalysed], []), "labels may be empty"
    path = Path(shutil.copy(full, tmp_path / "r.duckdb"))
    base = {"task": "choice", "test": "p2"}
    cade = base | {"method": "cade@recall", "attribute": "skin", "group": "light", "other": "dark"}
    recall, change = Estimate(0.5, 80, 0.4, 0.6), Estimate(-0.1, 20, -0.2, 0.0)
    made = [
        row("fairness", "recall", recall, **base, method="full_argmax"),
        row("fairness", "disparity_change", change, **cade, p_adjusted=0.04),
        not_run("fairness", "no val questions", **base, method="bc"),
    ]
    store.replace(path, "planted-people-people", {"numbers": table(made)}, kept_study=HEADLINE)

    t = build(path, "debiasing")

    methods = [r.labels[2] for r in t.rows if r.labels[0] == PLANTED]
    assert methods == ["full_argmax", "bc", "cade@recall"]
    c = cell(t, "recall", PLANTED, "p2", "full_argmax")
    assert (c.value, c.status) == (0.5, "planted")
    [cade_row] = [r for r in t.rows if r.labels[2] == "cade@recall"]
    assert [(at, c.value, c.n) for at, c in enumerate(cade_row.cells) if c.made] == [(7, -0.1, 20)]
    assert cell(t, "recall", PLANTED, "p2", "bc").status == "not in store: no val questions"


def test_data_and_prompts(full: Path, empty: Path) -> None:
    asked = items().drop_duplicates("person_id")
    t, synthetic = build(full, "data"), "synthetic bbbbbbbb"
    c = cell(t, "people", synthetic, "skin=dark")
    assert (c.value, c.status, c.paper) == (int((asked["skin"] == "dark").sum()), "synthetic", None)
    assert cell(t, "people", synthetic, "all").value == PEOPLE
    for path in (full, empty):
        c = cell(build(path, "data"), "people", "facet", "gender=male")
        assert c.status == NOT_RUN and c.paper.value == 14_110  # type: ignore[union-attr]
    texts = {r.labels[0]: r.cells[0] for r in build(empty, "prompts").rows}
    for test in ("p1", "p2"):
        assert texts[test].value == texts[test].paper.text  # type: ignore[union-attr]
    assert str(texts["p3"].value) == texts["p3"].paper.text.replace("] ?", "]?")  # type: ignore[union-attr]


def test_a_planted_run_never_stands_for_a_model_of_the_paper(tmp_path: Path) -> None:
    asked = items().query("prompt == 'p1'")
    rows = facet.metric_rows(asked, answered(asked, 0), draws=20)
    store.publish(tmp_path / "r.duckdb", record("gpt-4o", provenance="planted"), {"numbers": rows})
    t = build(tmp_path / "r.duckdb", "gender")
    assert cell(t, "male", "GPT-4o (not run)", "p1", "paper").status == NOT_RUN
    own = cell(t, "male", "gpt-4o (planted)", "p1", "ours")
    assert own.status == "planted" and own.paper is None


def test_the_command_has_the_tables_of_either_paper(full: Path) -> None:
    def invoke(*options: str) -> Result:
        command = ["reproduce", "--results", str(full), *options]
        return CliRunner().invoke(cli.app, command, catch_exceptions=False)

    printed = invoke("--paper", "fairness", "--table", "2").stdout
    assert "clustered by picture" in printed
    assert printed.rstrip().splitlines()[-1].startswith("3 tables, ")
    assert "clustered by place" in invoke("--table", "H").stdout
    other = invoke("--paper", "other")
    assert (other.exit_code, "'other' is not one of 'sdg', 'fairness'" in other.output) == (2, True)
