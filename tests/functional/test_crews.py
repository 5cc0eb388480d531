"""Several engines on one machine: the rows of one, whatever their number was before, and whichever
of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from tests.builders.commands import REPOSITORY, add_model, metrics, ok, refused
from tests.builders.processes import children, end
from tests.builders.slow_engine import asked, cached, slow_planted

BATCH = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add_model(tmp_path, "slow", batch_size=BATCH)
    return tmp_path


def start(
    benchmark: Path, results: Path, workers: int, environment: dict[str, str]
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "sdgbias.cli",
        "evaluate",
        "slow",
        "--benchmark",
        str(benchmark),
        "--results",
        str(results),
    ]
    return subprocess.Popen(
        [*command, "--draws", "50", "--passes", "none", "--workers", str(workers)],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert "Traceback" not in err, err
    return out + err


ENGINE = "sdgbias.engines.subprocess"


def until(true: Callable[[], bool], seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def same(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> None:
    for kind in ("scores", "generations"):
        assert len(one[kind])
        pd.testing.assert_frame_equal(one[kind], other[kind])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Path) -> Path:
    """Results of one engine in one process; its log of prompts lies beside."""
    folder = tmp_path_factory.mktemp("whole")
    add_model(folder, "slow", batch_size=BATCH)
    finish(start(tiny_benchmark, folder / "r.duckdb", 1, slow_planted(folder, 0.0)))
    return folder / "r.duckdb"


@pytest.mark.slow
def test_the_same_rows_each_scored_once_with_the_threads_divided(
    tiny_benchmark: Path, folder: Path, whole: Path
) -> None:
    workers = 3
    environment = slow_planted(folder, engines=workers) | {"OMP_NUM_THREADS": "6"}
    finish(start(tiny_benchmark, folder / "r.duckdb", workers, environment))
    same(cached(whole, "slow"), cached(folder / "r.duckdb", "slow"))
    order = ["task", "test", "method", "pillar", "indicator", "metric"]
    one, several = (
        metrics(p).drop(columns="run_id").sort_values(order, ignore_index=True)
        for p in (whole, folder / "r.duckdb")
    )
    pd.testing.assert_frame_equal(one, several)
    log, alone = asked(folder), asked(whole.parent)
    assert log["pid"].nunique() == workers and alone["pid"].nunique() == 1
    assert set(log["threads"]) == {str(6 // workers)}
    assert sorted(log.loc[log["kind"] == "score", "prompt"]) == sorted(
        set(alone.loc[alone["kind"] == "score", "prompt"])
    )
    run = store.query(
        folder / "r.duckdb", "SELECT n_scored, n_cached, n_failed, n_prompts_planned FROM runs"
    ).iloc[0]
    assert (run["n_scored"], run["n_cached"], run["n_failed"]) == (run["n_prompts_planned"], 0, 0)
    counts = 'FROM timings SELECT task, phase, "view", cells, prompts, cached, untimed, tokens'
    of_one, of_three = (
        store.query(p, f"{counts} ORDER BY ALL") for p in (whole, folder / "r.duckdb")
    )
    pd.testing.assert_frame_equal(of_one, of_three)
    assert len(of_one) and not of_one["cached"].any(), "the seconds of every worker are this run's"


@pytest.mark.slow
def test_a_killed_engine_is_replaced_and_its_rest_is_scored(
    tiny_benchmark: Path, folder: Path, whole: Path
) -> None:
    process = start(
        tiny_benchmark, folder / "r.duckdb", 2, slow_planted(folder, engines=3)
    )  # the third replaces the second
    until(lambda: asked(folder)["pid"].nunique() == 2)
    first, second = children(process.pid, ENGINE)
    os.kill(second, signal.SIGKILL)
    said = finish(process)
    assert "SIGKILL" in said and " 0 failed" in said
    same(cached(whole, "slow"), cached(folder / "r.duckdb", "slow"))
    log = asked(folder)
    assert log["pid"].nunique() == 3 and {str(first), str(second)} < set(log["pid"])
    scored = log.loc[log["kind"] == "score", "prompt"]
    assert len(scored) - scored.nunique() <= BATCH, "only the chunk in flight is asked again"
    assert not list(folder.rglob("in_flight*"))


@pytest.mark.long
def test_the_number_of_engines_may_change_after_a_kill_of_the_parent(
    tiny_benchmark: Path, folder: Path, whole: Path
) -> None:
    environment, results = slow_planted(folder, 0.05), folder / "r.duckdb"
    for workers in (3, 1, 2):
        process = start(tiny_benchmark, results, workers, environment)
        seen = len(asked(folder))
        until(lambda seen=seen: len(asked(folder)) > seen + 100)  # type: ignore[misc]
        orphans = children(process.pid, ENGINE)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=900)
        assert end(orphans), "they work on without their parent"
    finish(start(tiny_benchmark, results, 2, environment))
    same(cached(whole, "slow"), cached(results, "slow"))
    scored = asked(folder).loc[lambda t: t["kind"] == "score", "prompt"]
    assert len(scored) - scored.nunique() <= (3 + 1 + 2) * BATCH, (
        "finished prompts are never scored again"
    )


def test_an_engine_that_cant_be_loaded_is_one_line(tiny_benchmark: Path, folder: Path) -> None:
    add_model(folder, "gone", backend="hf", repo="local:nowhere")
    words = refused(
        5,
        "evaluate",
        "gone",
        "--benchmark",
        tiny_benchmark,
        "--results",
        folder / "r.duckdb",
        "--workers",
        2,
        registry=folder,
    )
    assert "config.json" in words


def test_an_endpoint_has_one_engine(tiny_benchmark: Path, folder: Path) -> None:
    add_model(
        folder,
        "hosted",
        backend="api",
        repo="m",
        options={"api_key_env": "NOT_SET", "base_url": "http://127.0.0.1:9/v1"},
    )
    command = (
        "evaluate",
        "hosted",
        "--benchmark",
        tiny_benchmark,
        "--results",
        folder / "r.duckdb",
    )
    assert "options.concurrency" in refused(2, *command, "--workers", 2, registry=folder)
    assert "options.concurrency" in refused(2, *command, "--ray", "auto", registry=folder)
    assert "options.concurrency" in refused(2, *command, "--part", "1/2", registry=folder)
    assert "give I/N with I from 1 to N" in refused(2, *command, "--part", "3/2", registry=folder)


def test_a_part_is_scored_and_not_published(tiny_benchmark: Path, folder: Path) -> None:
    where = ("--benchmark", tiny_benchmark, "--results", folder / "r.duckdb", "--passes", "none")
    said = ok("evaluate", "slow", *where, "--part", "2/2", registry=folder)
    assert "part 2/2" in said and " 0 failed. Next: the other parts, then the same" in said
    assert not store.run_ids(folder / "r.duckdb")
    (shards,) = (folder / "scores" / "slow").iterdir()
    assert any(shards.glob("scores-*.parquet")) and any(shards.glob("generations-*.parquet"))
