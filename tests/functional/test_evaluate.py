"""Evaluate, be killed, resume: from a benchmark folder to the results file, with engines that
disagree, a full disk and a model that yields no number on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.engines import load
from sdgbias.registry import entries
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import COMMIT_EVERY
from sdgbias.suites import sdg
from sdgbias.types import LETTERS, View
from tests.builders import thinker
from tests.builders.commands import REPOSITORY, add_model, metrics, ok, refused, sdgbias
from tests.builders.slow_engine import asked, cached, slow_planted

COLUMNS = "run_id model suite task test method pillar indicator metric value n ci_low ci_high"
QUICK = "--draws 50 --passes none"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Path) -> Path:
    """A results file with one planted model scored on the tiny benchmark."""
    folder = tmp_path_factory.mktemp("planted")
    add_model(folder, "optimist", options={"optimism": 1.5})
    results = folder / "r.duckdb"
    where = f"--benchmark {tiny_benchmark} --results {results}"
    ok(f"evaluate optimist {where} {QUICK}", registry=folder)
    return results


def test_the_view_metrics_has_the_documented_columns_and_a_row_a_cell(planted: Path) -> None:
    table = metrics(planted)

    assert list(table.columns) == COLUMNS.split()
    assert not table.duplicated(COLUMNS.split()[:9]).any()
    bounded = table.dropna(subset=["ci_low"])
    assert (bounded["ci_low"] <= bounded["value"] + 1e-9).all()
    assert (bounded["value"] <= bounded["ci_high"] + 1e-9).all()


def test_accuracy_is_what_the_stored_scores_say(planted: Path, tiny_benchmark: Path) -> None:
    """Recomputed from the stored logits with nothing of the package's analysis."""
    items = pd.read_parquet(tiny_benchmark / "items_mcq.parquet")
    scores = store.query(
        planted, "SELECT item_id, test, view, logits FROM scores WHERE task = 'mcq'"
    )
    scores["pred"] = [LETTERS[int(np.argmax(z))] for z in scores["logits"]]
    joined = scores.merge(items[["item_id", "answer", "split", "pillar"]], on="item_id")
    joined = joined[joined["split"] == "test"]
    joined["hit"] = joined["pred"] == joined["answer"]
    rows = metrics(
        planted, "task = 'mcq' AND metric = 'accuracy' AND indicator = 'all' AND method <> 'cade'"
    )
    assert len(rows) > 40
    for row in rows.itertuples():
        # the planted model writes the letter that it scores highest
        part = joined[joined["view"] == row.method.removesuffix("_generated")]
        part = part if row.test == "all" else part[part["test"] == row.test]
        part = part if row.pillar == "all" else part[part["pillar"] == row.pillar]
        assert (row.n, row.value) == (len(part), pytest.approx(part["hit"].mean())), row


def test_the_run_counts_what_was_asked_and_says_that_it_is_planted(
    planted: Path, tiny_benchmark: Path
) -> None:
    """Nothing was cached, nothing failed, and the planted model can be asked everything: each
    distinct prompt was scored once. The paper's cells are one per item, test and view."""
    sql = "SELECT *, (config->>'unanswerable')::INT AS beyond FROM runs WHERE suite = 'sdg'"
    [run] = store.query(planted, sql).to_dict("records")
    cells = sdg.load_prompts(tiny_benchmark)
    assert run["n_prompts_naive"] == cells["view"].isin([view.value for view in View]).sum()
    prompts = cells[["text", "image_id", "candidates"]].drop_duplicates()
    assert run["n_scored"] == run["n_prompts_planned"] >= len(prompts) > 0
    assert (run["n_cached"], run["n_failed"], run["beyond"]) == (0, 0, 0)
    assert run["provenance"] == "planted"
    times = store.query(planted, "FROM timings WHERE run_id = ?", [run["run_id"]])
    paper = times[times["pass"] == ""]
    assert set(paper["view"]) == {view.value for view in View} and (paper["seconds"] > 0).all()
    assert not times["cached"].any(), "every prompt was scored in this run"


