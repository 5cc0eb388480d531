"""`sdgbias store` as a person uses it: fabricated nights, sizes, retention, damaged files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.cli.results import _runs_of_report
from sdgbias.errors import StoreError, UsageError
from sdgbias.report.build import write_report
from tests.builders import results as fake_results
from tests.builders.commands import ok, refused


def night(path: Path, at: int) -> None:
    """One night of two models; the fabricated models change from night to night, and so do the
    pictures that a run brings."""
    rng = np.random.default_rng(1)
    table = fake_results.items(rng, 30, 3)
    shown = range(3 * at, 3 * at + 6)
    pictures = [fake_results.composite(np.random.default_rng(k), 0.05 * k) for k in shown]
    previews = pd.DataFrame({"image_id": [f"image{k}" for k in shown], "png": pictures})
    for number, model in enumerate(fake_results.MODELS):
        record = store.RunRecord(
            f"{model}-{at}",
            model,
            fake_results.BENCHMARK,
            finished_at=f"2026-11-1{at}T03:0{number}:00",
            numerics="exact",
            provenance="planted",
        )
        store.publish(
            path,
            record,
            fake_results._run(model, table, np.random.default_rng(10 * at + number))
            | {
                "items": table,
                "previews": previews,
            },
        )
    name = f"2026-11-1{at}T0130"
    when = {
        "started_at": [pd.Timestamp(f"2026-11-1{at}T02:00:00")],
        "finished_at": [pd.Timestamp(f"2026-11-1{at}T03:30:00")],
    }
    store.upsert(path, {"nights": pd.DataFrame({"night": [name], "status": ["done"], **when})})


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results file of three nights."""
    path = tmp_path_factory.mktemp("nights") / "r.duckdb"
    for at in (1, 2, 3):
        night(path, at)
    return path


@pytest.fixture
def results(nights: Path, tmp_path: Path) -> Path:
    return fake_results.copied(nights, tmp_path / "r.duckdb")


def test_sizes_retention_and_what_is_left(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(ok("store", "info", "--results", results, "--json"))
    assert (found["runs"], found["models"], found["nights"]) == (6, 2, 3) and found["tables"][
        "scores"
    ]["files"] == 6
    on_disk = sum(p.stat().st_size for p in results.with_suffix(".runs").rglob("*.parquet"))
    assert found["details_bytes"] == on_disk and found["duckdb_bytes"] == results.stat().st_size
    shown = ok("store", "info", "--results", results).splitlines()
    assert "6 runs of 2 models, 3 nights" in shown[0]
    assert shown[-1].endswith("files; sdgbias store compact")

    keep = ("store", "keep", "--results", results, "--nights", 1, "--per-model", 2)
    said = ok(*keep)
    assert (
        said.count("fake-") == 2 and "Details of 2 of 6 runs would go" in said and "--apply" in said
    )
    assert len(store.query(results, "SELECT DISTINCT run_id FROM scores")) == 6
    assert "Details of 2 of 6 runs removed" in ok(*keep, "--apply")
    assert len(store.query(results, "SELECT DISTINCT run_id FROM scores")) == 4
    assert len(store.query(results, "SELECT DISTINCT run_id FROM metrics")) == 6

    runs = _runs_of_report(results, ["fake-optimist-1"])
    assert "fake-optimist-1: details removed by sdgbias store keep on 20" in capsys.readouterr().err
    assert "fake-optimist" in write_report(results, tmp_path / "old", among=runs).read_text()
    with pytest.raises(StoreError, match="no finished run 'x'"):
        _runs_of_report(results, ["fake-optimist-1", "x"])
    with pytest.raises(UsageError, match="two runs of fake-optimist"):
        _runs_of_report(results, ["fake-optimist-1", "fake-optimist-2"])
    gone = refused(7, "analyse", "--results", results, "--run", "fake-optimist-1")
    assert "removed by `sdgbias store keep` on 20" in gone


def test_a_damaged_file_is_named_and_orphans_go(results: Path) -> None:
    assert "every file is as it was written" in ok("store", "check", "--results", results)
    victim = sorted(results.with_suffix(".runs").rglob("scores-*.parquet"))[0]
    victim.write_bytes(b"x" * victim.stat().st_size)
    assert "1 files are missing or damaged" in refused(7, "store", "check", "--results", results)
    shutil.copy(victim, victim.with_name("scores-" + "0" * 16 + ".parquet"))
    assert "orphans: 1 files" in ok("store", "compact", "--results", results)
