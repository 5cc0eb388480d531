"""From a benchmark folder to the results file: correctness against a recomputation, idempotence,
crashes, two at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.suites import sdg
from sdgbias.types import LETTERS, View
from tests.builders.commands import (
    REPOSITORY,
    add_model,
    environment,
    metrics,
    ok,
    refused,
    sdgbias,
)

COLUMNS = [
    "run_id",
    "model",
    "suite",
    "task",
    "test",
    "method",
    "pillar",
    "indicator",
    "metric",
    "value",
    "n",
    "ci_low",
    "ci_high",
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Path) -> Path:
    """A results file with one planted model scored on the tiny benchmark."""
    folder = tmp_path_factory.mktemp("planted")
    add_model(folder, "optimist", options={"optimism": 1.5})
    ok(
        "evaluate",
        "optimist",
        "--benchmark",
        tiny_benchmark,
        "--results",
        folder / "r.duckdb",
        "--draws",
        100,
        "--passes",
        "none",
        registry=folder,
    )
    return folder / "r.duckdb"


def test_the_public_view(planted: Path) -> None:
    table = metrics(planted)
    assert list(table.columns) == COLUMNS
    assert set(table["method"]) == {
        "q_only",
        "ctx_q",
        "img_q",
        "full",
        "full_generated",
        "cade",
    }
    assert set(table.loc[table["task"] == "mcq", "test"]) == {"T1", "T2", "T3", "T4", "T5", "all"}
    assert set(table.loc[table["task"] == "regression", "test"]) == {"T2", "T5", "all"}
    whole = table[(table["pillar"] == "all") & (table["indicator"] == "all")]
    assert {"accuracy", "mae", "interval_accuracy", "share_optimistic"} <= set(whole["metric"])
    bounded = table.dropna(subset=["ci_low"])
    assert (bounded["ci_low"] <= bounded["value"] + 1e-9).all()
    assert (bounded["value"] <= bounded["ci_high"] + 1e-9).all()
    assert not table.duplicated(COLUMNS[:9]).any()


def test_accuracy_is_what_the_scores_say(planted: Path, tiny_benchmark: Path) -> None:
    """Recomputed from the stored logits with nothing of the package's analysis."""
    items = pd.read_parquet(tiny_benchmark / "items_mcq.parquet")
    scores = store.query(
        planted, "SELECT item_id, test, view, logits FROM scores WHERE task = 'mcq'"
    )
    scores["pred"] = [LETTERS[int(np.argmax(z))] for z in scores["logits"]]
    joined = scores.merge(items[["item_id", "answer", "split", "pillar"]], on="item_id")
    joined = joined[joined["split"] == "test"]
    joined["hit"] = joined["pred"] == joined["answer"]
    table = metrics(
        planted, "task = 'mcq' AND metric = 'accuracy' AND indicator = 'all' AND method <> 'cade'"
    )
    for _, row in table.iterrows():
        # the planted model writes the letter that it scores highest
        mine = joined[joined["view"] == row["method"].removesuffix("_generated")]
        mine = mine if row["test"] == "all" else mine[mine["test"] == row["test"]]
        mine = mine if row["pillar"] == "all" else mine[mine["pillar"] == row["pillar"]]
        assert row["n"] == len(mine)
        assert row["value"] == pytest.approx(mine["hit"].mean())


def test_the_planted_optimism_is_seen_and_t5_views_coincide(planted: Path) -> None:
    shares = metrics(
        planted, "method = 'q_only' AND test = 'T1' AND pillar = 'all' AND metric LIKE 'share_%'"
    ).set_index("metric")["value"]
    assert shares["share_optimistic"] + shares["share_conservative"] + shares[
        "share_pessimistic"
    ] == pytest.approx(1)
    pair = metrics(
        planted, "task = 'mcq' AND test = 'T5' AND pillar = 'all' AND metric = 'accuracy'"
    ).set_index("method")["value"]
    assert pair["full"] == pair["img_q"]
    assert pair["ctx_q"] == pair["q_only"]


