"""What the command line refuses: an exit code and one line each, which names the file or value at
fault and, where there is one, the next command. The lines are in refusals.yaml; after rewording
one, write the file anew: pytest tests/functional/test_refusals.py --write-golden."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from sdgbias import errors, settings
from tests.builders.commands import REPOSITORY, add_model, environment, refused, sdgbias
from tests.builders.results import publish_fake

GOLDEN = Path(__file__).with_name("refusals.yaml")
CASES: dict[str, dict[str, Any]] = yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, small_benchmark: Path) -> Path:
    """A folder with a registry, a benchmark, results of two planted models, and some rubbish."""
    folder = tmp_path_factory.mktemp("world")
    add_model(folder, "m", options={"suites": ["sdg", "people"]})
    add_model(folder, "shy", state="candidate", reason="not looked at")
    publish_fake(folder / "results" / "r.duckdb")
    (folder / "benchmark").symlink_to(small_benchmark)
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    os.mkfifo(folder / "pipe")
    (folder / "tables").mkdir()
    os.mkfifo(folder / "tables" / "mcq_T1.csv")
    for name, text in {
        "key": 'result = "a"',
        "colour": 'colour = "a"',
        "number": "results = 3",
        "blank": 'raw = " "',
        "home": 'raw = "~nobody-of-this-name/raw"',
        "null": r'raw = "a\u0000b"',
        "broken": "results = a b",
    }.items():
        (folder / f"toml-{name}").mkdir()
        (folder / f"toml-{name}" / settings.NAME).write_text(text)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_is_one_line_and_its_exit_code(
    world: Path, case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in settings.KEYS.values():
        monkeypatch.delenv(variable, raising=False)
    given = CASES[case]

    line = refused(
        given["code"], given["command"], cwd=world / given.get("folder", ""), registry=world
    )

    line = line.removeprefix("error: ").replace(str(world), "FOLDER")
    line = line.replace(datetime.now(UTC).date().isoformat(), "TODAY")
    if request.config.getoption("--write-golden"):
        given["line"] = line
        text = yaml.safe_dump(CASES, sort_keys=False, width=96, allow_unicode=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert line == given["line"], f"sdgbias {given['command']}: another line (--write-golden)"


def test_each_kind_of_error_has_its_own_code_and_row_in_the_docs() -> None:
    kinds = errors.SdgbiasError.__subclasses__()
    codes = [kind.exit_code for kind in kinds]
    assert sorted(codes) == sorted(set(codes))
    rows = (REPOSITORY / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
    assert [code for code in codes if f"\n| {code} | " not in rows] == []


def test_a_refused_command_writes_nothing(world: Path) -> None:
    assert not {"x", "o", "b", "what?"} & {path.name for path in world.iterdir()}


# -- in processes of their own, which import everything themselves

OF_THE_MACHINE = {
    "full output": (7, "", "models > /dev/full", "can't be written (No space left on device)"),
    "full output, unbuffered": (7, "1", "models > /dev/full", "can't be written (No space left"),
    "closed output": (7, "", "models >&-", "standard output is closed"),
    "room for a part": (7, "", "models --json > {new}", "can't be written (File too large)"),
    "room for a part, unbuffered": (
        7,
        "1",
        "models --json > {new}",
        "can't be written (File too large)",
    ),
    "little memory": (8, "", "results > /dev/null", "out of memory"),
    "few files": (8, "", "results", "ulimit -n 1024"),
}


@pytest.mark.parametrize("case", OF_THE_MACHINE)
def test_a_machine_at_its_limits_is_named_in_one_line(case: str, tmp_path: Path) -> None:
    code, unbuffered, arguments, words = OF_THE_MACHINE[case]
    arguments = arguments.format(new=tmp_path / "new")
    limits = {"little memory": "ulimit -v 100000; ", "room": "ulimit -f 1; "}
    limits["few files"] = "ulimit -n 12; "
    limit = next((limit for name, limit in limits.items() if case.startswith(name)), "")
    done = subprocess.run(
        ["bash", "-c", f"{limit}{sys.executable} -m sdgbias.cli {arguments}"],
        cwd=REPOSITORY,
        env=environment() | {"PYTHONUNBUFFERED": unbuffered, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and words in line


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_reader_is_gone_ends_as_other_tools_do(unbuffered: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sdgbias.cli models | true; exit ${{PIPESTATUS[0]}}"],
        cwd=REPOSITORY,
        env=environment() | {"PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_process_of_its_own_is_refused_with_the_same_line_and_code(world: Path) -> None:
    given = CASES["evaluate: unknown model"]

    line = refused(given["code"], given["command"], cwd=world, registry=world, alone=True)

    assert line == f"error: {given['line']}"


@pytest.mark.parametrize(
    ("folder", "words"), [("./nowhere", "no such folder"), ("./empty", "config")]
)
def test_a_wrong_folder_is_named_before_engines_are_imported(
    world: Path, folder: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")

    done = sdgbias(f"evaluate m {folder}", cwd=world, registry=world, alone=True)

    *imports, line = done.stderr.splitlines()
    assert done.returncode == 4 and line.startswith("error: ") and words in line
    modules = {entry.rpartition("|")[2].strip() for entry in imports}
    assert "sdgbias.registry.propose" in modules
    heavy = {"torch", "transformers", "pandas", "numpy", "huggingface_hub"}
    assert not heavy & modules


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
