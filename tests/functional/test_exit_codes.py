"""Each exit code of a command in a process of its own, which imports everything itself: what the
other tests start is a fork of a process that has imported it (tests/builders/forked.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import errors
from tests.builders import forked
from tests.builders.commands import REPOSITORY, add_model, environment, refused, sdgbias


@pytest.mark.parametrize(
    ("code", "arguments", "word"),
    [
        (2, ("sample", "--out", "x", "--countries", "XX"), "XX"),
        (3, ("build", "--raw", "nowhere", "--out", "x"), "nowhere"),
        (4, ("evaluate", "nobody"), "unknown model 'nobody'"),
        (7, ("results", "--results", "nowhere.duckdb"), "nowhere.duckdb"),
        (9, ("suite", "check", "empty"), "1 fault"),
    ],
)
def test_a_refusal_is_one_line_and_its_code(
    code: int, arguments: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "registry" / "models").mkdir(parents=True)
    line = refused(code, *arguments, cwd=tmp_path, registry=tmp_path, alone=True)
    assert word in line
    assert refused(code, *arguments, cwd=tmp_path, registry=tmp_path) == line, (
        "a fork says the same"
    )
    given = forked.nested(environment(tmp_path))
    program = [given["PYTEST_CLI"], *arguments]  # as another command starts it
    done = subprocess.run(program, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert done.returncode == code and line in done.stderr.splitlines()


@pytest.mark.parametrize(
    ("given", "word"), [("./nowhere", "no such folder"), ("./empty", "config")]
)
def test_a_wrong_folder_is_named_before_engines_are_imported(
    given: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "registry" / "models").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    done = sdgbias("evaluate", "planted", given, cwd=tmp_path, registry=tmp_path, alone=True)
    assert done.returncode == 4
    *imports, line = done.stderr.splitlines()
    assert "unknown model 'planted'" in line
    add_model(tmp_path, "planted")
    done = sdgbias("evaluate", "planted", given, cwd=tmp_path, registry=tmp_path, alone=True)
    *imports, line = done.stderr.splitlines()
    assert done.returncode == 4 and line.startswith("error: ") and word in line
    modules = {entry.rpartition("|")[2].strip() for entry in imports}
    assert "sdgbias.registry.propose" in modules
    assert not {"torch", "transformers", "pandas"} & modules


def test_the_codes_of_a_scoring(tiny_benchmark: Path, tmp_path: Path) -> None:
    """5: the model can't be loaded; 8: nothing could be scored."""
    add_model(tmp_path, "gone", backend="hf", repo="local:nowhere")
    add_model(tmp_path, "nan", options={"noise": float("nan")})
    for model, code in (("gone", 5), ("nan", 8)):
        command = ("--benchmark", tiny_benchmark, "--results", tmp_path / "r.duckdb")
        command = (*command, "--passes", "none")
        refused(code, "evaluate", model, *command, registry=tmp_path, alone=True)


def test_the_code_of_the_quality_gate(tiny_benchmark: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_benchmark, tmp_path / "b"))
    clusters = pd.read_parquet(folder / "clusters.parquet")
    pd.concat([clusters, clusters[:1]]).to_parquet(folder / "clusters.parquet", index=False)
    line = refused(10, "build", "--stage", "check", "--out", folder, alone=True)
    assert "cluster-id-unique" in line


OF_THE_MACHINE = {
    "full output": (7, "models > /dev/full", "can't be written (No space left on device)"),
    "closed output": (7, "models >&-", "standard output is closed"),
    "little memory": (8, "results > /dev/null", "out of memory"),
}


@pytest.mark.parametrize("case", OF_THE_MACHINE)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_given_a_machine_at_its_limits_then_one_line_says_so(case: str, unbuffered: str) -> None:
    code, arguments, words = OF_THE_MACHINE[case]
    limit = "ulimit -v 100000; " if case == "little memory" else ""
    done = subprocess.run(
        ["bash", "-c", f"{limit}{sys.executable} -m sdgbias.cli {arguments}"],
        cwd=REPOSITORY,
        env=environment() | {"PYTHONUNBUFFERED": unbuffered, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and words in line


def test_given_a_pipe_as_results_file_then_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in refused(7, "results", "--results", tmp_path / "pipe", alone=True)


def test_given_a_question_mark_in_the_path_then_nothing_is_scored(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "planted")
    where = ("--benchmark", tiny_benchmark, "--results", tmp_path / "what?" / "r.duckdb")
    line = refused(2, "evaluate", "planted", *where, registry=tmp_path, alone=True)
    assert "what?" in line and not (tmp_path / "what?").exists()


def test_given_a_pipe_as_table_then_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mcq_T1.csv")
    command = ("cade", "search", "--pred-dir", tmp_path, "--task", "mcq", "--level", "T1")
    line = refused(3, *command, "--out", tmp_path / "out", alone=True)
    assert "mcq_T1.csv: no regular file" in line


def test_each_kind_of_error_has_its_own_code_and_row_in_the_docs() -> None:
    kinds = errors.SdgbiasError.__subclasses__()
    codes = [kind.exit_code for kind in kinds]
    assert sorted(codes) == sorted(set(codes))
    rows = (REPOSITORY / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
    assert [code for code in codes if f"\n| {code} | " not in rows] == []


def test_the_help() -> None:
    done = sdgbias("--help", alone=True)
    assert done.returncode == 0 and "Usage: " in done.stdout
    assert sdgbias("--help").stdout == done.stdout


def test_the_garbage_collector_seldom_walks_what_stays() -> None:
    """A command that imports torch starts and ends a second of CPU sooner."""
    program = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_threshold()[0] > 10_000));"
        " sys.argv[1:] = ['--version']; from sdgbias.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.split()[-1] == "True", done.stdout + done.stderr
