"""Offline W&B runs, read back from their files and compared with the results file. Runs that are
sent at once: tests/functional/test_wandb.py."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.report.wandb import log, team_report
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
    verdicts = [
        verdict(STEADY, "accuracy", said, night=NIGHTS[0], level="all", side=said, change=-0.1)
        for said in ("PASS", "BREACH", "MISSING")
    ]
    tables = {"night_outcomes": pd.DataFrame(rows), "verdicts": pd.DataFrame(verdicts)}
    store.upsert(results, tables)


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


def metric(results: Path, **where: str) -> dict[str, float]:
    """The row of a number, by default the accuracy of Full at T1."""
    key = {"run_id": RUN, "task": "mcq", "test": "T1", "method": "full", "pillar": "all"}
    key |= {"indicator": "all", "metric": "accuracy", **where}
    marks = " AND ".join(f"{k} = ?" for k in key)
    sql = f"SELECT value, n, ci_low, ci_high FROM metrics WHERE {marks}"
    row: dict[str, float] = store.query(results, sql, list(key.values())).iloc[0].to_dict()
    return row


def test_a_run_is_one_model_in_one_night_and_its_config_the_record(
    results: Path, folder: Path, first: tuple[Path, Offline]
) -> None:
    written, said = first
    assert written.is_relative_to(folder) and written.name.startswith("offline-run-")
    expected = {"id": f"{NIGHTS[0]}-{RUN}", "group": BENCHMARK}
    expected |= {"job_type": "evaluate", "project": "sdgbias"}
    assert expected.items() <= said.run.items()
    record = store.query(results, "FROM runs WHERE run_id = ?", [RUN]).iloc[0]
    for name in ("run_id", "model", "suite", "fingerprint", "revision", "n_scored", "n_failed"):
        assert said.config[name] == record[name], name
    settings = {"draws": 500, "extra": {"cells": 240, "prompts": 60}}
    assert (said.config["settings"], said.config["night"]) == (settings, NIGHTS[0])
    sql = """SELECT alpha, lambda_kl, beta, tau FROM cade_params
             WHERE run_id = ? AND task = 'mcq' AND test = 'T3'"""
    assert said.config["cade"]["mcq/T3"] == store.query(results, sql, [RUN]).iloc[0].to_dict()


def test_every_figure_of_summary_and_history_is_the_stores(
    results: Path, first: tuple[Path, Offline], second: tuple[Path, Offline]
) -> None:
    summary = first[1].summary
    gain = {"test": "all", "method": "cade", "metric": "accuracy_gain"}
    for where, name in (
        ({}, "mcq/T1/full/accuracy"),
        ({"pillar": PILLARS[0]}, "mcq/T1/full/health-nutrition/accuracy"),
        (gain, "mcq/all/cade/accuracy_gain"),
    ):
        for part, value in metric(results, **where).items():
            assert summary[name + ("" if part == "value" else f"/{part}")] == pytest.approx(value)
    gate = {"gate/verdict": "BREACH", "gate/breach": 1, "gate/pass": 1, "gate/missing": 1}
    assert gate.items() <= summary.items()
    assert summary["night/outcome"] == "published"
    optimistic = {"test": "all", "method": "q_only", "metric": "share_optimistic"}
    for history in (first[1].history, second[1].history):
        accuracy = metric(results, test="all")["value"]
        assert history["mcq/all/full/accuracy"] == pytest.approx(accuracy)
        n = history["mcq/all/q_only/share_optimistic/n"]
        assert n == metric(results, **optimistic)["n"]
    assert second[1].steps[0] - first[1].steps[0] == 24 * 60
    assert first[1].history["night/year"] < second[1].history["night/year"]
    assert "gate/verdict" not in second[1].summary, "the gate said nothing about the second night"


def test_tables_hold_the_stores_rows(results: Path, first: tuple[Path, Offline]) -> None:
    written, said = first
    columns, rows = said.table(written, "metrics")
    sql = "FROM numbers WHERE study = 'headline' AND run_id = ?"
    assert len(rows) == len(store.query(results, sql, [RUN]))
    assert columns[:13] == list(store.query(results, "FROM metrics LIMIT 1"))
    columns, rows = said.table(written, "gate")
    assert {r[columns.index("verdict")] for r in rows} == {"PASS", "BREACH", "MISSING"}


def test_artifacts_are_the_benchmark_the_model_and_the_scores(
    results: Path, folder: Path, first: tuple[Path, Offline]
) -> None:
    names = (f"benchmark-{BENCHMARK}", "model-fake-pessimist", f"scores-{RUN}")
    benchmark, model, scores = (first[1].artifacts[name] for name in names)
    assert [a["type"] for a in (benchmark, model, scores)] == ["dataset", "model", "scores"]
    assert sorted(scores["aliases"]) == [NIGHTS[0], "latest"]
    assert model["files"]["weights"]["ref"] and not model["files"]["weights"]["size"]
    items = pq.read_table(benchmark["files"]["questions.parquet"]["at"]).to_pandas()
    stored = store.query(results, "FROM items WHERE benchmark_id = ?", [BENCHMARK])
    for name in ("item_id", "gold"):
        assert sorted(items[name]) == sorted(stored[name])
    sql = "SELECT count(*) AS n FROM scores WHERE run_id = ?"
    rows = store.query(results, sql, [RUN])["n"][0]
    made = pq.read_table(scores["files"]["scores.parquet"]["at"])
    assert made.num_rows == scores["metadata"]["files"]["scores"] == rows
    for entry in (benchmark["files"]["questions.parquet"], scores["files"]["scores.parquet"]):
        path = Path(entry["at"])
        assert path.is_relative_to(folder / "wandb")
        assert base64.b64decode(entry["digest"]) == hashlib.md5(path.read_bytes()).digest()


def test_all_that_a_waiting_run_refers_to_lies_in_its_folder(first: tuple[Path, Offline]) -> None:
    written, said = first
    entries = [entry for one in said.artifacts.values() for entry in one["files"].values()]
    places = [Path(entry["at"]) for entry in entries if entry["at"]]
    assert len(places) > 4 and all(at.is_relative_to(written) and at.is_file() for at in places)


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
    known |= {"by hand": 5, "by hand too": {}}
    (folder / log.LOGGED).write_text(json.dumps(known))
    assert logged(results, folder).is_dir()


def test_logging_an_unchanged_night_again_keeps_its_tables(results: Path, tmp_path: Path) -> None:
    """The first that W&B gets of a run that was scored before: nothing else has its tables."""
    written = logged(results, tmp_path, night=NIGHTS[1])
    assert log.log_night(results, tmp_path, night=NIGHTS[1]) == [log.Logged(RUN)]
    assert f"scores-{RUN}" in read(written).artifacts


def test_half_a_run_is_neither_sent_nor_taken_for_logged(results: Path, tmp_path: Path) -> None:
    """The run is begun before the scores, whose file is gone for a while, are read."""
    logged(results, tmp_path)
    [scores] = results.parent.glob(f"*.runs/run_id={RUN}/scores-*.parquet")
    away = scores.rename(tmp_path / "away")
    [one] = log.log_night(results, tmp_path, again=True)
    away.rename(scores)
    assert scores.name in one.failed and not one.folder
    assert list(tmp_path.glob("wandb/offline-run-*")) == []
    assert f"scores-{RUN}" in read(logged(results, tmp_path)).artifacts


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
    people = pd.DataFrame([{"item_id": i, "person_id": f"p{i}", **common} for i in range(3)])
    spoken = pd.DataFrame({"item_id": [0, 1], "text": ["yes", "no"]})
    tables = {"people": people, "spoken": spoken.assign(task="direct", test="p1", view="full")}
    record = {"run_id": "f-1", "model": "f", "benchmark_id": "b2", "suite": "people"}
    record |= {"finished_at": "2026-11-20T00:00:00"}
    store.publish(path, record | {"config": {"seed": 0}}, tables | {"numbers": disparity(0.1)})
    said = read(logged(path, tmp_path / "w", night="", run_ids=["f-1"]))
    assert said.history["direct/p1/full/gender-male-female/all-52/disparity"] == 0.1
    benchmark = said.artifacts["benchmark-b2"]
    assert benchmark["metadata"]["rows"] == 3 and "sha256_of_item_ids" in benchmark["metadata"]
    assert benchmark["files"] == {} and "skin" not in json.dumps(benchmark["metadata"])
    assert list(said.artifacts["scores-f-1"]["files"]) == ["spoken.parquet"]


def test_which_runs_a_night_has(results: Path) -> None:
    def ids(night: str | None, *runs: str) -> list[str]:
        return list(log.runs_of(results, night, runs)[1])

    assert log.runs_of(results, None)[0] == NIGHTS[1]
    assert ids(None) == ids(NIGHTS[0]) == [RUN], "a failed model has no run"
    assert ids(None, "fake-optimist-0") == ["fake-optimist-0"]
    for night, wrong, message in (
        ("2026-01-01T0000", (), f"unknown night '2026-01-01T0000'; valid: {', '.join(NIGHTS)}"),
        (None, ("x",), "no run 'x'; sdgbias results --results "),
    ):
        with pytest.raises(StoreError, match=message):
            ids(night, *wrong)


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
    where = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    run = [sys.executable, "-c", code]
    assert subprocess.check_output(run, env=os.environ | {"PYTHONPATH": where}, text=True) == (
        "RuntimeError: broken\n"
    )


def test_the_runs_of_a_night_share_one_helper_and_are_whole_when_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nights in which nothing changed; one run was removed from the results since, and is passed
    over."""
    path, folder, names = tmp_path / "r.duckdb", tmp_path / "w", ("a-1", "b-1", "gone-1")
    rows = pd.DataFrame({"indicator": ["all", "electricity"]}).assign(
        task="mcq", test="all", method="full", pillar="all", metric="accuracy", value=0.5
    )
    for name in names[:2]:
        record = {"run_id": name, "model": name[0], "benchmark_id": "b", "suite": "sdg"}
        finished = {"finished_at": "2026-11-20T00:00:00"}
        store.publish(path, record | finished, {"numbers": numbers_of(rows)})
    night = {"night": NIGHTS[1], "suite": "sdg", "outcome": "unchanged"}
    outcomes = [night | {"model": n[:-2], "run_id": n} for n in names]
    store.upsert(path, {"night_outcomes": pd.DataFrame(outcomes)})
    folder.mkdir()
    monkeypatch.setenv("WANDB_CACHE_DIR", str(folder / "cache"))
    logged_before = {"published": "2026-11-20", "small": False}
    marks = {f"{NIGHTS[0]}-{n}": logged_before | {"run_id": n} for n in names}
    (folder / log.LOGGED).write_text(json.dumps(marks))
    logs = log.log_night(path, folder)
    assert [one.run_id for one in logs] == list(names[:2])
    for one in logs:
        assert one.folder, one.failed
        said = read(one.folder)
        assert said.summary["mcq/all/full/accuracy"] == said.history["mcq/all/full/accuracy"] == 0.5
        assert said.run["tags"] == "measured,sdg,unchanged"
    assert len(list(folder.glob("cache/wandb/logs/core-debug-*.log"))) == 1, (
        "one helper process of W&B for all runs"
    )


