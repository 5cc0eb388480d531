"""The text of the team's W&B Report."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias import store
from sdgbias.report.wandb import log, team_report
from tests.builders.numbers import disparity


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model on two benchmarks of people, on the second one twice; another on the first."""
    path = tmp_path_factory.mktemp("r") / "r.duckdb"
    for run, model, benchmark, day, value in (
        ("a-1", "a", "faces", 20, 0.1),
        ("a-2", "a", "work", 21, 0.2),
        ("a-3", "a", "work", 22, 0.3),
        ("b-1", "b", "faces", 19, 0.4),
    ):
        record = {
            "run_id": run,
            "model": model,
            "benchmark_id": benchmark,
            "suite": "people",
            "finished_at": f"2026-11-{day}T00:00:00",
        }
        store.publish(path, record, {"numbers": disparity(value)})
    return path


def test_people_are_told_by_model_and_benchmark(results: Path) -> None:
    """As the page about people: a run on a second benchmark doesn't hide the first."""
    found = dict(team_report.sections(results))
    rows = [
        [c.strip() for c in line.strip("|").split(" | ")]
        for line in found["Pictures of people"].splitlines()
        if " p1 " in line
    ]
    assert [(row[0], row[4].split(" ")[0]) for row in rows] == [
        ("a", "+10.0"),
        ("a", "+30.0"),
        ("b", "+40.0"),
    ]


def test_a_file_without_nights_gives_a_wandb_run_per_model_and_benchmark_of_people(
    results: Path,
) -> None:
    assert log.runs_of(results, None) == (
        "",
        [{"run_id": run} for run in ("a-1", "a-3", "b-1")],
    )
