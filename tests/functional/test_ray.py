"""A plan on a real Ray cluster of two nodes on this machine: the rows of a local run, also when one
node dies on the way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from tests.builders.commands import REPOSITORY, add_model, ok, refused
from tests.builders.ray_nodes import ADDRESS, NoNamespace, TwoNodes
from tests.builders.slow_engine import asked, cached, slow_planted

BATCH = 16


def evaluate(benchmark: Path, results: Path, *more: str) -> list[str]:
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
    return [*command, "--draws", "50", "--passes", "none", *more]


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert "Traceback" not in err, err
    return out


def until(true: Callable[[], bool], seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'sdgbias[ray]'")
    folder = tmp_path_factory.mktemp("cluster")
    add_model(folder, "slow", batch_size=BATCH)
    try:
        nodes = TwoNodes(folder, slow_planted(folder, 0.05, engines=2))
    except NoNamespace as reason:
        pytest.skip(f"no network namespace of its own for Ray: {reason}")
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def local(
    cluster: TwoNodes, tiny_benchmark: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, pd.DataFrame]:
    """The rows of a run without Ray."""
    results = tmp_path_factory.mktemp("local") / "r.duckdb"
    ok(*evaluate(tiny_benchmark, results)[3:], registry=cluster.folder)
    return cached(results, "slow")


@pytest.mark.long
def test_both_nodes_give_the_rows_of_a_local_run(
    cluster: TwoNodes, tiny_benchmark: Path, local: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    process = cluster.run(*evaluate(tiny_benchmark, tmp_path / "r.duckdb", "--ray", ADDRESS))
    assert " 0 failed" in finish(process)
    for kind, rows in cached(tmp_path / "r.duckdb", "slow").items():
        pd.testing.assert_frame_equal(rows, local[kind])
    scored = asked(cluster.folder).query("kind == 'score'")
    assert scored["pid"].nunique() == 2 and len(scored) == scored["prompt"].nunique()


@pytest.mark.slow
def test_a_node_killed_on_the_way_changes_nothing(
    cluster: TwoNodes, tiny_benchmark: Path, local: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    before = set(asked(cluster.folder)["pid"])
    process = cluster.run(*evaluate(tiny_benchmark, tmp_path / "r.duckdb", "--ray", ADDRESS))
    until(lambda: len(set(asked(cluster.folder)["pid"]) - before) == 2)
    cluster.kill("NODE=1")
    assert " 0 failed" in finish(process)
    for kind, rows in cached(tmp_path / "r.duckdb", "slow").items():
        pd.testing.assert_frame_equal(rows, local[kind])
    run = store.query(
        tmp_path / "r.duckdb", "SELECT n_scored, n_failed, n_prompts_planned FROM runs"
    ).iloc[0]
    assert (run["n_scored"], run["n_failed"]) == (run["n_prompts_planned"], 0)


@pytest.mark.long
def test_without_the_option_nothing_of_ray_is_imported(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "left")
    code = textwrap.dedent("""
        import sys
        from sdgbias.cli import app
        app(sys.argv[1:], standalone_mode=False)
        print("ray modules:", sorted(m for m in sys.modules if m == "ray" or m.startswith("ray.")))
    """)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "evaluate",
            "left",
            "--benchmark",
            str(tiny_benchmark),
            "--results",
            str(tmp_path / "r.duckdb"),
            "--draws",
            "50",
            "--workers",
            "2",
        ],
        env=slow_planted(tmp_path, 0.0),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ray modules: []" in done.stdout, done.stderr


def test_an_address_without_a_cluster_is_one_line_in_a_bounded_time(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "left")
    command = (
        "evaluate",
        "left",
        "--benchmark",
        tiny_benchmark,
        "--results",
        tmp_path / "r.duckdb",
        "--ray",
    )
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        words = refused(8, *command, f"127.0.0.1:{unused.getsockname()[1]}", registry=tmp_path)
    assert "no Ray cluster answers" in words and "ray start" in words
    assert "HOST:PORT" in refused(2, *command, "somewhere", registry=tmp_path)


def test_without_ray_the_install_command_is_named(
    tiny_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path, "left")
    (tmp_path / "hidden" / "ray").mkdir(parents=True)
    (tmp_path / "hidden" / "ray" / "__init__.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", "")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'hidden')!r}, {str(REPOSITORY)!r}]; from"
        " sdgbias.cli import main; main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "evaluate",
            "left",
            "--benchmark",
            str(tiny_benchmark),
            "--results",
            str(tmp_path / "r.duckdb"),
            "--ray",
            "auto",
        ],
        env={**os.environ, "SDGBIAS_REGISTRY": str(tmp_path)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 2
        and "pip install 'sdgbias[ray]'" in done.stderr
        and "Traceback" not in done.stderr
    ), done.stderr
