"""The suite of people from an empty folder to the page: what was planted is recovered, answers that
can't be read are counted, and a benchmark that was tampered with doesn't pass."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from tests.builders.commands import add_model, metrics, ok, refused

PLANTED = {
    "recall": 0.75,
    "effects": {"female": -0.3},
    "false_yes": 0.2,
    "refusals": 0.1,
    "ramblings": 0.08,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of 400 schematic people, and a planted model evaluated on it."""
    at = tmp_path_factory.mktemp("people")
    ok(f"sample --suite people --people 400 --seed 11 --out {at / 'raw'}")
    printed = ok(f"people build --raw {at / 'raw'} --out {at / 'b'}")
    assert "annotated people" in printed and "left out: several-persons" in printed
    assert json.loads((at / "b" / "quality.json").read_text(encoding="utf-8"))["passed"] is True
    options = {"oracle": str(at / "b"), **PLANTED}
    add_model(at, "unfair", backend="planted-people", repo="planted:people", options=options)
    ok(f"evaluate unfair --benchmark {at / 'b'} --results {at / 'r.duckdb'}", registry=at)
    return at


@pytest.mark.parametrize(
    ("test", "method", "group", "metric", "planted"),
    [
        # nothing is refused there, so the difference of chances is that of recalls
        ("p2", "full_argmax", "gender:male-female", "disparity", 0.3),
        ("p1", "full", "all", "refusal_rate", 0.1),
        ("p1", "full", "all", "unparsed_rate", 0.08),
        ("p3", "full_argmax", "all", "false_yes_rate", 0.2),
    ],
)
def test_what_was_planted_lies_in_the_interval(
    folder: Path, test: str, method: str, group: str, metric: str, planted: float
) -> None:
    where = f"test = '{test}' AND method = '{method}' AND pillar = '{group}'"
    rows = metrics(folder / "r.duckdb", f"{where} AND metric = '{metric}' AND indicator = 'all-52'")
    [row] = rows.itertuples()
    assert 0 < row.ci_low < planted < row.ci_high and row.n > 80, row


def test_every_question_has_an_answer_read_or_not_and_a_page(folder: Path, tmp_path: Path) -> None:
    results = folder / "r.duckdb"
    answers = store.query(results, "SELECT how, count(*) AS n FROM spoken GROUP BY how")
    assert set(answers["how"]) == {"exact", "option", "refusal", "unparsed"}
    assert answers["n"].sum() == store.query(results, "SELECT count(*) AS n FROM people")["n"][0]
    assert store.latest_runs(results) == [] and len(store.latest_runs(results, "people")) == 1
    printed = json.loads(ok(f"results --results {results} --json"))
    assert [row["test"] for row in printed["recall"]] == ["p1", "p2", "p3"]
    assert f"{100 * printed['recall'][0]['recall']:.1f}" in ok(f"results --results {results}")
    ok(f"report --results {results} --out {tmp_path}")
    assert 'href="fairness.html"' in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "fairness.html").is_file()
    where = f"--benchmark {folder / 'b'} --results {results}"
    assert '"prompts_planned"' in ok(f"plan tiny-llava {where} --json")


def test_a_benchmark_that_was_tampered_with_does_not_pass_the_gate(folder: Path) -> None:
    path = folder / "b" / "items_people.parquet"
    before = path.read_bytes()
    items = pd.read_parquet(path)
    items.loc[items["prompt"] == "p1", "gold"] = "nurse"
    items.to_parquet(path)
    try:
        line = refused(10, f"people build --stage check --out {folder / 'b'}")
        assert "items_people.parquet: rule gold-fits broken" in line
        assert "then: sdgbias people build" in line
        assert "did not pass" in (folder / "b" / "quality.html").read_text(encoding="utf-8")
    finally:
        path.write_bytes(before)
