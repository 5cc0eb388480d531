"""A night that is killed leaves nobody at work, however early in its child's life."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from sdgbias import store
from sdgbias.files import json_object
from tests.builders.commands import REPOSITORY, add_model, environment
from tests.builders.processes import end

NIGHT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from sdgbias.nightly import process
    benchmark, results = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    process.run(
        [sys.executable, "-m", "sdgbias.cli", "evaluate", "planted", "--benchmark", benchmark,
         "--results", results, "--draws", "200", "--outcome", results + ".json"],
        Path(results + ".log"),
        0,
    )
""")


@pytest.mark.slow
@pytest.mark.parametrize("after_ms", [0, 200])
def test_the_child_of_a_killed_night_ends_and_publishes_nothing(
    after_ms: int, small_benchmark: Path, tmp_path: Path
) -> None:
    results = tmp_path / "r.duckdb"
    add_model(tmp_path, "planted")
    night = subprocess.Popen(
        [sys.executable, "-c", NIGHT, str(small_benchmark), str(results)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment(tmp_path),
    )
    assert night.stdin is not None and night.stdout is not None
    night.stdout.readline()
    night.stdin.write(b"go\n")
    night.stdin.flush()
    begun: list[psutil.Process] = []
    while not begun and night.poll() is None:
        begun = psutil.Process(night.pid).children()
    time.sleep(after_ms / 1000)
    night.kill()
    night.communicate()
    [child] = begun
    left = [child.pid]
    if child.is_running():
        left += [process.pid for process in child.children(recursive=True)]
    # much sooner than the evaluation would end by itself, which would publish
    assert end(left), (tmp_path / "r.duckdb.log").read_text()
    outcome = json_object(tmp_path / "r.duckdb.json")  # room for it is reserved at once
    assert outcome == {}
    with store.connect(results):  # the child may have left it without tables
        pass
    assert store.run_ids(results) == []


PROGRAM = textwrap.dedent("""
    import atexit, sys, threading, time
    from sdgbias import exits
    class Module:
        def __del__(self): print("taken apart")
    kept = Module()
    def work():
        time.sleep(0.2)
        print("thread")
    with exits.quick_exit():
        atexit.register(print, "at exit")
        threading.Thread(target=work).start()
        {end}
""")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(6)", 6),
        ("sys.exit('why')", 1),
        ("raise ValueError('why')", 1),
    ],
)
def test_a_program_ends_in_order_and_leaves_its_modules(end: str, code: int) -> None:
    program = [sys.executable, "-c", PROGRAM.format(end=end)]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split("\n")) == (code, ["thread", "at exit", ""])
    assert ("why" in done.stderr) == ("why" in end)


def test_output_that_cannot_be_written_is_no_success() -> None:
    program = [sys.executable, "-c", PROGRAM.format(end="pass")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, cwd=REPOSITORY, env=buffered, stdout=full, check=False)
    assert done.returncode == 1


def test_the_last_lines_of_a_program_may_have_no_reader() -> None:
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-c", PROGRAM.format(end="print('last')")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(program, cwd=REPOSITORY, env=buffered, stdout=write, check=False)
    os.close(write)
    assert done.returncode == 141
