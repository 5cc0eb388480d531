"""The report is written again when anything that its pages hang on changed, and only then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import files, store
from sdgbias.report import freshness

NOW = datetime(2026, 11, 21, 1, 30)
STUDY = {"study": "harm", "task": "mcq", "test": "T1", "method": "cade", "pillar": "all"}
STUDY |= {"indicator": "all", "by": "", "x": 0.0, "n": 60}


def _study(results: Path, first: float, second: float) -> None:
    rows = [
        {**STUDY, "level": "", "metric": "fixed", "value": first},
        {**STUDY, "level": "", "metric": "broken", "value": second},
    ]
    store.replace(results, "m-1", {"study_rows": pd.DataFrame(rows)})


def _metric(results: Path, value: float) -> None:
    row = {"task": "mcq", "test": "T1", "method": "full", "pillar": "all", "indicator": "all"}
    store.replace(
        results, "m-1", {"metric_rows": pd.DataFrame([{**row, "metric": "mae", "value": value}])}
    )


def _published(results: Path, title: str = "M", run_id: str = "m-1") -> None:
    run = {"run_id": run_id, "model": "m", "benchmark_id": "b1", "finished_at": NOW, "title": title}
    store.publish(results, run, {})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results" / "r.duckdb"
    _published(path)
    _study(path, 0.25, 0.75)
    _metric(path, 0.5)
    return path


@pytest.fixture
def same(tmp_path: Path, results: Path) -> Callable[[], bool]:
    """Whether the report that was written just now would come out as it stands."""
    out, benchmark = tmp_path / "report", tmp_path / "benchmark"
    out.mkdir()
    (benchmark / "data_docs").mkdir(parents=True)
    (benchmark / "benchmark.json").write_text("{}")
    (benchmark / "data_docs" / "index.html").write_text("docs")
    for name in ("index.html", "night.html"):
        (out / name).write_text("a page")
    freshness.stamp(results, out, (benchmark, None), (False, False))
    return lambda: freshness.is_fresh(results, out, (benchmark, None), (False, False))


def test_nothing_changed(results: Path, same: Callable[[], bool]) -> None:
    assert same()
    night = {"night": "2026-11-21T0130", "status": "done", "started_at": datetime.now(UTC)}
    store.upsert(results, {"nights": pd.DataFrame([night])})
    assert same(), "the page of the night is written in any case"


@pytest.mark.parametrize(
    "change",
    [
        lambda results: _study(results, 0.75, 0.25),  # the sum and the count are those of before
        lambda results: _study(results, 0.25, 0.5),
        lambda results: _metric(results, 0.6),
        lambda results: _published(results, "another title"),
        lambda results: _published(results, run_id="m-2"),
    ],
    ids=["study, same sum", "study", "metric", "run", "new run"],
)
def test_a_changed_row(
    results: Path, same: Callable[[], bool], change: Callable[[Path], None]
) -> None:
    change(results)
    assert not same()


def test_changed_pages_of_a_benchmark(tmp_path: Path, same: Callable[[], bool]) -> None:
    (tmp_path / "benchmark" / "data_docs" / "index.html").write_text("more")
    assert not same()


@pytest.mark.parametrize(
    "path",
    [
        "report/templates/page.html.j2",
        "report/charts/harm.py",
        "analysis/studies/harm.py",
        "methods/stats/intervals.py",
        "nightly/regression/judge.py",
        "suites/facet.py",
        "data/indicators.yaml",
    ],
)
def test_changed_code_templates_and_data(
    path: str,
    tmp_path: Path,
    results: Path,
    same: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same length, same time: only the bytes say so. A copy of the package stands in for an
    upgrade."""
    package = tmp_path / "package"
    shutil.copytree(
        files.packaged(), package, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
    )
    with monkeypatch.context() as upgraded:
        upgraded.setattr(files, "packaged", lambda *parts: package.joinpath(*parts))
        assert same(), "an equal copy"
        changed = package / path
        before = changed.stat()
        content = changed.read_bytes()
        changed.write_bytes(content[:-2] + b"#\n")
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert changed.stat().st_size == before.st_size
        assert not same()
