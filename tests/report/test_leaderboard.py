"""The short table behind the pages over many nights: always what metric_rows says of all indicators
together, whatever was written how."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree

import pytest
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.report import leaderboard
from sdgbias.report.source import Results
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
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


def older(path: Path) -> None:
    """The file as the schema before this table left it."""
    with store.connect(path, details=()) as con:
        for statement in (
            "DROP TABLE headline_rows",
            "ALTER TABLE nights ADD COLUMN benchmark_id VARCHAR",
            "ALTER TABLE nights ADD COLUMN people_id VARCHAR",
            "UPDATE nights SET benchmark_id = benchmarks ->> 'sdg',"
            " people_id = benchmarks ->> 'people'",
            "ALTER TABLE nights DROP COLUMN benchmarks",
            *(f"ALTER TABLE verdicts DROP COLUMN {n}" for n in ("side", "quarantines", "required")),
            "ALTER TABLE details DROP COLUMN written_ns",
            *(f"ALTER TABLE metric_rows DROP COLUMN {name}" for name in ("clusters", "note")),
            "ALTER TABLE cade_params DROP COLUMN note",
            "ALTER TABLE nights DROP COLUMN step_states",
            *(f"ALTER TABLE items DROP COLUMN {name}" for name in ("source_id", "groups")),
            "ALTER TABLE items DROP COLUMN modalities",
            "DROP TABLE timings",
            "DELETE FROM schema_version WHERE version >= 6",
        ):
            con.execute(statement)


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


def test_an_older_file_gets_it_when_a_page_first_opens_it(results: Path) -> None:
    pages = (
        "/numbers.csv?method=cade&test=T2",
        "/numbers?suite=people&metric=disparity",
        "/models/fake-optimist",
    )

    def said() -> list[str]:
        client = TestClient(app.create(Site(Results(results))), base_url="http://localhost")
        return [client.get(page).text.split("Read-only")[0] for page in pages]

    before = said()
    older(results)
    # an older file doesn't know what its intervals count, so a model's signatures read otherwise
    after = said()
    assert after[:2] == before[:2] and all("Signature" in pages[2] for pages in (before, after))
    assert before[0].count("\n") == 7 and "+50.0" in before[1]
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
            found = leaderboard.numbers(reader, chosen, [], [run])[run]
            for name in ("value", "n", "ci_low", "ci_high"):
                assert found[name] == want[name] or (
                    found[name] is None and want[name] != want[name]
                ), (chosen, name)


def test_planted_models_come_last_however_good() -> None:
    runs = [
        {"run_id": n, "model": n, "provenance": p}
        for n, p in (("p", "planted"), ("a", "real"), ("b", "real"), ("none", "real"))
    ]
    values = {"p": 0.99, "a": 0.4, "b": 0.5, "none": None}
    found = {n: {"value": v} for n, v in values.items()}
    ranked = [r["model"] for r in leaderboard.table(runs, found, "accuracy")]
    assert ranked == ["b", "a", "none", "p"]
