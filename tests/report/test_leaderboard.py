"""The short table behind the pages over many nights: always what metric_rows says of all indicators
together, whatever was written how."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.report import leaderboard
from sdgbias.report.source import Results
from sdgbias.store import maintenance
from tests.builders.nights import publish_nights, publish_persons

SHORT, LONG = (
    "FROM headline_rows ORDER BY ALL",
    "FROM metric_rows WHERE indicator IN ('all', 'all-52') ORDER BY ALL",
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_persons(publish_nights(tmp_path_factory.mktemp("nights") / "sdgbias.duckdb", 3))


@pytest.fixture
def results(published: Path, tmp_path: Path) -> Path:
    copytree(published.parent, tmp_path / "r")
    return tmp_path / "r" / published.name


def rows(path: Path, run_id: str) -> int:
    return int(
        store.query(path, "SELECT count(*) AS n FROM headline_rows WHERE run_id = ?", [run_id])[
            "n"
        ][0]
    )


def assert_short_is_long(path: Path) -> None:
    short = store.query(path, SHORT)
    assert len(short) and short.equals(store.query(path, LONG))


def test_every_write_keeps_both_tables_in_step(results: Path) -> None:
    assert_short_is_long(results)
    many = rows(results, "fake-optimist-0")
    halved = store.query(
        results,
        "SELECT * EXCLUDE (run_id, model, suite) REPLACE (value / 2 AS value) FROM metric_rows"
        " WHERE run_id = ?",
        ["fake-optimist-0"],
    )
    store.replace(results, "fake-optimist-0", {"metric_rows": halved})
    assert_short_is_long(results)
    assert rows(results, "fake-optimist-0") == many > 0
    store.replace(
        results, "fake-optimist-1", {"failures": halved[:0][[]].assign(kind="", message="")}
    )
    assert rows(results, "fake-optimist-1") == many, (
        "a replacement of another table leaves it alone"
    )
    run = store.RunRecord(
        run_id="fake-optimist-2", model="fake-optimist", benchmark_id="b", provenance="planted"
    )
    store.publish(results, run, {})  # what the run had before goes, when it is published without
    assert_short_is_long(results)
    assert rows(results, "fake-optimist-2") == 0
    maintenance.compact(results, now=datetime.now(UTC))
    assert_short_is_long(results)


@pytest.mark.parametrize("run", ["fake-optimist-2", "unfair-0"])
def test_any_cell_has_the_numbers_of_the_long_table(results: Path, run: str) -> None:
    sql = (
        f"SELECT {', '.join(leaderboard.CHOICES)}, value, n, ci_low, ci_high FROM metric_rows WHERE"
        " run_id = ? ORDER BY indicator IN ('all', 'all-52'), hash(test, metric)"
    )
    stored = store.query(results, sql, [run]).astype(object)
    picked = [*stored.head(6).to_dict("records"), *stored.tail(6).to_dict("records")]
    with Results(results).reading() as reader:
        for want in picked:
            chosen = {name: want[name] for name in leaderboard.CHOICES}
            numbers = leaderboard.numbers(reader, chosen, None, [run])
            [found] = leaderboard.as_rows(numbers[numbers["run_id"] == run])
            for name in ("value", "n", "ci_low", "ci_high"):
                assert found[name] == want[name] or (
                    found[name] is None and want[name] != want[name]
                ), (chosen, name)


def test_every_cell_of_a_run_is_offered_wherever_its_rows_lie(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "NEWEST", 4)
    monkeypatch.setattr(store, "GROUPED", (5, 10))  # so that reading starts within the table
    rows_of = "SELECT * EXCLUDE (run_id, model, suite) FROM metric_rows WHERE run_id = ?"
    old = "fake-optimist-0"  # its rows are the last then, those of the newest run before them
    store.replace(results, old, {"metric_rows": store.query(results, rows_of, [old])})
    maintenance.compact(results, now=datetime.now(UTC))
    runs = store.query(results, "FROM runs WHERE finished_at IS NOT NULL").to_dict("records")
    stored = f"SELECT DISTINCT {', '.join(leaderboard.CHOICES)} FROM metric_rows WHERE run_id = ?"
    with Results(results).reading() as reader:
        for run in runs:
            wanted = store.query(results, stored, [run["run_id"]]).itertuples(index=False)
            found = leaderboard.cells(reader, run)
            assert len(found) == len(set(found)) and set(found) == set(map(tuple, wanted))


def test_planted_models_come_last_however_good() -> None:
    runs = [
        {"run_id": n, "model": n, "provenance": p}
        for n, p in (("p", "planted"), ("a", "real"), ("b", "real"), ("none", "real"))
    ]
    values = {"p": 0.99, "a": 0.4, "b": 0.5, "none": None}
    found = pd.DataFrame({"run_id": list(values), "value": list(values.values())})
    ranked = [r["model"] for r in leaderboard.table(runs, found, "accuracy")]
    assert ranked == ["b", "a", "none", "p"]
