"""Offline W&B runs, read back from their files and compared with the results file. Runs that are
sent at once: tests/functional/test_wandb.py."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.report.wandb import log
from sdgbias.types import PILLARS
from tests.builders.nights import STEADY, verdict
from tests.builders.numbers import disparity, numbers_of
from tests.builders.results import BENCHMARK, publish_fake
from tests.builders.wandb_files import Offline, read

RUN = f"{STEADY}-2"
NIGHTS = ("2026-11-21T0130", "2026-11-22T0130")


def nights(results: Path) -> None:
    """Two nights: in the first the model was scored, in the second it had not changed."""
    common = {"model": STEADY, "suite": "sdg", "run_id": RUN, "attempts": 1, "seconds": 3.5}
    common |= {"planned": 700, "failed": 1}
    rows = [
        {**common, "night": night, "outcome": outcome, "scored": scored}
        for night, outcome, scored in zip(NIGHTS, ("published", "unchanged"), (699, 0), strict=True)
    ]
    broken = {"night": NIGHTS[1], "model": "broken", "suite": "sdg", "run_id": ""}
    rows.append(broken | {"outcome": "failed", "kind": "OutOfMemory"})
    lost = verdict(STEADY, "accuracy", "BREACH", night=NIGHTS[0], level="all", change=-0.1, n=240)
    store.upsert(results, {"night_outcomes": pd.DataFrame(rows), "verdicts": pd.DataFrame([lost])})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")
    nights(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wandb")


def logged(results: Path, folder: Path, **chosen: Any) -> Path:
    [one] = log.log_night(results, folder, **chosen)
    assert one.folder, one
    return one.folder


@pytest.fixture(scope="module")
def first(results: Path, folder: Path) -> tuple[Path, Offline]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("WANDB_ENTITY", "team")
        written = logged(results, folder, night=NIGHTS[0])
    return written, read(written)


@pytest.fixture(scope="module")
def second(results: Path, folder: Path, first: tuple[Path, Offline]) -> tuple[Path, Offline]:
    written = logged(results, folder)
    return written, read(written)


def metric(results: Path, **where: str) -> pd.Series:
    key = {
        "run_id": RUN,
        "task": "mcq",
        "test": "T1",
        "method": "full",
        "pillar": "all",
        "indicator": "all",
        "metric": "accuracy",
        **where,
    }
    marks = " AND ".join(f"{k} = ?" for k in key)
    return store.query(
        results, f"SELECT value, n, ci_low, ci_high FROM metrics WHERE {marks}", list(key.values())
    ).iloc[0]


def test_a_run_is_one_model_in_one_night_and_offline(
    folder: Path, first: tuple[Path, Offline]
) -> None:
    written, said = first
    assert written.is_relative_to(folder) and written.name.startswith("offline-run-")
    assert said.run["id"] == f"{NIGHTS[0]}-{RUN}"
    assert (said.run["group"], said.run["job_type"], said.run["project"]) == (
        BENCHMARK,
        "evaluate",
        "sdgbias",
    )


def test_the_config_is_the_record(results: Path, first: tuple[Path, Offline]) -> None:
    config = first[1].config
    record = store.query(results, "FROM runs WHERE run_id = ?", [RUN]).iloc[0]
    for name in (
        "run_id",
        "model",
        "suite",
        "benchmark_id",
        "fingerprint",
        "revision",
        "n_scored",
        "n_failed",
        "numerics",
    ):
        assert config[name] == record[name], name
    assert (config["settings"], config["night"]) == (
        {"draws": 500, "extra": {"cells": 240, "prompts": 60}},
        NIGHTS[0],
    )
    params = store.query(
        results, "FROM cade_params WHERE run_id = ? AND task = 'mcq' AND test = 'T3'", [RUN]
    ).iloc[0]
    assert config["cade"]["mcq/T3"] == {k: params[k] for k in ("alpha", "lambda_kl", "beta", "tau")}


def test_every_figure_of_the_summary_is_the_stores(
    results: Path, first: tuple[Path, Offline]
) -> None:
    summary = first[1].summary
    for where, name in (
        (({}), "mcq/T1/full/accuracy"),
        ({"pillar": PILLARS[0]}, "mcq/T1/full/health-nutrition/accuracy"),
        (
            {"test": "all", "method": "cade", "metric": "accuracy_gain"},
            "mcq/all/cade/accuracy_gain",
        ),
    ):
        row = metric(results, **where)
        assert [
            summary[name],
            summary[f"{name}/n"],
            summary[f"{name}/ci_low"],
            summary[f"{name}/ci_high"],
        ] == pytest.approx(list(row))
    assert summary["gate/verdict"] == "BREACH" and summary["gate/breach"] == 1
    assert summary["night/outcome"] == "published"


def test_the_history_goes_on_night_by_night(
    results: Path, first: tuple[Path, Offline], second: tuple[Path, Offline]
) -> None:
    assert second[1].steps[0] - first[1].steps[0] == 24 * 60
    for _, said in (first, second):
        assert said.history["mcq/all/full/accuracy"] == pytest.approx(
            metric(results, test="all")["value"]
        )
        assert (
            said.history["mcq/all/q_only/share_optimistic/n"]
            == metric(results, test="all", method="q_only", metric="share_optimistic")["n"]
        )
    assert first[1].history["night/year"] < second[1].history["night/year"]
    assert "gate/verdict" not in second[1].summary, "the gate said nothing about the second night"


def test_tables_hold_the_stores_rows(results: Path, first: tuple[Path, Offline]) -> None:
    written, said = first
    columns, rows = said.table(written, "metrics")
    sql = "FROM numbers WHERE study = 'headline' AND run_id = ?"
    assert len(rows) == len(store.query(results, sql, [RUN]))
    assert columns[:13] == list(store.query(results, "FROM metrics LIMIT 1"))
    columns, rows = said.table(written, "gate")
    assert [r[columns.index("verdict")] for r in rows] == ["BREACH"]


def test_artifacts_are_the_benchmark_the_model_and_the_scores(
    results: Path, folder: Path, first: tuple[Path, Offline]
) -> None:
    found = first[1].artifacts
    benchmark, model, scores = (
        found[f"benchmark-{BENCHMARK}"],
        found["model-fake-pessimist"],
        found[f"scores-{RUN}"],
    )
    assert [a["type"] for a in (benchmark, model, scores)] == ["dataset", "model", "scores"]
    assert sorted(scores["aliases"]) == [NIGHTS[0], "latest"]
    assert model["files"]["weights"]["ref"] and not model["files"]["weights"]["size"]
    items = pq.read_table(benchmark["files"]["questions.parquet"]["at"]).to_pandas()
    stored = store.query(results, "FROM items WHERE benchmark_id = ?", [BENCHMARK])
    assert sorted(items["item_id"]) == sorted(stored["item_id"]) and set(items["gold"]) == set(
        stored["gold"]
    )
    made = pq.read_table(scores["files"]["scores.parquet"]["at"])
    assert made.num_rows == scores["metadata"]["files"]["scores"]
    assert (
        made.num_rows
        == store.query(results, "SELECT count(*) AS n FROM scores WHERE run_id = ?", [RUN])["n"][0]
    )
    for entry in (benchmark["files"]["questions.parquet"], scores["files"]["scores.parquet"]):
        path = Path(entry["at"])
        assert path.is_relative_to(folder / "wandb")
        assert base64.b64decode(entry["digest"]) == hashlib.md5(path.read_bytes()).digest()


def test_an_unchanged_night_is_a_point_of_the_history(second: tuple[Path, Offline]) -> None:
    assert second[1].artifacts == {} and not (second[0] / "files" / "media").exists()
    assert second[1].run["tags"] == "planted,sdg,unchanged"
    assert second[1].config["run_id"] == RUN, "where its scores and tables are"


def test_what_was_logged_is_left_alone_until_asked_or_published_anew(
    results: Path, folder: Path, second: tuple[Path, Offline]
) -> None:
    assert log.log_night(results, folder) == [log.Logged(RUN)]
    again = logged(results, folder, again=True)
    assert list(folder.glob(f"wandb/offline-run-*-{NIGHTS[1]}-{RUN}")) == [again]
    known = json.loads((folder / log.LOGGED).read_text())
    known[f"{NIGHTS[1]}-{RUN}"]["published"] = "earlier"
    (folder / log.LOGGED).write_text(json.dumps(known))
    assert logged(results, folder).is_dir()


def test_logging_an_unchanged_night_again_keeps_its_tables(results: Path, tmp_path: Path) -> None:
    """The first that W&B gets of a run that was scored before: nothing else has its tables."""
    written = logged(results, tmp_path, night=NIGHTS[1])
    assert log.log_night(results, tmp_path, night=NIGHTS[1]) == [log.Logged(RUN)]
    assert f"scores-{RUN}" in read(written).artifacts


def test_only_sent_runs_are_removed(tmp_path: Path) -> None:
    for name in ("sent", "waiting"):
        run = tmp_path / "wandb" / f"offline-run-20261121_013000-{name}"
        run.mkdir(parents=True)
        (run / f"run-{name}.wandb").write_bytes(b"")
    (tmp_path / "wandb/offline-run-20261121_013000-sent/run-sent.wandb.synced").touch()
    with log.service(tmp_path):
        pass
    assert [run.name[-7:] for run in tmp_path.glob("wandb/offline-run-*")] == ["waiting"]


def test_rows_about_people_stay_at_home(tmp_path: Path) -> None:
    path = tmp_path / "people.duckdb"
    common = {"image_id": "x", "dataset": "d", "gender": "male", "skin": "dark"}
    people = [{"item_id": i, "person_id": f"p{i}", **common} for i in range(3)]
    spoken = pd.DataFrame(
        {"task": "direct", "item_id": [0, 1], "test": "p1", "view": "full", "text": ["yes", "no"]}
    )
    record = {
        "run_id": "f-1",
        "model": "f",
        "benchmark_id": "b2",
        "suite": "people",
        "finished_at": "2026-11-20T00:00:00",
        "config": {"seed": 0},
    }
    store.publish(
        path,
        record,
        {"people": pd.DataFrame(people), "numbers": disparity(0.1), "spoken": spoken},
    )
    written = logged(path, tmp_path / "w", night="", run_ids=["f-1"])
    said = read(written)
    assert said.history["direct/p1/full/gender-male-female/all-52/disparity"] == 0.1
    benchmark = said.artifacts["benchmark-b2"]
    assert benchmark["metadata"]["rows"] == 3 and "sha256_of_item_ids" in benchmark["metadata"]
    assert benchmark["files"] == {} and "skin" not in json.dumps(benchmark["metadata"])
    assert list(said.artifacts["scores-f-1"]["files"]) == ["spoken.parquet"]


# -- a night
# ----------------------------------------------------------------------


def test_which_runs_a_night_has(results: Path) -> None:
    night, rows = log.runs_of(results, None)
    assert (night, [(r["run_id"], r["outcome"]) for r in rows]) == (
        NIGHTS[1],
        [(RUN, "unchanged")],
    ), "a failed model has no run"
    assert [r["run_id"] for r in log.runs_of(results, NIGHTS[0])[1]] == [RUN]
    assert [r["run_id"] for r in log.runs_of(results, None, ["fake-optimist-0"])[1]] == [
        "fake-optimist-0"
    ]
    with pytest.raises(
        StoreError, match=rf"unknown night '2026-01-01T0000'; valid: {NIGHTS[0]}, {NIGHTS[1]}"
    ):
        log.runs_of(results, "2026-01-01T0000")
    with pytest.raises(
        StoreError,
        match="unknown run 'x'; valid: fake-optimist-0, fake-optimist-1, fake-pessimist-2",
    ):
        log.runs_of(results, None, ["x"])


def test_a_night_in_which_nobody_answered_has_no_runs(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    store.upsert(path, {"nights": pd.DataFrame([{"night": NIGHTS[0], "status": "failed"}])})
    assert log.log_night(path, tmp_path / "w", night=NIGHTS[0]) == []


def test_a_broken_wandb_is_a_line(results: Path, tmp_path: Path) -> None:
    """A package named wandb that comes first, in a process of its own."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("raise RuntimeError('broken\\nin many lines')")
    code = f"""from pathlib import Path
from sdgbias.report.wandb import log
print(log.log_night(Path({str(results)!r}), Path({str(tmp_path / "w")!r}))[0].failed)"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "RuntimeError: broken"


def test_a_folder_that_cannot_be_written_is_a_line(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    [one] = log.log_night(results, tmp_path / "file" / "w")
    assert one.failed == (
        f"{tmp_path / 'file' / 'w' / log.LOGGED}: can't be written (Not a directory);"
        " choose another --dir"
    )


def test_the_runs_of_a_night_share_one_helper_and_are_whole_when_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nights in which nothing changed; one run was removed from the results since, which harms no
    other."""
    path, folder, names = tmp_path / "r.duckdb", tmp_path / "w", ("a-1", "b-1", "gone-1")
    rows = pd.DataFrame(
        [("mcq", "all", "full", "all", i, "accuracy", 0.5) for i in ("all", "electricity")],
        columns=["task", "test", "method", "pillar", "indicator", "metric", "value"],
    )
    for name in names[:2]:
        record = {
            "run_id": name,
            "model": name[0],
            "benchmark_id": "b",
            "suite": "sdg",
            "finished_at": "2026-11-20T00:00:00",
        }
        store.publish(path, record, {"numbers": numbers_of(rows)})
    night = [
        {"night": NIGHTS[1], "model": n[:-2], "suite": "sdg", "run_id": n, "outcome": "unchanged"}
        for n in names
    ]
    store.upsert(path, {"night_outcomes": pd.DataFrame(night)})
    folder.mkdir()
    monkeypatch.setenv("WANDB_CACHE_DIR", str(folder / "cache"))
    marks = {
        f"{NIGHTS[0]}-{n}": {"run_id": n, "published": "2026-11-20", "small": False} for n in names
    }
    (folder / log.LOGGED).write_text(json.dumps(marks))
    *made, gone = log.log_night(path, folder)
    assert gone.failed.endswith("unknown run 'gone-1'; valid: a-1, b-1")
    for one in made:
        assert one.folder, one.failed
        said = read(one.folder)
        assert said.summary["mcq/all/full/accuracy"] == said.history["mcq/all/full/accuracy"] == 0.5
        assert said.run["tags"] == "measured,sdg,unchanged"
    assert len(list(folder.glob("cache/wandb/logs/core-debug-*.log"))) == 1, (
        "one helper process of W&B for all runs"
    )
