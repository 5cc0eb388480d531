"""The numbers behind the pages over many nights."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.report import leaderboard
from sdgbias.report.reader import Results
from tests.builders.nights import publish_nights, publish_persons


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_persons(publish_nights(tmp_path_factory.mktemp("nights") / "sdgbias.duckdb", 3))


@pytest.fixture
def results(published: Path, tmp_path: Path) -> Path:
    copytree(published.parent, tmp_path / "r")
    return tmp_path / "r" / published.name


@pytest.mark.parametrize("run", ["fake-optimist-2", "unfair-0"])
def test_any_cell_has_the_numbers_of_the_store(results: Path, run: str) -> None:
    sql = (
        f"SELECT {', '.join(leaderboard.CHOICES)}, value, n, ci_low, ci_high FROM metrics WHERE"
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


def test_every_cell_of_a_run_is_offered(results: Path) -> None:
    runs = store.query(results, "FROM runs WHERE finished_at IS NOT NULL").to_dict("records")
    stored = f"SELECT DISTINCT {', '.join(leaderboard.CHOICES)} FROM metrics WHERE run_id = ?"
    with Results(results).reading() as reader:
        for run in runs:
            wanted = store.query(results, stored, [run["run_id"]]).itertuples(index=False)
            cells = leaderboard.cells(reader, run)
            assert len(cells) == len(set(cells)) and set(cells) == set(map(tuple, wanted))


def test_planted_models_come_last_however_good() -> None:
    runs = [
        {"run_id": n, "model": n, "provenance": p}
        for n, p in (("p", "planted"), ("a", "real"), ("b", "real"), ("none", "real"))
    ]
    values = {"p": 0.99, "a": 0.4, "b": 0.5, "none": None}
    found = pd.DataFrame({"run_id": list(values), "value": list(values.values())})
    found["missing_reason"] = [None, None, None, "not scored"]
    ranked = [r["model"] for r in leaderboard.table(runs, found, "accuracy")]
    assert ranked == ["b", "a", "none", "p"]