def test_the_run_counts_what_was_asked_and_says_that_it_is_planted(
    planted: Path, tiny_benchmark: Path
) -> None:
    """Nothing was cached, nothing failed, and the planted model can be asked everything: each
    distinct prompt was scored once. The paper's cells are one per item, test and view."""
    row = store.query(
        planted, "SELECT *, (config->>'unanswerable')::INT AS beyond FROM runs WHERE suite = 'sdg'"
    ).iloc[0]
    cells = sdg.load_prompts(tiny_benchmark)
    assert row["n_prompts_naive"] == len(cells[cells["view"].isin([v.value for v in View])])
    asked = cells[["text", "image_id", "candidates"]].drop_duplicates()
    assert row["n_scored"] == row["n_prompts_planned"] >= len(asked) > 0
    assert (row["n_cached"], row["n_failed"], row["beyond"]) == (0, 0, 0)
    assert row["provenance"] == "planted"
    times = store.query(planted, "FROM timings WHERE run_id = ?", [row["run_id"]])
    own = times[times["pass"] == ""]
    assert set(own["view"]) == {v.value for v in View} and (own["seconds"] > 0).all()
    assert not times["cached"].any(), "every prompt was scored in this run"


def test_again_is_free_and_identical(planted: Path, tiny_benchmark: Path) -> None:
    before = metrics(planted)
    said = ok(
        "evaluate",
        "optimist",
        "--benchmark",
        tiny_benchmark,
        "--results",
        planted,
        "--draws",
        100,
        "--passes",
        "none",
        registry=planted.parent,
    )
    assert " 0 scored now" in said
    pd.testing.assert_frame_equal(before, metrics(planted))