def test_an_id_is_always_one_that_wandb_takes() -> None:
    assert log.safe("tiny-llava-0a1b") == "tiny-llava-0a1b"
    odd = [log.safe(name) for name in ("a/b#c?d%e:f\\g", "a-b#c?d%e:f\\g", "x" * 90, "x" * 91)]
    assert len(set(odd)) == 4
    assert all(len(name) <= 64 and not set(name) & set("/\\#?%:") for name in odd)


def test_nights_are_steps_in_their_order() -> None:
    finished = datetime(2026, 11, 21, 3)
    nights = ["2025-12-31T0130", "2026-01-01T0130", "2026-01-01T1330", "2026-10-25T0130", ""]
    steps, years = zip(*(log.axis(n, finished) for n in nights), strict=True)
    assert [b - a for a, b in pairwise(steps)] == [1440, 720, 296 * 1440 + 720, 27 * 1440 + 90]
    assert list(years) == sorted(years)
    assert years[1] == pytest.approx(2026 + (1.5 / 24) / 365, abs=1e-6)


def test_no_secret_and_no_path_of_this_machine_gets_out() -> None:
    spec = {
        "repo": "path:/secret/place/weights",
        "options": {
            "api_key_env": "OPENAI_API_KEY",
            "api_key": "abc",
            "hub_token": "xyz",
            "base_url": "https://me:correcthorse@host/v1",
            "headers": ["Bearer sk-0123456789abcdef"],
            "num_image_tokens": 576,
        },
        "notes": "see hf_0123456789abcdef",
    }
    record = {
        "run_id": "r",
        "night": NIGHTS[0],
        "config": json.dumps({"draws": 5, "spec": spec, "sdgbias": "0.1.0"}),
        "finished_at": None,
        "started_at": datetime(2026, 11, 21, 3),
    }
    config = log.config(record, [])
    text = json.dumps(config)
    for leak in ("/secret/place", 'abc"', "xyz", "correcthorse", "sk-0123", "hf_0123"):
        assert leak not in text, leak
    assert config["spec"]["repo"] == "path:.../weights"
    assert config["spec"]["options"]["api_key_env"] == "OPENAI_API_KEY"
    assert config["spec"]["options"]["num_image_tokens"] == 576
    assert (config["started_at"], config["finished_at"]) == ("2026-11-21T03:00:00Z", None)
    assert config["sdgbias_version"] == "0.1.0"


