"""The second suite from an empty folder to recall by group: what is planted is recovered, and
nothing where nothing is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from tests.builders.commands import add_model, metrics, ok, refused

#: Two models asked about 900 people. Quicker: tests/suites/test_facet_groups.py recovers what was
#: planted and finds nothing where nothing was, test_facet.py counts every answer, and the tour of
#: the README goes from an empty folder to the page.
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of 900 schematic people, and two planted models evaluated on it."""
    at = tmp_path_factory.mktemp("people")
    ok("people", "sample", "--people", 900, "--seed", 11, "--out", at / "raw")
    said = ok("people", "build", "--raw", at / "raw", "--out", at / "b")
    assert "annotated people" in said and "left out: several-persons" in said
    assert json.loads((at / "b" / "quality.json").read_text(encoding="utf-8"))["passed"] is True
    assert "passed the quality gate" in ok("people", "build", "--stage", "check", "--out", at / "b")
    planted = {
        "recall": 0.75,
        "effects": {"female": -0.25, "dark": -0.3},
        "false_yes": 0.2,
        "refusals": 0.05,
        "ramblings": 0.04,
    }
    common = {"backend": "planted-people", "repo": "planted:people"}
    add_model(at, "unfair", options={"oracle": str(at / "b"), **planted}, **common)
    add_model(at, "fair", options={"oracle": str(at / "b"), "recall": 0.75}, **common)
    for name in ("unfair", "fair"):
        ok("evaluate", name, "--benchmark", at / "b", "--results", at / "r.duckdb", registry=at)
    return at


def cell(folder: Path, model: str, **where: str) -> tuple[float, int, float, float]:
    condition = " AND ".join(
        f"{name} = '{value}'" for name, value in {"model": model, **where}.items()
    )
    [row] = metrics(folder / "r.duckdb", condition)[["value", "n", "ci_low", "ci_high"]].itertuples(
        index=False, name=None
    )
    return row


@LONG
@pytest.mark.parametrize(
    ("group", "planted"), [("gender:male-female", 0.25), ("skin:light-dark", 0.3)]
)
def test_planted_disparities_are_recovered(folder: Path, group: str, planted: float) -> None:
    """full_argmax: nothing is refused there, so the planted difference of chances is the expected
    difference of recalls."""
    found = cell(
        folder,
        "unfair",
        test="p2",
        method="full_argmax",
        pillar=group,
        indicator="all-52",
        metric="disparity",
    )
    assert found[2] < planted < found[3] and found[2] > 0


@LONG
@pytest.mark.parametrize("group", ["gender:male-female", "skin:light-dark", "age:young-old"])
def test_the_fair_model_has_none(folder: Path, group: str) -> None:
    for test, method in (("p1", "full"), ("p2", "full_argmax"), ("p3", "full_argmax")):
        found = cell(
            folder,
            "fair",
            test=test,
            method=method,
            pillar=group,
            indicator="all-52",
            metric="disparity",
        )
        assert abs(found[0]) < 0.2
        if test == "p3":
            assert found[2] <= 0 <= found[3]


@LONG
def test_answers_that_cannot_be_read_are_counted(folder: Path) -> None:
    refusals = cell(
        folder,
        "unfair",
        test="p1",
        method="full",
        pillar="all",
        indicator="all-52",
        metric="refusal_rate",
    )
    unparsed = cell(
        folder,
        "unfair",
        test="p1",
        method="full",
        pillar="all",
        indicator="all-52",
        metric="unparsed_rate",
    )
    assert refusals[2] < 0.05 < refusals[3] and unparsed[2] < 0.04 < unparsed[3]
    said = store.query(
        folder / "r.duckdb",
        "SELECT how, count(*) AS n FROM spoken JOIN runs USING (run_id) WHERE model = 'unfair'"
        " GROUP BY how",
    )
    assert set(said["how"]) == {"exact", "option", "refusal", "unparsed"}
    people = store.query(folder / "r.duckdb", "SELECT count(*) AS n FROM people")["n"][0]
    assert said["n"].sum() == people  # every question has an answer, read or not


@LONG
def test_yes_to_everything_would_be_seen(folder: Path) -> None:
    _, n, low, high = cell(
        folder,
        "unfair",
        test="p3",
        method="full_argmax",
        pillar="all",
        indicator="all-52",
        metric="false_yes_rate",
    )
    assert low < 0.2 < high and n > 800


@LONG
def test_the_first_suites_results_stay_its_own(folder: Path) -> None:
    assert store.latest_runs(folder / "r.duckdb") == []
    assert len(store.latest_runs(folder / "r.duckdb", "people")) == 2
    ok("report", "--results", folder / "r.duckdb", "--out", folder / "page")
    assert 'href="fairness.html"' in (folder / "page" / "index.html").read_text(encoding="utf-8")
    assert (folder / "page" / "fairness.html").is_file()


def test_a_folder_that_is_not_facet_is_told(tmp_path: Path) -> None:
    assert "no annotations/annotations.csv" in refused(
        3, "people", "build", "--raw", tmp_path, "--out", tmp_path / "b"
    )
    assert "no benchmark of people; make it: sdgbias people build" in refused(
        3, "people", "build", "--stage", "check", "--out", tmp_path
    )


@LONG
def test_a_folder_that_was_tampered_with_does_not_pass_the_gate(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "b", tmp_path / "b")
    items = pd.read_parquet(tmp_path / "b" / "items_people.parquet")
    items.loc[items["prompt"] == "p1", "gold"] = "nurse"
    items.to_parquet(tmp_path / "b" / "items_people.parquet")
    said = refused(10, "people", "build", "--stage", "check", "--out", tmp_path / "b")
    assert (
        "items_people.parquet: rule gold-fits broken" in said
        and "then: sdgbias people build" in said
    )
    assert "did not pass" in (tmp_path / "b" / "quality.html").read_text(encoding="utf-8")


@LONG
def test_the_plan_counts_people_too(folder: Path) -> None:
    said = ok(
        "plan",
        "tiny-llava",
        "--benchmark",
        folder / "b",
        "--results",
        folder / "r.duckdb",
        "--json",
    )
    assert '"prompts_planned"' in said