@pytest.mark.long
def test_batch_size_never_changes_a_result(
    planted: Path, tiny_benchmark: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.duckdb"
    ok(
        "evaluate",
        "optimist",
        "--benchmark",
        tiny_benchmark,
        "--results",
        other,
        "--draws",
        100,
        "--passes",
        "none",
        "--batch-size",
        5,
        registry=planted.parent,
    )
    order = COLUMNS[:9]
    a, b = (metrics(p).sort_values(order, ignore_index=True) for p in (planted, other))
    pd.testing.assert_frame_equal(a, b)


def test_results_prints_and_takes_sql(planted: Path) -> None:
    assert "Accuracy" in ok("results", "--results", planted)
    assert ok(
        "results", "--results", planted, "--csv", "--sql", "SELECT count(*) AS runs FROM runs"
    ).split() == ["runs", "1"]


def start(
    model: str, benchmark: Path, results: Path, entries: Path | None = None
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "sdgbias.cli",
        "evaluate",
        model,
        "--benchmark",
        str(benchmark),
        "--results",
        str(results),
    ]
    return subprocess.Popen(
        [*command, "--draws", "200", "--batch-size", "16", "--passes", "none"],
        cwd=REPOSITORY,
        env=environment(entries),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_kill_9_loses_at_most_one_batch(small_benchmark: Path, tmp_path: Path) -> None:
    """A real model in a real process, killed in the middle: the next start scores only what is
    missing."""
    results = tmp_path / "r.duckdb"
    process = start("tiny-llava", small_benchmark, results)
    shards: list[Path] = []
    deadline = time.monotonic() + 900
    while len(shards) < 4 and time.monotonic() < deadline:
        shards = list((tmp_path / "scores").glob("tiny-llava/*/scores-*.parquet"))
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    shards = list((tmp_path / "scores").glob("tiny-llava/*/scores-*.parquet"))
    kept = pd.concat([pd.read_parquet(p) for p in shards])
    assert len(kept) >= 4  # a chunk holds whole pictures, so it may be smaller than the batch size
    said = ok(
        "evaluate",
        "tiny-llava",
        "--benchmark",
        small_benchmark,
        "--results",
        results,
        "--draws",
        200,
        "--batch-size",
        16,
        "--passes",
        "none",
    )
    run = store.query(results, "SELECT * FROM runs").iloc[0]
    assert run["n_cached"] == len(kept), said
    assert run["n_scored"] + run["n_cached"] == run["n_prompts_planned"]
    final = pd.concat(
        [pd.read_parquet(p) for p in (tmp_path / "scores").glob("tiny-llava/*/scores-*.parquet")]
    )
    assert len(final) == run["n_prompts_planned"]
    old, new = (f.set_index("key").sort_index()["logits"].map(tuple) for f in (kept, final))
    assert (new.loc[old.index] == old).all(), "what was finished was not scored again"


@pytest.mark.long  # tests/store/test_store.py has processes and threads wait for each other
def test_two_processes_one_results_file(tiny_benchmark: Path, tmp_path: Path) -> None:
    """Two models evaluated at the same time into one file: both runs are there, whole."""
    for name, seed in (("left", 1), ("right", 2)):
        add_model(tmp_path, name, options={"seed": seed})
    results = tmp_path / "r.duckdb"
    both = [start(name, tiny_benchmark, results, tmp_path) for name in ("left", "right")]
    said = [p.communicate(timeout=900) for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    counts = store.query(
        results, "SELECT model, count(*) AS n FROM metrics GROUP BY model ORDER BY model"
    )
    assert list(counts["model"]) == ["left", "right"]
    assert counts["n"].nunique() == 1


def test_a_second_process_on_the_same_model_is_told(tiny_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "left", options={"seed": 1})
    from sdgbias.engines import load
    from sdgbias.registry import entries
    from sdgbias.scoring.cache import ScoreCache

    spec = entries.load(tmp_path, "left")
    with ScoreCache(tmp_path, "left", load(spec, tmp_path).fingerprint).exclusive():
        words = refused(
            7,
            "evaluate",
            "left",
            "--benchmark",
            tiny_benchmark,
            "--results",
            tmp_path / "r.duckdb",
            registry=tmp_path,
        )
    assert "another evaluation" in words


def test_a_broken_model_is_reported_not_scored(tiny_benchmark: Path, tmp_path: Path) -> None:
    """A model that yields NaN: nothing is scored as wrong, the failures are in the store, the next
    start tries again."""
    add_model(tmp_path, "nan", options={"noise": float("nan")})
    done = sdgbias(
        "evaluate",
        "nan",
        "--passes",
        "none",
        "--benchmark",
        tiny_benchmark,
        "--results",
        tmp_path / "r.duckdb",
        registry=tmp_path,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 8, done.stderr
    assert "no prompt could be scored" in done.stderr
    said = ok("results", "--results", tmp_path / "r.duckdb")
    assert "no run is published yet. Next: sdgbias evaluate MODEL" in said


def test_missing_benchmark_unknown_model_and_unwritable_results(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    assert "sdgbias build" in refused(
        3, "evaluate", "tiny-llava", "--benchmark", tmp_path, "--results", tmp_path / "r.duckdb"
    )
    assert "tiny-llava" in refused(
        4, "evaluate", "nobody", "--benchmark", tiny_benchmark, "--results", tmp_path / "r.duckdb"
    )
    (tmp_path / "file").write_text("")
    add_model(tmp_path, "left")
    words = refused(
        7,
        "evaluate",
        "left",
        "--benchmark",
        tiny_benchmark,
        "--results",
        tmp_path / "file" / "r.duckdb",
        registry=tmp_path,
    )
    assert "file" in words


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a read-only mount")
def test_a_full_disk_keeps_what_is_finished(small_benchmark: Path, tmp_path: Path) -> None:
    """A real file system with no room left (a tiny tmpfs): one clear line, and the rest is scored
    once there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        add_model(tmp_path, "left", batch_size=16)
        command = (
            "evaluate",
            "left",
            "--benchmark",
            small_benchmark,
            "--results",
            disk / "r.duckdb",
            "--draws",
            50,
        )
        words = refused(7, *command, registry=tmp_path)
        assert "disk" in words or "space" in words
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        ok(*command, registry=tmp_path)
        assert len(metrics(disk / "r.duckdb")) > 100
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_benchmark_card(small_benchmark: Path) -> None:
    card = json.loads((small_benchmark / "benchmark.json").read_text())
    assert card["licence"] == "CC0 1.0"
    assert card["synthetic"] is True
    assert any("Synthetic" in s for s in card["sources"])
    assert card["counts"]["items_mcq"] == 60
    assert card["counts"]["prompts"] == 60 * 5 + 20 * 2  # one row per item and test