def test_people_are_told_by_model_and_benchmark(tmp_path: Path) -> None:
    """As the page about people: a run on a second benchmark doesn't hide the first."""
    path = tmp_path / "r.duckdb"
    for run, benchmark, day, value in (
        ("a-1", "faces", 20, 0.1),
        ("a-2", "work", 21, 0.2),
        ("a-3", "work", 22, 0.3),
        ("b-1", "faces", 19, 0.4),
    ):
        record = {"run_id": run, "model": run[0], "benchmark_id": benchmark, "suite": "people"}
        finished = {"finished_at": f"2026-11-{day}T00:00:00"}
        store.publish(path, record | finished, {"numbers": disparity(value)})
    lines = dict(team_report.sections(path))["Pictures of people"].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if " p1 " in line]
    shown = [(row[0], row[4].split(" ")[0]) for row in rows]
    assert shown == [("a", "+10.0"), ("a", "+30.0"), ("b", "+40.0")]
    # a file without nights gives a run per model and benchmark
    assert log.runs_of(path, None) == ("", {"a-1": {}, "a-3": {}, "b-1": {}})


def test_a_title_is_text_in_the_team_reports_headings(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    numbers = {"task": "mcq", "test": "T1", "method": "full", "pillar": "all", "value": 0.5}
    rows = pd.DataFrame([numbers | {"indicator": "all", "metric": "accuracy", "n": 30}])
    record = {"run_id": "a-1", "model": "a", "benchmark_id": "b", "suite": "mine"}
    record |= {"finished_at": "2026-11-20T00:00:00", "config": {"own": {"title": "<b> | `x`"}}}
    store.publish(path, record, {"numbers": numbers_of(rows)})
    headings = [line for line in team_report.markdown(path).splitlines() if line.startswith("## ")]
    assert "## Own questions: \\<b\\> \\| \\`x\\`" in headings