def test_the_same_evaluation_again_scores_nothing_and_changes_nothing(
    planted: Path, tiny_benchmark: Path
) -> None:
    before = metrics(planted)
    where = f"--benchmark {tiny_benchmark} --results {planted}"

    printed = ok(f"evaluate optimist {where} {QUICK}", registry=planted.parent)

    assert " 0 scored now" in printed
    pd.testing.assert_frame_equal(before, metrics(planted))


def test_json_has_the_runs_before_a_model_that_fails(planted: Path, tiny_benchmark: Path) -> None:
    options = {"api_key_env": "NO_SUCH_KEY", "base_url": "http://127.0.0.1:9/v1"}
    add_model(planted.parent, "keyless", backend="api", options=options)
    command = f"evaluate optimist keyless --benchmark {tiny_benchmark} {QUICK} --json --results"
    done = sdgbias(f"{command} {planted}", registry=planted.parent)

    assert done.returncode == 5 and "NO_SUCH_KEY is not set" in done.stderr
    shown = json.loads(done.stdout)
    assert [run["model"] for run in shown["runs"]] == ["optimist"] and shown["metrics"]


def test_killed_again_and_again_it_ends_with_the_rows_of_an_undisturbed_run(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    """kill -9 of the command at random moments, with another batch size at each start."""
    add_model(tmp_path, "slow", batch_size=16)
    whole, torn = (tmp_path / name / "r.duckdb" for name in ("whole", "torn"))
    command = f"evaluate slow --benchmark {tiny_benchmark} {QUICK} --results"
    ok(f"{command} {whole}", registry=tmp_path)
    chance, kills, batch, delay = random.Random(7), 2, 4, 0.1
    log = slow_planted(torn.parent, delay) | {"SDGBIAS_REGISTRY": str(tmp_path)}
    for _ in range(kills):
        words = f"{command} {torn} --batch-size {chance.choice((1, batch))}".split()
        before = len(asked(torn.parent))
        process = subprocess.Popen(
            [sys.executable, "-m", "sdgbias.cli", *words],
            env=log,
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 600
        while len(asked(torn.parent)) == before and time.monotonic() < deadline:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        time.sleep(chance.uniform(COMMIT_EVERY, 2.4 * COMMIT_EVERY))
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = cached(torn, "slow")["scores"]
    assert len(finished), "something was committed before it was killed"
    ok(f"{command} {torn} --batch-size 64", registry=tmp_path)

    for kind, rows in cached(whole, "slow").items():
        pd.testing.assert_frame_equal(rows, cached(torn, "slow")[kind])
    one, two = (metrics(path).drop(columns="run_id") for path in (whole, torn))
    pd.testing.assert_frame_equal(one, two)
    run = store.query(torn, "SELECT n_cached, n_scored, n_prompts_planned FROM runs").iloc[0]
    assert run["n_cached"] == len(finished) and run["n_scored"] > 0
    assert run["n_cached"] + run["n_scored"] == run["n_prompts_planned"]
    scored = asked(torn.parent).query("kind == 'score'")["prompt"]
    lost_by_a_kill = batch * (COMMIT_EVERY / delay + 2)  # what was not committed yet, one in flight
    assert int((scored.value_counts() - 1).sum()) <= kills * lost_by_a_kill
    assert not list(torn.parent.rglob("*.part"))


def test_a_second_process_on_the_same_model_is_refused(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "left", options={"seed": 1})
    fingerprint = load(entries.load(tmp_path, "left"), tmp_path).fingerprint
    where = f"--benchmark {tiny_benchmark} --results {tmp_path / 'r.duckdb'}"

    with ScoreCache(tmp_path, "left", fingerprint).exclusive():
        line = refused(7, f"evaluate left {where}", registry=tmp_path)

    assert "another evaluation" in line


def test_a_model_that_yields_no_number_is_reported_and_not_scored_as_wrong(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "overflows", options={"noise": 1e300})
    results = tmp_path / "r.duckdb"
    where = f"--benchmark {tiny_benchmark} --results {results}"

    line = refused(5, f"evaluate overflows --passes none {where}", registry=tmp_path)

    assert "a candidate logit is NaN or infinite in all" in line
    assert "no run is published yet. Next: sdgbias evaluate" in ok(f"results --results {results}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
def test_a_full_disk_keeps_what_is_finished(tiny_benchmark: Path, tmp_path: Path) -> None:
    """A real file system with no room left (a tiny tmpfs): one clear line, and the rest is scored
    once there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        add_model(tmp_path, "left", batch_size=16)
        results = disk / "r.duckdb"
        command = f"evaluate left {QUICK} --benchmark {tiny_benchmark} --results {results}"
        line = refused(7, command, registry=tmp_path)
        assert "the disk is full; free some space" in line, line
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        ok(command, registry=tmp_path)
        assert len(metrics(results)) > 100
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_folder_without_an_entry_is_probed_and_a_first_look_stays_off_the_leaderboard(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    weights, results = REPOSITORY / "registry/weights/tiny-llava", tmp_path / "sdgbias.duckdb"
    where = f"--benchmark {tiny_benchmark} --results {results}"
    few = "--limit 5 --draws 20 --passes none --generated none"

    done = sdgbias(f"evaluate planted-optimist {weights} {few} {where}")

    assert done.returncode == 0, done.stderr
    [probed] = [line for line in done.stderr.splitlines() if "probed" in line]
    assert "tiny-llava: no entry says how its prompts may be scored together; 12" in probed
    assert "in batches of 32 and shuffled (to 0.001), and behind shared beginnings" in probed
    assert not results.exists(), "a first look is on no leaderboard"
    runs = store.query(tmp_path / "first-look.duckdb", "SELECT model FROM runs ORDER BY model")
    assert runs["model"].tolist() == ["planted-optimist", "tiny-llava"]
    shown = [line.split()[:5] for line in done.stdout.splitlines()]
    for model in runs["model"]:
        assert [model, "mcq", "all", "cade", "accuracy"] in shown


def test_a_folder_whose_model_thinks_first_is_no_silent_success(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    folder = thinker.write(tmp_path / "thinker")
    where = f"--benchmark {tiny_benchmark} --results {tmp_path / 'r.duckdb'}"
    done = sdgbias(f"evaluate {folder} --limit 5 --draws 20 --passes none --generated none {where}")
    assert done.returncode == 0, done.stderr
    assert "hardly those of answers: it thinks before it answers: 12 of 12" in done.stderr


def test_engines_that_disagree_keep_a_run_from_being_published_until_they_agree(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    results = tmp_path / "r" / "sdgbias.duckdb"
    where = f"--benchmark {tiny_benchmark} --results {results}"
    check = f"models parity left --against right --probes 24 {where}"
    add_model(tmp_path, "left", options={"noise": 0.5})
    add_model(tmp_path, "right", options={"noise": 0.9})

    line = refused(11, check, registry=tmp_path)
    assert "left: planted / right: log-probabilities differ by up to" in line
    verdict = json.loads((results.parent / "parity" / "left.json").read_text())
    assert verdict["verdict"] == "disagree" and all(row["agrees"] for row in verdict["itself"])
    assert verdict["against"]["right"]["n"] == 24 and verdict["against"]["right"]["flips"] > 0

    line = refused(11, f"evaluate left {QUICK} {where}", registry=tmp_path)
    assert "nothing is published, scores are kept" in line
    assert line.endswith("sdgbias models parity left --against right")
    assert "Question:" in line, "the worst probe is shown"
    assert list((results.parent / "scores" / "left").glob("*/scores-*.parquet"))
    assert store.query(results, "FROM runs").empty
    ok(f"evaluate right {QUICK} {where}", registry=tmp_path)  # nobody has checked this one

    add_model(tmp_path, "right", options={"noise": 0.5})
    assert "verdict: agree" in ok(check, registry=tmp_path)
    assert " 0 scored now" in ok(f"evaluate left {QUICK} {where}", registry=tmp_path)
    runs = store.query(results, "SELECT model FROM runs ORDER BY model")
    assert runs["model"].tolist() == ["left", "right"]
